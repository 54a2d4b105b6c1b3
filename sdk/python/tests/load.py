"""Makes 64 calls at a time until its input ends: each job is recorded twice, and must be started once.

Arguments: the target, and what the ids of the jobs begin with. It prints how many calls were answered, and in the end what was wrong.
"""

import json
import sys
import threading

import jobonce

client = jobonce.Client(sys.argv[1])
stopping, lock = threading.Event(), threading.Lock()
problems: list[str] = []
answered = 0


def call(job_id: str, start: bool) -> None:
    global answered
    problem = ""
    try:
        response = client.record(job_id=job_id, body='{"event":"job.completed"}')
        if response.start_work != start:
            problem = f"{job_id}: start_work is {response.start_work}"
    except jobonce.JobOnceError as error:
        problem = f"{job_id}: {error}"
    with lock:
        answered += 1
        if problem:
            problems.append(problem)
        if answered % 100 == 0:
            print(json.dumps({"answered": answered}), flush=True)


def caller(number: int) -> None:
    n = 0
    while not stopping.is_set():
        call(f"{sys.argv[2]}-{number}-{n}", True)
        call(f"{sys.argv[2]}-{number}-{n}", False)
        n += 1


callers = [threading.Thread(target=caller, args=(number,)) for number in range(64)]
for thread in callers:
    thread.start()
sys.stdin.read()
stopping.set()
for thread in callers:
    thread.join()
client.close()
print(json.dumps({"answered": answered, "problems": problems[:10], "ended": True}), flush=True)
