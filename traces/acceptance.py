"""Acceptance that other systems recorded, as sparse traces.

Two formats are read. vLLM's per-request metrics of speculative decoding: ``per_step_accepted`` counts drafts, without
the verifier's own token, and ``per_step_drafted`` says how many there were. They stand in JSON lines, one request
each, or as lists of lists in a result file. And Spec-Bench's answers: ``accept_lengths`` of each choice, which count
the verifier's token; a choice of several turns is one request.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recguide.traces.errors import InputError
from recguide.traces.sparse import SparseRequest, SparseTrace, check_sparse

Row = Mapping[str, Any]
NESTED = ("spec_decode_metrics", "speculative_decoding", "metrics")


@dataclass(frozen=True, slots=True)
class Served:
    """One request as a file tells of it."""

    where: str
    row: Row
    accept_lens: Sequence[int]
    drafted: Sequence[int] | None


def import_acceptance(
    path: Path, *, model: str, block_size: int | None = None, prompt_tokens: int | None = None, lenient: bool = False
) -> SparseTrace:
    """Read a file of either format; ValueError names file, line and field, and ``lenient`` skips and counts.

    ``block_size`` is one more than the most draft tokens of a step; None: as the file shows. ``prompt_tokens`` stands
    in for prompt lengths that the file lacks.
    """
    dropped: Counter[str] = Counter()
    served = []
    for where, row in _rows(path):
        try:
            served.append(_served(where, row))
        except InputError as error:
            if not lenient:
                raise
            dropped[str(error).removeprefix(f"{where}: ").split(":")[0].split("[")[0]] += 1
    size = block_size or max((_most(each) for each in served), default=0)
    requests = []
    for index, each in enumerate(served):
        try:
            requests.append(_request(path, index, each, prompt_tokens))
        except InputError as error:
            if not lenient:
                raise
            dropped[str(error).removeprefix(f"{each.where}: ").split(":")[0]] += 1
    trace = SparseTrace(model, max(size, 2), path.name, dict(dropped), tuple(requests))
    try:
        check_sparse(trace)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return trace


def _rows(path: Path) -> Iterator[tuple[str, Row | ValueError]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start}: not UTF-8 text") from None
    lines = [(f"{path}:{number}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if lines and not lines[0][1].strip().endswith("}"):
        lines = [(str(path), text)]
    for where, line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield where, InputError(f"{where}: not JSON: {error}")
            continue
        if not isinstance(row, dict):
            yield where, InputError(f"{where}: found a {type(row).__name__}, allowed: a JSON object")
            continue
        yield from _split(where, row)


def _split(where: str, row: Row) -> Iterator[tuple[str, Row]]:
    """The requests of a row: those of a result file, the choices of an answer, or the row itself."""
    accepted = row.get("per_step_accepted")
    if isinstance(row.get("input_lens"), list) and isinstance(accepted, list):
        names = {"per_step_accepted": "per_step_accepted", "per_step_drafted": "per_step_drafted"}
        names |= {"input_lens": "prompt_tokens", "output_lens": "completion_tokens"}
        for name in names:
            if not isinstance(row.get(name), list) or len(row[name]) != len(accepted):
                raise InputError(f"{where}: {name}: found another length than per_step_accepted, or no list")
        for index in range(len(accepted)):
            yield f"{where}: request {index}", {new: row[name][index] for name, new in names.items()}
    elif isinstance(row.get("choices"), list) and "question_id" in row:
        for index, choice in enumerate(row["choices"]):
            if isinstance(choice, dict):
                name = f"{row['question_id']}/{index}"
                yield f"{where}: choices[{index}]", {"id": name, "category": row.get("category"), **choice}
    else:
        yield where, row


def _served(where: str, row: Row | ValueError) -> Served:
    if isinstance(row, ValueError):
        raise row
    found = row
    for name in NESTED:
        inner = found.get(name)
        found = inner if isinstance(inner, dict) else found
    if "accept_lengths" in found:
        lens = _counts(f"{where}: accept_lengths", found["accept_lengths"], least=1)
        return Served(where, row, lens, None)
    if "per_step_accepted" not in found:
        raise InputError(f"{where}: per_step_accepted: missing, and accept_lengths too; allowed: one of them")
    accepted = _counts(f"{where}: per_step_accepted", found["per_step_accepted"], least=0)
    drafted = _counts(f"{where}: per_step_drafted", found.get("per_step_drafted"), least=0)
    if len(drafted) != len(accepted):
        raise InputError(f"{where}: per_step_drafted: found {len(drafted)} steps, allowed: {len(accepted)}")
    for index, (took, made) in enumerate(zip(accepted, drafted, strict=True)):
        if took > made:
            raise InputError(f"{where}: per_step_accepted[{index}]: found {took} of {made} drafts")
    return Served(where, row, [count + 1 for count in accepted], drafted)


def _counts(where: str, values: object, least: int) -> list[int]:
    if not isinstance(values, list):
        raise InputError(f"{where}: found {values!r}, allowed: a list of whole numbers")
    for index, value in enumerate(values):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{where}[{index}]: found {value!r}, allowed: whole numbers of at least {least}")
    return values


def _most(served: Served) -> int:
    """The block size that a request shows."""
    drafted = 1 + max(served.drafted, default=0) if served.drafted is not None else 0
    return max(drafted, max(served.accept_lens, default=0))


def _request(path: Path, index: int, served: Served, prompt_tokens: int | None) -> SparseRequest:
    row, whole = served.row, sum(served.accept_lens) + 1
    prompt = _length(served.where, row, "prompt_tokens", prompt_tokens)
    output = _length(served.where, row, "completion_tokens", whole)
    lens = list(served.accept_lens)
    # steps behind the last token that the client got are of no use to anyone
    while lens and sum(lens[:-1]) + 1 >= output:
        lens.pop()
    if output > whole:
        raise InputError(
            f"{served.where}: completion_tokens: found {output}, allowed: up to {whole}, as its rounds give"
        )
    name = str(row.get("id") or row.get("request_id") or f"{path.stem}/{index}")
    dataset = str(row.get("dataset") or path.stem)
    return SparseRequest(name, dataset, str(row.get("category") or "unknown"), prompt, output, tuple(lens))


def _length(where: str, row: Row, name: str, otherwise: int | None) -> int:
    usage = row.get("usage")
    value = row.get(name, usage.get(name) if isinstance(usage, dict) else None)
    value = otherwise if value is None else value
    if value is None:
        raise InputError(f"{where}: {name}: missing, allowed: a whole number; --prompt-tokens stands in for it")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{where}: {name}: found {value!r}, allowed: a whole number of at least 1")
    return value
