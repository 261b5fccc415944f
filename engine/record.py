"""Recording dense traces: greedy chains, then drafts from every position of each (docs/record.md)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from recguide.engine.chains import Chain, greedy_chains
from recguide.engine.dense import Outcome, dense_outcomes
from recguide.engine.groups import Encoded, Group, Sizes, planned
from recguide.engine.loading import LoadedModel
from recguide.engine.model import Decoder
from recguide.engine.parts import Parts
from recguide.traces.dense import DenseRequest, DenseTrace, Provenance
from recguide.traces.errors import InputError
from recguide.traces.merges import merge_traces

TOO_LONG = "prompts that fill the context"
DISAGREEING = "positions where verifier and chain disagree"
MAX_DISAGREEING = 0.05

Traces = dict[str, DenseTrace]
"""By dataset."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Listener:
    """Who hears how far a recording is: ``finished`` so many more requests, ``say`` a line of text."""

    finished: Callable[[int], None]
    say: Say


@dataclass(frozen=True, slots=True)
class Recorder:
    """Records batches of prompts with one model; ``provenance`` holds the settings of the whole run."""

    model: LoadedModel
    base: Decoder | None
    """The model without its adapter, where the adapter changes the verifier."""
    provenance: Provenance
    sizes: Sizes
    with_token_ids: bool = False
    drafter: Decoder | None = None
    """What drafts in place of the model: the same weights, with the updates for draft tokens merged into them."""

    def plan(self, prompts: Sequence[Encoded], stems: Mapping[str, str]) -> list[list[Group]]:
        """What is recorded together, see :func:`recguide.engine.groups.planned`."""
        num_tokens = self.provenance.max_output_tokens + max(self.provenance.block_sizes)
        return planned(prompts, self.model.config, self.model.decoder.dtype, num_tokens, self.sizes, stems)

    def record(self, batch: Sequence[Group], say: Callable[[str], None]) -> Iterator[tuple[Group, Traces]]:
        """Decode the groups of a batch together, then give the traces of each group, by dataset."""
        prompts = [one for group in batch for one in group.prompts]
        say(f"decoding {len(prompts)} requests with {len(prompts[0].ids)} to {len(prompts[-1].ids)} prompt tokens")
        limits = (self.provenance.max_output_tokens, self.provenance.max_context)
        ahead = max(self.provenance.block_sizes)
        chains = greedy_chains(self.model.decoder, [one.ids for one in prompts], *limits, ahead=ahead)
        say(f"decoded {sum(chain.output_tokens for chain in chains)} output tokens")
        rest = iter(chains)
        for group in batch:
            yield group, self._traces(group, list(islice(rest, len(group.prompts))))

    def _traces(self, group: Group, chains: Sequence[Chain]) -> Traces:
        grid, query_tokens = self.provenance.block_sizes, self.sizes.query_tokens
        outcomes = dense_outcomes(self.model.decoder, chains, grid, query_tokens, self.base, self.drafter)
        rows = list(zip(group.prompts, chains, outcomes, strict=True))
        return {name: self._trace(name, [row for row in rows if row[0].prompt.dataset == name]) for name in group.names}

    def _trace(self, dataset: str, rows: Sequence[tuple[Encoded, Chain, Outcome]]) -> DenseTrace:
        disagreeing = sum(outcome.disagreeing for _, _, outcome in rows)
        agreeing = sum(outcome.base_agreeing for _, _, outcome in rows)
        provenance = replace(
            self.provenance,
            dropped={dataset: {DISAGREEING: disagreeing}} if disagreeing else {},
            base_agreement=agreeing / sum(chain.output_tokens for _, chain, _ in rows),
        )
        return DenseTrace(provenance, tuple(self._request(*row) for row in rows))

    def _request(self, one: Encoded, chain: Chain, outcome: Outcome) -> DenseRequest:
        ids = (one.ids, chain.tokens[: chain.output_tokens]) if self.with_token_ids else (None, None)
        prompt_ids, output_ids = (None if part is None else np.array(part, np.int32) for part in ids)
        return DenseRequest(
            one.prompt.prompt_id,
            one.prompt.dataset,
            one.prompt.category,
            one.prompt.sha256,
            len(one.ids),
            chain.output_tokens,
            chain.finish_reason,
            outcome.entropy,
            outcome.drafts,
            prompt_ids,
            output_ids,
        )


def record_datasets(
    recorder: Recorder,
    prompts: Mapping[str, Sequence[Encoded]],
    parts: Parts,
    stems: Mapping[str, str],
    listener: Listener,
) -> tuple[Traces, list[str]]:
    """The trace of each dataset, from the parts that are there and new ones; and the names of the parts.

    ValueError when verifier and chain disagree on more than MAX_DISAGREEING of the positions of a dataset.
    """
    found: dict[str, list[tuple[Path, DenseTrace]]] = {dataset: [] for dataset in prompts}
    for batch in recorder.plan([one for encoded in prompts.values() for one in encoded], stems):
        for group, traces in _with_parts(recorder, batch, parts, listener):
            listener.finished(len(group.prompts))
            for dataset, trace in traces.items():
                found[dataset].append((Path(group.names[dataset]), trace))
    names = [str(name) for traces in found.values() for name, _ in traces]
    return {dataset: _joined(found[dataset], encoded) for dataset, encoded in prompts.items()}, names


def _with_parts(
    recorder: Recorder, batch: Sequence[Group], parts: Parts, listener: Listener
) -> Iterator[tuple[Group, Traces]]:
    """The traces of every group of a batch; those that had to be recorded are kept as soon as they are."""
    missing: list[Group] = []
    for group in batch:
        kept = group.read(parts)
        if kept is None:
            missing.append(group)
        else:
            yield group, kept
    if missing:
        for group, traces in recorder.record(missing, listener.say):
            group.write(parts, traces)
            yield group, traces


def _joined(parts: Sequence[tuple[Path, DenseTrace]], prompts: Sequence[Encoded]) -> DenseTrace:
    """The parts of one dataset as one trace, its requests in the order of the prompts."""
    merged = merge_traces(parts)
    _check_agreement(merged, prompts[0].prompt.dataset)
    order = {one.prompt.prompt_id: index for index, one in enumerate(prompts)}
    return DenseTrace(merged.provenance, tuple(sorted(merged.requests, key=lambda request: order[request.request_id])))


def _check_agreement(trace: DenseTrace, dataset: str) -> None:
    disagreeing = trace.provenance.dropped.get(dataset, {}).get(DISAGREEING, 0)
    share = disagreeing / sum(request.output_tokens for request in trace.requests)
    if share > MAX_DISAGREEING:
        raise InputError(
            f"{dataset}: verifier and chain disagree on {share:.1%} of the positions; allowed: {MAX_DISAGREEING:.0%}. "
            f"Recorded in {trace.provenance.dtype}; fp32 has no such ties"
        )
