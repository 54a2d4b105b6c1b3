"""A client of JobOnce with nothing but gRPC for Python. docs/clients.md explains it.

The modules jobonce.v1.*_pb2 are what grpcio-tools makes of this repository's directory proto:

    python -m grpc_tools.protoc -I proto --python_out=DIR --grpc_python_out=DIR proto/jobonce/v1/*.proto
"""

import random
import time
import uuid
from dataclasses import dataclass

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from jobonce.v1 import idempotency_service_pb2 as idempotency


@dataclass
class Failure:
    """Why a call failed. The reason is empty when the error is not JobOnce's own."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    field: str = ""
    retry_seconds: float = 0.0


def read_error(error: grpc.RpcError) -> Failure:
    """Reads the details of an error, which come as grpc-status-details-bin."""
    failure = Failure(code=error.code(), message=error.details())
    status = rpc_status.from_call(error)
    for detail in status.details if status else []:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            info = error_details_pb2.ErrorInfo.FromString(detail.value)
            if info.domain == "jobonce":
                failure.reason = info.reason
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            info = error_details_pb2.RetryInfo.FromString(detail.value)
            failure.retry_seconds = info.retry_delay.ToTimedelta().total_seconds()
        elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            info = error_details_pb2.BadRequest.FromString(detail.value)
            failure.field = info.field_violations[0].field
    return failure


RETRY_REASONS = {"OVERLOADED", "RATE_LIMITED", "STORE_UNAVAILABLE", "OUTCOME_UNKNOWN"}
RETRY_CODES = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}


def retryable(failure: Failure) -> bool:
    """Tells whether the same call, with the same request_id, may succeed later."""
    if failure.reason:
        return failure.reason in RETRY_REASONS
    return failure.code in RETRY_CODES


class CallFailed(Exception):
    """A call that failed for good, or for as long as it was tried."""

    def __init__(self, failure: Failure):
        super().__init__(f"{failure.code.name} {failure.reason}: {failure.message}")
        self.failure = failure


def call(method, request, patience: float = 8.0, attempt: float = 3.0):
    """Makes a call again, always the same one, as long as that may help and the time, in seconds, allows."""
    end = time.monotonic() + patience
    pause = 0.05
    while True:
        try:
            return method(request, timeout=min(attempt, end - time.monotonic()))
        except grpc.RpcError as error:
            failure = read_error(error)
        wait = failure.retry_seconds + pause * random.uniform(0.5, 1.5)
        if not retryable(failure) or time.monotonic() + wait >= end:
            raise CallFailed(failure)
        time.sleep(wait)
        pause = min(2 * pause, 2.0)


def record(jobs, body: bytes, delivery: idempotency.RecordDeliveryRequest, patience: float = 8.0):
    """Records one delivery. body is that of the webhook; delivery has the other fields of the request.

    One request_id stays with the call through all its retries.
    """
    request = idempotency.RecordDeliveryRequest()
    request.CopyFrom(delivery)
    request.request_id = request.request_id or str(uuid.uuid4())
    try:
        request.payload = body.decode()
    except UnicodeDecodeError:
        request.payload_bytes = body
    return call(jobs.RecordDelivery, request, patience)
