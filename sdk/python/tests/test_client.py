"""Tests without a service: what a client is given, and what it makes of it."""

import asyncio
import base64
import tempfile
import threading
import time
import unittest
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import grpc
from standardwebhooks import Webhook

import jobonce
import jobonce.aio
from jobonce import _work
from jobonce._connection import TokenFile
from jobonce.errors import BY_REASON, known_reasons
from jobonce.v1 import idempotency_service_pb2 as idempotency
from jobonce.v1 import types_pb2
from jobonce.v1 import work_service_pb2 as work_service
from jobonce.webhook import WebhookVerificationError, answer_to, verify_webhook


class Given(unittest.TestCase):
    def test_targets(self) -> None:
        good = "127.0.0.1:1", "[::1]:1", "localhost:1", "127.0.0.1:1, 127.0.0.2:2", "dns:///a.b:1", "unix:/tmp/s", "jobonce.internal:443"
        for target in good:
            jobonce.Client(target).close()
        bad = "", "localhost", "50051", "http://localhost:1", "127.0.0.1:1,[::1]:1", "a:1,b:1", "127.0.0.1:1,", "a:0", "a:65536"
        for target in bad:
            with self.subTest(target), self.assertRaises(ValueError):
                jobonce.Client(target)

    def test_a_token_does_not_travel_in_plaintext(self) -> None:
        with self.assertRaisesRegex(ValueError, "plaintext"):
            jobonce.Client("jobonce.internal:1", token="t", tls=False)
        with self.assertRaisesRegex(ValueError, "exclude"):
            jobonce.Client("127.0.0.1:1", token="t", token_file="f")
        jobonce.Client("jobonce.internal:1", token="t", tls=False, token_over_plaintext=True).close()
        jobonce.Client("jobonce.internal:1", token="t").close()
        for target in "dns:///localhost:1", "dns:127.0.0.1:1", "dns:///[::1]:1", "LOCALHOST:1", "dns://8.8.8.8/127.0.0.1":
            jobonce.Client(target, token="t", tls=False).close()  # of this machine
        for target in "dns:///jobonce.internal:1", "dns://127.0.0.1/jobonce.internal:1", "ipv4:10.0.0.1:1", "127.0.0.1.example:1":
            with self.subTest(target), self.assertRaisesRegex(ValueError, "plaintext"):
                jobonce.Client(target, token="t", tls=False)

    def test_a_source_of_tokens_that_fails(self) -> None:
        def broken() -> str:
            raise OSError("no network")

        with jobonce.Client("127.0.0.1:1", token=broken) as client:
            with self.assertRaises(jobonce.Unauthenticated) as raised:
                client.record(job_id="j")
        self.assertIsInstance(raised.exception.__cause__, OSError)
        self.assertFalse(raised.exception.outcome_unknown)
        # What an earlier attempt came to is not known.
        tokens = iter(["t"])
        with jobonce.Client("127.0.0.1:1", token=lambda: next(tokens)) as client:
            with self.assertRaises(jobonce.Unauthenticated) as raised:
                client.record(job_id="j")
        self.assertTrue(raised.exception.outcome_unknown and raised.exception.request_id)

    def test_a_source_of_tokens_that_hangs_takes_no_longer_than_the_call(self) -> None:
        async def hangs() -> str:
            await asyncio.sleep(60)
            return ""

        async def call() -> None:
            async with jobonce.aio.Client("127.0.0.1:1", token=hangs) as client:
                with self.assertRaises(jobonce.JobOnceError) as raised:
                    await asyncio.wait_for(client.get("j", timeout=0.05), 20)
            self.assertEqual(raised.exception.code, grpc.StatusCode.DEADLINE_EXCEEDED)

        asyncio.run(call())

    def test_retries(self) -> None:
        for retry in {"max_attempts": 0}, {"base_delay": 0.0}, {"base_delay": 3.0}, {"max_delay": float("inf")}, {"base_delay": float("nan")}:
            with self.subTest(retry), self.assertRaises(ValueError):
                jobonce.Retry(**retry)

    def test_a_token_file_is_read_again(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "token")
            with self.assertRaises(FileNotFoundError):
                TokenFile(path)
            path.write_text("\n")
            with self.assertRaisesRegex(ValueError, "empty"):
                TokenFile(path)
            path.write_text("one\n")
            token = TokenFile(path)
            path.write_text("two\n")
            self.assertEqual(token(), "one")
            token._read -= 2
            self.assertEqual(token(), "two")
            path.unlink()
            token._read -= 2
            self.assertEqual(token(), "two")

    def test_a_token_that_no_header_can_carry_is_not_shown(self) -> None:
        with jobonce.Client("127.0.0.1:1", token=lambda: "se cret") as client:
            with self.assertRaises(jobonce.Unauthenticated) as raised:
                client.get("j")
        self.assertNotIn("se cret", repr(raised.exception))

    def test_what_cannot_be_sent(self) -> None:
        with jobonce.Client("127.0.0.1:1") as client:
            cases: list[tuple[dict[str, Any], str]] = [
                ({"mode": "some"}, "work_mode"),
                ({"mode": "leased", "lease": float("nan")}, "lease_duration"),
                ({"body": "\udc00"}, "payload"),
                ({"event": "\udc00"}, "event"),
            ]
            for delivery, field in cases:
                with self.subTest(field), self.assertRaises(jobonce.InvalidField) as raised:
                    client.record(job_id="j", **delivery)
                self.assertEqual(raised.exception.field, field)
            with self.assertRaises(jobonce.PayloadTooLarge):
                client.record(job_id="j", body=bytes((3 << 20) + 1))
            for timeout in 0, -1, float("nan"), float("inf"):
                with self.subTest(timeout), self.assertRaises(ValueError):
                    client.record(job_id="j", timeout=timeout)
            for wait in -1, 61:
                with self.subTest(wait), self.assertRaises(jobonce.InvalidField):
                    client.record(job_id="j", wait=wait)
                with self.subTest(wait), self.assertRaises(jobonce.InvalidField):
                    client.claim(wait=wait)
            texts: list[tuple[Any, str]] = [
                (lambda: client.get("\ud800"), "job_id"),
                (lambda: client.claim(events=["e", "\ud800"]), "events"),
                (lambda: client.complete("j", "t", "\ud800"), "result"),
                (lambda: client.release("j", "t", error="\ud800"), "error"),
                (lambda: client.do(lambda work: None, job_id="j", mode="queued"), "work_mode"),  # type: ignore[call-arg]
            ]
            for call, field in texts:
                with self.subTest(field), self.assertRaises(jobonce.InvalidField) as raised:
                    call()
                self.assertEqual(raised.exception.field, field)
            for body in 7, {"parsed": True}:
                with self.assertRaises(TypeError):
                    client.record(job_id="j", body=body)  # type: ignore[arg-type]
            with self.assertRaises(ValueError):
                jobonce.Worker(client, lambda work: None, concurrency=0)

    def test_nobody_there(self) -> None:
        with jobonce.Client("127.0.0.1:1") as client:
            with self.assertRaises(jobonce.JobOnceError) as raised:
                client.record(job_id="j", timeout=0.3)
        self.check_nobody(raised.exception)

    def test_nobody_there_with_asyncio(self) -> None:
        async def call() -> None:
            async with jobonce.aio.Client("127.0.0.1:1") as client:
                await client.record(job_id="j", timeout=0.3)

        with self.assertRaises(jobonce.JobOnceError) as raised:
            asyncio.run(call())
        self.check_nobody(raised.exception)

    def check_nobody(self, error: jobonce.JobOnceError) -> None:
        self.assertEqual(error.reason, "")
        self.assertIn(error.code, (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED))
        self.assertTrue(error.request_id)

    def test_closing_ends_calls_that_wait_for_another_attempt(self) -> None:
        raised: list[jobonce.JobOnceError] = []
        client = jobonce.Client("127.0.0.1:1", timeout=100.0, retry=jobonce.Retry(base_delay=60.0, max_delay=60.0))

        def call() -> None:
            try:
                client.get("j")
            except jobonce.JobOnceError as error:
                raised.append(error)

        calling = threading.Thread(target=call, daemon=True)
        calling.start()
        time.sleep(0.2)  # Most likely it waits then.
        client.close()
        calling.join(20)
        self.assertEqual(len(raised), 1)

    def test_closing_ends_calls_that_wait_for_another_attempt_with_asyncio(self) -> None:
        async def call() -> None:
            client = jobonce.aio.Client("127.0.0.1:1", timeout=100.0, retry=jobonce.Retry(base_delay=60.0, max_delay=60.0))
            calling = asyncio.create_task(client.get("j"))
            await asyncio.sleep(0.2)
            await client.close()
            with self.assertRaises(jobonce.JobOnceError):
                await asyncio.wait_for(calling, 20)

        asyncio.run(call())

    def test_a_key_is_not_shown(self) -> None:
        self.assertNotIn("private", repr(jobonce.TLS(key=b"private")))

    def test_a_closed_client(self) -> None:
        client = jobonce.Client("127.0.0.1:1")
        client.close()
        with self.assertRaises(jobonce.JobOnceError) as raised:
            client.get("j")
        self.assertEqual(raised.exception.code, grpc.StatusCode.CANCELLED)


class Made(unittest.TestCase):
    def test_every_reason_has_a_class(self) -> None:
        self.assertEqual(set(known_reasons()), set(BY_REASON))

    def test_every_reason_has_an_answer_to_the_provider(self) -> None:
        for reason, cls in BY_REASON.items():
            status, headers = answer_to(cls("", reason=reason, retry_after=1.5))
            if reason in ("INVALID_FIELD", "PAYLOAD_TOO_LARGE"):
                self.assertEqual(status, 400 if reason == "INVALID_FIELD" else 413)
            else:
                self.assertEqual((status, headers), (503, {"retry-after": "2"}), reason)
        self.assertEqual(answer_to()[0], 200)
        self.assertEqual(answer_to(RuntimeError())[0], 503)

    def test_bodies(self) -> None:
        for body in b'\xef\xbb\xbf{"a":"\xc3\xbc"}', b"\xff\x00":
            request = _work.record_request({"job_id": "j", "body": body})
            job = types_pb2.Job(payload=request.payload) if request.HasField("payload") else types_pb2.Job(payload_bytes=request.payload_bytes)
            self.assertEqual(jobonce.body_of(job), body)
        self.assertIsNone(jobonce.body_of(types_pb2.Job()))

    def test_backoff(self) -> None:
        self.assertEqual([jobonce.default_backoff(n) for n in (0, 1, 2, 11, 12, 1000)], [1, 2, 4, 2048, 3600, 3600])

    def test_texts_of_errors_are_cut_at_a_character(self) -> None:
        self.assertEqual(_work.storable(RuntimeError("x" + "ü" * 4096)), "x" + "ü" * 2047)
        self.assertEqual(_work.storable(KeyError()), "KeyError")


class Fake(jobonce.Client):
    """A client whose service grants a lease on one job, and remembers what it is told."""

    def __init__(self, remaining: float = 60.0) -> None:
        super().__init__("127.0.0.1:1")
        self.remaining, self.told, self.claims = remaining, list[Any](), 0
        self.renews: Any = lambda: None

    def _lease(self) -> types_pb2.Lease:
        lease = types_pb2.Lease(token="t", generation=1)
        lease.remaining.FromMilliseconds(round(self.remaining * 1000))
        return lease

    def _call(self, method: Any, request: Any, timeout: Any, *, wait: float = 0.0, scope: Any = None) -> tuple[Any, float]:
        job = types_pb2.Job(job_id="j", work=types_pb2.Work(attempts=1))
        response: Any = None
        if method is self._record:
            response = idempotency.RecordDeliveryResponse(start_work=True, first_delivery=True, job=job, lease=self._lease())
        elif method is self._claim_work:
            self.claims += 1
            jobs = [work_service.ClaimedJob(job=job, lease=self._lease())] if self.claims == 1 else []
            return work_service.ClaimWorkResponse(jobs=jobs), time.monotonic()
        elif method is self._renew_lease:
            self.renews()
            return work_service.RenewLeaseResponse(lease=self._lease()), time.monotonic()
        else:
            self.told.append(request)
        return response, time.monotonic()


class AsyncFake(jobonce.aio.Client):
    """Fake for asyncio."""

    def __init__(self, remaining: float = 60.0) -> None:
        super().__init__("127.0.0.1:1")
        self.fake = Fake(remaining)
        self.told = self.fake.told
        self.renews: Any = lambda: asyncio.sleep(0)

    async def _call(self, method: Any, request: Any, timeout: Any, *, wait: float = 0.0) -> tuple[Any, float]:
        if method is self._renew_lease:
            await self.renews()
        [name] = [name for name, value in vars(self).items() if value is method]
        return self.fake._call(getattr(self.fake, name), request, timeout, wait=wait)


class Working(unittest.TestCase):
    def test_what_work_returns_does_not_have_it_done_again(self) -> None:
        returned: Any
        for returned in None, 7, b"bytes", "x" * 65537, "\ud800":
            with self.subTest(type(returned)), Fake() as client:
                result = client.do(lambda work: returned, job_id="j")
                self.assertTrue(result.settled)
                self.assertEqual(result.error is None, returned is None)
                self.assertEqual([(type(told).__name__, told.result) for told in client.told], [("CompleteWorkRequest", "")])

    def test_work_that_nobody_awaits_is_not_done(self) -> None:
        begun = list[str]()

        async def work(work: jobonce.Work) -> str:
            begun.append(work.job.job_id)
            return "done"

        anything: Any = work
        refused: Any
        with Fake() as client:
            for refused in anything, None, "ship":
                for call in (lambda: client.do(refused, job_id="j")), (lambda: jobonce.Worker(client, refused)):
                    with self.assertRaises(TypeError):
                        call()
            self.assertEqual(client.told, [])
            result = client.do(lambda work: anything(work), job_id="j")
            self.assertFalse(result.settled)
            self.assertIn("jobonce.aio", str(result.error))
            self.assertEqual([type(told).__name__ for told in client.told], ["ReleaseWorkRequest"])
        self.assertEqual(begun, [])

    def test_work_that_is_done_without_awaiting_is_done_with_asyncio(self) -> None:
        async def do() -> None:
            function: Any = lambda work: "done"
            async with AsyncFake() as client:
                nothing: Any = None
                with self.assertRaises(TypeError):
                    await client.do(nothing, job_id="j")
                with self.assertRaises(TypeError):
                    jobonce.aio.Worker(client, nothing)
                self.assertEqual(client.told, [])
                result = await client.do(function, job_id="j")
                self.assertTrue(result.settled and result.error is None)
                self.assertEqual([(type(told).__name__, told.result) for told in client.told], [("CompleteWorkRequest", "done")])

        asyncio.run(do())

    def test_what_work_returns_does_not_have_it_done_again_with_asyncio(self) -> None:
        async def do() -> None:
            async def work(work: jobonce.aio.Work) -> Any:
                return 7

            async with AsyncFake() as client:
                result = await client.do(work, job_id="j")
                self.assertTrue(result.settled and isinstance(result.error, TypeError))
                self.assertEqual([type(told).__name__ for told in client.told], ["CompleteWorkRequest"])

        asyncio.run(do())

    def test_work_is_told_to_stop_whatever_fails(self) -> None:
        def broken() -> None:
            raise RuntimeError("nobody foresaw it")

        with Fake(remaining=3.0) as client:
            client.renews = broken
            stopped: list[bool] = []
            client.do(lambda work: stopped.append(work.stopped.wait(20)), job_id="j", lease=1.0)
            self.assertEqual(stopped, [True])

    def test_work_is_told_to_stop_whatever_fails_with_asyncio(self) -> None:
        async def do() -> None:
            async def broken() -> None:
                raise RuntimeError("nobody foresaw it")

            async def work(work: jobonce.aio.Work) -> None:
                await asyncio.sleep(20)

            async with AsyncFake(remaining=3.0) as client:
                client.renews = broken
                result = await client.do(work, job_id="j", lease=1.0)
                self.assertIsInstance(result.error, jobonce.LeaseLost)

        asyncio.run(do())

    def test_work_that_cancels_itself_has_not_lost_its_lease(self) -> None:
        async def do() -> None:
            async def work(work: jobonce.aio.Work) -> None:
                raise asyncio.CancelledError

            async with AsyncFake() as client:
                result = await client.do(work, job_id="j")
                self.assertIsInstance(result.error, asyncio.CancelledError)
                self.assertEqual([type(told).__name__ for told in client.told], ["ReleaseWorkRequest"])

        asyncio.run(do())

    def test_a_caller_that_leaves_before_the_work_begins_gives_it_back(self) -> None:
        async def do() -> None:
            reached = asyncio.Event()

            async def renews() -> None:
                reached.set()
                await asyncio.sleep(20)

            async def work(work: jobonce.aio.Work) -> None:
                self.fail("it began")

            async with AsyncFake(remaining=0.01) as client:
                client.renews = renews
                task = asyncio.create_task(client.do(work, job_id="j"))
                await reached.wait()
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                self.assertEqual([told.not_started for told in client.told], [True])

        asyncio.run(do())

    def test_errors_say_when_work_is_tried_again(self) -> None:
        cases: list[tuple[Exception, float, bool, bool]] = [
            (jobonce.RetryLater("busy", 5.0), 5.0, False, False),
            (jobonce.RetryLater("busy", 0.1), 2.0, False, False),  # the backoff is longer
            (jobonce.RetryLater("busy", float("inf")), 86400.0, False, False),
            (jobonce.NotStarted("no place"), 0.0, False, True),
            (jobonce.PermanentError("never"), 0.0, True, False),
        ]
        for error, delay, dead, not_started in cases:

            def work(work: jobonce.Work, error: Exception = error) -> None:
                raise error

            with self.subTest(error), Fake() as client:
                self.assertEqual(client.do(work, job_id="j").settled, dead)
                [told] = client.told
                self.assertEqual((_work.seconds_of(told.retry_delay), told.dead, told.not_started), (delay, dead, not_started))

    def test_a_backoff_that_fails_does_not_hide_why_the_work_did(self) -> None:
        def work(work: jobonce.Work) -> None:
            raise RuntimeError("no")

        with Fake() as client:
            result = client.do(work, job_id="j", backoff=lambda attempts: 1 / 0)
            self.assertEqual((str(result.error), result.settled), ("no", False))

    def test_a_worker_that_is_not_to_wait_does_not_claim_without_a_pause(self) -> None:
        with Fake() as client:
            worker = jobonce.Worker(client, lambda work: None, wait=0.0)
            running = threading.Thread(target=worker.run)
            running.start()
            time.sleep(0.2)
            worker.stop()
            running.join()
            self.assertLessEqual(client.claims, 2)


class Signatures(unittest.TestCase):
    def test_signatures(self) -> None:
        secret, old = (f"whsec_{base64.b64encode(key).decode()}" for key in (b"a secret of some length", b"another one, of before"))
        body, at = '{"a":  "ü"}'.encode(), datetime.now(timezone.utc)
        signature = Webhook(secret).sign("m", at, body.decode())
        headers = {"Webhook-Id": "m", "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}
        verify_webhook(body, headers, secret)
        verify_webhook(body, headers, [old, secret])
        cases: list[tuple[bytes, dict[str, str], str | list[str]]] = [
            (b"{}", headers, secret),
            (body, {}, secret),
            (body, headers, old),
            (body, headers, []),
            (b"\xff", headers, secret),
            (body, headers | {"webhook-timestamp": "1"}, secret),
            (body, headers | {"webhook-signature": "v1"}, secret),
            (body, headers | {"webhook-signature": "v1,ü"}, secret),
        ]
        for what, changed, given in cases:
            with self.subTest(changed), self.assertRaises(WebhookVerificationError):
                verify_webhook(what, changed, given)
        parsed: Any
        for parsed in {"a": "ü"}, body.decode(), None:
            with self.subTest(parsed), self.assertRaisesRegex(TypeError, "raw body"):
                verify_webhook(parsed, headers, secret)


if __name__ == "__main__":
    unittest.main()
