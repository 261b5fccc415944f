"""Predictive overlap as a plain state machine over tokens, one request at a time, written apart from the simulator.

The chain's tokens are their own positions; what a draft got wrong is ``WRONG``, so no rule can depend on it.
"""

from dataclasses import dataclass, field
from typing import Any

from recguide.traces.dense import DenseRequest, DenseTrace, matched_lens

WRONG = -1


@dataclass
class Draft:
    """Tokens 1 to B-1 behind a seed, the second choice for each, and how sure the draft was, in steps of 1/256."""

    tokens: list[int]
    seconds: list[int]
    margins: list[int]


@dataclass
class Told:
    """One round as it went."""

    position: int
    emitted: int
    drafted: bool
    rows: list[int]
    """Tokens of the verifier row, then of each branch."""
    events: set[str] = field(default_factory=set)


def make_draft(request: DenseRequest, view: str, size: int, position: int, eos: str) -> Draft:
    """What the model drafts behind ``position`` output tokens; the continuation's token 0 included."""
    drafts = request.drafts[view, size]
    second = drafts.second if eos == "allowed" else drafts.second_no_eos
    count = size if view == "continuation" else size - 1

    def token(masks: Any, offset: int) -> int:
        return position + offset if int(masks[position]) >> offset & 1 else WRONG

    return Draft(
        [token(drafts.match, i) for i in range(count)],
        [token(second, i) for i in range(count)],
        [int(margin) for margin in drafts.margin[position]],
    )


def play(trace: DenseTrace, request: DenseRequest, rules: dict[str, Any]) -> list[Told]:
    """Every round of one request."""
    size, limit, room = rules["block_size"], trace.provenance.max_output_tokens, trace.provenance.max_context
    told: list[Told] = []
    position, held, may_branch = 1, None, True
    while position < request.output_tokens:
        cached = request.prompt_tokens + position - 1
        if cached + size > room:
            told.append(clipped_round(trace, request, position, cached))
            position += told[-1].emitted
            held, may_branch = None, True
            continue
        draft = held or make_draft(request, "seeded", size, position, rules["eos"])
        round_ = Told(position, 0, held is None, [size])
        risky = [i + 1 for i, margin in enumerate(draft.margins) if margin < 256 * rules["delta"]] if may_branch else []
        corrections = [p for p in risky[: rules["corrections"]] if position + p < limit and cached + p + size <= room]
        goes_on = {"two-risky": len(risky) <= 2, "always": True, "never": False}[rules["continuation"]]
        goes_on = goes_on and may_branch and position + size < limit and cached + 2 * size <= room
        round_.rows += [size] * (len(corrections) + goes_on)

        matched = 0
        while matched < size - 1 and draft.tokens[matched] == position + matched:
            matched += 1
        accepted = matched + 1
        round_.emitted = min(accepted, request.output_tokens - position)
        over = position + round_.emitted == request.output_tokens
        inside = accepted == round_.emitted
        verifier_token = position + matched

        held = None
        if accepted < size and accepted in corrections and inside:
            round_.events.add("correction covered")
            if draft.seconds[accepted - 1] == verifier_token and not over:
                round_.events.add("correction reused")
                held = make_draft(request, "seeded", size, position + accepted, rules["eos"])
        if accepted == size and goes_on and inside:
            round_.events.add("continuation covered")
            if not over:
                behind = make_draft(request, "continuation", size, position + size - 1, rules["eos"])
                if behind.tokens[0] == verifier_token:
                    round_.events.add("continuation reused")
                    held = Draft(behind.tokens[1:], behind.seconds[1:], behind.margins[1:])
        may_branch = held is None or rules["recursive"]
        told.append(round_)
        position += round_.emitted
    return told


def clipped_round(trace: DenseTrace, request: DenseRequest, position: int, cached: int) -> Told:
    """At the context limit: the largest recorded block that fits, without branches, or an AR step."""
    fitting = [size for size in trace.provenance.block_sizes if cached + size <= trace.provenance.max_context]
    if not fitting:
        return Told(position, 1, False, [1])
    matched = int(matched_lens(request.drafts["seeded", fitting[-1]].match[position : position + 1])[0])
    return Told(position, min(matched + 1, request.output_tokens - position), True, [fitting[-1]])
