"""Why a call failed: a class for each reason that the service gives."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import DecodeError

from jobonce.sdk import details_pb2
from jobonce.v1 import types_pb2

_LONGEST_WAIT = 3600.0
"""The longest wait that a service is believed, in seconds."""


class JobOnceError(Exception):
    """Why a call failed.

    Decide on the class, or on code and reason, never on the message. An error of a reason that this version does not know, or of
    none, is a JobOnceError itself; then the code decides what to do.
    """

    _reason = ""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        reason: str = "",
        field: str = "",
        retry_after: float = 0.0,
        request_id: str = "",
        outcome_unknown: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        """The gRPC status code of the last attempt that failed for a reason of its own."""
        self.reason = reason
        """The reason as the service wrote it. Empty when the error is not the service's, such as a connection that failed."""
        self.field = field
        """The request's field at fault, by its name in the API, such as job_id. Empty when it is none's."""
        self.retry_after = retry_after
        """How long the service asks to wait before a retry, in seconds. 0 when it says nothing."""
        self.request_id = request_id
        """The request id of the delivery or claim that failed. Whoever makes the call again passes it, and gets the answer
        that was lost if there was one. Empty for other calls."""
        self.outcome_unknown = outcome_unknown
        """True when an attempt of the call may have been written. When false, none was. It is true of every connection that failed, since
        gRPC for Python does not tell whether the call was sent."""

    def _retryable(self) -> bool:
        """Tells whether the same call, with the same request id, may succeed later."""
        if self._reason:
            return isinstance(self, (Overloaded, RateLimited, StoreUnavailable, OutcomeUnknown))
        # The connection's own errors, and reasons that a newer service gives.
        return self.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)

    def _after(self, previous: JobOnceError | None) -> JobOnceError:
        """What to report when this error came after another one in one call."""
        if previous is None:
            return self
        unknown = self.outcome_unknown or previous.outcome_unknown
        # That the time is over says less than what it was spent on.
        time_is_over = not self.reason and self.code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
        reported = previous if time_is_over else self
        reported.outcome_unknown = unknown
        return reported


class InvalidField(JobOnceError):
    """A field is malformed; `field` names it."""

    _reason = "INVALID_FIELD"


class PayloadTooLarge(JobOnceError):
    """The body is over the service's limit."""

    _reason = "PAYLOAD_TOO_LARGE"


class JobNotFound(JobOnceError):
    """There is no such job."""

    _reason = "JOB_NOT_FOUND"


class ExpectationNotFound(JobOnceError):
    """There is no such expectation."""

    _reason = "EXPECTATION_NOT_FOUND"


class LeaseLost(JobOnceError):
    """The lease is somebody else's by now, or gone. Stop the work."""

    _reason = "LEASE_LOST"


class WrongState(JobOnceError):
    """The job's state forbids the operation."""

    _reason = "WRONG_STATE"


class Overloaded(JobOnceError):
    """Too much waits at the service already."""

    _reason = "OVERLOADED"


class RateLimited(JobOnceError):
    """The caller is over its rate limit."""

    _reason = "RATE_LIMITED"


class StoreUnavailable(JobOnceError):
    """The service cannot reach its store."""

    _reason = "STORE_UNAVAILABLE"


class OutcomeUnknown(JobOnceError):
    """The service does not know whether the call was carried out. See also `outcome_unknown`, which any error may have."""

    _reason = "OUTCOME_UNKNOWN"


class Unauthenticated(JobOnceError):
    """The credentials are missing or wrong."""

    _reason = "UNAUTHENTICATED"


class PermissionDenied(JobOnceError):
    """The credentials do not allow the call."""

    _reason = "PERMISSION_DENIED"


class InternalError(JobOnceError):
    """A fault of the service; its log has the cause. Whether something was written is not known."""

    _reason = "INTERNAL"


class Unimplemented(JobOnceError):
    """The service is of a version that does not do this."""

    _reason = "UNIMPLEMENTED"


class RecordUnusable(JobOnceError):
    """What is stored under the job's id cannot be used; the service's log says why."""

    _reason = "RECORD_UNUSABLE"


class PermanentError(Exception):
    """An error of work that no further try can mend: raise it, and the job is dead."""


class RetryLater(Exception):
    """An error of work that is to be left alone for a time at least, 24 hours at most: what an HTTP service means by Retry-After."""

    def __init__(self, message: str, delay: float) -> None:
        super().__init__(message)
        self.delay = delay
        """In seconds."""


class NotStarted(Exception):
    """An error of work that was not begun: it is given back, due at once, and the attempt does not count."""


BY_REASON: dict[str, type[JobOnceError]] = {cls._reason: cls for cls in JobOnceError.__subclasses__()}
"""The classes by the reasons that they are of."""

_IMPLIED: dict[grpc.StatusCode, type[JobOnceError]] = {
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
}
"""For answers of gRPC itself and of proxies. Other codes have several reasons or none."""


def known_reasons() -> list[str]:
    """The reasons of the API that this version was made with."""
    names = types_pb2.ErrorReason.keys()
    return [name.removeprefix("ERROR_REASON_") for name in names if not name.endswith("_UNSPECIFIED")]


def read_error(code: grpc.StatusCode, message: str | None, metadata: Any, request_id: str) -> JobOnceError:
    """Reads the error of an attempt; metadata is the trailers."""
    reason, field, retry_after = "", "", 0.0
    for detail in _details(metadata):
        try:
            match detail.type_url.rpartition("/")[2]:
                case "google.rpc.ErrorInfo":
                    info = details_pb2.ErrorInfo.FromString(detail.value)
                    reason = info.reason if info.domain == "jobonce" else reason
                case "google.rpc.RetryInfo":
                    delay = details_pb2.RetryInfo.FromString(detail.value).retry_delay
                    retry_after = min(max(0.0, delay.seconds + delay.nanos / 1e9), _LONGEST_WAIT)
                case "google.rpc.BadRequest":
                    violations = details_pb2.BadRequest.FromString(detail.value).field_violations
                    field = violations[0].field if violations else ""
        except DecodeError:
            pass  # Whatever it is, it is not the service's.
    cls = BY_REASON.get(reason, JobOnceError) if reason else _IMPLIED.get(code, JobOnceError)
    return cls(
        f"{code.name}{' ' if reason else ''}{reason}: {message or ''}",
        code=code,
        reason=reason,
        field=field,
        retry_after=retry_after,
        request_id=request_id,
        outcome_unknown=cls in (JobOnceError, OutcomeUnknown, InternalError),
    )


def _details(metadata: Any) -> list[Any]:
    for key, value in metadata or ():
        if key == "grpc-status-details-bin":
            try:
                return list(details_pb2.Status.FromString(value).details)
            except DecodeError:
                return []  # Whatever it is, it is not the service's.
    return []


def closed_error(request_id: str) -> JobOnceError:
    return JobOnceError("the client is closed", code=grpc.StatusCode.CANCELLED, request_id=request_id)


def invalid(field: str, message: str) -> InvalidField:
    """The service's answer to a field that is not even sent."""
    return InvalidField(
        f"INVALID_ARGUMENT INVALID_FIELD: {message}", code=grpc.StatusCode.INVALID_ARGUMENT, reason="INVALID_FIELD", field=field
    )
