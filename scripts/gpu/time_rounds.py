"""Times what surrounds forwards, and the idle time between them. usage: time_rounds.py PART SECONDS OUT.csv

PART is check, statistics, tune, fused or rounds. Every result is a row of the file, which is whole at any time; what
finds no time within SECONDS is said. TOY=1 is small enough for a CPU, where kernels are interpreted.
"""

import csv
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from round_idle import idle_of
from torch import Tensor

from recguide.engine.bench_timing import Effort, ceilings, seconds
from recguide.engine.decode import autoregressive
from recguide.engine.device_round import DeviceRounds, round_rules
from recguide.engine.environment import driver_version, engine_commit, gpu_name
from recguide.engine.model import ModelConfig
from recguide.engine.shapes import random_decoder
from recguide.kernels.gate import silu_gate, silu_gate_reference
from recguide.kernels.logit_statistics import (
    barred_ids,
    logit_statistics,
    logit_statistics_reference,
)
from recguide.kernels.logit_tiling import Tiling, scratch_for, tiling_for
from recguide.kernels.norm import add_rms_norm, add_rms_norm_reference
from recguide.sim.overlap import Overlap

TOY = bool(os.environ.get("TOY"))
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
EFFORT = Effort(1, 1) if TOY else Effort(16, 7)
Row = dict[str, Any]
PLAIN = Overlap(16, corrections=0, continuation="never")

# the shape of SmolLM2-135M; weights are random, since times do not depend on them
SMOLLM2 = ModelConfig("smollm2-135m", 576, 30, 9, 3, 64, 1536, 49152, 1e5, 1e-5, True, 8192, 3, (2,))
SMALL = ModelConfig("small", 128, 2, 2, 1, 64, 96, 12, 1e4, 1e-5, False, 512, 3, (2, 7))


def say(text: str) -> None:
    print(text, flush=True)


def checked() -> Iterator[Row]:
    """Tokens of every way to run rounds against plain decoding, in fp32 and at a small size."""
    decoder = random_decoder(SMALL, DEVICE, torch.float32, 1)
    for parameter in decoder.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3)
    prompts = [[5, 9, 11, 1], [8], [10, 4] * 9]
    wanted = [one.tokens for one in autoregressive(decoder, prompts, 40)]
    for name, overlap in (("plain", PLAIN), ("overlap", Overlap(8, 0.75))):
        for fused, rows in ((False, False), (True, False), (True, True)):
            rules = round_rules(decoder, overlap, 512, (4, 8))
            runner = DeviceRounds(decoder, 3, 64, rules, launches=2, fused=fused, rows=rows)
            same = [one.tokens for one in runner.run(prompts, 40)] == wanted
            emitted = [entry[2] for mine in runner.outputs.rounds for entry in mine]
            yield {"what": f"{name} fused={fused} rows={rows}", "same": same, "mean": sum(emitted) / len(emitted)}


def logits_of(rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn(rows, vocab, device=DEVICE) * 5).to(dtype)


def torch_statistics(logits: Tensor) -> tuple[Tensor, ...]:
    """What stands in the recorder: a softmax, its two best, its entropy."""
    p = logits.float().softmax(-1)
    return (*p.topk(2), torch.special.entr(p).sum(-1))


def timed_statistics() -> Iterator[Row]:
    copy = ceilings(DEVICE).copy_bytes_s
    say(f"copy {copy / 1e12:.3f} TB/s")
    shapes = [(rows, 131072, torch.bfloat16) for rows in (1, 4, 16, 64, 256, 1024, 2048, 4096)]
    shapes += [(rows, vocab, torch.float32) for rows in (1, 16, 64, 1024) for vocab in (49152, 131072)]
    for rows, vocab, dtype in [(2, 300, torch.float32)] if TOY else shapes:
        yield from _statistics(rows, vocab, dtype, copy)


def _statistics(rows: int, vocab: int, dtype: torch.dtype, copy: float) -> Iterator[Row]:
    logits, barred = logits_of(rows, vocab, dtype), barred_ids(100, (11,), DEVICE)
    tiling = best_tiling(rows) if vocab == 131072 and dtype == torch.bfloat16 else None
    scratch = scratch_for(rows, vocab, DEVICE, tiling)
    found, wanted = logit_statistics(logits, barred, scratch, tiling), logit_statistics_reference(logits, barred)
    right = all(torch.equal(a, b) for a, b in zip(found[:3], wanted[:3], strict=True))
    off = max(float((a - b).abs().max()) for a, b in zip(found[3:], wanted[3:], strict=True))
    shape = {"rows": rows, "vocab": vocab, "dtype": str(dtype)[6:], "ids_right": right, "largest_error": off}
    shape |= (tiling or tiling_for(rows, vocab))._asdict()
    ways: dict[str, Callable[[], object]] = {
        "one read": lambda: logit_statistics(logits, barred, scratch, tiling),
        "argmax": lambda: logits.argmax(-1),
        "softmax + topk + entropy": lambda: torch_statistics(logits),
    }
    for name, run in ways.items():
        yield shape | {"way": name} | against(logits.nbytes / copy, *seconds(run, EFFORT, DEVICE))


def best_tiling(rows: int) -> Tiling | None:
    """The fastest of $TUNED, a file of part tune, for about so many rows; the usual one where there is no file."""
    path = os.environ.get("TUNED", "")
    if not Path(path).is_file():
        return None
    lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    known = list(csv.DictReader(lines))
    nearest = min({int(row["rows"]) for row in known}, key=lambda tuned: abs(math.log(tuned / rows)))
    best = min((row for row in known if int(row["rows"]) == nearest), key=lambda row: float(row["us"]))
    return Tiling(*(int(best[field]) for field in Tiling._fields))


def against(floor: float, median: float, spread: float) -> Row:
    """A time beside the least that reading takes."""
    return {
        "us": median * 1e6,
        "spread_us": spread * 1e6,
        "floor_us": floor * 1e6,
        "share": floor / median,
        "over_us": (median - floor) * 1e6,
    }


def tuned() -> Iterator[Row]:
    """The same for many tilings. SHARE=i/n: the i-th n-th of them is compiled, and nothing is timed."""
    share, shares = map(int, os.environ.get("SHARE", "0/0").split("/"))
    copy = 1.0 if shares else ceilings(DEVICE).copy_bytes_s
    index = 0
    for rows in (1024, 16, 1, 64, 4096):
        logits, barred = logits_of(rows, 131072, torch.bfloat16), barred_ids(100, (11,), DEVICE)
        for tiling in tilings(rows, 131072):
            index += 1
            if shares and index % shares != share:
                continue
            scratch = scratch_for(rows, 131072, DEVICE, tiling)
            run = partial(logit_statistics, logits, barred, scratch, tiling)
            told: Row = {"us": 0.0}
            if shares:
                run()
            else:
                told = against(logits.nbytes / copy, *seconds(run, Effort(8, 5), DEVICE))
            yield {"rows": rows} | tiling._asdict() | told | {"now": tiling == tiling_for(rows, 131072)}


def tilings(rows: int, vocab: int) -> Iterator[Tiling]:
    """A few of each kind, since each is a kernel to be compiled."""
    many = [
        (1, 2, 3),
        (1, 4, 3),
        (1, 4, 1),
        (2, 2, 3),
        (2, 4, 3),
        (4, 1, 3),
        (4, 2, 3),
        (4, 4, 3),
        (4, 1, 1),
    ]
    some = [(1, 4, 3), (4, 2, 4), (2, 2, 3), (4, 1, 3), (4, 2, 3)]
    few = [(4, 1, 1), (4, 2, 1), (8, 1, 1), (8, 2, 1), (1, 4, 1), (2, 4, 1), (4, 4, 1)]
    kinds, parts = {
        1024: (many, (2, 4)),
        4096: (many, (1, 2)),
        64: ([*some, *few], (8, 16, 32)),
        16: ([*few, (4, 2, 3)], (32, 64, 128)),
        1: (few, (32, 64, 128)),
    }[rows]
    for warps, depth, stages in kinds:
        all_tiles = vocab // (depth * warps * 256)
        for tiles in sorted({max(1, all_tiles // count) for count in parts}):
            # several tiles are read ahead, or there is one
            if (tiles == 1) == (stages == 1) or rows >= 1000:
                yield Tiling(depth, warps * 32, tiles, -(-all_tiles // tiles), warps, stages)


def libraries() -> dict[str, Callable[[Tensor, Tensor, Tensor], object]]:
    """Norms with residual of libraries that are here."""
    found: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {}
    try:
        from flashinfer.norm import fused_add_rmsnorm

        found["flashinfer"] = lambda x, delta, weight: fused_add_rmsnorm(x, delta, weight, 1e-5)
    except ImportError as error:
        say(f"flashinfer: {error}")
    try:
        from sgl_kernel import fused_add_rmsnorm as sgl_norm

        found["sgl-kernel"] = lambda x, delta, weight: sgl_norm(x, delta, weight, 1e-5)
    except ImportError as error:
        say(f"sgl-kernel: {error}")
    try:
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction as Liger

        found["liger"] = lambda x, delta, weight: Liger.apply(x, delta, weight, 1e-5, 0.0, "llama", False)
    except ImportError as error:
        say(f"liger: {error}")
    return found


def timed_fused() -> Iterator[Row]:
    others = libraries()
    norm, gate = (torch.compile(fn, dynamic=False) for fn in (add_rms_norm_reference, silu_gate_reference))
    for rows, hidden, inner in [(2, 24, 40)] if TOY else [(16, 576, 1536), (64, 4096, 14336), (1024, 4096, 14336)]:
        x, delta = (torch.randn(rows, hidden, device=DEVICE, dtype=DTYPE) for _ in range(2))
        weight, gate_up = torch.randn_like(x[0]), torch.randn(rows, 2 * inner, device=DEVICE, dtype=DTYPE)
        ways: dict[str, Callable[[], object]] = {
            "norm: ours": partial(add_rms_norm, x, delta, weight, 1e-5),
            "norm: torch": partial(add_rms_norm_reference, x, delta, weight, 1e-5),
            "norm: compiled": partial(norm, x, delta, weight, 1e-5),
            "gate: ours": partial(silu_gate, gate_up),
            "gate: torch": partial(silu_gate_reference, gate_up),
            "gate: compiled": partial(gate, gate_up),
        }
        ways |= {f"norm: {name}": partial(run, x, delta, weight) for name, run in others.items()}
        for name, run in ways.items():
            # nothing is compiled for a CPU here, where there may be no compiler
            if not (TOY and name.endswith("compiled")):
                yield {"rows": rows, "hidden": hidden, "inner": inner, "way": name} | _measured(run)


def _measured(run: Callable[[], object]) -> Row:
    try:
        median, spread = seconds(run, EFFORT, DEVICE)
    except Exception as error:  # a library's: the others are still to be measured
        return {"note": f"{type(error).__name__}: {str(error)[:100]}".replace(",", ";").replace("\n", " ")}
    return {"us": median * 1e6, "spread_us": spread * 1e6}


def timed_rounds() -> Iterator[Row]:
    config = SMALL if TOY else SMOLLM2
    decoder = random_decoder(config, DEVICE, DTYPE, 0)
    prompt = (torch.arange(64) % 8 + 4).tolist()
    for requests in (1, 8):
        for name, overlap in (("plain", PLAIN), ("overlap", Overlap(16))):
            for fused, rows in ((True, True), (True, False), (False, False)):
                if TOY and (fused or rows or requests > 1):
                    continue
                runner = DeviceRounds(
                    decoder, requests, 1900, round_rules(decoder, overlap, 8192, ()), forwards=8, fused=fused, rows=rows
                )
                runner.begin([prompt] * requests, 100 if TOY else 1800)
                yield {"rounds": name, "requests": requests, "fused": fused, "rows": rows} | idle_of(runner, TOY)


PARTS = {
    "check": checked,
    "statistics": timed_statistics,
    "tune": tuned,
    "fused": timed_fused,
    "rounds": timed_rounds,
}


def write(path: Path, header: dict[str, str], found: list[Row]) -> None:
    columns = list(dict.fromkeys(column for row in found for column in row))
    lines = [f"# {key}: {value}" for key, value in header.items()] + [",".join(columns)]
    lines += [",".join(str(row.get(column, "")) for column in columns) for row in found]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    temporary.replace(path)


def main() -> None:
    part, limit_s, path = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    started = time.monotonic()
    header = {
        "recguide-rounds": part,
        "gpu": gpu_name(DEVICE),
        "driver": driver_version(DEVICE),
        "torch": str(torch.__version__),
        "commit": engine_commit(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    found: list[Row] = []
    for row in PARTS[part]():
        found.append({key: f"{x:.4g}" if isinstance(x, float) else x for key, x in row.items()})
        say(" ".join(f"{key}={x}" for key, x in found[-1].items()))
        write(path, header, found)
        if time.monotonic() - started > limit_s:
            say(f"{part}: stopped after {limit_s:.0f} s, {len(found)} results")
            break


if __name__ == "__main__":
    main()
