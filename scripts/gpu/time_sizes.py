"""Products of a model at every size that forwards are filled up to, and which sizes move; a part of time_engine.py."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from recguide.engine.model import Decoder
from recguide.engine.places import Grid, Place
from recguide.engine.product_times import beyond_cache, product_seconds
from recguide.engine.profiling import station_for
from recguide.engine.sizes import MANY, PLAIN, FillSizes, fill_sizes, layer_weights
from recguide.engine.station import Station
from recguide.engine.visits import visit
from recguide.sim.sizes import Moved, moved_sizes, sizes_up_to

BLOCK = 8
"""Of the rounds that are compared: every size from 64 on is so many times a number of requests."""
TURNS = 4
Say = Callable[[str], None]


def started(decoder: Decoder, say: Say) -> FillSizes:
    """What an engine finds when it starts, and how long that takes; twice, for the first time loads kernels."""
    found = []
    for number in ("first", "second"):
        before = time.perf_counter()
        found.append(fill_sizes(layer_weights(decoder), decoder.head))
        say(f"{number} start: {time.perf_counter() - before:.3f} s, {found[-1].told()}")
    pairs = [(each.moved_tokens, each.moved_scores) for each in found]
    changed = [size for one, other in zip(*pairs, strict=True) for size, _ in set(one.items()) ^ set(other.items())]
    say(f"moved otherwise the second time: {sorted(set(changed)) or 'none'}")
    return found[0]


def size_rows(decoder: Decoder, seconds: float, most: int, start: FillSizes) -> list[dict[str, Any]]:
    """Milliseconds at every size up to ``most``, of passes that fill these seconds, and what moves by them."""
    sizes, layers, heads = (
        sizes_up_to(most),
        beyond_cache(layer_weights(decoder)),
        beyond_cache([[decoder.head]] * MANY),
    )
    kinds = {"layers": layers, "head": heads}
    found: dict[str, list[list[float]]] = {name: [] for name in kinds}
    until = time.monotonic() + seconds
    while not found["head"] or time.monotonic() < until:
        for name, weights in kinds.items():
            found[name].append(product_seconds(weights, sizes))
    times = {name: [statistics.median(each) for each in zip(*runs, strict=True)] for name, runs in found.items()}
    tokens, scores = (moved_sizes(sizes, times[name]) for name in kinds)
    return [
        {
            "size": size, "products": len(layers), "heads": len(heads), "runs": len(found["head"]),
            "layers_ms": round(times["layers"][at] * 1e3, 5), "head_ms": round(times["head"][at] * 1e3, 5),
            "moved_tokens": tokens.get(size, size), "moved_scores": scores.get(size, size),
            "start_tokens": start.of_tokens(size), "start_scores": start.of_scores(size),
        }
        for at, size in enumerate(sizes)
    ]  # fmt: skip


def forwards_at(decoder: Decoder, moved: Moved, most: int, context: int, until: float) -> Iterator[dict[str, Any]]:
    """Rounds of the engine at sizes that move, filled up to these and to where they move, in turns."""
    sizes = [size for size in moved if size % BLOCK == 0 and size // BLOCK <= most]
    if not sizes:
        return
    # prefills come along, for a grid has some
    grid = Grid(tuple(sorted({size // BLOCK for size in sizes})), (context,), (BLOCK,), (16,), 0, ())
    station = station_for(decoder, grid)
    station.forwards.rounded = True
    for size in sizes:
        if time.monotonic() > until:
            return
        place = Place("linear", size // BLOCK, BLOCK, context)
        plain, further = _in_turns(station, place, [PLAIN, FillSizes({size: moved[size]})])
        yield {"size": size, "to": moved[size], "requests": place.requests, "context": context, **plain, **further}


def _in_turns(station: Station, place: Place, ways: Sequence[FillSizes]) -> list[dict[str, float]]:
    found: list[dict[str, list[float]]] = [{} for _ in ways]
    for turn in range(TURNS):
        for way, sizes in enumerate(ways):
            station.forwards.sizes = sizes
            for (kind, *_), seconds in visit(station, place, 0.03, 0.1 if torch.cuda.is_available() else 0.0).items():
                if turn:
                    found[way].setdefault(f"{kind}_{'moved_' if way else ''}ms", []).append(seconds * 1e3)
    return [{name: round(statistics.median(each), 4) for name, each in one.items()} for one in found]
