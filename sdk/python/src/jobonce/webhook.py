"""The signatures of webhooks, and what to answer their senders. It needs the package standardwebhooks: install jobonce[webhook]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from standardwebhooks import Webhook, WebhookVerificationError

from jobonce._work import whole_seconds
from jobonce.errors import InvalidField, JobOnceError, PayloadTooLarge

__all__ = ["WebhookVerificationError", "answer_to", "verify_webhook"]


def verify_webhook(body: bytes, headers: Mapping[str, str], secrets: str | Sequence[str]) -> None:
    """Checks the signature of a webhook that follows Standard Webhooks.

    body is the raw body, as received: parsed and printed anew, it has another signature. The signature stands in the headers webhook-id,
    webhook-timestamp and webhook-signature. secrets is one secret, or several while one replaces another; they begin with whsec_,
    or are base64.

    Raises WebhookVerificationError when none of the secrets made it, or the timestamp is more than five minutes away. A body that is no
    bytes is a TypeError, for it is a mistake in the program, which the provider must not hear as a 401.
    """
    if not isinstance(body, bytes):
        raise TypeError(f"the body must be the raw body, as bytes, which nothing has parsed, and not {type(body).__name__}")
    failure: Exception = WebhookVerificationError("there is no secret")
    for secret in [secrets] if isinstance(secrets, str) else secrets:
        webhook = Webhook(secret)  # A secret that is none is the caller's mistake, and raises as it is.
        try:
            webhook.verify(body, dict(headers), json_parse=False)
            return
        except (WebhookVerificationError, ValueError) as error:  # The library lets headers that are malformed raise ValueError.
            failure = error
    raise WebhookVerificationError(str(failure)) from failure


def answer_to(error: BaseException | None = None) -> tuple[int, dict[str, str]]:
    """What to answer a provider once a delivery was recorded, or with the error of that call: the status, and its headers.

    200 says that the job is not lost, whatever its disposition. A delivery that can never be right is 400 or 413. All other errors
    are 503 with Retry-After, so that the provider delivers again.
    """
    if error is None:
        return 200, {}
    if isinstance(error, InvalidField):
        return 400, {}
    if isinstance(error, PayloadTooLarge):
        return 413, {}
    delay = error.retry_after if isinstance(error, JobOnceError) else 0.0
    return 503, {"retry-after": str(whole_seconds(delay))}
