import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from jobonce.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClaimWorkRequest(_message.Message):
    __slots__ = ("max_jobs", "lease_duration", "events", "worker_id", "wait", "request_id", "job_id_prefix")
    MAX_JOBS_FIELD_NUMBER: _ClassVar[int]
    LEASE_DURATION_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    max_jobs: int
    lease_duration: _duration_pb2.Duration
    events: _containers.RepeatedScalarFieldContainer[str]
    worker_id: str
    wait: _duration_pb2.Duration
    request_id: str
    job_id_prefix: str
    def __init__(self, max_jobs: _Optional[int] = ..., lease_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., events: _Optional[_Iterable[str]] = ..., worker_id: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., request_id: _Optional[str] = ..., job_id_prefix: _Optional[str] = ...) -> None: ...

class ClaimWorkResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[ClaimedJob]
    def __init__(self, jobs: _Optional[_Iterable[_Union[ClaimedJob, _Mapping]]] = ...) -> None: ...

class ClaimedJob(_message.Message):
    __slots__ = ("job", "lease")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    job: _types_pb2.Job
    lease: _types_pb2.Lease
    def __init__(self, job: _Optional[_Union[_types_pb2.Job, _Mapping]] = ..., lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("job_id", "lease_token", "lease_duration")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LEASE_DURATION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    lease_token: str
    lease_duration: _duration_pb2.Duration
    def __init__(self, job_id: _Optional[str] = ..., lease_token: _Optional[str] = ..., lease_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: _types_pb2.Lease
    def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ...) -> None: ...

class CompleteWorkRequest(_message.Message):
    __slots__ = ("job_id", "lease_token", "result")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    lease_token: str
    result: str
    def __init__(self, job_id: _Optional[str] = ..., lease_token: _Optional[str] = ..., result: _Optional[str] = ...) -> None: ...

class CompleteWorkResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseWorkRequest(_message.Message):
    __slots__ = ("job_id", "lease_token", "retry_delay", "error", "dead", "not_started")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    NOT_STARTED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    lease_token: str
    retry_delay: _duration_pb2.Duration
    error: str
    dead: bool
    not_started: bool
    def __init__(self, job_id: _Optional[str] = ..., lease_token: _Optional[str] = ..., retry_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., error: _Optional[str] = ..., dead: bool = ..., not_started: bool = ...) -> None: ...

class ReleaseWorkResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BatchChangeLeasesRequest(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[LeaseChange]
    def __init__(self, changes: _Optional[_Iterable[_Union[LeaseChange, _Mapping]]] = ...) -> None: ...

class LeaseChange(_message.Message):
    __slots__ = ("renew", "complete", "release")
    RENEW_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    renew: RenewLeaseRequest
    complete: CompleteWorkRequest
    release: ReleaseWorkRequest
    def __init__(self, renew: _Optional[_Union[RenewLeaseRequest, _Mapping]] = ..., complete: _Optional[_Union[CompleteWorkRequest, _Mapping]] = ..., release: _Optional[_Union[ReleaseWorkRequest, _Mapping]] = ...) -> None: ...

class BatchChangeLeasesResponse(_message.Message):
    __slots__ = ("results",)
    class Result(_message.Message):
        __slots__ = ("lease", "error")
        LEASE_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        lease: _types_pb2.Lease
        error: _types_pb2.ItemError
        def __init__(self, lease: _Optional[_Union[_types_pb2.Lease, _Mapping]] = ..., error: _Optional[_Union[_types_pb2.ItemError, _Mapping]] = ...) -> None: ...
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[BatchChangeLeasesResponse.Result]
    def __init__(self, results: _Optional[_Iterable[_Union[BatchChangeLeasesResponse.Result, _Mapping]]] = ...) -> None: ...
