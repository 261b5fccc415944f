"""Profiles of NLD-8B and 14B on one B200, from published forward times, and from published throughputs what the host
adds. What is inferred stands in the spread column with half the width of its band; what is published has 0 there.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from recguide.sim.costs import HEADER, Profile
from recguide.sim.paper.acceptance import host_more_ms, model_name
from recguide.sim.paper.published import BLOCK_SIZES, FORWARD_MS, LOADS, OVERALL_SPEEDUP, OVERALL_TAU, TABLE5
from recguide.sim.profile_rows import Row

CONTEXTS = (0, 4096)
"""Cached tokens a request between which the published times are means over prompts; taken as constant."""
ROW_TOKENS = (64, 128)
"""Query tokens a request of forwards with branches: four rows at B = 16, and at B = 32."""
QUADRATIC_TOKENS = (72, 272, 1056)
"""B (B + 1) at B = 8, 16, 32."""
PREFILLS = (16, 64, 256, 1024, 4096)
GPU = "NVIDIA B200"
DFLASH_LAYERS = {"8b": 5 / 34, "14b": 5 / 40}
"""Layers of a DFlash drafter over the target's: what its draft costs of a target's forward. Assumed."""


def ar_ms(model: str) -> float:
    """A step without a draft at C = 1, host included: Table 5's LinearSS over its speedup in Table 2."""
    return 1e3 * OVERALL_SPEEDUP[model]["LinearSS"] / TABLE5["LinearSS"][model]


class Host(NamedTuple):
    """The host's time of a round in ms, half of it at each of the two forwards."""

    one: float
    """With one request."""
    more: float
    """What each further one adds."""


def host_ms(model: str) -> Host:
    """Of LinearSS: with one request by Table 5; for each further one by Table 6's fixed blocks, which
    :mod:`recguide.sim.paper.host` serves at C = 2 to 128 until they are as fast as published."""
    times = dict(zip(LOADS, FORWARD_MS[model][16], strict=True))
    one = 1e3 * OVERALL_TAU[model]["LinearSS"] / TABLE5["LinearSS"][model] - 2 * times[1]
    return Host(one, host_more_ms(model))


def lean_host_ms(model: str) -> Host:
    """Of SGLang's own speculative path at one request: what Table 2's speedup of DFlash leaves beside its forwards."""
    round_ms = OVERALL_TAU[model]["DFlash"] / OVERALL_SPEEDUP[model]["DFlash"] * ar_ms(model)
    return Host(round_ms - (1 + DFLASH_LAYERS[model]) * FORWARD_MS[model][16][0], 0.0)


def forward_ms(model: str, tokens: float) -> float:
    """A forward of so many query tokens, from the published ones at B = 32, linear between and beyond them."""
    known = np.array([32 * count for count in LOADS], np.float64)
    times = np.array(FORWARD_MS[model][32])
    if tokens > known[-1]:
        slope = (times[-1] - times[-2]) / (known[-1] - known[-2])
        return float(times[-1] + slope * (tokens - known[-1]))
    return float(np.interp(tokens, known, times))


def band_ms(model: str, requests: int, tokens: float) -> float:
    """Half the distance between two guesses at a forward of so many query tokens of so many requests.

    One goes by the query tokens alone, with as many requests as blocks of 32 make; the other has twice as many
    requests with half as many tokens each.
    """
    loads = np.array(LOADS, np.float64)
    many = float(np.interp(min(tokens / 16, LOADS[-1]), loads, FORWARD_MS[model][16]))
    return abs(forward_ms(model, tokens) - many) / 2 if tokens <= 16 * LOADS[-1] else 0.1 * forward_ms(model, tokens)


def rows_of(model: str, host: Host | None = None) -> list[Row]:
    """All rows of the profile, in microseconds; with LinearSS's host unless another one is given."""
    one, more = host or host_ms(model)
    found: list[Row] = []
    for place, count in enumerate(LOADS):
        half = 1e3 * (one + more * (count - 1)) / 2
        for size in BLOCK_SIZES:
            us = 1e3 * FORWARD_MS[model][size][place]
            found += _at("draft", count, size, us + half, 0.0) + _at("verify", count, size, us, 0.0)
            found.append(Row("host", count, count * size, 0, round(half, 1), round(half / 2, 1), 1))
        growth = 1e3 * (FORWARD_MS[model][8][place] - FORWARD_MS[model][8][0]) / 2
        found += _at("decode", count, 1, 1e3 * ar_ms(model) + growth, growth)
        found.append(Row("host", count, count, 0, 0.0, 0.0, 1))
        for kind, tokens in [("rows", n) for n in ROW_TOKENS] + [("quadratic", n) for n in QUADRATIC_TOKENS]:
            us, spread = (
                1e3 * each for each in (forward_ms(model, count * tokens), band_ms(model, count, count * tokens))
            )
            found += _at(kind, count, tokens, us, spread)
    found += [Row("prefill", 1, n, 0, round(1e3 * forward_ms(model, n), 1), round(1e2 * forward_ms(model, n), 1), 1)
              for n in PREFILLS]  # fmt: skip
    return sorted(found)


def _at(kind: str, requests: int, tokens: int, us: float, spread: float) -> list[Row]:
    return [
        Row(kind, requests, requests * tokens, requests * context, round(us, 1), round(spread, 1), 1)
        for context in CONTEXTS
    ]


def header_of(model: str) -> dict[str, str]:
    """Where it comes from, and what in it is inferred."""
    one, more = host_ms(model)
    said = {
        "model": model_name(model),
        "dtype": "bf16",
        "gpu": GPU,
        "command": "python scripts/b200_profiles.py",
        "created": "2026-11-30T00:00:00+00:00",
        "attention": "SGLang, FlashInfer, CUDA graph replay, as published",
        "source": "github.com/linyewei526/Nemotron-Labs-Diffusion, forward sweeps; RecGuide paper, Tables 2, 5 and 6",
        "published": "draft and verify at 1 to 128 requests and B = 8, 16, 32: the mean of both, taken as constant up "
        "to 4096 cached tokens a request",
        "inferred": "decode (paper: 595 / 2.68 and 470 / 2.95 tokens/s at C = 1; half of the growth of B = 8 above), "
        "rows, quadratic and prefill (by query tokens, from B = 32), host",
        "host": f"{one:.2f} ms a round, and {more:.3f} ms for each further request, by Tables 5 and 6; half of it "
        "is in the draft rows, half in the host rows, so that a round without a draft forward saves its half",
        "spread": "half the width of a band around what is inferred; 0 where published, and for the host's half in the "
        "draft rows, which LinearSS has for sure",
    }
    return dict.fromkeys(HEADER[1:], "none") | said


def profile_of(model: str, host: Host | None = None) -> Profile:
    """The profile as shipped, or the same with another host."""
    header = {"recguide-profile": "1", **header_of(model)}
    return Profile(f"{model_name(model)}-b200.csv", header, rows_of(model, host))


def at_the_edge(profile: Profile, side: int) -> Profile:
    """The same where everything inferred lies at one edge of its band: -1 the cheaper, 1 the dearer one."""
    rows = []
    for row in profile.rows:
        least = 0.0 if row.kind == "host" else 1.0
        rows.append(row._replace(median_us=max(row.median_us + side * row.spread_us, least)))
    return replace(profile, rows=rows)


def forwards_alone(model: str) -> Profile:
    """The published forward times of draft and verify, which the authors' policy takes for T_C(B): no host."""
    rows = [row for row in rows_of(model) if row.kind == "verify"]
    drafts = [row._replace(kind="draft") for row in rows]
    hosts = [row._replace(kind="host", context_tokens=0, median_us=0.0) for row in rows if row.context_tokens == 0]
    return Profile(f"{model_name(model)}-b200.csv", header_of(model), sorted([*rows, *drafts, *hosts]))
