"""Answers to prompts: the serving engine as a function."""

from collections.abc import Sequence
from dataclasses import dataclass

from recguide.engine.detokenize import TextStream
from recguide.engine.requests import Live, Wish
from recguide.engine.serving import Engine
from recguide.engine.tokenizer import Tokenizer
from recguide.traces.errors import InputError


@dataclass(frozen=True, slots=True)
class Answer:
    """What one prompt gave."""

    prompt_tokens: int
    tokens: tuple[int, ...]
    """With the token that ended it. Behind a stop string nothing counts, but its round may have brought more tokens."""
    text: str | None
    """Without special tokens, and without the stop string; None where there is no tokenizer."""
    finish_reason: str
    """"eos", "length", "stop" (a stop string) or "error"."""
    error: str | None = None


def generate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    wishes: Wish | Sequence[Wish],
    tokenizer: Tokenizer | None = None,
    stop: Sequence[str] = (),
) -> list[Answer]:
    """The answers to prompts, as token ids, in their order; ``wishes`` are one for all, or one for each.

    The engine must not be serving anyone else. ValueError, before anything runs, for what cannot be served.
    """
    if stop and tokenizer is None:
        raise InputError("stop: found stop strings, and no tokenizer to find them with")
    each = [wishes] * len(prompts) if isinstance(wishes, Wish) else list(wishes)
    if len(each) != len(prompts):
        raise InputError(f"wishes: found {len(each)} for {len(prompts)} prompts, allowed: one for all, or one for each")
    for prompt, wish in zip(prompts, each, strict=True):
        engine.check_request(prompt, wish)
    lives = [engine.add(prompt, wish) for prompt, wish in zip(prompts, each, strict=True)]
    texts = {live.number: TextStream(tokenizer, stop) for live in lives} if tokenizer is not None else {}
    told = {live.number: "" for live in lives}
    while engine.in_flight:
        for change in engine.step():
            if (stream := texts.get(change.live.number)) is not None:
                told[change.live.number] += stream.push(change.tokens)
                if stream.stopped:
                    engine.cancel(change.live)
    return [_answer(live, texts.get(live.number), told[live.number]) for live in lives]


def _answer(live: Live, stream: TextStream | None, told: str) -> Answer:
    reason = str(live.finish_reason)
    text = told + stream.finish() if stream is not None else None
    if stream is not None and stream.stopped:
        reason = "stop"
    return Answer(len(live.prompt), tuple(live.tokens), text, reason, live.error)
