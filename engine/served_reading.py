"""Known texts read by the serving engine's own forwards, in the shapes that it serves."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from recguide.engine.batches import batch_of
from recguide.engine.forwards import Forwards
from recguide.engine.pages import PagePool
from recguide.engine.planning import PIECE, Piece, prompt_piece, verifying
from recguide.engine.requests import Live, Wish
from recguide.engine.rereading import Text
from recguide.engine.serving import Engine


@torch.no_grad()
def reread_served(engine: Engine, texts: Sequence[Text], tokens: int) -> list[Tensor]:
    """A :data:`recguide.engine.rereading.Reader`: prompts together, then blocks of so many tokens, as in a verify.

    Whoever has ended takes no further part. The engine must serve nobody, and is as it was before.
    """
    forwards, pool = engine.forwards, PagePool(engine.limits.kv_pages or 0)
    lives = [Live(row, list(text.prompt), Wish(1), frozenset(), 1) for row, text in enumerate(texts)]
    for live, text in zip(lives, texts, strict=True):
        pool.resize(live.pages, engine.limits.pages(len(text.prompt) + len(text.output) + tokens))
    parts: list[list[Tensor]] = [[] for _ in texts]
    for pieces in (*_prompts(engine, lives), *_blocks(lives, texts, tokens)):
        scored = _hidden(forwards, pieces).split([piece.layout.sizes[2] for piece in pieces])
        for piece, hidden in zip(pieces, scored, strict=True):
            parts[piece.live.number].append(hidden)
    return [torch.cat(part)[: len(text.output)] for part, text in zip(parts, texts, strict=True)]


def _prompts(engine: Engine, lives: Sequence[Live]) -> Iterator[list[Piece]]:
    """As many together as one prefill step takes."""
    config, pieces = engine.decoder.config, list[Piece]()
    for live in lives:
        for done in range(0, len(live.prompt), PIECE):
            count = min(PIECE, len(live.prompt) - done)
            if pieces and sum(len(piece.layout) for piece in pieces) + count > engine.limits.max_batched_tokens:
                yield pieces
                pieces = []
            pieces.append(prompt_piece(live, done, count, 0, config.mask_id, config.draft_shift))
            if done + count < len(live.prompt):
                yield pieces
                pieces = []
    yield pieces


def _blocks(lives: Sequence[Live], texts: Sequence[Text], tokens: int) -> Iterator[list[Piece]]:
    layout, longest = verifying(tokens), max(len(text.output) for text in texts)
    for first in range(0, longest - 1, tokens):
        pieces = []
        for live, text in zip(lives, texts, strict=True):
            if first + 1 < len(text.output):
                ids = np.zeros(tokens, np.int64)
                known = text.output[first : first + tokens]
                ids[: len(known)] = known
                pieces.append(Piece(live, len(text.prompt) + first, layout, ids))
        yield pieces


def _hidden(forwards: Forwards, pieces: Sequence[Piece]) -> Tensor:
    """Hidden states ``[scores, hidden]`` of the scored tokens."""
    batch = batch_of(pieces)
    inputs = forwards.inputs(forwards.shape_for(batch))
    inputs.put(batch, forwards.cache, None)
    inputs.send()
    hidden = forwards.hidden(inputs, {"none": False})[0].index_select(0, inputs["scored"])
    inputs.launched()
    return hidden[: len(batch.frame.scored)]
