"""Tests without a service: what a client is given, and what it makes of it."""

import asyncio
import base64
import tempfile
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
from jobonce.v1 import types_pb2
from jobonce.webhook import WebhookVerificationError, answer_to, verify_webhook


class Given(unittest.TestCase):
    def test_targets(self) -> None:
        good = "127.0.0.1:1", "[::1]:1", "localhost:1", "127.0.0.1:1, 127.0.0.2:2", "dns:///a.b:1", "unix:/tmp/s", "jobonce.internal:443"
        for target in good:
            jobonce.Client(target).close()
        for target in "", "localhost", "50051", "http://localhost:1", "127.0.0.1:1,[::1]:1", "a:1,b:1", "127.0.0.1:1,":
            with self.subTest(target), self.assertRaises(ValueError):
                jobonce.Client(target)

    def test_a_token_does_not_travel_in_plaintext(self) -> None:
        with self.assertRaisesRegex(ValueError, "plaintext"):
            jobonce.Client("jobonce.internal:1", token="t", tls=False)
        with self.assertRaisesRegex(ValueError, "exclude"):
            jobonce.Client("127.0.0.1:1", token="t", token_file="f")
        jobonce.Client("jobonce.internal:1", token="t", tls=False, token_over_plaintext=True).close()
        jobonce.Client("jobonce.internal:1", token="t").close()

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
                ({"event": "\udc00"}, ""),
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
            with self.assertRaises(TypeError):
                client.record(job_id="j", body=7)  # type: ignore[arg-type]
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

    def test_results(self) -> None:
        self.assertEqual(_work.check_result(None), "")
        for result in b"bytes", 7:
            with self.assertRaises(TypeError):
                _work.check_result(result)
        with self.assertRaises(jobonce.InvalidField):
            _work.check_result("x" * 65537)


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


if __name__ == "__main__":
    unittest.main()
