"""Times row attention with every tile that fits a shape, and with chosen chunks.

usage: tune_rows.py SECONDS OUT.csv [compiled]: kernels are compiled first, unless they are said to be.
TOY in the environment makes it small enough for Triton's interpreter.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import astuple
from itertools import product
from typing import TextIO

import torch
from torch import Tensor

from recguide.engine.bench_run import TOLERANCE
from recguide.engine.bench_shapes import HEADS, LAYOUTS, Inputs, Shape, inputs, some_requests
from recguide.engine.bench_timing import Effort, ceilings, largest_error, seconds
from recguide.kernels.row_attention import row_attention, row_attention_reference
from recguide.kernels.row_plan import RowPlan, Tile, processors

TOY = bool(os.environ.get("TOY"))
DEVICE = torch.device("cpu" if TOY else "cuda")
DTYPE = torch.float32 if TOY else torch.bfloat16
EFFORT = Effort(1, 1) if TOY else Effort(6, 5, 2e-3)
# rows, keys, warps, stages, programs on a processor
TILES = [
    Tile(*numbers)
    for numbers in (
        (16, 128, 4, 2, 2), (16, 64, 4, 3, 2), (16, 32, 4, 4, 2), (32, 64, 4, 3, 2), (64, 64, 4, 3, 2),
        (64, 32, 4, 4, 2), (64, 128, 8, 3, 1), (128, 64, 8, 3, 1), (128, 32, 8, 4, 1),
    )
]  # fmt: skip
LAYOUT_NAMES = ["decode", "verify-8", "verify-16", "verify-32", "rows-16"]
FILLED = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Items for each program: chunks that make about so many are timed."""


def shapes() -> Iterator[Shape]:
    """Small and large ones in turn, so that a cut run has seen some of each."""
    if TOY:
        yield from (Shape("smollm2-135m", 1, 64, layout) for layout in ("decode", "verify-16"))
        return
    for requests, prefix in [*product((1, 8), (4096, 16384, 1024)), *product((32, 4, 2, 64), (4096, 1024, 16384))]:
        for layout in LAYOUT_NAMES:
            yield Shape("nld-8b", requests, prefix, layout)


def packed_rows(shape: Shape) -> int:
    heads, kv_heads, _ = HEADS[shape.model]
    return len(shape.tail) * heads // kv_heads


def fitting(shape: Shape) -> list[Tile]:
    """Tiles that are neither half empty nor read every key more than a few times."""
    rows = packed_rows(shape)
    most = 16 if rows <= 16 else max(64, min(rows, 128))
    fit = [tile for tile in TILES if tile.rows == most or (tile.rows == 32 and rows == 32)]
    return fit[:1] if shape.model[0] == "s" else fit


def chunks(given: Inputs, tile: Tile) -> set[int]:
    """Chunk lengths that leave programs with few items or many; 0 is the plan's own."""
    shape, keys = given.shape, given.shape.prefix + given.num_tokens
    each = -(-packed_rows(shape) // tile.rows) * HEADS[shape.model][1] * shape.requests
    pieces = {int(filled * processors(DEVICE) * tile.programs) // each for filled in FILLED}
    return {0} | {-(-keys // (count * tile.keys)) * tile.keys for count in pieces if count and shape.requests <= 8}


def made_plan(given: Inputs, tile: Tile, chunk: int = 0) -> RowPlan:
    """A plan with room for one request or for more: three kernels, not one for every number."""
    requests = next(most for most in (1, 8, 64) if most >= given.shape.requests)
    heads, kv_heads, dim = HEADS[given.shape.model]
    longest = given.shape.prefix + 512
    plan = RowPlan(requests, len(given.q), (heads, kv_heads), dim, DEVICE, tile, chunk=chunk, longest=longest)
    plan.update(given.rows)
    return plan


def compile_one(job: tuple[str, int, str, Tile]) -> str:
    """Compiles the kernels of a tile, so that others find them in the cache."""
    model, requests, layout, tile = job
    try:
        given = inputs(Shape(model, requests, 640, layout), DEVICE, DTYPE, 0)
        row_attention(given.q, given.keys, given.values, given.rows, made_plan(given, tile))
        torch.cuda.synchronize()
    except Exception as problem:  # a tile that cannot be compiled is a row of the table below
        return f"{job}: {type(problem).__name__}: {str(problem)[:200]}"
    return ""


def compile_all() -> None:
    """Every tile with plans of three widths, and both ways to merge."""
    kinds = [(1, "verify-8"), (8, "verify-8"), (8, "verify-32"), (64, "verify-8")]
    jobs = [("nld-8b", *kind, tile) for kind in kinds for tile in TILES]
    with multiprocessing.get_context("spawn").Pool(min(14, os.cpu_count() or 1)) as pool:
        for problem in filter(None, pool.imap_unordered(compile_one, jobs)):
            print(problem, flush=True)


def timed(given: Inputs, plan: RowPlan, expected: Tensor) -> str:
    """Microseconds, or what is wrong."""
    out = torch.full_like(given.q, torch.nan)

    def run() -> Tensor:
        return row_attention(given.q, given.keys, given.values, given.rows, plan, out=out)

    run()
    if largest_error(out[len(out) - len(expected) :], expected) > TOLERANCE[DTYPE]:
        return "wrong"
    return f"{seconds(run, EFFORT, DEVICE)[0] * 1e6:.2f}"


def main() -> None:
    limit_s, path = float(sys.argv[1]), sys.argv[2]
    started = time.monotonic()
    if not TOY and sys.argv[3:] != ["compiled"]:
        compile_all()
    print(f"compiled after {time.monotonic() - started:.0f} s", flush=True)
    rates = ceilings(DEVICE)
    print(f"copy {rates.copy_bytes_s / 1e12:.2f} TB/s, matmul {rates.matmul_flop_s / 1e12:.0f} TFLOP/s", flush=True)
    wanted = list(shapes())
    with open(path, "w") as file:
        print(
            "model,requests,prefix,layout,rows,keys,warps,stages,programs,fixed,chunk,items,parts,us,floor_us",
            file=file,
        )
        for index, shape in enumerate(wanted):
            if time.monotonic() - started > limit_s:
                print(f"{len(wanted) - index} of {len(wanted)} shapes not tuned")
                break
            tune(shape, rates.floor_s(shape.num_bytes, shape.flop) * 1e6, file, index)


def tune(shape: Shape, floor_us: float, file: TextIO, seed: int) -> None:
    """One line for every tile, and for the chunks where requests are few."""
    given = inputs(shape, DEVICE, DTYPE, seed)
    part = some_requests(given, 1)
    expected, _ = row_attention_reference(part.q, part.keys, part.values, part.rows)
    settings = [(tile, chunk) for tile in fitting(shape) for chunk in sorted(chunks(given, tile))]
    best = (1e9, None)
    for tile, chunk in settings:
        try:
            plan = made_plan(given, tile, chunk)
            us = timed(given, plan, expected)
            items, found_chunk, parts = plan.plan[:3].tolist()
        except Exception as problem:
            us, items, found_chunk, parts = f"{type(problem).__name__}", "", "", ""
            print(str(problem)[:200])
        numbers = (*astuple(tile), chunk, found_chunk, items, parts, us)
        print(shape.model, shape.requests, shape.prefix, shape.layout, *numbers, f"{floor_us:.2f}", sep=",", file=file)
        if us[0].isdigit():
            best = min(best, (float(us), f"{numbers[:7]}"))
    file.flush()
    name = f"{shape.model} C={shape.requests} {shape.prefix} {shape.layout}"
    print(f"{name}: floor {floor_us:.1f}, best {best[0]:.1f} us {best[1]}", flush=True)


if __name__ == "__main__":
    assert set(LAYOUT_NAMES) <= set(LAYOUTS)
    main()
