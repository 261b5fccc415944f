"""Whether a profile's visits and a campaign's runs time the same steps alike, in one process on one GPU.

usage: time_visits.py MODEL OUT_FOLDER SECONDS [given|here]     TOY=1: a tiny model on a CPU
Three engines share the weights: one as small as the places, one with a whole profile's room, one as a campaign has it.
Each is visited as a profile visits, and the campaign's also serves closed loops: visits.csv has the medians. `recguide
profile` times products at all sizes at its start, in another process, and `recguide measure` takes what its profile
says: with `given` nobody times them, and there are campaigns' engines alone, one of them with room for branches. With
`here` it is the same, but behind products that this process has timed, which makes all its forwards slower. kernels.csv
has the kernels of one visit to each place.
"""

import csv
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from recguide.engine.campaign import Server, Stop, closed_loop, engine_config
from recguide.engine.loading import open_model
from recguide.engine.model import Decoder, ModelConfig
from recguide.engine.places import Grid, Place
from recguide.engine.product_times import beyond_cache, product_seconds
from recguide.engine.profiling import station_for
from recguide.engine.shapes import add_random_draft_adapter, random_decoder
from recguide.engine.sizes import LARGEST, layer_weights, profiled_sizes
from recguide.engine.station import Station
from recguide.engine.visits import visit
from recguide.sim.overlap import Overlap
from recguide.sim.paper.acceptance import paper_trace
from recguide.sim.policies import Fixed
from recguide.sim.sizes import sizes_up_to

TOY = bool(os.environ.get("TOY"))
TINY = ModelConfig("toy", 24, 2, 6, 2, 8, 40, 128, 1e4, 1e-5, False, 8192, 3, (2, 7))
CONTEXT = 24 if TOY else 512
KEPT = 2048 if TOY else 131072
SMALL = Grid((1, 4) if TOY else (1, 16), (CONTEXT,), (4,) if TOY else (16,), (16,), 0, ())
WHOLE = replace(SMALL, requests=(1, 4)) if TOY else Grid(layout_requests=0, layouts=())
Found = tuple[str, str, int, int, int, float, float]


def decoder_of(name: str) -> Decoder:
    """A shape with random weights and draft adapter, as `recguide profile` opens it."""
    if not TOY:
        return open_model(name, None, "cuda", "bf16").decoder
    decoder = random_decoder(TINY, "cpu", torch.float32, 0)
    add_random_draft_adapter(decoder, 8)
    return decoder


def visited(name: str, station: Station) -> Iterator[Found]:
    """Of every place without a prefill: engine, kind, requests, query and context tokens, its and the host's us."""
    for place in SMALL.places():
        if place.method == "linear":
            rows = visit(station, place, 0.0 if TOY else 0.06, 0.0 if TOY else 0.15)
            host = next(seconds for key, seconds in rows.items() if key[0] == "host")
            for key, seconds in rows.items():
                if key[0] != "host":
                    yield (name, *key, seconds * 1e6, host * 1e6)


def served(name: str, server: Server, size: int, count: int) -> Iterator[Found]:
    """The same of steps in a closed loop whose contexts are those of a visit, a tenth more or less."""
    rows = [row for row, each in enumerate(server.trace.requests) if TOY or each.prompt_tokens < 400][: 4 * count]
    found = closed_loop(server, Fixed(size), rows, count, stop=Stop(whole_s=1.0 if TOY else 4.0))
    steps = found.run.steps
    context = steps["context_tokens"] / count
    near = abs(context / CONTEXT - 1) < (9 if TOY else 0.1)
    kept = (steps["block_size"] == size) & (steps["requests"] == count) & near
    for kind, seconds in (("draft", found.draft_s), ("verify", found.forward_s - found.draft_s)):
        if kept.any() and (size > 1 or kind == "verify"):
            host = float(np.median((steps["seconds"] - found.forward_s)[kept]))
            told = float(np.median(seconds[kept]))
            tokens = int(np.median(steps["context_tokens"][kept]))
            yield (name, kind if size > 1 else "decode", count, size * count, tokens, told * 1e6, host * 1e6)


def passes(model: str, folder: Path, seconds: float, sizes_are: str) -> Iterator[Found]:
    """Pass after pass over all engines, as long as there is time."""
    until, decoder = time.monotonic() + seconds, decoder_of(model)
    if sizes_are == "here":
        product_seconds(beyond_cache(layer_weights(decoder)), sizes_up_to(64 if TOY else LARGEST))
    trace = paper_trace("8b")
    sizes = None if TOY else profiled_sizes(f"{model}-h200", decoder, "bf16")
    config = replace(engine_config(trace.provenance, 128, "bucket", 2048, KEPT), sizes=sizes)
    campaign_policy = Fixed(SMALL.block_sizes[0])
    campaign = Station(decoder, [Fixed(1), campaign_policy], config, time.perf_counter)
    timed = {} if sizes_are else {"small": station_for(decoder, SMALL), "whole": station_for(decoder, WHOLE)}
    # as wide as a campaign's widest policy makes it
    wide = Station(decoder, [campaign_policy, Overlap(SMALL.block_sizes[0], corrections=3)], config, time.perf_counter)
    stations = {**timed, "campaign": campaign, "wide": wide}
    for name, station in stations.items():
        print(name, station.forwards.told(), flush=True)
    server, done = Server(campaign, trace, None), 0
    while done < 1 or time.monotonic() < until:
        for name, station in stations.items():
            yield from visited(f"{name}, visited", station)
        for size in (1, *SMALL.block_sizes):
            for count in SMALL.requests:
                yield from served("campaign, served", server, size, count)
        done += 1
        print(f"pass {done}", flush=True)
    with (folder / "kernels.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(("engine", "requests", "block_size", "kernel", "count", "us"))
        for name, station in stations.items():
            writer.writerows(row for place in SMALL.places() for row in kernels_at(name, station, place))


def kernels_at(name: str, station: Station, place: Place) -> Iterator[tuple[str, int, int, str, int, float]]:
    """Kernels of the steps of one visit, of graphs that have been there before."""
    if place.method != "linear":
        return
    with profile(activities=[ProfilerActivity.CPU if TOY else ProfilerActivity.CUDA]) as found:
        visit(station, place, 0.0)
    for each in found.key_averages():
        spent = each.cpu_time_total if TOY else each.device_time_total
        yield name, place.requests, place.size, each.key[:90], each.count, round(spent, 2)


def main(model: str, folder: Path, seconds: float, sizes_are: str) -> None:
    """Print the medians over passes, and write every one."""
    with (folder / "visits.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(("engine", "kind", "requests", "query_tokens", "context_tokens", "us", "host_us"))
        medians: dict[tuple[str, str, int, int], list[float]] = {}
        for row in passes(model, folder, seconds, sizes_are):
            writer.writerow(row)
            medians.setdefault((row[1], row[0], row[2], row[3]), []).append(row[5])
    for key, found in sorted(medians.items(), key=lambda pair: (pair[0][0], pair[0][2:], pair[0][1])):
        print(*key, f"{np.median(found):.1f} us of {len(found)}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), "".join(sys.argv[4:]))
