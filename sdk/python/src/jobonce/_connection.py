"""What the two clients share: targets, credentials, and when to make another attempt."""

from __future__ import annotations

import inspect
import ipaddress
import json
import math
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from jobonce.errors import JobOnceError, Unauthenticated, invalid

DEFAULT_TIMEOUT = 10.0
"""Bounds a call, its retries included, in seconds."""


@dataclass(frozen=True)
class TLS:
    """PEM texts. What is absent is the system's, or none."""

    ca: bytes | None = None
    """The certificates of the authorities that are trusted, instead of the system's."""
    cert: bytes | None = None
    """The client's certificate, with `key`."""
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Retry:
    """How a call that failed is repeated.

    It is repeated, with the same request id, when the service is overloaded, cannot reach its store or does not know the
    outcome, and when the connection failed; never when the service refused it. The call's timeout always bounds it.
    """

    max_attempts: int | None = None
    """The number of attempts, the first included. None: as many as the time allows."""
    base_delay: float = 0.05
    """The mean delay before the second attempt, in seconds; each later one is twice as long."""
    max_delay: float = 2.0
    """The longest mean delay, in seconds."""

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ValueError("max_attempts must be at least 1")
        if not 0 < self.base_delay <= self.max_delay < math.inf:
            raise ValueError("base_delay must be above 0, and max_delay at least that and finite")


@dataclass(frozen=True)
class Target:
    """A target as gRPC takes it, and what is known of it."""

    name: str
    loopback: bool
    """It can only be of this machine. In doubt it is not."""
    single: bool
    """It can only be one service. In doubt it is not."""


def parse_target(text: str) -> Target:
    """Reads host:port, several IP addresses with ports and commas between them, or a name of gRPC's such as dns:///..."""
    scheme = re.match(r"(?i)(dns|unix|ipv4|ipv6):", text)
    if scheme and scheme[1].lower() == "unix":
        return Target(text, loopback=True, single=True)
    if scheme:
        # dns:host:port, or dns://nameserver/host:port. Lists of addresses are not looked into.
        match = re.fullmatch(r"(?i)dns:(?://[^/]*/)?(?:\[([^\]]+)\]|([^:/\[\]]+))(?::\d+)?", text)
        host = (match[1] or match[2]) if match else ""
        return Target(text, loopback=_loopback(host), single=_single(host))
    addresses = [address.strip() for address in text.split(",")]
    hosts = []
    for address in addresses:
        match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:/\s]+)):(\d{1,5})", address)
        if not match or not 1 <= int(match[3]) <= 65535:
            raise ValueError(f"the target {address!r} is not host:port; an IPv6 address stands in brackets, as in [::1]:50051")
        hosts.append(match[1] or match[2])
    loopback = all(map(_loopback, hosts))
    if len(hosts) == 1:
        return Target(f"dns:{addresses[0]}", loopback, single=_single(hosts[0]))
    versions = {ip.version if ip else None for ip in map(_ip, hosts)}
    if len(versions) > 1 or None in versions:
        raise ValueError(
            "a target that is a list has IP addresses of one kind; for names, use dns:/// and one name with several addresses"
        )
    return Target(f"ipv{versions.pop()}:{','.join(addresses)}", loopback, single=False)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _loopback(host: str) -> bool:
    ip = _ip(host)
    return host.lower() == "localhost" or (ip is not None and ip.is_loopback)


def _single(host: str) -> bool:
    return host.lower() == "localhost" or _ip(host) is not None


class TokenFile:
    """A token in a file that may be replaced, as Kubernetes does every hour."""

    _AGE = 1.0
    """How long what the file held is used before it is read again, in seconds."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._token = self._load()
        self._read = time.monotonic()

    def _load(self) -> str:
        token = self._path.read_text().strip()
        if not token:
            raise ValueError(f"{self._path} is empty")
        return token

    def __call__(self) -> str:
        if time.monotonic() - self._read >= self._AGE:
            self._read = time.monotonic()
            try:
                self._token = self._load()
            except (OSError, ValueError):
                pass  # The last one is as good as it was.
        return self._token


@dataclass(frozen=True)
class Settings:
    """How to connect, checked and complete."""

    target: Target
    credentials: grpc.ChannelCredentials | None
    """None: plaintext."""
    token: Callable[[], Any] | None
    options: list[tuple[str, Any]]
    compression: grpc.Compression | None

    def metadata(self, request_id: str) -> list[tuple[str, str]]:
        """What is sent with an attempt."""
        if self.token is None:
            return []
        try:
            token = self.token()
        except Exception as error:
            raise _unsent("there is no token to send", request_id) from error
        return _bearer(token, request_id)

    async def metadata_async(self, request_id: str) -> list[tuple[str, str]]:
        """As metadata, with a source that may be a coroutine function."""
        if self.token is None:
            return []
        try:
            token: Any = self.token()
            if inspect.isawaitable(token):
                token = await token
        except Exception as error:
            raise _unsent("there is no token to send", request_id) from error
        return _bearer(token, request_id)


def _bearer(token: str, request_id: str) -> list[tuple[str, str]]:
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise _unsent("the token is empty, or holds a space, a line break or another character that a header cannot carry", request_id)
    return [("authorization", f"Bearer {token}")]


def _unsent(message: str, request_id: str) -> Unauthenticated:
    return Unauthenticated(f"UNAUTHENTICATED: {message}", code=grpc.StatusCode.UNAUTHENTICATED, request_id=request_id)


def settings(
    target: str,
    *,
    tls: bool | TLS | None,
    token: str | Callable[[], Any] | None,
    token_file: str | Path | None,
    token_over_plaintext: bool,
    compression: grpc.Compression | None,
    options: Sequence[tuple[str, Any]],
) -> Settings:
    """Checks and completes what a client is given."""
    parsed = parse_target(target)
    plaintext = parsed.loopback if tls is None else tls is False
    if token is not None and token_file is not None:
        raise ValueError("token and token_file exclude each other")
    source: Callable[[], Any] | None = None
    if token_file is not None:
        source = TokenFile(token_file)
    elif callable(token):
        source = token
    elif token is not None:
        fixed = token
        source = lambda: fixed  # noqa: E731
    if source is not None and plaintext and not parsed.loopback and not token_over_plaintext:
        raise ValueError("a token would travel in plaintext to another machine: use tls, or allow it with token_over_plaintext")
    pem = tls if isinstance(tls, TLS) else TLS()
    # Calls are spread over all addresses: the service keeps no state of its own. Of several, those that say that they do not
    # serve are left out.
    config: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
    if not parsed.single:
        config["healthCheckConfig"] = {"serviceName": ""}
    defaults: dict[str, Any] = {
        "grpc.service_config": json.dumps(config),
        "grpc.enable_retries": 0,  # One layer retries, and it is this package: it knows the reasons.
        "grpc.use_local_subchannel_pool": 1,
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.max_reconnect_backoff_ms": 2000,
        "grpc.min_reconnect_backoff_ms": 5000,  # how long an address may take to accept a connection
        "grpc.keepalive_time_ms": 30_000,
        "grpc.keepalive_timeout_ms": 10_000,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
        "grpc.primary_user_agent": "jobonce-python",
    }
    return Settings(
        target=parsed,
        credentials=None if plaintext else grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert),
        token=source,
        options=list((defaults | dict(options)).items()),
        compression=compression,
    )


class Attempts:
    """The attempts of one call: how long each may take, and how long to wait before the next."""

    def __init__(self, retry: Retry, single: bool, timeout: float, wait: float) -> None:
        if not 0 < timeout < math.inf:
            raise ValueError(f"the timeout {timeout} is not positive and finite")
        if not 0 <= wait <= 60:
            raise invalid("wait", "wait must be 0 to 60 seconds")
        self._retry, self._single, self._wait = retry, single, wait
        self._deadline = time.monotonic() + timeout + wait
        self._mean = retry.base_delay
        self._n = 0
        self._last: JobOnceError | None = None
        self.sent = 0.0
        """When the latest attempt began, on the monotonic clock: a duration in its answer counts from then on at the latest."""

    def begin(self) -> float:
        """Begins an attempt and returns how long it may take. One that may be followed by another gets half of the time left."""
        self._n += 1
        self.sent = time.monotonic()
        left = max(0.001, self._deadline - self.sent)
        if self._single or self._n == self._retry.max_attempts:
            return left
        return min(left, self._wait + min(max(1.0, (left - self._wait) / 2), 30.0))

    def failed(self, error: JobOnceError) -> float:
        """Returns how long to wait before the next attempt, or raises what is left when there is none."""
        self._last = error._after(self._last)
        # Added, not the larger of the two: who was turned away together must not come back together.
        delay = error.retry_after + self._mean * random.uniform(0.5, 1.5)
        self._mean = min(2 * self._mean, self._retry.max_delay)
        if not error._retryable() or self._n == self._retry.max_attempts or time.monotonic() + delay >= self._deadline:
            raise self._last
        return delay

    def given_up(self, error: JobOnceError) -> JobOnceError:
        """What to report when the call ends early with this error."""
        return error._after(self._last)
