"""What several commands read from their options; without torch, which `--help` must not wait for."""

from typing import Annotated

import typer

from recguide.sim.costs import DRAFTS, MERGED
from recguide.traces.checks import require
from recguide.traces.dense import BLOCK_SIZE_RANGE
from recguide.traces.errors import InputError

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
"""As options name them, and torch."""
MergeDrafts = Annotated[
    bool | None,
    typer.Option(
        "--merge-drafts/--no-merge-drafts",
        help="keep weights with the draft adapter merged, for forwards that only draft; default: on a GPU",
    ),
]


def told_of_drafts(merged: bool) -> dict[str, str]:
    """What files say of forwards that only draft: nothing where they add an adapter's updates."""
    return {DRAFTS: MERGED} if merged else {}


def parse_block_sizes(text: str) -> tuple[int, ...]:
    """Block sizes from a list such as ``4,8,16,32``."""
    low, high = BLOCK_SIZE_RANGE
    words = [word.strip() for word in text.split(",")]
    sizes = [int(word) for word in words if word.isdecimal()]
    fits = len(sizes) == len(words) and sizes == sorted(set(sizes)) and low <= sizes[0] and sizes[-1] <= high
    require(fits, "--block-sizes", text, f"ascending whole numbers from {low} to {high}, as in 4,8,16,32")
    return tuple(sizes)


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """A comma list of positive whole numbers, ascending; ValueError names the option."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1 or list(numbers) != sorted(set(numbers)):
        raise InputError(f"{option}: found {text!r}, allowed: ascending positive whole numbers, like 1,2,4")
    return numbers
