"""The summaries of a trace as tables for people."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields

from rich.table import Table

from recguide.traces.dense import Provenance
from recguide.traces.summaries import (
    Acceptance,
    Confidence,
    Offsets,
    Rejections,
    Requests,
    Share,
    Summary,
    Transitions,
    cumulative,
)

_OFFSETS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 31)
_LEVELS = (0.125, 0.25, 0.5, 0.75, 0.875)
_INTERVALS = ("[1,8]", "(8,16]", "(16,32]")


def tables(summary: Summary) -> Iterator[Table]:
    """Every table of a summary, in reading order."""
    yield _provenance(summary.provenance)
    yield _requests(summary.requests)
    yield _dropped(summary.requests)
    yield from _acceptance(summary.acceptance)
    yield _offsets(summary.offsets)
    yield _transitions(summary.transitions)
    yield _confidence(summary.confidence, "p1", "confidence")
    yield _confidence(summary.confidence, "margin", "margin")
    yield _rejections(summary.rejections, summary.provenance)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", overflow="fold")
    return table


def _provenance(provenance: Provenance) -> Table:
    table = Table(title="Provenance", title_justify="left", title_style="bold", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for field in fields(provenance):
        value = getattr(provenance, field.name)
        if field.name != "dropped" and value not in (None, ""):
            table.add_row(field.name, ", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return table


def _requests(rows: Sequence[Requests]) -> Table:
    table = _table("Requests", "dataset", "requests", "prompt tokens", "output tokens", "ended by EOS")
    for row in rows:
        means = [_number(value, 1) for value in (row.prompt_tokens, row.output_tokens)]
        table.add_row(row.dataset, str(row.requests), *means, _percent(row.eos_rate))
    table.add_section()
    table.add_row("all", str(sum(row.requests for row in rows)))
    return table


def _dropped(rows: Sequence[Requests]) -> Table:
    table = _table("Left out of the trace", "dataset", "what", "number")
    for row in rows:
        for reason, count in row.dropped.items():
            table.add_row(row.dataset, reason, str(count))
    if not table.rows:
        table.add_row("all", "nothing", "0")
    return table


def _acceptance(rows: Sequence[Acceptance]) -> Iterator[Table]:
    cells: dict[str, Callable[[Acceptance], str]] = {
        "Acceptance length, mean over requests": lambda row: _number(row.accept_len_by_request),
        "Acceptance length, tokens over rounds (in brackets without the verifier's own token)": lambda row: (
            f"{_number(row.accept_len_by_round)} ({_number(row.matched_by_round)})"
        ),
        "Fully accepted rounds": lambda row: _percent(row.full_accept_rate),
        "Rounds (in brackets those cut by the output's end)": lambda row: f"{row.rounds} ({row.cut_rounds})",
    }
    block_sizes = sorted({row.block_size for row in rows})
    for title, cell in cells.items():
        table = _table(title, "dataset", *(f"B = {size}" for size in block_sizes))
        for name in dict.fromkeys(row.dataset for row in rows):
            table.add_row(name, *(cell(row) for row in rows if row.dataset == name))
        yield table


def _offsets(curves: Sequence[Offsets]) -> Table:
    title = "Draft tokens by offset: share that agrees with the chain / share accepted after all before it were"
    table = _table(title, "offset", *(f"B = {curve.block_size}" for curve in curves))
    for offset in _OFFSETS:
        if offset < max(curve.block_size for curve in curves):
            table.add_row(str(offset), *(_offset_cell(curve, offset) for curve in curves))
    return table


def _offset_cell(curve: Offsets, offset: int) -> str:
    if offset >= curve.block_size:
        return ""
    return f"{_percent(curve.agreement[offset - 1])} / {_percent(curve.conditional[offset - 1])}"


def _transitions(found: Transitions) -> Table:
    title = (
        f"Acceptance of adjacent rounds at B = {found.block_size} (paper, Table 1); {found.left_out} cut ones left out"
    )
    table = _table(title, "round", *(f"next {name}" for name in _INTERVALS), "pairs", "share of rounds")
    for name, rates, counts, share in zip(_INTERVALS, found.rates, found.counts, found.interval_rates, strict=True):
        table.add_row(name, *map(_percent, rates), str(sum(counts)), _percent(share))
    return table


def _confidence(parts: Sequence[Confidence], level: str, name: str) -> Table:
    title = f"Draft tokens by {name}: share below, at B = {parts[0].block_size} (paper, Figure 3)"
    table = _table(title, "positions", "number", *(f"< {threshold}" for threshold in _LEVELS))
    for part in parts:
        for kind, counts in (("passed", part.passed), ("first rejected", part.rejected)):
            curve = cumulative(counts[level])
            shares = [_percent(curve[int(threshold * 256)]) for threshold in _LEVELS]
            table.add_row(f"{part.category}, {kind}", str(sum(counts[level])), *shares)
    return table


def _rejections(rows: Sequence[Rejections], provenance: Provenance) -> Table:
    table = _table("Where rounds end", "", *(f"B = {row.block_size}" for row in rows))
    shifted = " (always, with shifted logits)" if provenance.draft_shift else ""
    table.add_row("first rejections", *(str(row.rejections) for row in rows))
    table.add_row("  second candidate right", *(_percent(row.second_rate) for row in rows))
    table.add_row("  the same, EOS barred", *(_percent(row.second_no_eos_rate) for row in rows))
    table.add_row("  margin below 0.5", *(_percent(row.risky_rate) for row in rows))
    table.add_row("passed, margin below 0.5", *(_percent(row.passed_risky_rate) for row in rows))
    table.add_row("full acceptances", *(str(row.full_accepts) for row in rows))
    table.add_row(f"  continuation right{shifted}", *(_percent(row.continuation_rate) for row in rows))
    return table


def _number(value: Share, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: Share) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"
