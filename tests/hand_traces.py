"""Traces written by hand: requests with chosen match masks, everything else quiet."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from strategies import provenance

from recguide.traces.dense import VIEWS, DenseRequest, DenseTrace, Drafts, num_draft_tokens


def request(
    name: str, output_tokens: int, block_sizes: tuple[int, ...], *, finish: str = "length", dataset: str = "d"
) -> DenseRequest:
    """A request whose drafts never match, with margin and confidence 0 everywhere."""
    drafts = {(view, size): _quiet(view, size, output_tokens) for view in VIEWS for size in block_sizes}
    entropy = np.zeros(output_tokens, np.float32)
    return DenseRequest(name, dataset, "math", "c" * 64, 5, output_tokens, finish, entropy, drafts)


def trace(*requests: DenseRequest, block_sizes: tuple[int, ...]) -> DenseTrace:
    """A trace of these requests."""
    return DenseTrace(provenance(block_sizes), requests)


def put(made: DenseRequest, view: str, block_size: int, mask: str, bits: Mapping[int, int]) -> None:
    """Set a mask of the request, in place, at some positions."""
    for position, value in bits.items():
        getattr(made.drafts[view, block_size], mask)[position] = value


def put_matched(made: DenseRequest, block_size: int, matched: Mapping[int, int]) -> None:
    """Let the seeded drafts at some positions match that many tokens."""
    put(made, "seeded", block_size, "match", {position: (1 << count) - 1 for position, count in matched.items()})


def put_levels(made: DenseRequest, block_size: int, position: int, p1: list[int], margin: list[int]) -> None:
    """Set confidence and margin of the seeded draft at a position, in steps of 1/256."""
    drafts = made.drafts["seeded", block_size]
    assert drafts.p1 is not None
    drafts.p1[position], drafts.margin[position] = p1, margin


def without_p1(made: DenseRequest, block_size: int) -> DenseRequest:
    """The same request, its seeded drafts at a block size without confidences."""
    key = ("seeded", block_size)
    return replace(made, drafts=dict(made.drafts) | {key: replace(made.drafts[key], p1=None)})


def _quiet(view: str, block_size: int, output_tokens: int) -> Drafts:
    masks = [np.zeros(output_tokens, np.uint32) for _ in range(3)]
    levels = [np.zeros((output_tokens, num_draft_tokens(view, block_size)), np.uint8) for _ in range(2)]
    return Drafts(*masks, levels[0], levels[1] if view == "seeded" else None)
