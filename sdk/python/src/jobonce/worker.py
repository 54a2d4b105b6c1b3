"""The worker for programs with threads."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from jobonce import _work
from jobonce._work import DEFAULT_LEASE, default_backoff
from jobonce.client import Client, Holding, Scope, Work
from jobonce.errors import InvalidField, JobOnceError
from jobonce.v1 import work_service_pb2 as work_service

MAX_CLAIM = 100
"""What one claim may ask for."""


class Worker:
    """Claims jobs whose work is due and does it: that of jobs recorded as queued, and what others left undone.

    work does the work of one job, on a thread of the worker's, as for `Client.do`. concurrency is how many jobs are worked on at once;
    lease is how long a lease runs, at first and from each renewal on; with events, only jobs with one of them are claimed, and with
    job_id_prefix, which ends in a colon, only those whose id begins with it; worker_id names the worker in the service's log; wait is
    how long one call waits for work at the service, at most 60; shutdown_timeout is how long the jobs under way may go on once the
    worker is to stop. All times are in seconds. The logger hears of failed jobs and failed calls; bodies and lease tokens are never
    written to it.
    """

    def __init__(
        self,
        client: Client,
        work: Callable[[Work], str | None],
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
        _work.check_work(work, awaited=False)
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self._client, self._work, self._concurrency, self._lease = client, work, concurrency, lease
        self._events, self._prefix, self._worker_id, self._wait = events, job_id_prefix, worker_id, wait
        self._shutdown_timeout, self._backoff = shutdown_timeout, backoff
        self._log = logger or logging.getLogger("jobonce")
        self._claims = Scope()
        self._open: work_service.ClaimWorkRequest | None = None
        """The claim of which nobody knows what it was granted."""
        self._changed = threading.Condition()
        self._running: set[Holding] = set()
        self._cut = False

    def stop(self) -> None:
        """Has `run` end: from any thread, or a signal handler. A worker that was stopped cannot run again."""
        # A signal handler must not wait for a lock that the interrupted code holds.
        threading.Thread(target=self._stop, name="jobonce stop", daemon=True).start()

    def _stop(self) -> None:
        self._claims.cancel()
        with self._changed:
            self._changed.notify_all()

    def run(self) -> None:
        """Claims and works until `stop` is called.

        Then it claims nothing more and lets the jobs under way finish; those that still run after shutdown_timeout are told to stop,
        and what they then fail with gives the work back for others to start at once. It returns once every function has returned.

        Calls that fail are repeated, with growing pauses, for as long as it takes. It raises a JobOnceError that no repetition
        mends: the service refuses the arguments, or the client was closed.
        """
        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="jobonce work") as pool:
            try:
                self._claim(pool)
            finally:
                self._give_back(pool)
                with self._changed:
                    if not self._changed.wait_for(lambda: not self._running, self._shutdown_timeout):
                        self._log.warning("jobs still run and are told to stop after %s s", self._shutdown_timeout)
                        self._cut = True
                        for held in self._running:
                            held.work.stopped.set()

    def _claim(self, pool: ThreadPoolExecutor) -> None:
        """Claims jobs whenever there is room. A claim stays open as long as nobody knows what it was granted."""
        pause, unknown = 1.0, False
        while not self._claims.cancelled:
            with self._changed:
                self._changed.wait_for(lambda: self._claims.cancelled or len(self._running) < self._concurrency)
                room = min(self._concurrency - len(self._running), MAX_CLAIM)
            if self._claims.cancelled:
                return
            if self._open is None:
                self._open = _work.claim_request(room, self._lease, self._events, self._prefix, self._worker_id, self._wait, "")
            asked = time.monotonic()
            try:
                response, sent = self._client._call(self._client._claim_work, self._open, None, wait=self._wait, scope=self._claims)
            except JobOnceError as error:
                if self._claims.cancelled:
                    return
                unknown = unknown or error.outcome_unknown
                if not unknown:
                    self._open = None  # A refusal tells of its own call alone.
                if isinstance(error, InvalidField) or self._client._closed:
                    raise
                self._log.warning("work cannot be claimed: %s", error)
                self._claims.wait(error.retry_after + pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, 30.0)
                continue
            self._open, unknown, pause = None, False, 1.0
            for claimed in response.jobs:
                self._start(pool, claimed, sent)
            if not response.jobs:
                # A service that is about to stop answers before the time.
                self._claims.wait(max(0.0, 1.0 - (time.monotonic() - asked)))

    def _give_back(self, pool: ThreadPoolExecutor) -> None:
        """Finds out what the open claim was granted after all, and gives it back. Otherwise the leases lapse."""
        request, self._open = self._open, None
        if request is None:
            return
        request.ClearField("wait")
        try:
            response, sent = self._client._call(self._client._claim_work, request, 2.0)
        except JobOnceError:
            return
        for claimed in response.jobs:
            pool.submit(Holding(self._client, claimed.job, claimed.lease, self._lease, sent).give_back)

    def _start(self, pool: ThreadPoolExecutor, claimed: work_service.ClaimedJob, sent: float) -> None:
        held = Holding(self._client, claimed.job, claimed.lease, self._lease, sent)
        with self._changed:
            self._running.add(held)
        pool.submit(self._do, held)

    def _do(self, held: Holding) -> None:
        job_id = held.work.job.job_id
        try:
            ended = held.run(self._work, self._backoff, lambda: self._cut)
            if ended.error is not None:
                self._log.warning("the work of %r failed", job_id, exc_info=ended.error)
        except BaseException:
            self._log.exception("the work of %r failed", job_id)
        finally:
            with self._changed:
                self._running.discard(held)
                self._changed.notify_all()
