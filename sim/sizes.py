"""Sizes that forwards are filled up to on a GPU, so that they are few, and which of them a larger one is faster than.

Matrix libraries choose a kernel for each number of rows, and not always well: on an H200 a forward of 448 tokens takes
longer than one of 480. Whoever has timed all sizes moves such a size to a larger one.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from recguide.traces.errors import InputError

Moved = Mapping[int, int]
"""From sizes that are slower than a larger one to that larger one, which is no such size itself."""
NONE: Moved = MappingProxyType({})
LEAST_GAIN = 0.05
"""Share of its time that a size must save by moving; less may be noise."""
REACH = 1.5
"""By which a size grows at most: what was not timed, attention among it, grows with the tokens."""
NOBODY = "none"
"""How files say that no size moves."""


def filled_up(tokens: int, moved: Moved = NONE) -> int:
    """The size of a forward of so many tokens: up to a multiple of an eighth of the power of 2 below, then moved."""
    step = max(1, (1 << max(tokens.bit_length() - 1, 0)) // 8)
    size = -(-tokens // step) * step
    return moved.get(size, size)


def sizes_up_to(most: int) -> list[int]:
    """All sizes that forwards are filled up to, ascending, up to ``most``."""
    sizes = [1]
    while (size := filled_up(sizes[-1] + 1)) <= most:
        sizes.append(size)
    return sizes


def moved_sizes(sizes: Sequence[int], seconds: Sequence[float]) -> dict[int, int]:
    """Which of these sizes, ascending, move to which, where a forward of each takes these seconds.

    A size moves to the fastest larger one within reach, and on with it, if that saves a twentieth of its time at least;
    of equally fast ones, to the smallest.
    """
    moved: dict[int, int] = {}
    for at in reversed(range(len(sizes))):
        larger = [other for other in range(at + 1, len(sizes)) if sizes[other] <= REACH * sizes[at]]
        best = min(larger, key=seconds.__getitem__, default=at)
        if seconds[best] <= (1 - LEAST_GAIN) * seconds[at] and best != at:
            moved[sizes[at]] = moved.get(sizes[best], sizes[best])
    return dict(sorted(moved.items()))


def moved_text(moved: Moved) -> str:
    """How files say which sizes move, as in ``448>480 576>640``."""
    return " ".join(f"{size}>{to}" for size, to in sorted(moved.items())) or NOBODY


def moved_in(text: str, where: str) -> dict[int, int]:
    """What :func:`moved_text` has written; InputError naming ``where`` for anything else."""
    moved: dict[int, int] = {}
    for word in [] if text == NOBODY else text.split(" "):
        pair = re.fullmatch(r"([1-9]\d{0,6})>([1-9]\d{0,6})", word)
        size, to = map(int, pair.groups()) if pair else (0, 0)
        if not 0 < size < to or [size, to] != [filled_up(size), filled_up(to)] or size in moved:
            raise InputError(
                f"{where}: found {word!r}, allowed: sizes that move to larger ones, as in 448>480, or none"
            )
        moved[size] = to
    ends = sorted(moved.keys() & moved.values())
    if ends:
        raise InputError(f"{where}: {ends[0]}: other sizes move to it, and it moves; allowed: one of both")
    return moved
