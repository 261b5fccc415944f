"""Times row attention with every tile that fits a shape, and with chosen chunks. usage: tune_rows.py SECONDS OUT.csv

TOY in the environment makes it small enough for Triton's interpreter.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from itertools import product
from typing import TextIO

import torch
from torch import Tensor

from recguide.engine.bench_methods import plan_for
from recguide.engine.bench_run import TOLERANCE
from recguide.engine.bench_shapes import HEADS, LAYOUTS, Inputs, Shape, inputs, some_requests
from recguide.engine.bench_timing import Effort, ceilings, largest_error, seconds
from recguide.kernels.row_attention import row_attention, row_attention_reference
from recguide.kernels.row_plan import RowPlan, Tile

TOY = bool(os.environ.get("TOY"))
DEVICE = torch.device("cpu" if TOY else "cuda")
DTYPE = torch.float32 if TOY else torch.bfloat16
EFFORT = Effort(1, 1) if TOY else Effort(6, 5, 2e-3)
# rows, keys, warps, stages, programs on a processor
TILES = [
    Tile(*numbers)
    for numbers in (
        (16, 64, 4, 3, 2), (16, 128, 4, 2, 2), (64, 64, 4, 2, 2), (64, 64, 4, 3, 2), (64, 64, 4, 4, 1),
        (64, 64, 8, 3, 1), (128, 64, 8, 3, 1), (128, 128, 8, 2, 1), (128, 128, 8, 3, 1),
    )
]  # fmt: skip
LAYOUT_NAMES = ["decode", "verify-8", "verify-16", "verify-32", "rows-16", "quadratic-16"]
CHUNKS = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)


def shapes() -> Iterator[Shape]:
    """Small and large ones in turn, so that a cut run has seen some of each."""
    if TOY:
        yield from (Shape("smollm2-135m", 1, 64, layout) for layout in ("decode", "verify-16"))
        return
    for prefix, requests in product((4096, 16384, 1024), (1, 32, 8, 2, 4, 64)):
        for layout in LAYOUT_NAMES:
            yield Shape("nld-8b", requests, prefix, layout)
    for prefix, requests, layout in product((4096, 1024), (1, 32, 8), LAYOUT_NAMES):
        yield Shape("smollm2-135m", requests, prefix, layout)


def packed_rows(shape: Shape) -> int:
    heads, kv_heads, _ = HEADS[shape.model]
    return len(shape.tail) * heads // kv_heads


def fitting(shape: Shape) -> list[Tile]:
    """Tiles that are neither half empty nor read every key more than a few times."""
    rows = packed_rows(shape)
    fit = [tile for tile in TILES if (tile.rows > 16) == (rows > 16) and tile.rows <= max(64, rows)]
    return (
        [tile for tile in fit if tile.stages < 4 and tile.warps <= max(4, tile.rows // 16)]
        if shape.model[0] == "s"
        else fit
    )


def made_plan(given: Inputs, tile: Tile, chunk: int = 0) -> RowPlan:
    """A plan with room for one request or for many: two kernels, not one for every number."""
    plan = plan_for(given, tile, chunk)
    if given.shape.requests > 1:
        plan = RowPlan(
            64, len(given.q), (plan.num_heads, plan.kv_heads), plan.head_dim, DEVICE, tile,
            chunk=chunk, longest=given.shape.prefix + 512,
        )  # fmt: skip
        plan.update(given.rows)
    return plan


def compile_one(job: tuple[str, int, Tile]) -> str:
    """Compiles the kernels of a tile, so that others find them in the cache."""
    model, requests, tile = job
    try:
        given = inputs(Shape(model, requests, 64, "verify-8"), DEVICE, DTYPE, 0)
        row_attention(given.q, given.keys, given.values, given.rows, made_plan(given, tile))
        torch.cuda.synchronize()
    except Exception as problem:  # a tile that cannot be compiled is a row of the table below
        return f"{job}: {type(problem).__name__}: {str(problem)[:200]}"
    return ""


def compile_all() -> None:
    jobs = sorted({(s.model, min(s.requests, 2), tile) for s in shapes() for tile in fitting(s)}, key=str)
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
    if not TOY:
        compile_all()
    print(f"compiled after {time.monotonic() - started:.0f} s", flush=True)
    rates = ceilings(DEVICE)
    print(f"copy {rates.copy_bytes_s / 1e12:.2f} TB/s, matmul {rates.matmul_flop_s / 1e12:.0f} TFLOP/s", flush=True)
    wanted = list(shapes())
    with open(path, "w") as file:
        print("model,requests,prefix,layout,rows,keys,warps,stages,programs,fixed,chunk,items,us,floor_us", file=file)
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
    settings = [(tile, 0) for tile in fitting(shape)]
    if shape.requests in (1, 4) and shape.layout in ("verify-16", "rows-16") and not TOY:
        settings += [(t, c) for t in fitting(shape) if t.stages == 3 for c in CHUNKS if c <= shape.prefix]
    best = (1e9, None)
    for tile, chunk in settings:
        try:
            plan = made_plan(given, tile, chunk)
            us = timed(given, plan, expected)
            items, found_chunk = plan.plan[:2].tolist()
        except Exception as problem:
            us, items, found_chunk = f"{type(problem).__name__}", "", ""
        numbers = (tile.rows, tile.keys, tile.warps, tile.stages, tile.programs, chunk, found_chunk, items, us)
        print(shape.model, shape.requests, shape.prefix, shape.layout, *numbers, f"{floor_us:.2f}", sep=",", file=file)
        if us[0].isdigit():
            best = min(best, (float(us), f"{numbers[:7]}"))
    file.flush()
    name = f"{shape.model} C={shape.requests} {shape.prefix} {shape.layout}"
    print(f"{name}: floor {floor_us:.1f}, best {best[0]:.1f} us {best[1]}", flush=True)


if __name__ == "__main__":
    assert set(LAYOUT_NAMES) <= set(LAYOUTS)
    main()
