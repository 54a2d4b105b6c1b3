import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from jobonce.v1 import expectation_service_pb2 as _expectation_service_pb2
from jobonce.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_ORDER_UNSPECIFIED: _ClassVar[JobOrder]
    JOB_ORDER_NEWEST_FIRST: _ClassVar[JobOrder]
    JOB_ORDER_ID: _ClassVar[JobOrder]

class ExpectationFilter(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXPECTATION_FILTER_UNSPECIFIED: _ClassVar[ExpectationFilter]
    EXPECTATION_FILTER_OVERDUE: _ClassVar[ExpectationFilter]
    EXPECTATION_FILTER_GIVEN_UP: _ClassVar[ExpectationFilter]
JOB_ORDER_UNSPECIFIED: JobOrder
JOB_ORDER_NEWEST_FIRST: JobOrder
JOB_ORDER_ID: JobOrder
EXPECTATION_FILTER_UNSPECIFIED: ExpectationFilter
EXPECTATION_FILTER_OVERDUE: ExpectationFilter
EXPECTATION_FILTER_GIVEN_UP: ExpectationFilter

class JobFilter(_message.Message):
    __slots__ = ("state", "first_seen_from", "first_seen_before", "conflicts_only", "job_id_prefix")
    STATE_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEEN_FROM_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEEN_BEFORE_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_ONLY_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    state: _types_pb2.WorkState
    first_seen_from: _timestamp_pb2.Timestamp
    first_seen_before: _timestamp_pb2.Timestamp
    conflicts_only: bool
    job_id_prefix: str
    def __init__(self, state: _Optional[_Union[_types_pb2.WorkState, str]] = ..., first_seen_from: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., first_seen_before: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., conflicts_only: bool = ..., job_id_prefix: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("filter", "order", "page_size", "page_token")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    filter: JobFilter
    order: JobOrder
    page_size: int
    page_token: str
    def __init__(self, filter: _Optional[_Union[JobFilter, _Mapping]] = ..., order: _Optional[_Union[JobOrder, str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token", "examined")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXAMINED_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[_types_pb2.Job]
    next_page_token: str
    examined: int
    def __init__(self, jobs: _Optional[_Iterable[_Union[_types_pb2.Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., examined: _Optional[int] = ...) -> None: ...

class CountJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CountJobsResponse(_message.Message):
    __slots__ = ("counts", "conflicts", "conflicts_more")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_MORE_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedCompositeFieldContainer[StateCount]
    conflicts: int
    conflicts_more: bool
    def __init__(self, counts: _Optional[_Iterable[_Union[StateCount, _Mapping]]] = ..., conflicts: _Optional[int] = ..., conflicts_more: bool = ...) -> None: ...

class StateCount(_message.Message):
    __slots__ = ("state", "jobs", "more")
    STATE_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    state: _types_pb2.WorkState
    jobs: int
    more: bool
    def __init__(self, state: _Optional[_Union[_types_pb2.WorkState, str]] = ..., jobs: _Optional[int] = ..., more: bool = ...) -> None: ...

class RequeueWorkRequest(_message.Message):
    __slots__ = ("job_id", "expected_generation", "expected_first_seen_time", "force", "expected_state")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIRST_SEEN_TIME_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STATE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    expected_generation: int
    expected_first_seen_time: _timestamp_pb2.Timestamp
    force: bool
    expected_state: _types_pb2.WorkState
    def __init__(self, job_id: _Optional[str] = ..., expected_generation: _Optional[int] = ..., expected_first_seen_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., force: bool = ..., expected_state: _Optional[_Union[_types_pb2.WorkState, str]] = ...) -> None: ...

class RequeueWorkResponse(_message.Message):
    __slots__ = ("job", "changed")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    job: _types_pb2.Job
    changed: bool
    def __init__(self, job: _Optional[_Union[_types_pb2.Job, _Mapping]] = ..., changed: bool = ...) -> None: ...

class DeleteJobRequest(_message.Message):
    __slots__ = ("job_id", "expected_generation", "expected_first_seen_time", "force", "payload_only", "expected_state")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIRST_SEEN_TIME_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_ONLY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STATE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    expected_generation: int
    expected_first_seen_time: _timestamp_pb2.Timestamp
    force: bool
    payload_only: bool
    expected_state: _types_pb2.WorkState
    def __init__(self, job_id: _Optional[str] = ..., expected_generation: _Optional[int] = ..., expected_first_seen_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., force: bool = ..., payload_only: bool = ..., expected_state: _Optional[_Union[_types_pb2.WorkState, str]] = ...) -> None: ...

class DeleteJobResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: bool
    def __init__(self, deleted: bool = ...) -> None: ...

class RequeueJobsRequest(_message.Message):
    __slots__ = ("filter", "max_jobs", "dry_run", "page_token")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    MAX_JOBS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    filter: JobFilter
    max_jobs: int
    dry_run: bool
    page_token: str
    def __init__(self, filter: _Optional[_Union[JobFilter, _Mapping]] = ..., max_jobs: _Optional[int] = ..., dry_run: bool = ..., page_token: _Optional[str] = ...) -> None: ...

class RequeueJobsResponse(_message.Message):
    __slots__ = ("results", "next_page_token", "examined")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXAMINED_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[RequeueResult]
    next_page_token: str
    examined: int
    def __init__(self, results: _Optional[_Iterable[_Union[RequeueResult, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., examined: _Optional[int] = ...) -> None: ...

class RequeueResult(_message.Message):
    __slots__ = ("job_id", "requeued", "error")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEUED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    requeued: bool
    error: _types_pb2.ItemError
    def __init__(self, job_id: _Optional[str] = ..., requeued: bool = ..., error: _Optional[_Union[_types_pb2.ItemError, _Mapping]] = ...) -> None: ...

class ListExpectationsRequest(_message.Message):
    __slots__ = ("filter", "page_size", "page_token")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    filter: ExpectationFilter
    page_size: int
    page_token: str
    def __init__(self, filter: _Optional[_Union[ExpectationFilter, str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListExpectationsResponse(_message.Message):
    __slots__ = ("expectations", "next_page_token")
    EXPECTATIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    expectations: _containers.RepeatedCompositeFieldContainer[_expectation_service_pb2.Expectation]
    next_page_token: str
    def __init__(self, expectations: _Optional[_Iterable[_Union[_expectation_service_pb2.Expectation, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ClaimPause(_message.Message):
    __slots__ = ("job_id_prefix", "pause_time", "reason")
    JOB_ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    PAUSE_TIME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id_prefix: str
    pause_time: _timestamp_pb2.Timestamp
    reason: str
    def __init__(self, job_id_prefix: _Optional[str] = ..., pause_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class PauseClaimsRequest(_message.Message):
    __slots__ = ("job_id_prefix", "reason")
    JOB_ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id_prefix: str
    reason: str
    def __init__(self, job_id_prefix: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class PauseClaimsResponse(_message.Message):
    __slots__ = ("pause",)
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    pause: ClaimPause
    def __init__(self, pause: _Optional[_Union[ClaimPause, _Mapping]] = ...) -> None: ...

class ResumeClaimsRequest(_message.Message):
    __slots__ = ("job_id_prefix",)
    JOB_ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    job_id_prefix: str
    def __init__(self, job_id_prefix: _Optional[str] = ...) -> None: ...

class ResumeClaimsResponse(_message.Message):
    __slots__ = ("resumed",)
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    resumed: bool
    def __init__(self, resumed: bool = ...) -> None: ...

class ListClaimPausesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListClaimPausesResponse(_message.Message):
    __slots__ = ("pauses",)
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    pauses: _containers.RepeatedCompositeFieldContainer[ClaimPause]
    def __init__(self, pauses: _Optional[_Iterable[_Union[ClaimPause, _Mapping]]] = ...) -> None: ...
