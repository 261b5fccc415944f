"""The serving engine for asyncio: a thread steps it, and every request is a stream of committed tokens.

A stream that is closed, or whose task is cancelled, cancels its request, which gives back its pages. What a round only
drafted is never delivered.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from types import TracebackType

from recguide.engine.detokenize import TextStream
from recguide.engine.outcomes import Change
from recguide.engine.requests import Live, Wish
from recguide.engine.serving import Engine
from recguide.engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step brought a request."""

    tokens: tuple[int, ...]
    finish_reason: str | None
    """None while it goes on."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The same as text; ``finish_reason`` "stop" where a stop string ended it."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str | None
    error: str | None = None


Deliver = Callable[[Delta | BaseException], None]


class AsyncEngine:
    """Runs an engine in a thread of its own, which is nobody else's from then on; an async context manager."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._listeners: dict[int, Deliver] = {}
        self._lives: dict[Deliver, Live] = {}
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="recguide-engine", daemon=True)

    async def __aenter__(self) -> "AsyncEngine":
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    @property
    def failure(self) -> BaseException | None:
        """What stopped the engine; no request is served after it."""
        return self._failure

    async def stream(self, prompt: Sequence[int], wish: Wish) -> AsyncGenerator[Delta, None]:
        """The tokens of an answer as they are committed; ValueError for what cannot be served."""
        if self._failure is not None:
            raise self._failure
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Delta | BaseException] = asyncio.Queue()
        deliver: Deliver = partial(_deliver, loop, arrived)
        self._inbox.put(partial(self._add, prompt, wish, deliver))
        try:
            while True:
                delta = await arrived.get()
                if isinstance(delta, BaseException):
                    raise delta
                yield delta
                if delta.finish_reason is not None:
                    return
        finally:
            # orders are done one after the other: whoever leaves before the engine knows of the request ends it too
            self._inbox.put(partial(self._cancel, deliver))

    async def stream_text(
        self, tokenizer: Tokenizer, prompt: Sequence[int], wish: Wish, stop: Sequence[str] = ()
    ) -> AsyncGenerator[TextDelta, None]:
        """The same as text, up to a stop string."""
        text, deltas = TextStream(tokenizer, stop), self.stream(prompt, wish)
        try:
            async for delta in deltas:
                more = text.push(delta.tokens)
                if delta.finish_reason is not None:
                    more += text.finish()
                reason = "stop" if text.stopped else delta.finish_reason
                yield TextDelta(more, delta.tokens, reason, delta.error)
                if text.stopped:
                    return
        finally:
            # a stop string ends the request here and now, not when somebody collects the generator
            await deltas.aclose()

    def _work(self) -> None:
        """The thread: what has come in, then a step, until it is told to stop."""
        try:
            while self._orders():
                self._tell(self.engine.step())
            for live in self._lives.values():
                self.engine.cancel(live)
            self._fail(RuntimeError("the engine was stopped"))
        except BaseException as error:
            # whoever waits for an answer must hear of it, and so must whoever comes later
            self._fail(error)
            while (order := self._inbox.get()) is not None:
                order()
        while not self._inbox.empty():
            if (order := self._inbox.get()) is not None:
                order()

    def _orders(self) -> bool:
        """Do what has come in, and wait for more while there is nothing to step; False when it is time to stop."""
        while not self._inbox.empty() or not self.engine.in_flight:
            order = self._inbox.get()
            if order is None:
                return False
            order()
        return True

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        for deliver in self._listeners.values():
            deliver(error)
        self._listeners.clear()

    def _add(self, prompt: Sequence[int], wish: Wish, deliver: Deliver) -> None:
        if self._failure is not None:
            deliver(self._failure)
            return
        try:
            live = self.engine.add(prompt, wish)
        except ValueError as error:
            deliver(error)
            return
        self._listeners[live.number] = deliver
        self._lives[deliver] = live

    def _cancel(self, deliver: Deliver) -> None:
        """Whoever listens does so no more; ends the request where it is not finished."""
        live = self._lives.pop(deliver, None)
        if live is not None and self._listeners.pop(live.number, None) is not None:
            self.engine.cancel(live)

    def _tell(self, changes: Sequence[Change]) -> None:
        for change in changes:
            live = change.live
            deliver = self._listeners.get(live.number)
            if deliver is None or not (change.tokens or live.finish_reason):
                continue
            if live.finish_reason is not None:
                del self._listeners[live.number]
            deliver(Delta(tuple(change.tokens), live.finish_reason, live.error))


def _deliver(
    loop: asyncio.AbstractEventLoop,
    arrived: "asyncio.Queue[Delta | BaseException]",
    item: Delta | BaseException,
) -> None:
    # a loop that is closed has nobody left who waits
    if not loop.is_closed():
        loop.call_soon_threadsafe(arrived.put_nowait, item)
