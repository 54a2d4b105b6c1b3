"""The client and the worker for programs with asyncio."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc
import grpc.aio
from google.protobuf.message import Message

from jobonce import _work
from jobonce._connection import DEFAULT_TIMEOUT, TLS, Attempts, Retry, settings
from jobonce._work import DEFAULT_LEASE, Delivery, DoResult, Ended, RecordOptions, body_of, default_backoff
from jobonce.client import Call
from jobonce.errors import InvalidField, JobNotFound, JobOnceError, LeaseLost, Unauthenticated, closed_error, read_error
from jobonce.v1 import admin_service_pb2 as admin
from jobonce.v1 import idempotency_service_pb2 as idempotency
from jobonce.v1 import types_pb2 as types
from jobonce.v1 import work_service_pb2 as work_service
from jobonce.worker import MAX_CLAIM

_Error = TypeVar("_Error", bound=Exception)


class Client:
    """Calls one JobOnce service. Make one in a running event loop and share it.

    The arguments are those of `jobonce.Client`; a source of tokens may be a coroutine function. A call ends with the task that makes it.
    """

    def __init__(
        self,
        target: str,
        *,
        tls: bool | TLS | None = None,
        token: str | Callable[[], str | Awaitable[str]] | None = None,
        token_file: str | Path | None = None,
        token_over_plaintext: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
        retry: Retry = Retry(),
        compression: grpc.Compression | None = None,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self._settings = s = settings(
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
        self._closing = asyncio.Event()
        self._channel: grpc.aio.Channel = (
            grpc.aio.insecure_channel(s.target.name, s.options, s.compression)
            if s.credentials is None
            else grpc.aio.secure_channel(s.target.name, s.credentials, s.options, s.compression)
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

    async def close(self) -> None:
        """Ends the calls that still run, and closes the connection."""
        self._closing.set()
        await self._channel.close()

    @property
    def _closed(self) -> bool:
        return self._closing.is_set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def record(self, *, timeout: float | None = None, **delivery: Unpack[RecordOptions]) -> idempotency.RecordDeliveryResponse:
        """Records one delivery and says whether the caller is to start the work: branch on start_work.

        Without a request_id the client makes one and keeps it over all attempts, so that an answer that gets lost is recovered.
        """
        response: idempotency.RecordDeliveryResponse
        response, _ = await self._call(self._record, _work.record_request(delivery), timeout, wait=delivery.get("wait", 0.0))
        return response

    async def get(self, job_id: str, *, body: bool = False, timeout: float | None = None) -> types.Job:
        """Gets the record of a job, with its body only if body is true. Raises JobNotFound when nothing was recorded."""
        try:
            response, _ = await self._call(self._get_job, _work.get_request(job_id, body), timeout)
        except JobOnceError as error:
            error.outcome_unknown = False  # A read writes nothing.
            raise
        job: types.Job = response.job
        return job

    async def do(
        self,
        work: Callable[[Work], Awaitable[str | None]],
        *,
        backoff: Callable[[int], float] = default_backoff,
        timeout: float | None = None,
        **delivery: Unpack[Delivery],
    ) -> DoResult:
        """Records a delivery and, if this caller is to start the work, does it under a lease.

        The lease is renewed while the function runs, as a task of its own, which is cancelled when the lease is lost or ran out.
        Afterwards the work is completed, with the text that the function returned as its result, or given back when the function
        raised an Exception; a PermanentError makes the job dead. When the caller is cancelled, so is the function, and the work is
        given back before the cancellation goes on.

        It raises a JobOnceError only when the delivery could not be recorded. What goes wrong with the work stands in the result.
        """
        _work.check_work(work, awaited=True)
        request, lease = _work.leased_request(delivery)
        response: idempotency.RecordDeliveryResponse
        response, sent = await self._call(self._record, request, timeout, wait=delivery.get("wait", 0.0))
        if not response.start_work:
            return _work.not_started(response)
        failed = _work.granted(response, request)
        if failed is not None:
            return failed
        return (await Holding(self, response.job, response.lease, lease, sent).run(work, backoff)).result(response)

    async def claim(
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
        response, _ = await self._call(self._claim_work, request, timeout, wait=wait)
        return list(response.jobs)

    async def renew(self, job_id: str, lease_token: str, lease: float, *, timeout: float | None = None) -> types.Lease:
        """Lets a lease run anew from now; it is never made shorter. Raises LeaseLost when the token holds it no more."""
        return (await self._renew(job_id, lease_token, lease, timeout))[0]

    async def _renew(self, job_id: str, token: str, lease: float, timeout: float | None) -> tuple[types.Lease, float]:
        response, sent = await self._call(self._renew_lease, _work.renew_request(job_id, token, lease), timeout)
        return response.lease, sent

    async def complete(self, job_id: str, lease_token: str, result: str = "", *, timeout: float | None = None) -> None:
        """Says that the work is done, with a result of at most 64 KiB. Repeated with the same token it succeeds, and the first result
        stays. Raises LeaseLost when the token holds the lease no more."""
        await self._call(self._complete_work, _work.complete_request(job_id, lease_token, result), timeout)

    async def release(
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
        await self._call(self._release_work, request, timeout)

    async def requeue(self, job: types.Job, *, force: bool = False, timeout: float | None = None) -> bool:
        """Starts the work of a job anew, as it was read with `get`: whatever state it is in, it is queued, due now and without attempts.

        True when this call did it, False when it was so already. It needs the right admin. Raises WrongState when the job has changed
        since, or when force is needed: a lease runs, whose holder loses it, or the body was dropped.
        """
        response, _ = await self._call(self._requeue_work, _work.requeue_request(job, force), timeout)
        return bool(response.changed)

    async def _call(self, method: Call, request: Message, timeout: float | None, *, wait: float = 0.0) -> tuple[Any, float]:
        """As in `jobonce.Client`."""
        attempts = Attempts(self._retry, self._settings.target.single, self.timeout if timeout is None else timeout, wait)
        request_id = str(getattr(request, "request_id", ""))
        while True:
            may_take = attempts.begin()
            error: JobOnceError
            try:
                async with asyncio.timeout(may_take):
                    metadata = await self._settings.metadata_async(request_id)
                return await method(request, timeout=may_take, metadata=metadata), attempts.sent
            except Unauthenticated as unsent:
                error = unsent
            except TimeoutError:
                message = "DEADLINE_EXCEEDED: no token came in time"
                error = JobOnceError(message, code=grpc.StatusCode.DEADLINE_EXCEEDED, request_id=request_id)
            except grpc.aio.AioRpcError as failure:
                error = read_error(failure.code(), failure.details(), failure.trailing_metadata(), request_id)
            except grpc.aio.UsageError:
                if not self._closed:
                    raise
                error = closed_error(request_id)
            except asyncio.CancelledError:
                # gRPC raises it for calls that a closing channel ends, too.
                task = asyncio.current_task()
                if not self._closed or (task and task.cancelling()):
                    raise
                error = closed_error(request_id)
            if self._closed:
                raise attempts.given_up(error)
            try:
                await asyncio.wait_for(self._closing.wait(), attempts.failed(error))
            except TimeoutError:
                pass


class Work:
    """The work of one job, under a lease that is renewed while the function runs."""

    def __init__(self, job: types.Job, lease: types.Lease) -> None:
        self.job = job
        """The job as stored, with the body of its first delivery. Work on this, not on the delivery at hand."""
        self.lease = lease
        """The lease as it was granted; renewals move its end, which does not show here."""

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
        self._over: JobOnceError | None = None
        """Why the work was told to stop: the lease is lost, or ran out."""
        self.work = Work(job, lease)

    async def run(self, function: Callable[[Work], Awaitable[str | None]], backoff: Callable[[int], float]) -> Ended:
        """Does the work and tells the service what became of it."""
        if self._until - time.monotonic() < self._length / 4:
            # The answer took long to come: renew the lease rather than start what may have to be cut short.
            try:
                await self._renew(None)
            except JobOnceError as error:
                await self.give_back()
                return Ended(False, error=error)
            except asyncio.CancelledError:
                await self.give_back()
                raise
        working = asyncio.ensure_future(self._do(function))
        keeper = asyncio.ensure_future(self._keep(working))
        cancelled: asyncio.CancelledError | None = None
        while not working.done():
            try:
                await asyncio.wait({working})
            except asyncio.CancelledError as error:
                cancelled = error
                working.cancel()
        keeper.cancel()
        settled = asyncio.ensure_future(self._settle(working, backoff, cancelled is not None))
        while not settled.done():
            try:
                await asyncio.shield(settled)
            except asyncio.CancelledError as error:
                cancelled = error
            except Exception:
                pass  # It is raised below.
        if cancelled is not None:
            raise cancelled
        return settled.result()

    async def _do(self, function: Callable[[Work], Awaitable[str | None]]) -> object:
        returned: object = function(self.work)
        return await returned if inspect.isawaitable(returned) else returned  # What did without is done.

    async def _settle(self, working: asyncio.Future[object], backoff: Callable[[int], float], stopped: bool) -> Ended:
        failure: BaseException | None
        if working.cancelled():
            failure = self._over or asyncio.CancelledError("the work was cancelled")
        else:
            failure = working.exception()
        if failure is None:
            return await self._complete(working.result())
        if self._lost is not None:
            if not working.cancelled():
                self._lost.__cause__ = failure
            return Ended(True, error=self._lost)
        how: dict[str, Any] = {}
        try:
            how = _work.give_back(failure, backoff, self._job, stopped)
            await self._client.release(self._job.job_id, self._lease.token, **how)
        except Exception as error:
            failure.add_note(f"the work could not be given back: {self._noted(error)}")
            return Ended(True, delay=how.get("retry_delay", 0.0), error=failure)
        return Ended(True, settled="dead" in how, delay=how.get("retry_delay", 0.0), error=failure)

    async def _complete(self, returned: object) -> Ended:
        if self._lost is not None:
            return Ended(True, error=self._lost)
        result, problem = _work.result_of(returned)
        try:
            await self._client.complete(self._job.job_id, self._lease.token, result)
        except JobOnceError as error:
            return Ended(True, error=self._noted(error))
        return Ended(True, settled=True, error=problem)

    async def give_back(self) -> None:
        """Gives back work that was not started. If that fails, the lease lapses."""
        if self._lost is None:
            try:
                await self._client.release(self._job.job_id, self._lease.token, not_started=True)
            except JobOnceError:
                pass

    async def _keep(self, working: asyncio.Future[object]) -> None:
        """Renews the lease until it is cancelled. It ends the work when the lease is lost, or may be: it has run out without a renewal."""
        while (left := self._until - time.monotonic()) > 0 and self._lost is None:
            # A third, spread by a quarter either way: leases that were granted at once are not renewed at once.
            await asyncio.sleep(min(max(left / 4 + random.uniform(0, left / 6), _work.MIN_RENEW_PAUSE), left))
            try:
                # Not all that is left: a call that hangs leaves time for another one.
                await self._renew(max(0.001, (self._until - time.monotonic()) / 2))
            except Exception:
                pass  # The next one may get through.
        self._over = self._lost or LeaseLost("the lease ran out before it was renewed", reason="LEASE_LOST")
        working.cancel()

    async def _renew(self, timeout: float | None) -> None:
        try:
            lease, sent = await self._client._renew(self._job.job_id, self._lease.token, self._length, timeout)
        except JobOnceError as error:
            raise self._noted(error) from None
        self._until = sent + _work.seconds_of(lease.remaining)

    def _noted(self, error: _Error) -> _Error:
        """Remembers an error that says that the lease is gone: for good, a token never holds again."""
        if isinstance(error, (LeaseLost, JobNotFound)):  # A job that was deleted took the lease along.
            self._lost = error
        return error


class Worker:
    """Claims jobs whose work is due and does it, as `jobonce.Worker` does, whose arguments it takes."""

    def __init__(
        self,
        client: Client,
        work: Callable[[Work], Awaitable[str | None]],
        *,
        concurrency: int = 10,
        lease: float = DEFAULT_LEASE,
        events: Sequence[str] = (),
        job_id_prefix: str = "",
        worker_id: str = "",
        wait: float = 30.0,
        shutdown_timeout: float = 30.0,
        backoff: Callable[[int], float] = default_backoff,
        logger: logging.Logger | None = None,
    ) -> None:
        _work.check_work(work, awaited=True)
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self._client, self._work, self._concurrency, self._lease = client, work, concurrency, lease
        self._events, self._prefix, self._worker_id, self._wait = events, job_id_prefix, worker_id, wait
        self._shutdown_timeout, self._backoff = shutdown_timeout, backoff
        self._log = logger or logging.getLogger("jobonce")
        self._open: work_service.ClaimWorkRequest | None = None
        """The claim of which nobody knows what it was granted."""
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Claims and works until it is cancelled.

        Then it claims nothing more and lets the jobs under way finish; those that still run after shutdown_timeout are cancelled, and
        given back for others to start at once. The cancellation goes on once every function has returned.

        Calls that fail are repeated, with growing pauses, for as long as it takes. It raises a JobOnceError that no repetition
        mends: the service refuses the arguments, or the client was closed.
        """
        try:
            await self._claim()
        finally:
            finish = asyncio.ensure_future(self._finish())
            while not finish.done():
                try:
                    await asyncio.shield(finish)
                except asyncio.CancelledError:
                    pass  # Once is enough.

    async def _finish(self) -> None:
        await self._give_back()
        if self._running:
            await asyncio.wait(self._running, timeout=self._shutdown_timeout)
        if self._running:
            self._log.warning("jobs still run and are cancelled after %s s", self._shutdown_timeout)
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running)

    async def _claim(self) -> None:
        """Claims jobs whenever there is room. A claim stays open as long as nobody knows what it was granted."""
        pause, unknown = 1.0, False
        while True:
            if len(self._running) >= self._concurrency:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                continue
            if self._open is None:
                room = min(self._concurrency - len(self._running), MAX_CLAIM)
                self._open = _work.claim_request(room, self._lease, self._events, self._prefix, self._worker_id, self._wait, "")
            asked = time.monotonic()
            try:
                response, sent = await self._client._call(self._client._claim_work, self._open, None, wait=self._wait)
            except JobOnceError as error:
                unknown = unknown or error.outcome_unknown
                if not unknown:
                    self._open = None  # A refusal tells of its own call alone.
                if isinstance(error, InvalidField) or self._client._closed:
                    raise
                self._log.warning("work cannot be claimed: %s", error)
                await asyncio.sleep(error.retry_after + pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, 30.0)
                continue
            self._open, unknown, pause = None, False, 1.0
            for claimed in response.jobs:
                task = asyncio.create_task(self._do(claimed, sent))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            if not response.jobs:
                # A service that is about to stop answers before the time.
                await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - asked)))

    async def _give_back(self) -> None:
        """Finds out what the open claim was granted after all, and gives it back. Otherwise the leases lapse."""
        request, self._open = self._open, None
        if request is None:
            return
        request.ClearField("wait")
        try:
            response, sent = await self._client._call(self._client._claim_work, request, 2.0)
        except JobOnceError:
            return
        held = [Holding(self._client, claimed.job, claimed.lease, self._lease, sent) for claimed in response.jobs]
        await asyncio.gather(*(h.give_back() for h in held))

    async def _do(self, claimed: work_service.ClaimedJob, sent: float) -> None:
        try:
            ended = await Holding(self._client, claimed.job, claimed.lease, self._lease, sent).run(self._work, self._backoff)
            if ended.error is not None:
                self._log.warning("the work of %r failed", claimed.job.job_id, exc_info=ended.error)
        except Exception:
            self._log.exception("the work of %r failed", claimed.job.job_id)
