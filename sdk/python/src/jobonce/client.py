"""The client for programs with threads."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message

from jobonce import _work
from jobonce._connection import DEFAULT_TIMEOUT, TLS, Attempts, Retry, Settings, settings
from jobonce._work import DEFAULT_LEASE, Delivery, DoResult, Ended, RecordOptions, body_of, default_backoff
from jobonce.errors import JobNotFound, JobOnceError, LeaseLost, Unauthenticated, closed_error, read_error
from jobonce.v1 import admin_service_pb2 as admin
from jobonce.v1 import idempotency_service_pb2 as idempotency
from jobonce.v1 import types_pb2 as types
from jobonce.v1 import work_service_pb2 as work_service

_Error = TypeVar("_Error", bound=Exception)

Call = Any
"""A method of a stub."""


class Scope:
    """A number of calls, one after the other, that somebody else may end."""

    def __init__(self, ended: threading.Event | None = None) -> None:
        self._lock = threading.Lock()
        self._ended = ended or threading.Event()
        self._call: grpc.Future[Any] | None = None

    def cancel(self) -> None:
        """Ends the call under way, and those to come."""
        with self._lock:
            self._ended.set()
            if self._call is not None:
                self._call.cancel()

    @property
    def cancelled(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float) -> None:
        """Returns after the time, and sooner when the scope is ended."""
        self._ended.wait(seconds)

    def result(self, start: Callable[[], grpc.Future[Any]]) -> Any:
        with self._lock:
            if self._ended.is_set():
                raise grpc.FutureCancelledError
            self._call = call = start()
        try:
            return call.result()
        except BaseException:
            call.cancel()  # for KeyboardInterrupt and the like
            raise


class Client:
    """Calls one JobOnce service. It is safe for use by many threads; make one and share it, but not with a process that is forked later.

    target is host:port, several IP addresses with ports and commas between them, or another name that gRPC can resolve, such as
    dns:///jobonce.internal:443. Calls are spread over all addresses. The connection is in plaintext when the target is of this
    machine (a loopback address, localhost, a Unix socket), and TLS otherwise; tls says it explicitly.

    A token is sent with every call; a function is asked at every attempt, and must not take long. A token file is read again when it is older in memory than a
    second. Both are refused on a plaintext connection to another machine, unless token_over_plaintext allows it.

    timeout bounds a call, its retries included, in seconds. options are gRPC's, and beat this package's own.
    """

    def __init__(
        self,
        target: str,
        *,
        tls: bool | TLS | None = None,
        token: str | Callable[[], str] | None = None,
        token_file: str | Path | None = None,
        token_over_plaintext: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
        retry: Retry = Retry(),
        compression: grpc.Compression | None = None,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self._settings: Settings = settings(
            target,
            tls=tls,
            token=token,
            token_file=token_file,
            token_over_plaintext=token_over_plaintext,
            compression=compression,
            options=options,
        )
        self.timeout = timeout
        self._retry = retry
        self._closing = threading.Event()
        self._process = os.getpid()
        s = self._settings
        self._channel: grpc.Channel = (
            grpc.insecure_channel(s.target.name, s.options, s.compression)
            if s.credentials is None
            else grpc.secure_channel(s.target.name, s.credentials, s.options, s.compression)
        )
        self._record = self._method("IdempotencyService/RecordDelivery", idempotency.RecordDeliveryResponse)
        self._get_job = self._method("IdempotencyService/GetJob", idempotency.GetJobResponse)
        self._claim_work = self._method("WorkService/ClaimWork", work_service.ClaimWorkResponse)
        self._renew_lease = self._method("WorkService/RenewLease", work_service.RenewLeaseResponse)
        self._complete_work = self._method("WorkService/CompleteWork", work_service.CompleteWorkResponse)
        self._release_work = self._method("WorkService/ReleaseWork", work_service.ReleaseWorkResponse)
        self._requeue_work = self._method("AdminService/RequeueWork", admin.RequeueWorkResponse)

    def _method(self, path: str, response: type[Message]) -> Call:
        call: Call = self._channel.unary_unary(
            f"/jobonce.v1.{path}", request_serializer=lambda m: m.SerializeToString(), response_deserializer=response.FromString
        )
        return call

    def close(self) -> None:
        """Ends the calls that still run, and closes the connection."""
        self._closing.set()
        self._channel.close()

    @property
    def _closed(self) -> bool:
        return self._closing.is_set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def record(self, *, timeout: float | None = None, **delivery: Unpack[RecordOptions]) -> idempotency.RecordDeliveryResponse:
        """Records one delivery and says whether the caller is to start the work: branch on start_work.

        Without a request_id the client makes one and keeps it over all attempts, so that an answer that gets lost is recovered.
        """
        response: idempotency.RecordDeliveryResponse
        response, _ = self._call(self._record, _work.record_request(delivery), timeout, wait=delivery.get("wait", 0.0))
        return response

    def get(self, job_id: str, *, body: bool = False, timeout: float | None = None) -> types.Job:
        """Gets the record of a job, with its body only if body is true. Raises JobNotFound when nothing was recorded."""
        try:
            response, _ = self._call(self._get_job, _work.get_request(job_id, body), timeout)
        except JobOnceError as error:
            error.outcome_unknown = False  # A read writes nothing.
            raise
        job: types.Job = response.job
        return job

    def do(
        self,
        work: Callable[[Work], str | None],
        *,
        backoff: Callable[[int], float] = default_backoff,
        timeout: float | None = None,
        **delivery: Unpack[Delivery],
    ) -> DoResult:
        """Records a delivery and, if this caller is to start the work, does it under a lease.

        The lease is renewed, by a thread, while the function runs. Afterwards the work is completed, with the text that the function
        returned as its result, or given back when the function raised an Exception; a PermanentError makes the job dead, and RetryLater and
        NotStarted say when it is tried again. On any other exception, such as KeyboardInterrupt, the work is given back and the
        exception goes on. What is no text of at most 64 KiB is not kept as a result; the work is done all the same.

        It raises a JobOnceError only when the delivery could not be recorded. What goes wrong with the work stands in the result.
        """
        _work.check_work(work, awaited=False)
        request, lease = _work.leased_request(delivery)
        response: idempotency.RecordDeliveryResponse
        response, sent = self._call(self._record, request, timeout, wait=delivery.get("wait", 0.0))
        if not response.start_work:
            return _work.not_started(response)
        failed = _work.granted(response, request)
        if failed is not None:
            return failed
        held = Holding(self, response.job, response.lease, lease, sent)
        return held.run(work, backoff).result(response)

    def claim(
        self,
        *,
        max_jobs: int = 1,
        lease: float = DEFAULT_LEASE,
        events: Sequence[str] = (),
        job_id_prefix: str = "",
        worker_id: str = "",
        wait: float = 0.0,
        request_id: str = "",
        timeout: float | None = None,
    ) -> list[work_service.ClaimedJob]:
        """Leases jobs whose work is due; none is no error. wait comes on top of the timeout. A Worker does all that a claim entails."""
        request = _work.claim_request(max_jobs, lease, events, job_id_prefix, worker_id, wait, request_id)
        response, _ = self._call(self._claim_work, request, timeout, wait=wait)
        return list(response.jobs)

    def renew(self, job_id: str, lease_token: str, lease: float, *, timeout: float | None = None) -> types.Lease:
        """Lets a lease run anew from now; it is never made shorter. Raises LeaseLost when the token holds it no more."""
        return self._renew(job_id, lease_token, lease, timeout, None)[0]

    def _renew(
        self, job_id: str, token: str, lease: float, timeout: float | None, scope: Scope | None
    ) -> tuple[types.Lease, float]:
        response, sent = self._call(self._renew_lease, _work.renew_request(job_id, token, lease), timeout, scope=scope)
        return response.lease, sent

    def complete(self, job_id: str, lease_token: str, result: str = "", *, timeout: float | None = None) -> None:
        """Says that the work is done, with a result of at most 64 KiB. Repeated with the same token it succeeds, and the first result
        stays. Raises LeaseLost when the token holds the lease no more."""
        self._call(self._complete_work, _work.complete_request(job_id, lease_token, result), timeout)

    def release(
        self,
        job_id: str,
        lease_token: str,
        *,
        retry_delay: float | None = None,
        error: str = "",
        dead: bool = False,
        not_started: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Gives the work back undone, or with dead gives it up. Repeated with the same token it succeeds and changes nothing."""
        request = _work.release_request(job_id, lease_token, retry_delay, error, dead, not_started)
        self._call(self._release_work, request, timeout)

    def requeue(self, job: types.Job, *, force: bool = False, timeout: float | None = None) -> bool:
        """Starts the work of a job anew, as it was read with `get`: whatever state it is in, it is queued, due now and without attempts.

        True when this call did it, False when it was so already. It needs the right admin. Raises WrongState when the job has changed
        since, or when force is needed: a lease runs, whose holder loses it, or the body was dropped.
        """
        response, _ = self._call(self._requeue_work, _work.requeue_request(job, force), timeout)
        return bool(response.changed)

    def _call(
        self, method: Call, request: Message, timeout: float | None, *, wait: float = 0.0, scope: Scope | None = None
    ) -> tuple[Any, float]:
        """Makes attempts until one succeeds, one fails for good, or there is no time or no try left.

        wait is how long the service was asked to wait before it answers. Returns the answer, and when it was asked for.
        """
        if os.getpid() != self._process:
            raise RuntimeError("the process was forked after this client was made, and gRPC does not outlive that: make one in each process")
        scope = scope or Scope(self._closing)
        attempts = Attempts(self._retry, self._settings.target.single, self.timeout if timeout is None else timeout, wait)
        request_id = str(getattr(request, "request_id", ""))
        while True:
            may_take = attempts.begin()
            error: JobOnceError
            try:
                metadata = self._settings.metadata(request_id)
                return scope.result(lambda: method.future(request, timeout=may_take, metadata=metadata)), attempts.sent
            except Unauthenticated as unsent:
                error, over = unsent, False
            except grpc.FutureCancelledError:
                error, over = read_error(grpc.StatusCode.CANCELLED, "the call was given up", (), request_id), True
            except ValueError:
                if not self._closed:
                    raise
                error, over = closed_error(request_id), True
            except grpc.RpcError as failure:
                # What gRPC raises here is the call itself.
                error, over = read_error(failure.code(), failure.details(), failure.trailing_metadata(), request_id), False
            if over or scope.cancelled or self._closed:
                raise attempts.given_up(error)
            scope.wait(attempts.failed(error))


class Work:
    """The work of one job, under a lease that is renewed while the function runs."""

    def __init__(self, job: types.Job, lease: types.Lease) -> None:
        self.job = job
        """The job as stored, with the body of its first delivery. Work on this, not on the delivery at hand."""
        self.lease = lease
        """The lease as it was granted; renewals move its end, which does not show here."""
        self.stopped = threading.Event()
        """Set when the lease is lost or ran out, and when a worker's time to stop is over. Return soon then: somebody else may
        start the work."""

    @property
    def body(self) -> bytes | None:
        """The body of the first delivery. None when there was none."""
        return body_of(self.job)

    @property
    def generation(self) -> int:
        """The fencing number: it grows with every lease of the job. Systems that keep the highest one they saw can refuse a holder
        who is late."""
        return self.lease.generation


class Holding:
    """A lease that is held while its work is done."""

    def __init__(self, client: Client, job: types.Job, lease: types.Lease, length: float, sent: float) -> None:
        self._client, self._job, self._lease, self._length = client, job, lease, length
        self._until = sent + _work.seconds_of(lease.remaining)
        self._lost: JobOnceError | None = None
        self.work = Work(job, lease)

    def run(
        self, function: Callable[[Work], str | None], backoff: Callable[[int], float], cut: Callable[[], bool] = lambda: False
    ) -> Ended:
        """Does the work and tells the service what became of it. cut tells whether it was to stop for another reason than its lease."""
        if self._until - time.monotonic() < self._length / 4:
            # The answer took long to come: renew the lease rather than start what may have to be cut short.
            try:
                self._renew(None, None)
            except JobOnceError as error:
                self.give_back()
                return Ended(False, error=error)
        scope = Scope()
        keeper = threading.Thread(target=self._keep, args=(scope,), name="jobonce lease", daemon=True)
        keeper.start()
        failure: BaseException | None = None
        returned: object = None
        try:
            returned = _work.returned_by(function(self.work))
        except BaseException as error:
            failure = error
        finally:
            scope.cancel()
            keeper.join()
        if failure is None:
            return self._complete(returned)
        ended = self._failed(failure, backoff, cut() or not isinstance(failure, Exception))
        if not isinstance(failure, Exception):
            raise failure
        return ended

    def _complete(self, returned: object) -> Ended:
        if self._lost is not None:
            return Ended(True, error=self._lost)
        result, problem = _work.result_of(returned)
        try:
            self._client.complete(self._job.job_id, self._lease.token, result)
        except JobOnceError as error:
            return Ended(True, error=self._noted(error))
        return Ended(True, settled=True, error=problem)

    def _failed(self, failure: BaseException, backoff: Callable[[int], float], stopped: bool) -> Ended:
        if self._lost is not None:
            failure.add_note(f"the lease was lost: {self._lost}")
            return Ended(True, error=failure)
        how: dict[str, Any] = {}
        try:
            how = _work.give_back(failure, backoff, self._job, stopped)
            self._client.release(self._job.job_id, self._lease.token, **how)
        except Exception as error:
            failure.add_note(f"the work could not be given back: {self._noted(error)}")
            return Ended(True, delay=how.get("retry_delay", 0.0), error=failure)
        return Ended(True, settled="dead" in how, delay=how.get("retry_delay", 0.0), error=failure)

    def give_back(self) -> None:
        """Gives back work that was not started. If that fails, the lease lapses."""
        if self._lost is None:
            try:
                self._client.release(self._job.job_id, self._lease.token, not_started=True)
            except JobOnceError:
                pass

    def _keep(self, scope: Scope) -> None:
        """Renews the lease until the scope ends. It ends the work when the lease is lost, or may be: it has run out without a renewal."""
        while (left := self._until - time.monotonic()) > 0 and self._lost is None:
            # A third, spread by a quarter either way: leases that were granted at once are not renewed at once.
            scope.wait(min(max(left / 4 + random.uniform(0, left / 6), _work.MIN_RENEW_PAUSE), left))
            if scope.cancelled:
                return
            try:
                # Not all that is left: a call that hangs leaves time for another one.
                self._renew(max(0.001, (self._until - time.monotonic()) / 2), scope)
            except Exception:
                pass  # The next one may get through.
        self.work.stopped.set()

    def _renew(self, timeout: float | None, scope: Scope | None) -> None:
        try:
            lease, sent = self._client._renew(self._job.job_id, self._lease.token, self._length, timeout, scope)
        except JobOnceError as error:
            raise self._noted(error) from None
        self._until = sent + _work.seconds_of(lease.remaining)

    def _noted(self, error: _Error) -> _Error:
        """Remembers an error that says that the lease is gone: for good, a token never holds again."""
        if isinstance(error, (LeaseLost, JobNotFound)):  # A job that was deleted took the lease along.
            self._lost = error
        return error
