"""A webhook frontend with FastAPI: it checks the signature, records the delivery, and answers. The work is done by worker.py.

    WEBHOOK_SECRET=whsec_... JOBONCE_TARGET=127.0.0.1:50051 PORT=8080 python frontend.py

WEBHOOK_SECRET may be several secrets with commas between them, while one replaces another.
"""

import json
import logging
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import jobonce.aio
import uvicorn
from fastapi import FastAPI, Request, Response
from jobonce.webhook import WebhookVerificationError, answer_to, verify_webhook
from starlette.requests import ClientDisconnect

SECRETS = os.environ["WEBHOOK_SECRET"].split(",")
TARGET = os.environ.get("JOBONCE_TARGET", "127.0.0.1:50051")
TOKEN_FILE = os.environ.get("JOBONCE_TOKEN_FILE")
MAX_BODY = 1 << 20

log = logging.getLogger("frontend")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # The answer must come well before the provider's own timeout.
    async with jobonce.aio.Client(TARGET, token_file=TOKEN_FILE, timeout=5.0) as app.state.client:
        yield


app = FastAPI(lifespan=lifespan, openapi_url=None)


@app.exception_handler(Exception)
async def failed(request: Request, error: Exception) -> Response:
    # What is wrong here is no reason to give the delivery up. Starlette logs it.
    return Response(status_code=503, headers={"retry-after": "1"})


@app.post("/webhooks/acme")
async def webhook(request: Request) -> Response:
    # The signature is that of the raw body: nothing may parse it before.
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                return Response(status_code=413)
    except ClientDisconnect:
        return Response(status_code=400)  # Nobody hears it.
    try:
        verify_webhook(bytes(body), request.headers, SECRETS)
    except WebhookVerificationError:
        return Response(status_code=401)
    status, headers = await record(request.app.state.client, request.headers, bytes(body))
    return Response(status_code=status, headers=headers)


async def record(client: jobonce.aio.Client, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str]]:
    try:
        await client.record(
            # The sender gives one id to all deliveries of an event. The prefix keeps it apart from other senders' ids.
            job_id=f"acme:{headers['webhook-id']}",
            event=event_of(body),
            body=body,
            opaque_payload=True,  # The service need not look for an id in the body.
            content_type=content_type_of(headers),
            source="acme",
            mode="queued",
        )
    except Exception as error:
        log.exception("the delivery is not recorded")
        return answer_to(error)  # 503, so that the provider delivers again, unless it can never be right
    return answer_to()  # 200: the job is recorded, now or before, and is not lost.


def event_of(body: bytes) -> str:
    """What happened, for workers that claim by event.

    A body that does not say so, or says what the service does not take, is recorded all the same.
    """
    try:
        event = json.loads(body).get("type", "")
        return event if isinstance(event, str) and len(event.encode()) <= 128 else ""
    except (ValueError, AttributeError, RecursionError):
        return ""


def content_type_of(headers: Mapping[str, str]) -> str:
    """What the worker is told of the body. One that the service does not take is left out: the delivery matters more."""
    content_type = headers.get("content-type", "")
    return content_type if re.fullmatch(r"[\x20-\x7e]{0,128}", content_type) else ""


if __name__ == "__main__":
    uvicorn.run(app, host=os.environ.get("HOST", "127.0.0.1"), port=int(os.environ.get("PORT", "8080")))
