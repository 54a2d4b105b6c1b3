import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from jobonce.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecordDeliveryRequest(_message.Message):
    __slots__ = ("job_id", "event", "status", "payload", "payload_bytes", "opaque_payload", "request_id", "work_mode", "lease_duration", "source", "wait", "content_type", "traceparent", "payload_omitted_bytes")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPAQUE_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WORK_MODE_FIELD_NUMBER: _ClassVar[int]
    LEASE_DURATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_OMITTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    event: str
    status: str
    payload: str
    payload_bytes: bytes
    opaque_payload: bool
    request_id: str
    work_mode: _types_pb2.WorkMode
    lease_duration: _duration_pb2.Duration
    source: str
    wait: _duration_pb2.Duration
    content_type: str
    traceparent: str
    payload_omitted_bytes: int
    def __init__(self, job_id: _Optional[str] = ..., event: _Optional[str] = ..., status: _Optional[str] = ..., payload: _Optional[str] = ..., payload_bytes: _Optional[bytes] = ..., opaque_payload: bool = ..., request_id: _Optional[str] = ..., work_mode: _Optional[_Union[_types_pb2.WorkMode, str]] = ..., lease_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., source: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., content_type: _Optional[str] = ..., traceparent: _Optional[str] = ..., payload_omitted_bytes: _Optional[int] = ...) -> None: ...

class RecordDeliveryResponse(_message.Message):
    __slots__ = ("disposition", "start_work", "first_delivery", "deliveries", "lease", "holder_expire_time", "conflict", "job", "result", "result_omitted")
    DISPOSITION_FIELD_NUMBER: _ClassVar[int]
    START_WORK_FIELD_NUMBER: _ClassVar[int]
    FIRST_DELIVERY_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    RESULT_OMITTED_FIELD_NUMBER: _ClassVar[int]
    disposition: _types_pb2.Disposition
    start_work: bool
    first_delivery: bool
    deliveries: int
    lease: _types_pb2.Lease
    holder_expire_time: _timestamp_pb2.Timestamp
    conflict: _types_pb2.Conflict
    job: _types_pb2.Job
    result: str
    result_omitted: bool
    def __init__(self, disposition: _Optional[_Union[_types_pb2.Disposition, str]] = ..., start_work: bool = ..., first_delivery: bool = ..., deliveries: _Optional[int] = ..., lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ..., holder_expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., conflict: _Optional[_Union[_types_pb2.Conflict, _Mapping]] = ..., job: _Optional[_Union[_types_pb2.Job, _Mapping]] = ..., result: _Optional[str] = ..., result_omitted: bool = ...) -> None: ...

class BatchRecordDeliveriesRequest(_message.Message):
    __slots__ = ("deliveries",)
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[RecordDeliveryRequest]
    def __init__(self, deliveries: _Optional[_Iterable[_Union[RecordDeliveryRequest, _Mapping]]] = ...) -> None: ...

class BatchRecordDeliveriesResponse(_message.Message):
    __slots__ = ("results",)
    class Result(_message.Message):
        __slots__ = ("response", "error")
        RESPONSE_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        response: RecordDeliveryResponse
        error: _types_pb2.ItemError
        def __init__(self, response: _Optional[_Union[RecordDeliveryResponse, _Mapping]] = ..., error: _Optional[_Union[_types_pb2.ItemError, _Mapping]] = ...) -> None: ...
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[BatchRecordDeliveriesResponse.Result]
    def __init__(self, results: _Optional[_Iterable[_Union[BatchRecordDeliveriesResponse.Result, _Mapping]]] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id", "view")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    view: _types_pb2.JobView
    def __init__(self, job_id: _Optional[str] = ..., view: _Optional[_Union[_types_pb2.JobView, str]] = ...) -> None: ...

class GetJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _types_pb2.Job
    def __init__(self, job: _Optional[_Union[_types_pb2.Job, _Mapping]] = ...) -> None: ...
