"""The one greedy output of a prompt, and what follows where a limit stopped it: what every draft is scored against."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from recguide.engine.model import Decoder
from recguide.engine.steps import StepDecoder, pad


@dataclass(frozen=True, slots=True)
class Chain:
    """``tokens`` holds the output and, behind one that hit a limit, the tokens that follow it up to an EOS."""

    prompt_ids: Sequence[int]
    tokens: Sequence[int]
    output_tokens: int
    finish_reason: str
    """"eos" or "length"."""


def greedy_chains(
    decoder: Decoder, prompts: Sequence[Sequence[int]], max_output_tokens: int, max_context: int, ahead: int
) -> list[Chain]:
    """Chains of all prompts, decoded as one batch; a chain that hits a limit runs on for ``ahead`` tokens.

    The limits are ``max_output_tokens`` and ``max_context`` tokens of prompt and output together.
    """
    width = max(map(len, prompts))
    num_tokens = min(max_output_tokens, max_context - min(map(len, prompts))) + ahead
    steps = StepDecoder(decoder, len(prompts), width + num_tokens)
    ids, lengths = (torch.from_numpy(array).long().to(decoder.device) for array in pad(prompts, width))
    written = steps.run(ids, lengths, num_tokens).cpu().numpy()
    limits = [min(max_output_tokens, max_context - len(prompt)) for prompt in prompts]
    return [
        _chain(prompt, row.tolist(), limit, ahead, decoder.config.eos_ids)
        for prompt, row, limit in zip(prompts, written, limits, strict=True)
    ]


def _chain(prompt: Sequence[int], written: list[int], limit: int, ahead: int, eos_ids: Sequence[int]) -> Chain:
    ends = np.flatnonzero(np.isin(written, eos_ids))
    # past its EOS a request decodes on with its batch mates, to no meaning
    tokens = written[: ends[0] + 1] if len(ends) else written
    if len(tokens) <= limit and len(ends):
        return Chain(prompt, tokens, len(tokens), "eos")
    return Chain(prompt, tokens[: limit + ahead], limit, "length")
