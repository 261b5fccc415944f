"""What the server takes on, and from whom: limits on requests in flight, open streams and bodies, keys and hosts."""

import asyncio
import hmac
import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recguide.engine.server_errors import Refusal, invalid, overloaded, refused, shown
from recguide.engine.server_metrics import Metrics

OPEN_PATHS = ("/health",)
"""That ask for no key: whoever watches a server needs none."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How much a server takes on from its clients."""

    max_running: int
    """Requests that the engine runs at a time."""
    max_queue: int = 256
    """Requests beyond these that wait for it."""
    max_streams: int = 256
    """Streams open at a time, a slow reader's included."""
    max_body_bytes: int = 2**20
    max_prompt_tokens: int | None = None
    """None: what the context has room for."""
    body_s: float = 30.0
    """In which a request has to arrive."""
    stall_s: float = 30.0
    """For which a stream waits for a client that reads nothing."""


class Gate:
    """Counts requests and streams, and refuses those beyond the limits; for one event loop."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.requests = self.streams = 0

    @contextmanager
    def place(self, stream: bool) -> Iterator[None]:
        """A place for one request as long as the context lasts; Refusal where there is none."""
        most = self.limits.max_running + self.limits.max_queue
        if self.requests >= most:
            raise overloaded(f"queue: {self.requests} requests are in flight, allowed: {most}; ask again", "queue_full")
        if stream and self.streams >= self.limits.max_streams:
            allowed = self.limits.max_streams
            raise overloaded(
                f"stream: {self.streams} streams are open, allowed: {allowed}; ask again", "too_many_streams"
            )
        self.requests += 1
        self.streams += stream
        try:
            yield
        finally:
            self.requests -= 1
            self.streams -= stream


async def read_body(request: Request, limits: ServerLimits) -> bytes:
    """The body of a request; Refusal for one that is no JSON, too large or too slow."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # a web page may send text to other hosts unasked, but not this
        raise Refusal(415, f"content-type: found {ascii(kind)[:60]}, allowed: application/json", "content-type")
    most = limits.max_body_bytes
    told = request.headers.get("content-length", "0")
    if int(told) > most:
        raise _too_large(f"{told[:20]} bytes", most)
    try:
        async with asyncio.timeout(limits.body_s):
            return await _collected(request, most)
    except TimeoutError:
        raise Refusal(408, f"body: not here after {limits.body_s:g} s", code="timeout") from None
    except ClientDisconnect:
        raise Refusal(400, "body: the client left before its end") from None


async def _collected(request: Request, most: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise _too_large(f"more than {most} bytes", most)
    return bytes(body)


def _too_large(found: str, most: int) -> Refusal:
    return Refusal(413, f"body: found {found}, allowed: {most} bytes", code="body_too_large")


class Guard:
    """Lets nobody in without the key, where there is one; without one, nobody who took us for another host.

    A web page whose name its owner lets point to this machine reaches a server on the loopback interface, but with the
    page's own name in ``Host``.
    """

    def __init__(self, app: ASGIApp, key: str | None, host: str, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics
        self.key = None if key is None else key.encode()
        self.hosts = {"localhost", host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count every response, and pass on whoever may come in."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        counted = self._counted(scope, send)
        refusal = self._refusal(scope["path"], Headers(scope=scope))
        app = self.app if refusal is None else refused(refusal)
        await app(scope, receive, counted)

    def _counted(self, scope: Scope, send: Send) -> Send:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.metrics.responded(scope["path"], message["status"])
            await send(message)

        return sent

    def _refusal(self, path: str, headers: Headers) -> Refusal | None:
        if self.key is None:
            name = _host_name(headers.get("host", ""))
            return (
                None
                if name in self.hosts or is_loopback(name)
                else invalid("host", shown(name), "a name of this machine")
            )
        if path in OPEN_PATHS:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.key):
            return None
        asked = {"WWW-Authenticate": "Bearer"}
        return Refusal(401, "authorization: not the key of this server", None, "invalid_api_key", headers=asked)


def _host_name(host: str) -> str:
    """The name without its port and brackets."""
    name = host.partition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def is_loopback(host: str) -> bool:
    """Whether nobody beyond this machine reaches that host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
