"""The server's paths, as an ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from recguide.engine.server_answers import Answering, Service
from recguide.engine.server_errors import Refusal, fault, shown, tell
from recguide.engine.server_limits import Guard, read_body
from recguide.engine.server_replies import model_card
from recguide.engine.server_requests import Asked, AskedChat, AskedText, parsed


class Paths:
    """What is behind each path."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def chat(self, request: Request) -> Answering:
        """An answer in a conversation."""
        return await self._answering(request, AskedChat)

    async def text(self, request: Request) -> Answering:
        """A text gone on with."""
        return await self._answering(request, AskedText)

    async def _answering(self, request: Request, kind: type[Asked]) -> Answering:
        asked = parsed(await read_body(request, self.service.limits), kind)
        self._check_name(asked.model)
        if self.service.serving.failure is not None:
            raise fault("the engine has stopped", 503, "engine_stopped")
        return Answering(self.service, asked)

    def _check_name(self, name: str) -> None:
        if name != self.service.name:
            words = f"model: found {shown(name)}, allowed: {self.service.name}"
            raise Refusal(404, words, "model", "model_not_found")

    async def models(self, _request: Request) -> Response:
        """The one model there is."""
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        """The same by its name."""
        self._check_name(request.path_params["name"])
        return JSONResponse(self._card())

    def _card(self) -> dict[str, Any]:
        return model_card(self.service.name, self.service.created, self.service.serving.engine.max_context)

    async def health(self, _request: Request) -> Response:
        """Whether requests are served."""
        if self.service.serving.failure is not None:
            raise fault("the engine has stopped", 503, "engine_stopped")
        return JSONResponse({"status": "ok"})

    async def metrics(self, _request: Request) -> Response:
        """For Prometheus."""
        return Response(self.service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.text, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]


def make_app(service: Service, key: str | None = None, host: str = "localhost") -> Starlette:
    """The application; it starts the engine, and stops it at its end. ``host`` is the name that it is called by."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with service.serving:
            yield

    guard = Middleware(Guard, key=key, host=host, metrics=service.metrics)
    app = Starlette(
        routes=Paths(service).routes(),
        middleware=[guard],
        exception_handlers={Refusal: tell, HTTPException: tell, Exception: tell},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app
