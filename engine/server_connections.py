"""Connections that do not linger: a client is cut off that sends no whole request head, or takes nothing any more."""

import asyncio
import socket
from contextlib import ExitStack

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from recguide.engine.server_limits import ServerLimits
from recguide.traces.errors import InputError

MAX_HEAD_BYTES = 16 * 1024
SPARE_CONNECTIONS = 512
"""Beyond those of requests that may be in flight: of clients that are about to ask, or are being refused."""


class PromptConnection(H11Protocol):
    """Looks now and then whether its client has got anywhere since the last time."""

    check_s = 15.0

    _check: asyncio.TimerHandle | None = None
    _served: object = None
    _closing = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to look."""
        super().connection_made(transport)
        self._check = self.loop.call_later(self.check_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more."""
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        # between two requests for a whole interval, or closed and not yet gone for as long
        idle = self.cycle is None or self.cycle.response_complete
        if (idle and self.cycle is self._served) or self._closing:
            self.transport.abort()
            return
        self._served, self._closing = self.cycle, self.transport.is_closing()
        self._check = self.loop.call_later(self.check_s, self._look)


def listening(host: str, port: int) -> socket.socket:
    """A socket at this address; ValueError where there is none to be had."""
    with ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            raise InputError(f"--host {host} --port {port}: {error.strerror or error}") from error
        stack.pop_all()
    return listener


def make_server(app: ASGIApp, limits: ServerLimits, drain_s: int) -> uvicorn.Server:
    """A server of these connections; at its end it waits ``drain_s`` for answers that are on their way."""
    config = uvicorn.Config(
        app,
        http=PromptConnection,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        limit_concurrency=limits.max_running + limits.max_queue + SPARE_CONNECTIONS,
        timeout_graceful_shutdown=drain_s,
    )
    return uvicorn.Server(config)
