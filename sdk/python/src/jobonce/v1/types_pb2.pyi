import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORK_MODE_UNSPECIFIED: _ClassVar[WorkMode]
    WORK_MODE_UNTRACKED: _ClassVar[WorkMode]
    WORK_MODE_LEASED: _ClassVar[WorkMode]
    WORK_MODE_QUEUED: _ClassVar[WorkMode]

class Disposition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DISPOSITION_UNSPECIFIED: _ClassVar[Disposition]
    DISPOSITION_FIRST: _ClassVar[Disposition]
    DISPOSITION_DUPLICATE: _ClassVar[Disposition]
    DISPOSITION_RECLAIMED: _ClassVar[Disposition]
    DISPOSITION_PENDING: _ClassVar[Disposition]
    DISPOSITION_IN_PROGRESS: _ClassVar[Disposition]
    DISPOSITION_COMPLETED: _ClassVar[Disposition]
    DISPOSITION_DEAD: _ClassVar[Disposition]

class JobView(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_VIEW_UNSPECIFIED: _ClassVar[JobView]
    JOB_VIEW_BASIC: _ClassVar[JobView]
    JOB_VIEW_FULL: _ClassVar[JobView]

class WorkState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORK_STATE_UNSPECIFIED: _ClassVar[WorkState]
    WORK_STATE_UNTRACKED: _ClassVar[WorkState]
    WORK_STATE_QUEUED: _ClassVar[WorkState]
    WORK_STATE_LEASED: _ClassVar[WorkState]
    WORK_STATE_COMPLETED: _ClassVar[WorkState]
    WORK_STATE_DEAD: _ClassVar[WorkState]

class ConflictKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONFLICT_KIND_UNSPECIFIED: _ClassVar[ConflictKind]
    CONFLICT_KIND_EVENT: _ClassVar[ConflictKind]
    CONFLICT_KIND_PAYLOAD: _ClassVar[ConflictKind]

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_PAYLOAD_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_JOB_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_EXPECTATION_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_LEASE_LOST: _ClassVar[ErrorReason]
    ERROR_REASON_WRONG_STATE: _ClassVar[ErrorReason]
    ERROR_REASON_OVERLOADED: _ClassVar[ErrorReason]
    ERROR_REASON_RATE_LIMITED: _ClassVar[ErrorReason]
    ERROR_REASON_STORE_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_OUTCOME_UNKNOWN: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_PERMISSION_DENIED: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_UNIMPLEMENTED: _ClassVar[ErrorReason]
    ERROR_REASON_RECORD_UNUSABLE: _ClassVar[ErrorReason]
WORK_MODE_UNSPECIFIED: WorkMode
WORK_MODE_UNTRACKED: WorkMode
WORK_MODE_LEASED: WorkMode
WORK_MODE_QUEUED: WorkMode
DISPOSITION_UNSPECIFIED: Disposition
DISPOSITION_FIRST: Disposition
DISPOSITION_DUPLICATE: Disposition
DISPOSITION_RECLAIMED: Disposition
DISPOSITION_PENDING: Disposition
DISPOSITION_IN_PROGRESS: Disposition
DISPOSITION_COMPLETED: Disposition
DISPOSITION_DEAD: Disposition
JOB_VIEW_UNSPECIFIED: JobView
JOB_VIEW_BASIC: JobView
JOB_VIEW_FULL: JobView
WORK_STATE_UNSPECIFIED: WorkState
WORK_STATE_UNTRACKED: WorkState
WORK_STATE_QUEUED: WorkState
WORK_STATE_LEASED: WorkState
WORK_STATE_COMPLETED: WorkState
WORK_STATE_DEAD: WorkState
CONFLICT_KIND_UNSPECIFIED: ConflictKind
CONFLICT_KIND_EVENT: ConflictKind
CONFLICT_KIND_PAYLOAD: ConflictKind
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_PAYLOAD_TOO_LARGE: ErrorReason
ERROR_REASON_JOB_NOT_FOUND: ErrorReason
ERROR_REASON_EXPECTATION_NOT_FOUND: ErrorReason
ERROR_REASON_LEASE_LOST: ErrorReason
ERROR_REASON_WRONG_STATE: ErrorReason
ERROR_REASON_OVERLOADED: ErrorReason
ERROR_REASON_RATE_LIMITED: ErrorReason
ERROR_REASON_STORE_UNAVAILABLE: ErrorReason
ERROR_REASON_OUTCOME_UNKNOWN: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_PERMISSION_DENIED: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_UNIMPLEMENTED: ErrorReason
ERROR_REASON_RECORD_UNUSABLE: ErrorReason

class Job(_message.Message):
    __slots__ = ("job_id", "event", "status", "payload", "payload_bytes", "payload_dropped_time", "first_seen_time", "last_seen_time", "deliveries", "conflicts", "last_conflict", "source", "work", "content_type", "traceparent", "payload_edited", "payload_omitted_bytes")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_DROPPED_TIME_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEEN_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_TIME_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    LAST_CONFLICT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_EDITED_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_OMITTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    event: str
    status: str
    payload: str
    payload_bytes: bytes
    payload_dropped_time: _timestamp_pb2.Timestamp
    first_seen_time: _timestamp_pb2.Timestamp
    last_seen_time: _timestamp_pb2.Timestamp
    deliveries: int
    conflicts: int
    last_conflict: Conflict
    source: str
    work: Work
    content_type: str
    traceparent: str
    payload_edited: bool
    payload_omitted_bytes: int
    def __init__(self, job_id: _Optional[str] = ..., event: _Optional[str] = ..., status: _Optional[str] = ..., payload: _Optional[str] = ..., payload_bytes: _Optional[bytes] = ..., payload_dropped_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., first_seen_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_seen_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., deliveries: _Optional[int] = ..., conflicts: _Optional[int] = ..., last_conflict: _Optional[_Union[Conflict, _Mapping]] = ..., source: _Optional[str] = ..., work: _Optional[_Union[Work, _Mapping]] = ..., content_type: _Optional[str] = ..., traceparent: _Optional[str] = ..., payload_edited: bool = ..., payload_omitted_bytes: _Optional[int] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("state", "mode", "attempts", "generation", "due_time", "result", "last_error", "requeues")
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DUE_TIME_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    REQUEUES_FIELD_NUMBER: _ClassVar[int]
    state: WorkState
    mode: WorkMode
    attempts: int
    generation: int
    due_time: _timestamp_pb2.Timestamp
    result: str
    last_error: str
    requeues: int
    def __init__(self, state: _Optional[_Union[WorkState, str]] = ..., mode: _Optional[_Union[WorkMode, str]] = ..., attempts: _Optional[int] = ..., generation: _Optional[int] = ..., due_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., result: _Optional[str] = ..., last_error: _Optional[str] = ..., requeues: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("token", "generation", "expire_time", "remaining")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    token: str
    generation: int
    expire_time: _timestamp_pb2.Timestamp
    remaining: _duration_pb2.Duration
    def __init__(self, token: _Optional[str] = ..., generation: _Optional[int] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., remaining: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Conflict(_message.Message):
    __slots__ = ("kind", "stored_event", "stored_status", "delivered_event", "delivered_status", "time")
    KIND_FIELD_NUMBER: _ClassVar[int]
    STORED_EVENT_FIELD_NUMBER: _ClassVar[int]
    STORED_STATUS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_EVENT_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_STATUS_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    kind: ConflictKind
    stored_event: str
    stored_status: str
    delivered_event: str
    delivered_status: str
    time: _timestamp_pb2.Timestamp
    def __init__(self, kind: _Optional[_Union[ConflictKind, str]] = ..., stored_event: _Optional[str] = ..., stored_status: _Optional[str] = ..., delivered_event: _Optional[str] = ..., delivered_status: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ItemError(_message.Message):
    __slots__ = ("code", "reason", "message", "field", "retry_delay", "request_id")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: ErrorReason
    message: str
    field: str
    retry_delay: _duration_pb2.Duration
    request_id: str
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[_Union[ErrorReason, str]] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...
