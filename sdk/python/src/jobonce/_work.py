"""What the two clients share about deliveries and work: requests, and what follows from answers."""

from __future__ import annotations

import inspect
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import grpc
from google.protobuf.duration_pb2 import Duration

from jobonce.errors import NotStarted, PayloadTooLarge, PermanentError, RetryLater, invalid
from jobonce.v1 import admin_service_pb2 as admin
from jobonce.v1 import idempotency_service_pb2 as idempotency
from jobonce.v1 import types_pb2 as types
from jobonce.v1 import work_service_pb2 as work_service

Mode = Literal["untracked", "leased", "queued"]
"""Who does the work: whoever is told to start it, the same under a lease, or workers that claim it."""

DEFAULT_LEASE = 60.0
"""How long a lease runs at first and from each renewal on, in seconds. After a crash nobody starts the work before its end."""

MIN_RENEW_PAUSE = 0.1
"""The shortest pause between two renewals, but for the last one before the end, in seconds."""

_MODES: dict[str, types.WorkMode] = {
    "untracked": types.WORK_MODE_UNTRACKED,
    "leased": types.WORK_MODE_LEASED,
    "queued": types.WORK_MODE_QUEUED,
}
_MAX_BODY = 3 << 20
"""What no service takes more of, whatever its operator allows: what is far over it gRPC refuses without a reason."""
_MAX_RESULT = 64 << 10
_MAX_ERROR = 4 << 10
_MAX_DELAY = 86400.0


class Delivery(TypedDict, total=False):
    """One delivery of a webhook. What is absent is left to the service; the fields are those of RecordDeliveryRequest."""

    body: bytes | str
    """The body, as received. Bytes that are UTF-8 are sent as text, which the service reads job_id, event and status from."""
    job_id: str
    event: str
    status: str
    opaque_payload: bool
    request_id: str
    """Names this call over all its attempts. The client makes one when there is none."""
    lease: float
    """How long the lease runs, in seconds: 1 to 86,400. Required with the mode leased, an error with any other."""
    wait: float
    """How long to wait, in seconds and at most 60, for work that somebody else is at, or that waits for somebody, to be done. It comes
    on top of the timeout. Default 0: the answer comes at once."""
    source: str
    content_type: str
    traceparent: str
    payload_omitted_bytes: int


class RecordOptions(Delivery, total=False):
    """What `record` takes."""

    mode: Mode


def leased_request(delivery: Delivery) -> tuple[idempotency.RecordDeliveryRequest, float]:
    """The request of a delivery whose work is done under a lease, and how long that runs."""
    if dict(delivery).get("mode", "leased") != "leased":
        raise invalid("work_mode", "the mode of work under a lease is leased")
    lease = delivery.get("lease", DEFAULT_LEASE)
    return record_request({**delivery, "mode": "leased", "lease": lease}), lease


@dataclass
class DoResult:
    """What became of a delivery that was given to `do`: what a webhook frontend needs to know to answer its provider."""

    settled: bool
    """True when the job needs no further delivery, because its work is done, was given up, or is not tracked: answer with a 2xx. When
    false, answer with a 503 and Retry-After: the work has yet to be done, and another delivery may be what starts it."""
    retry_after: int
    """When the next delivery is likely to find the work done or free: whole seconds, at least one. 0 when settled."""
    ran: bool
    """True when this call ran the function."""
    response: idempotency.RecordDeliveryResponse
    """The service's answer to the delivery: how the job stood before the function ran."""
    error: BaseException | None = None
    """Why the work was not done or not started, or it or its result could not be told to the service. None when nothing went wrong."""


@dataclass
class Ended:
    """What became of work."""

    ran: bool
    settled: bool = False
    """The work is completed or given up, and the service knows it."""
    delay: float = 0.0
    """How long the work is left alone now that it was given back, in seconds."""
    error: BaseException | None = None

    def result(self, response: idempotency.RecordDeliveryResponse) -> DoResult:
        return DoResult(self.settled, 0 if self.settled else whole_seconds(self.delay), self.ran, response, self.error)


def default_backoff(attempts: int) -> float:
    """How long work that failed is left alone, in seconds, given how many leases the job has had, this one included.

    2 seconds at first, twice as long each time, an hour at most.
    """
    return 3600.0 if attempts > 11 else float(2 ** max(0, attempts))


def give_back(failure: BaseException, backoff: Callable[[int], float], job: types.Job, stopped: bool) -> dict[str, Any]:
    """How work that failed is given back: the arguments of `release`. stopped: because somebody wanted to, which is not the job's fault."""
    if isinstance(failure, NotStarted):
        return {"not_started": True}
    if isinstance(failure, PermanentError):
        return {"error": storable(failure), "dead": True}
    delay = 0.0 if stopped else backoff(job.work.attempts)
    asked = failure.delay if isinstance(failure, RetryLater) else 0.0
    return {"error": storable(failure), "retry_delay": min(max(0.0, delay, asked), _MAX_DELAY)}


def body_of(job: types.Job) -> bytes | None:
    """The body of a job, the same bytes that were recorded. None when there is none, or it was not asked for."""
    match job.WhichOneof("body"):
        case "payload":
            return job.payload.encode()
        case "payload_bytes":
            return job.payload_bytes
    return None


def record_request(delivery: RecordOptions) -> idempotency.RecordDeliveryRequest:
    fields = dict(delivery)
    body, mode, lease = fields.pop("body", None), fields.pop("mode", None), fields.pop("lease", None)
    wait = fields.pop("wait", 0.0)
    check_texts(**fields)
    request = idempotency.RecordDeliveryRequest(**fields)  # type: ignore[arg-type]
    request.request_id = request.request_id or new_request_id()
    if isinstance(body, str):
        check_texts(payload=body)
        body = body.encode()
    if isinstance(body, bytes):
        if len(body) > _MAX_BODY:
            raise PayloadTooLarge(
                f"INVALID_ARGUMENT PAYLOAD_TOO_LARGE: the body is {len(body)} bytes; a service takes bodies of at most {_MAX_BODY}",
                code=grpc.StatusCode.INVALID_ARGUMENT,
                reason="PAYLOAD_TOO_LARGE",
                field="payload",
            )
        try:
            request.payload = body.decode()
        except UnicodeDecodeError:
            request.payload_bytes = body
    elif body is not None:
        raise TypeError(f"the body must be the raw body, as bytes or str, which nothing has parsed, and not {type(body).__name__}")
    if mode is not None:
        if mode not in _MODES:
            raise invalid("work_mode", f"the mode {mode!r} is none of {', '.join(_MODES)}")
        request.work_mode = _MODES[str(mode)]
    if isinstance(lease, (int, float)):
        request.lease_duration.CopyFrom(duration("lease_duration", lease))
    if isinstance(wait, (int, float)) and wait > 0:
        request.wait.CopyFrom(duration("wait", wait))
    return request


def get_request(job_id: str, body: bool) -> idempotency.GetJobRequest:
    check_texts(job_id=job_id)
    return idempotency.GetJobRequest(job_id=job_id, view=types.JOB_VIEW_FULL if body else types.JOB_VIEW_BASIC)


def claim_request(
    max_jobs: int, lease: float, events: Sequence[str], job_id_prefix: str, worker_id: str, wait: float, request_id: str
) -> work_service.ClaimWorkRequest:
    check_texts(events=events, job_id_prefix=job_id_prefix, worker_id=worker_id, request_id=request_id)
    return work_service.ClaimWorkRequest(
        max_jobs=max_jobs,
        lease_duration=duration("lease_duration", lease),
        events=events,
        job_id_prefix=job_id_prefix,
        worker_id=worker_id,
        wait=duration("wait", wait) if wait > 0 else None,
        request_id=request_id or new_request_id(),
    )


def renew_request(job_id: str, lease_token: str, lease: float) -> work_service.RenewLeaseRequest:
    check_texts(job_id=job_id, lease_token=lease_token)
    return work_service.RenewLeaseRequest(job_id=job_id, lease_token=lease_token, lease_duration=duration("lease_duration", lease))


def complete_request(job_id: str, lease_token: str, result: str) -> work_service.CompleteWorkRequest:
    check_texts(job_id=job_id, lease_token=lease_token, result=result)
    return work_service.CompleteWorkRequest(job_id=job_id, lease_token=lease_token, result=result)


def release_request(
    job_id: str, lease_token: str, retry_delay: float | None, error: str, dead: bool, not_started: bool
) -> work_service.ReleaseWorkRequest:
    check_texts(job_id=job_id, lease_token=lease_token, error=error)
    return work_service.ReleaseWorkRequest(
        job_id=job_id,
        lease_token=lease_token,
        retry_delay=None if retry_delay is None else duration("retry_delay", retry_delay),
        error=error,
        dead=dead,
        not_started=not_started,
    )


def requeue_request(job: types.Job, force: bool) -> admin.RequeueWorkRequest:
    return admin.RequeueWorkRequest(
        job_id=job.job_id,
        expected_generation=job.work.generation,
        expected_state=job.work.state,
        expected_first_seen_time=job.first_seen_time if job.HasField("first_seen_time") else None,
        force=force,
    )


def check_texts(**fields: object) -> None:
    """Refuses texts that are not Unicode, by the names that their fields have in the API."""
    for name, value in fields.items():
        for text in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(text, str) and not _is_text(text):
                raise invalid(name, f"{name} is not valid Unicode")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeError:
        return False
    return True


def new_request_id() -> str:
    return str(uuid.uuid4())


def duration(field: str, seconds: float) -> Duration:
    """A duration as the messages hold it."""
    if not math.isfinite(seconds):
        raise invalid(field, f"{field} is not a number of seconds")
    d = Duration()
    d.FromMilliseconds(round(seconds * 1000))
    return d


def seconds_of(d: Duration) -> float:
    return d.seconds + d.nanos / 1e9


def whole_seconds(seconds: float) -> int:
    return max(1, math.ceil(seconds))


def not_started(response: idempotency.RecordDeliveryResponse) -> DoResult:
    """What to answer where the work is not this caller's. A disposition that is not known counts as work that has yet to be done."""
    settled = response.disposition in (types.DISPOSITION_COMPLETED, types.DISPOSITION_DEAD, types.DISPOSITION_DUPLICATE)
    if settled:
        return DoResult(True, 0, False, response)
    job, left = response.job, 0.0
    if job.work.HasField("due_time") and job.HasField("last_seen_time"):
        # All are the store's times, and this very delivery was the latest.
        now = job.last_seen_time.ToMilliseconds() / 1000
        left = job.work.due_time.ToMilliseconds() / 1000 - now
        if response.disposition == types.DISPOSITION_IN_PROGRESS and job.HasField("first_seen_time"):
            # Waits that double ask seldom for long work and soon for short work.
            left = min(left, now - job.first_seen_time.ToMilliseconds() / 1000)
    return DoResult(False, whole_seconds(left), False, response)


def granted(response: idempotency.RecordDeliveryResponse, request: idempotency.RecordDeliveryRequest) -> DoResult | None:
    """Makes the job complete that this caller is to work on. A result says why it cannot."""
    if not response.lease.token or not response.job.job_id:
        error = RuntimeError(
            "the service says to start the work and grants no lease: was the job recorded before with this request_id and another mode?"
        )
        return DoResult(False, 1, False, response, error)
    if response.first_delivery and response.job.WhichOneof("body") is None:
        match request.WhichOneof("body"):
            case "payload":
                response.job.payload = request.payload
            case "payload_bytes":
                response.job.payload_bytes = request.payload_bytes
    return None


def check_work(work: object, *, awaited: bool) -> None:
    """Refuses what can do no work, before a job is recorded or claimed for it."""
    if not callable(work):
        raise TypeError("the work is not a function")
    if not awaited and inspect.iscoroutinefunction(work):
        raise TypeError("the work is a coroutine function, which nobody awaits here: it is for jobonce.aio")


def returned_by(work: object) -> object:
    """What work has returned that nobody awaits. A coroutine has done nothing."""
    if inspect.iscoroutine(work):
        work.close()
        raise TypeError("the work returned a coroutine, which nobody awaits here, and is not done: it is for jobonce.aio")
    return work


def result_of(returned: object) -> tuple[str, Exception | None]:
    """The result of work as the service takes it, and why what the function returned cannot be kept.

    What has been done must not be done again because of what it returned.
    """
    if returned is None:
        return "", None
    kept = "the work is done, and its result is not kept"
    if not isinstance(returned, str):
        return "", TypeError(f"{kept}: it is neither str nor None, but {type(returned).__name__}")
    if not _is_text(returned):
        return "", invalid("result", f"{kept}: it is not valid Unicode")
    size = len(returned.encode())
    if size > _MAX_RESULT:
        return "", invalid("result", f"{kept}: it is {size} bytes; the limit is {_MAX_RESULT}")
    return returned, None


def storable(error: BaseException) -> str:
    """An error as the service takes it for a text: at most 4 KiB of UTF-8, cut at a character."""
    text = str(error) or type(error).__name__
    return text.encode(errors="replace")[:_MAX_ERROR].decode(errors="ignore")
