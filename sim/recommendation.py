"""What a sweep says about block sizes by load: tiers, as a policy file, for vLLM and for SGLang."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from recguide.sim.policyfiles import FORMAT
from recguide.sim.rounds import AR
from recguide.sim.slo import Verdict, best_of, closest_of
from recguide.sim.tiers import KIND, Tier
from recguide.traces.errors import InputError


def tiers_of(found: Sequence[Verdict], attainment: float) -> list[Tier]:
    """The best fixed block, or AR, around every swept concurrency: the fastest that keeps the levels.

    Where none does, the one that keeps them most often. Between two concurrencies the ranges meet at their geometric
    mean; ranges with the same block size are one. The last one ends at the largest concurrency.
    Without any concurrency, as in an open loop, there is one tier.
    """
    simple = [verdict for verdict in found if _size(verdict.policy) is not None]
    if not simple:
        raise InputError("no point of ar or fixed:B in the sweep, which tiers are made of")
    if not any(verdict.concurrency for verdict in simple):
        chosen = best_of(simple, attainment) or closest_of(simple)
        return [Tier(1, int(chosen.point["max_concurrent_requests"] or 1), _size(chosen.policy) or AR)]
    levels = sorted({verdict.concurrency for verdict in simple if verdict.concurrency})
    ends = [math.isqrt(low * high) for low, high in pairwise(levels)] + [levels[-1]]
    tiers: list[Tier] = []
    for level, end in zip(levels, ends, strict=True):
        here = [verdict for verdict in simple if verdict.concurrency == level]
        size = _size((best_of(here, attainment) or closest_of(here)).policy) or AR
        start = tiers[-1].high + 1 if tiers else 1
        if tiers and tiers[-1].block_size == size:
            tiers[-1] = Tier(tiers[-1].low, end, size)
        else:
            tiers.append(Tier(start, end, size))
    return tiers


def _size(policy: str) -> int | None:
    head, _, argument = policy.partition(":")
    if head == "fixed" and argument.isdecimal():
        return int(argument)
    return AR if policy == "ar" else None


def as_policy(tiers: Sequence[Tier], about: Mapping[str, Any]) -> dict[str, Any]:
    """A policy file's content; ``about`` says what it was made of."""
    return {"recguide_policy": FORMAT, "kind": KIND, "tiers": [asdict(tier) for tier in tiers], **about}


def as_vllm(tiers: Sequence[Tier]) -> dict[str, Any]:
    """Entries for vLLM's --speculative-config: draft tokens (a block less its seed) by ranges of the batch size.

    https://docs.vllm.ai/en/latest/features/speculative_decoding/dynamic_speculative_decoding/
    """
    ranges = [[tier.low, tier.high, tier.block_size - 1] for tier in tiers]
    return {
        "num_speculative_tokens": max(draft_tokens for _, _, draft_tokens in ranges),
        "num_speculative_tokens_per_batch_size": ranges,
    }


def as_sglang(tiers: Sequence[Tier]) -> dict[str, Any]:
    """SGLang's --speculative-adaptive-config: the steps to choose from (here one: the draft tokens) by batch size.

    https://github.com/sgl-project/sglang/pull/24055: keys are the smallest batch size of a range.
    """
    return {str(tier.low): {"candidate_steps": [tier.block_size - 1]} for tier in tiers}
