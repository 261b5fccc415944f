"""Recording dense traces: greedy chains, then drafts from every position of each (docs/record.md)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from recguide.engine.chains import Chain, greedy_chains
from recguide.engine.dense import Outcome, dense_outcomes
from recguide.engine.loading import LoadedModel
from recguide.engine.model import Decoder, ModelConfig
from recguide.engine.parts import Parts
from recguide.traces.datasets import Prompt
from recguide.traces.dense import DenseRequest, DenseTrace, Provenance
from recguide.traces.merges import merge_traces

TOO_LONG = "prompts that fill the context"
DISAGREEING = "positions where verifier and chain disagree"
MAX_DISAGREEING = 0.05


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is computed together: larger is faster, until memory runs out. Results do not depend on it."""

    chain_requests: int
    """Requests decoded together, fewer where their keys and values would exceed ``chain_bytes``."""
    chain_bytes: int
    draft_requests: int
    """Requests that share a draft forward."""
    query_tokens: int
    """Draft tokens in a forward."""
    mask_elements: int
    """Upper bound of requests x tokens x tokens in the pass that reads the chains."""


def sizes_for(device: torch.device) -> Sizes:
    """Sizes for an accelerator, from its memory, or for a CPU."""
    if device.type != "cuda":
        return Sizes(8, 2**30, 4, 512, 2**24)
    return Sizes(128, torch.cuda.get_device_properties(device).total_memory // 4, 16, 8192, 2**28)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt with its chat template, as token ids."""

    prompt: Prompt
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Recorder:
    """Records batches of prompts with one model; ``provenance`` holds the settings of the whole run."""

    model: LoadedModel
    base: Decoder | None
    """The model without its adapter, where the adapter changes the verifier."""
    provenance: Provenance
    sizes: Sizes
    with_token_ids: bool = False

    def record(self, batch: Sequence[Encoded], tick: Callable[[int], None]) -> DenseTrace:
        """The trace of prompts of one dataset, in their order; ``tick`` hears how many requests have just finished."""
        grid, limits = self.provenance.block_sizes, (self.provenance.max_output_tokens, self.provenance.max_context)
        chains = greedy_chains(self.model.decoder, [one.ids for one in batch], *limits, ahead=max(grid))
        outcomes: dict[int, Outcome] = {}
        for rows in _draft_groups(chains, self.sizes):
            found = dense_outcomes(
                self.model.decoder, [chains[row] for row in rows], grid, self.sizes.query_tokens, self.base
            )
            outcomes.update(zip(rows, found, strict=True))
            tick(len(rows))
        return self._trace(batch, chains, [outcomes[row] for row in range(len(batch))])

    def _trace(self, batch: Sequence[Encoded], chains: Sequence[Chain], outcomes: Sequence[Outcome]) -> DenseTrace:
        disagreeing = sum(outcome.disagreeing for outcome in outcomes)
        agreeing = sum(outcome.base_agreeing for outcome in outcomes)
        provenance = replace(
            self.provenance,
            dropped={batch[0].prompt.dataset: {DISAGREEING: disagreeing}} if disagreeing else {},
            base_agreement=agreeing / sum(chain.output_tokens for chain in chains),
        )
        return DenseTrace(provenance, tuple(map(self._request, batch, chains, outcomes)))

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


def _draft_groups(chains: Sequence[Chain], sizes: Sizes) -> Iterator[list[int]]:
    """Rows of chains that are drafted from together: of like output lengths, as many as their masks allow."""
    rows = sorted(range(len(chains)), key=lambda row: chains[row].output_tokens, reverse=True)
    while rows:
        group = rows[: sizes.draft_requests]
        width = max(len(chains[row].prompt_ids) + len(chains[row].tokens) for row in group)
        group = group[: max(1, sizes.mask_elements // width**2)]
        yield group
        del rows[: len(group)]


def chain_batches(
    prompts: Sequence[Encoded], config: ModelConfig, dtype: torch.dtype, num_tokens: int, sizes: Sizes
) -> list[list[Encoded]]:
    """Prompts in batches that decode together, of like prompt lengths; ``num_tokens`` is what each decodes at most."""
    slot_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
    batches: list[list[Encoded]] = []
    for one in sorted(prompts, key=lambda one: len(one.ids)):
        # sorted, so this prompt is the longest of the batch it joins
        joined_bytes = (len(batches[-1]) + 1) * (len(one.ids) + num_tokens) * slot_bytes if batches else 0
        if not batches or len(batches[-1]) == sizes.chain_requests or joined_bytes > sizes.chain_bytes:
            batches.append([])
        batches[-1].append(one)
    return batches


def record_dataset(
    recorder: Recorder, prompts: Sequence[Encoded], parts: Parts, prefix: str, tick: Callable[[int], None]
) -> tuple[DenseTrace, list[str]]:
    """The trace of one dataset, from the parts that are there and new ones; and the names of its parts.

    ValueError when verifier and chain disagree on more than MAX_DISAGREEING of its positions.
    """
    provenance, decoder = recorder.provenance, recorder.model.decoder
    num_tokens = provenance.max_output_tokens + max(provenance.block_sizes)
    batches = chain_batches(prompts, decoder.config, decoder.dtype, num_tokens, recorder.sizes)
    names = [f"{prefix}-{index}" for index in range(len(batches))]
    traces = [_part(recorder, batch, parts, name, tick) for batch, name in zip(batches, names, strict=True)]
    merged = merge_traces([(Path(name), trace) for name, trace in zip(names, traces, strict=True)])
    _check_agreement(merged, prompts[0].prompt.dataset)
    order = {one.prompt.prompt_id: index for index, one in enumerate(prompts)}
    requests = tuple(sorted(merged.requests, key=lambda request: order[request.request_id]))
    return DenseTrace(merged.provenance, requests), names


def _part(
    recorder: Recorder, batch: Sequence[Encoded], parts: Parts, name: str, tick: Callable[[int], None]
) -> DenseTrace:
    trace = parts.read(name, [one.prompt.prompt_id for one in batch])
    if trace is not None:
        tick(len(batch))
        return trace
    trace = recorder.record(batch, tick)
    parts.write(name, trace)
    return trace


def _check_agreement(trace: DenseTrace, dataset: str) -> None:
    disagreeing = trace.provenance.dropped.get(dataset, {}).get(DISAGREEING, 0)
    share = disagreeing / sum(request.output_tokens for request in trace.requests)
    if share > MAX_DISAGREEING:
        raise ValueError(
            f"{dataset}: verifier and chain disagree on {share:.1%} of the positions; allowed: {MAX_DISAGREEING:.0%}. "
            f"Recorded in {trace.provenance.dtype}; fp32 has no such ties"
        )
