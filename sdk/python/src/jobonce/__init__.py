"""Client of JobOnce, which tells webhook frontends whether to start the work of a job now.

    with jobonce.Client("127.0.0.1:50051") as client:
        answer = client.record(body=body, mode="queued")

`jobonce.aio` has the same for asyncio, `jobonce.webhook` the signatures of webhooks.
"""

from jobonce._connection import TLS, Retry
from jobonce._work import DEFAULT_LEASE, Delivery, DoResult, Mode, RecordOptions, body_of, default_backoff
from jobonce.client import Client, Work
from jobonce.errors import (
    ExpectationNotFound,
    InternalError,
    InvalidField,
    JobNotFound,
    JobOnceError,
    LeaseLost,
    NotStarted,
    OutcomeUnknown,
    Overloaded,
    PayloadTooLarge,
    PermanentError,
    PermissionDenied,
    RateLimited,
    RecordUnusable,
    RetryLater,
    StoreUnavailable,
    Unauthenticated,
    Unimplemented,
    WrongState,
)
from jobonce.v1.types_pb2 import Disposition, ErrorReason, Job, Lease, WorkState
from jobonce.worker import Worker

__all__ = [
    "DEFAULT_LEASE",
    "TLS",
    "Client",
    "Delivery",
    "Disposition",
    "DoResult",
    "ErrorReason",
    "ExpectationNotFound",
    "InternalError",
    "InvalidField",
    "Job",
    "JobNotFound",
    "JobOnceError",
    "Lease",
    "LeaseLost",
    "Mode",
    "NotStarted",
    "OutcomeUnknown",
    "Overloaded",
    "PayloadTooLarge",
    "PermanentError",
    "PermissionDenied",
    "RateLimited",
    "RecordOptions",
    "RecordUnusable",
    "Retry",
    "RetryLater",
    "StoreUnavailable",
    "Unauthenticated",
    "Unimplemented",
    "Work",
    "WorkState",
    "Worker",
    "WrongState",
    "body_of",
    "default_backoff",
]
