"""From a request that was parsed to its answer, whole or as a stream; a client that leaves ends its request."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from recguide.engine.requests import MAX_SEED, Wish
from recguide.engine.server_errors import Refusal, as_refusal, error_body, fault, invalid, shown
from recguide.engine.server_limits import Gate, ServerLimits
from recguide.engine.server_metrics import Metrics
from recguide.engine.server_replies import Reply, sse
from recguide.engine.server_requests import Asked, AskedChat, AskedText
from recguide.engine.streaming import AsyncEngine, TextDelta
from recguide.engine.tokenizer import Tokenizer
from recguide.traces.errors import InputError

LOG = logging.getLogger("recguide.server")
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class Service:
    """A model that is served over HTTP."""

    name: str
    """Of the model, as clients call it."""
    serving: AsyncEngine
    tokenizer: Tokenizer
    limits: ServerLimits
    gate: Gate
    metrics: Metrics
    temperature: float
    """Of requests that name none."""
    created: int
    """When the server started, in Unix time."""

    def prompt_of(self, asked: Asked) -> list[int]:
        """The token ids of a request's prompt; Refusal for one without room."""
        prompt, field = self._ids(asked)
        context = self.serving.engine.max_context
        most = min(context - 1, self.limits.max_prompt_tokens or context)
        if not 1 <= len(prompt) <= most:
            raise invalid(field, f"{len(prompt)} tokens", f"1 to {most} tokens", "context_length_exceeded")
        return prompt

    def _ids(self, asked: Asked) -> tuple[list[int], str]:
        if isinstance(asked, AskedChat):
            # what OpenAI calls the developer is the system to chat templates
            roles = {"developer": "system"}
            said = [{"role": roles.get(one.role, one.role), "content": one.content} for one in asked.messages]
            return self.tokenizer.encode_messages(said), "messages"
        assert isinstance(asked, AskedText)
        return asked.prompt if isinstance(asked.prompt, list) else self.tokenizer.encode(asked.prompt), "prompt"

    def wish_of(self, asked: Asked, prompt: list[int]) -> Wish:
        """What the engine is asked for; Refusal for more tokens than there is room for, or a policy not to be had."""
        room = self.serving.engine.max_context - len(prompt)
        if not 1 <= (wanted := asked.wanted or room) <= room:
            raise invalid("max_tokens", shown(wanted), f"1 to {room}, which the prompt leaves of the context")
        return Wish(
            max_new_tokens=min(asked.limit or room, room),
            temperature=self.temperature if asked.temperature is None else asked.temperature,
            seed=secrets.randbelow(MAX_SEED + 1) if asked.folded_seed is None else asked.folded_seed,
            eos_ids=() if asked.ignore_eos else None,
            block_size=self._block_size(asked),
        )

    def _block_size(self, asked: Asked) -> int | None:
        if asked.recguide is None or asked.recguide.policy is None:
            return None
        choices = self.serving.engine.block_choices
        names = {"ar" if size == 1 else f"fixed:{size}": size for size in choices}
        if asked.recguide.policy not in names:
            allowed = ", ".join(names) or "null: the policy of this server is more than a choice of block sizes"
            raise invalid("recguide.policy", shown(asked.recguide.policy), allowed)
        return names[asked.recguide.policy]

    def refusal_of(self, error: Exception) -> Refusal:
        """What a client is told of an error; what is none of the client's doing is logged."""
        if self.serving.failure is not None:
            return fault("the engine has stopped", 503, "engine_stopped")
        if not isinstance(error, Refusal | InputError):
            LOG.error("a request failed", exc_info=error)
        return as_refusal(error)


class Answering:
    """One request on its way through the engine, as a response of Starlette."""

    def __init__(self, service: Service, asked: Asked) -> None:
        self.service, self.asked = service, asked
        self.started = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless there is no room or the client leaves."""
        with self.service.gate.place(bool(self.asked.stream)):
            try:
                stayed = await unless_gone(receive, self._answer(scope, receive, send))
            except (TimeoutError, asyncio.CancelledError):
                # it reads nothing, or the server ends and waits no more: what has no end is closed below
                stayed = False
            if not stayed:
                self.service.metrics.disconnects.inc()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, asked = self.service, self.asked
        prompt = await asyncio.to_thread(service.prompt_of, asked)
        wish = service.wish_of(asked, prompt)
        reply = Reply(service.name, isinstance(asked, AskedChat), len(prompt), asked.include_usage)
        deltas = service.serving.stream_text(service.tokenizer, prompt, wish, asked.stop or ())
        async with aclosing(deltas):
            if asked.stream:
                await self._stream(deltas, reply, send)
            else:
                await JSONResponse(await self._whole(deltas, reply))(scope, receive, send)

    async def _whole(self, deltas: AsyncGenerator[TextDelta, None], reply: Reply) -> dict[str, Any]:
        reason = None
        try:
            async for delta in deltas:
                self._note(delta, reply)
                reply.text += delta.text
                reason = delta.finish_reason
        except Exception as error:
            raise self.service.refusal_of(error) from error
        assert reason is not None
        return reply.whole(reason)

    async def _stream(self, deltas: AsyncGenerator[TextDelta, None], reply: Reply, send: Send) -> None:
        async with aclosing(self._chunks(deltas, reply)) as chunks:
            # what goes wrong before the first token has a status of its own
            first = await anext(chunks)
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            await self._send(send, first)
            async for chunk in chunks:
                await self._send(send, chunk)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, chunk: bytes) -> None:
        async with asyncio.timeout(self.service.limits.stall_s):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _chunks(self, deltas: AsyncGenerator[TextDelta, None], reply: Reply) -> AsyncGenerator[bytes, None]:
        told = False
        try:
            async for delta in deltas:
                self._note(delta, reply)
                for chunk in [*([] if told else reply.opening()), *_parts(delta, reply)]:
                    yield chunk
                    told = True
        except Exception as error:
            refusal = self.service.refusal_of(error)
            if not told:
                raise refusal from error
            yield sse(error_body(refusal))
            return
        for chunk in reply.closing():
            yield chunk

    def _note(self, delta: TextDelta, reply: Reply) -> None:
        """Count what came; Refusal where the engine gave up this request."""
        if delta.finish_reason == "error":
            raise fault(f"the model failed at this request: {delta.error}", code="model_failed")
        took = time.monotonic() - self.started
        if not reply.tokens:
            self.service.metrics.first_token.observe(took)
        reply.tokens += len(delta.tokens)
        if delta.finish_reason is not None:
            self.service.metrics.latency.observe(took)


def _parts(delta: TextDelta, reply: Reply) -> list[bytes]:
    """Chunks for some text and for the end; none while there is neither."""
    parts = [reply.part(delta.text, None)] if delta.text else []
    return [*parts, reply.part("", delta.finish_reason)] if delta.finish_reason is not None else parts


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Do something for a client; False where the client left, which cancels it."""
    working, gone = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
        return working.done()
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
