"""A worker: it claims what frontends record as queued, and does it.

    JOBONCE_TARGET=127.0.0.1:50051 python worker.py
"""

import json
import logging
import os
import signal

import jobonce

TARGET = os.environ.get("JOBONCE_TARGET", "127.0.0.1:50051")
TOKEN_FILE = os.environ.get("JOBONCE_TOKEN_FILE")


def work(work: jobonce.Work) -> str:
    """Does the work of one job.

    The same job may be worked on twice, when this process stalls or cannot reach the service: what it changes must bear that, or
    refuse a generation that is lower than one it has seen.
    """
    try:
        event = json.loads(work.body or b"")
    except ValueError as error:
        raise jobonce.PermanentError("the body is not JSON") from error  # No other try mends it: the job is dead.
    if work.stopped.is_set():
        raise RuntimeError("the lease is lost: somebody else may have started")
    print(f"{work.job.job_id}: {json.dumps(event)} (generation {work.generation})", flush=True)
    return "done"  # Later deliveries are told.


if __name__ == "__main__":
    logging.basicConfig()
    with jobonce.Client(TARGET, token_file=TOKEN_FILE) as client:
        worker = jobonce.Worker(client, work, concurrency=10, job_id_prefix="acme:")
        for number in signal.SIGTERM, signal.SIGINT:
            signal.signal(number, lambda *_: worker.stop())
        worker.run()
