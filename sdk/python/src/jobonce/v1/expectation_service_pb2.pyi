import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Expectation(_message.Message):
    __slots__ = ("job_id", "status_url", "create_time", "overdue_time", "give_up_time", "due_time", "leased", "polls", "last_error", "given_up_time")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_URL_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_TIME_FIELD_NUMBER: _ClassVar[int]
    GIVE_UP_TIME_FIELD_NUMBER: _ClassVar[int]
    DUE_TIME_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    POLLS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_TIME_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    status_url: str
    create_time: _timestamp_pb2.Timestamp
    overdue_time: _timestamp_pb2.Timestamp
    give_up_time: _timestamp_pb2.Timestamp
    due_time: _timestamp_pb2.Timestamp
    leased: bool
    polls: int
    last_error: str
    given_up_time: _timestamp_pb2.Timestamp
    def __init__(self, job_id: _Optional[str] = ..., status_url: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., overdue_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., give_up_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., due_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., leased: bool = ..., polls: _Optional[int] = ..., last_error: _Optional[str] = ..., given_up_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ExpectJobRequest(_message.Message):
    __slots__ = ("job_id", "status_url", "overdue_after", "give_up_after")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_URL_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_AFTER_FIELD_NUMBER: _ClassVar[int]
    GIVE_UP_AFTER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    status_url: str
    overdue_after: _duration_pb2.Duration
    give_up_after: _duration_pb2.Duration
    def __init__(self, job_id: _Optional[str] = ..., status_url: _Optional[str] = ..., overdue_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., give_up_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ExpectJobResponse(_message.Message):
    __slots__ = ("recorded", "expectation")
    RECORDED_FIELD_NUMBER: _ClassVar[int]
    EXPECTATION_FIELD_NUMBER: _ClassVar[int]
    recorded: bool
    expectation: Expectation
    def __init__(self, recorded: bool = ..., expectation: _Optional[_Union[Expectation, _Mapping]] = ...) -> None: ...

class ClaimOverdueJobsRequest(_message.Message):
    __slots__ = ("max_jobs", "lease_duration")
    MAX_JOBS_FIELD_NUMBER: _ClassVar[int]
    LEASE_DURATION_FIELD_NUMBER: _ClassVar[int]
    max_jobs: int
    lease_duration: _duration_pb2.Duration
    def __init__(self, max_jobs: _Optional[int] = ..., lease_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ClaimOverdueJobsResponse(_message.Message):
    __slots__ = ("jobs", "more")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[OverdueJob]
    more: bool
    def __init__(self, jobs: _Optional[_Iterable[_Union[OverdueJob, _Mapping]]] = ..., more: bool = ...) -> None: ...

class OverdueJob(_message.Message):
    __slots__ = ("expectation", "lease_token")
    EXPECTATION_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    expectation: Expectation
    lease_token: str
    def __init__(self, expectation: _Optional[_Union[Expectation, _Mapping]] = ..., lease_token: _Optional[str] = ...) -> None: ...

class ReportPollRequest(_message.Message):
    __slots__ = ("job_id", "lease_token", "next_after", "error", "put_off")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NEXT_AFTER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PUT_OFF_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    lease_token: str
    next_after: _duration_pb2.Duration
    error: str
    put_off: bool
    def __init__(self, job_id: _Optional[str] = ..., lease_token: _Optional[str] = ..., next_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., error: _Optional[str] = ..., put_off: bool = ...) -> None: ...

class ReportPollResponse(_message.Message):
    __slots__ = ("recorded", "expectation")
    RECORDED_FIELD_NUMBER: _ClassVar[int]
    EXPECTATION_FIELD_NUMBER: _ClassVar[int]
    recorded: bool
    expectation: Expectation
    def __init__(self, recorded: bool = ..., expectation: _Optional[_Union[Expectation, _Mapping]] = ...) -> None: ...

class CancelExpectationRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class CancelExpectationResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
