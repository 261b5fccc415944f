"""Outputs of served runs against those of a reference, and whether where they part two tokens were as good as equal."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from recguide.engine.bench_outputs import Outputs
from recguide.engine.rereading import Floats, Ruler

LEVELS = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
"""Shares of positions whose noise is no larger than what is told under that name."""
USUAL, MOST = "p999", "max"
"""What a gap above is counted for, and what makes it a divergence that noise does not explain."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an output first differs from the reference's."""

    request: int
    position: int
    gap: float | None
    """By how much the reference's token is above the other one; None where one of the outputs ends."""
    exact_gap: float | None
    """The same in fp32."""

    def above(self, noise: Mapping[str, float], exact_noise: Mapping[str, float], level: str) -> bool:
        """Whether the gap is more than that noise, in either precision."""
        if self.gap is None or self.exact_gap is None:
            return True
        return abs(self.gap) > noise[level] or abs(self.exact_gap) > exact_noise[level]


def first_difference(reference: Sequence[int], found: Sequence[int]) -> int | None:
    """The first place where two outputs differ; None where they are the same."""
    pairs = zip(reference, found, strict=False)
    shorter = min(len(reference), len(found))
    place = next((at for at, (one, other) in enumerate(pairs) if one != other), shorter)
    return None if place == max(len(reference), len(found)) else place


def divergences(ruler: Ruler, found: Iterable[tuple[int, Sequence[int]]]) -> list[Divergence]:
    """Those of outputs, each to the request of that number."""
    told = []
    for request, output in found:
        reference = ruler.texts[request].output
        place = first_difference(reference, output)
        if place is None:
            continue
        both = place < min(len(reference), len(output))
        gaps = ruler.gap(request, place, output[place]) if both else (None, None)
        told.append(Divergence(request, place, *gaps))
    return told


def noise_of(ruler: Ruler, parted: set[tuple[int, int]]) -> tuple[dict[str, float], dict[str, float]]:
    """Of the gaps, and of those against fp32: quantiles over the positions where no output parts from the reference."""
    return _quantiles(ruler.noise, parted), _quantiles(ruler.exact_noise, parted)


def _quantiles(noise: Sequence[Floats], parted: set[tuple[int, int]]) -> dict[str, float]:
    kept = [np.delete(values, [at for row, at in parted if row == request]) for request, values in enumerate(noise)]
    known = np.concatenate(kept)
    known = known[~np.isnan(known)]
    shares = {name: float(np.quantile(known, share)) for name, share in LEVELS.items()}
    return {"positions": len(known), **shares}


@dataclass(frozen=True, slots=True)
class Run:
    """What one policy gave at one concurrency."""

    policy: str
    concurrency: int
    requests: int
    seconds: float
    output_tokens: int
    errors: int
    """Requests that ended with an error; their outputs differ."""
    parted: Sequence[Divergence]
    server: Mapping[str, Any] | None = None
    """What is known of who served it; None for this engine, here."""


def judged(ruler: Ruler, outputs: Outputs) -> Run:
    """Outputs of another server as a run; their rows are numbers of the ruler's texts."""
    parted = divergences(ruler, sorted(zip(outputs.rows, outputs.tokens, strict=True)))
    about = outputs.policy, outputs.concurrency, len(outputs.rows), outputs.seconds, sum(map(len, outputs.tokens))
    return Run(*about, 0, parted, outputs.about)


def told_of(ruler: Ruler, runs: Sequence[Run]) -> dict[str, Any]:
    """What files say of runs: noise, what texts were read in, a row a run, and where outputs part."""
    noise, exact_noise = noise_of(ruler, {(each.request, each.position) for run in runs for each in run.parted})
    return {
        "noise": noise,
        "noise_against_fp32": exact_noise,
        "read_in": [{**reading.shape._asdict(), "texts": len(reading)} for reading in ruler.readings],
        "runs": [row_of(run, noise, exact_noise) for run in runs],
        "divergences": {f"{run.policy}@{run.concurrency}": [_line(each) for each in run.parted] for run in runs},
    }


def _line(parted: Divergence) -> str:
    """Request, position and gaps in one line of a file that people look at."""
    return " ".join("-" if value is None else f"{value:.6g}" for value in astuple(parted))


def row_of(run: Run, noise: Mapping[str, float], exact_noise: Mapping[str, float]) -> dict[str, Any]:
    """A run as a row of a table."""
    parted = run.parted
    return {
        "policy": run.policy,
        "concurrency": run.concurrency,
        "requests": run.requests,
        "output_tokens": run.output_tokens,
        "seconds": round(run.seconds, 2),
        "errors": run.errors,
        "equal": run.requests - len(parted),
        "first_divergence_p50": float(np.median([each.position for each in parted])) if parted else None,
        "largest_gap": _largest([each.gap for each in parted]),
        "largest_exact_gap": _largest([each.exact_gap for each in parted]),
        "above_usual_noise": sum(each.above(noise, exact_noise, USUAL) for each in parted),
        "above_noise": sum(each.above(noise, exact_noise, MOST) for each in parted),
        **({} if run.server is None else {"server": run.server}),
    }


def _largest(gaps: Sequence[float | None]) -> float | None:
    sizes = [abs(gap) for gap in gaps if gap is not None]
    return max(sizes, default=None)
