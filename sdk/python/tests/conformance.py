"""Speaks the protocol of the conformance kit (sdk/conformance/README.md) with the client named: sync or aio."""

import asyncio
import base64
import json
import logging
import os
import sys
import threading
from collections import defaultdict
from typing import Any

import grpc

import jobonce
import jobonce.aio

logging.getLogger("jobonce").addHandler(logging.NullHandler())
logging.getLogger("jobonce").propagate = False
COMPRESSION = grpc.Compression.Gzip if os.environ.get("COMPRESSION") == "gzip" else None
RETRY = jobonce.Retry(max_attempts=int(os.environ["ATTEMPTS"])) if "ATTEMPTS" in os.environ else jobonce.Retry()
printing = threading.Lock()


def report(**line: Any) -> None:
    with printing:
        print(json.dumps(line), flush=True)


def describe(error: BaseException) -> dict[str, Any]:
    if not isinstance(error, jobonce.JobOnceError):
        return {"message": repr(error), "reason": ""}
    return {
        "code": error.code.name,
        "reason": error.reason,
        "field": error.field,
        "outcome_unknown": error.outcome_unknown,
        "request_id": error.request_id != "",
        "retry_after_seconds": error.retry_after,
        "message": str(error),
    }


def answered(r: Any) -> dict[str, Any]:
    known = r.disposition in jobonce.Disposition.values()
    return {
        "disposition": jobonce.Disposition.Name(r.disposition).removeprefix("DISPOSITION_") if known else str(r.disposition),
        "start_work": r.start_work,
        "deliveries": r.deliveries,
        "lease": r.HasField("lease"),
        "result": r.result,
    }


def done(r: jobonce.DoResult) -> dict[str, Any]:
    result: dict[str, Any] = {"settled": r.settled, "ran": r.ran, "retry_after_seconds": r.retry_after}
    if r.error is not None:
        result["error"] = describe(r.error)
    return result


def got(job: jobonce.Job) -> dict[str, Any]:
    return {"deliveries": job.deliveries, "body": (jobonce.body_of(job) or b"").decode()}


def arguments(args: dict[str, Any]) -> tuple[dict[str, Any], float | None, int]:
    delivery: dict[str, Any] = {name: args[name] for name in ("job_id", "body", "event", "mode") if name in args}
    if "body_base64" in args:
        delivery["body"] = base64.b64decode(args["body_base64"])
    if "lease_seconds" in args:
        delivery["lease"] = args["lease_seconds"]
    if "wait_seconds" in args:
        delivery["wait"] = args["wait_seconds"]
    return delivery, args.get("timeout_seconds"), args.get("concurrency", 1)


def ended(args: dict[str, Any]) -> str | None:
    """What the function for the work does in the end."""
    if args.get("permanent"):
        raise jobonce.PermanentError(args["error"])
    if "error" in args:
        raise RuntimeError(args["error"])
    result: str | None = args.get("result")
    return result


class SyncTask:
    def __init__(self, command: dict[str, Any], client: jobonce.Client) -> None:
        self.id, self.op, self.args, self.client = command["id"], command["op"], command.get("args") or {}, client
        self.finished: dict[str, tuple[threading.Event, dict[str, Any]]] = defaultdict(lambda: (threading.Event(), {}))
        self.worker: jobonce.Worker | None = None

    def finish(self, args: dict[str, Any]) -> None:
        event, told = self.finished[args["job_id"]]
        told.update(args)
        event.set()

    def stop(self) -> None:
        assert self.worker
        self.worker.stop()

    def work(self, work: jobonce.Work) -> str | None:
        job_id = work.job.job_id
        event, told = self.finished[job_id]
        report(id=self.id, event="working", job_id=job_id)
        while not event.wait(0.02):
            if work.stopped.is_set():
                report(id=self.id, event="stopped", job_id=job_id)
                event.wait()
        return ended(told)

    def run(self) -> None:
        delivery, timeout, concurrency = arguments(self.args)
        try:
            match self.op:
                case "record":
                    result = answered(self.client.record(timeout=timeout, **delivery))
                case "get":
                    result = got(self.client.get(delivery["job_id"], body=True, timeout=timeout))
                case "do":
                    result = done(self.client.do(self.work, timeout=timeout, **delivery))
                case "work":
                    self.worker = jobonce.Worker(self.client, self.work, concurrency=concurrency, lease=delivery["lease"])
                    self.worker.run()
                    result = {}
                case "requeue":
                    result = {"changed": self.client.requeue(self.client.get(delivery["job_id"]), timeout=timeout)}
                case "close":
                    self.client.close()
                    result = {}
            report(id=self.id, result=result)
        except Exception as error:
            report(id=self.id, error=describe(error))


def sync() -> None:
    clients: dict[str, jobonce.Client] = {}
    tasks: dict[int, SyncTask] = {}
    for line in sys.stdin:
        command = json.loads(line)
        task = tasks.get(command["id"])
        match command["op"]:
            case "finish" if task:
                task.finish(command["args"])
            case "stop" if task:
                task.stop()
            case "cancel" if task:
                # A thread that waits for an answer can be ended with its client alone.
                task.client.close()
            case _:
                target = command["target"]
                if target not in clients:
                    clients[target] = jobonce.Client(target, compression=COMPRESSION, retry=RETRY)
                task = tasks[command["id"]] = SyncTask(command, clients[target])
                threading.Thread(target=task.run, daemon=True).start()


class AsyncTask:
    def __init__(self, command: dict[str, Any], client: jobonce.aio.Client) -> None:
        self.id, self.op, self.args, self.client = command["id"], command["op"], command.get("args") or {}, client
        self.finished: dict[str, asyncio.Future[dict[str, Any]]] = defaultdict(asyncio.get_running_loop().create_future)
        self.task: asyncio.Task[None] | None = None

    async def work(self, work: jobonce.aio.Work) -> str | None:
        job_id = work.job.job_id
        report(id=self.id, event="working", job_id=job_id)
        finished = self.finished[job_id]
        try:
            told = await asyncio.shield(finished)
        except asyncio.CancelledError:
            report(id=self.id, event="stopped", job_id=job_id)
            told = await finished
        return ended(told)

    async def run(self) -> None:
        delivery, timeout, concurrency = arguments(self.args)
        result: dict[str, Any] = {}
        try:
            match self.op:
                case "record":
                    result = answered(await self.client.record(timeout=timeout, **delivery))
                case "get":
                    result = got(await self.client.get(delivery["job_id"], body=True, timeout=timeout))
                case "do":
                    result = done(await self.client.do(self.work, timeout=timeout, **delivery))
                case "work":
                    await jobonce.aio.Worker(self.client, self.work, concurrency=concurrency, lease=delivery["lease"]).run()
                case "requeue":
                    job = await self.client.get(delivery["job_id"])
                    result = {"changed": await self.client.requeue(job, timeout=timeout)}
                case "close":
                    await self.client.close()
            report(id=self.id, result=result)
        except asyncio.CancelledError:
            if self.op == "work":
                report(id=self.id, result={})
            else:
                report(id=self.id, error={"code": "CANCELLED", "reason": ""})
        except Exception as error:
            report(id=self.id, error=describe(error))


async def aio() -> None:
    clients: dict[str, jobonce.aio.Client] = {}
    tasks: dict[int, AsyncTask] = {}
    lines = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        command = json.loads(line)
        task = tasks.get(command["id"])
        match command["op"]:
            case "finish" if task:
                task.finished[command["args"]["job_id"]].set_result(command["args"])
            case "stop" | "cancel" if task and task.task:
                task.task.cancel()
            case _:
                target = command["target"]
                if target not in clients:
                    clients[target] = jobonce.aio.Client(target, compression=COMPRESSION, retry=RETRY)
                task = tasks[command["id"]] = AsyncTask(command, clients[target])
                task.task = asyncio.create_task(task.run())


if sys.argv[1] == "aio":
    asyncio.run(aio())
else:
    sync()
