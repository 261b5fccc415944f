"""What it costs acceptance that merged drafts are of weights that were rounded once more.

    python benchmarks/merged_drafts.py smollm2-135m smollm2-135m --dataset-path prompts.jsonl [--device cuda]

Decodes each prompt greedily by one model in bf16, and drafts from every position of its output with the adapter's
updates apart and merged, behind the same keys and values. Prints, prompt by prompt and over all so far, the mean
acceptance length of both, their difference with its standard error over prompts, and how many positions are equal.
"""

import argparse
import copy
from pathlib import Path

import numpy as np
import torch

from recguide.engine.adapters import merge_drafts
from recguide.engine.chains import Chain, greedy_chains
from recguide.engine.dense import dense_outcomes
from recguide.engine.loading import open_model
from recguide.engine.model import Decoder
from recguide.sim.rounds import Ints
from recguide.traces.datasets import read_prompts
from recguide.traces.dense import matched_lens

ROOM = 512
"""Query tokens of a forward that drafts."""


def accepted(decoder: Decoder, chain: Chain, size: int, drafter: Decoder | None) -> Ints:
    """Acceptance length of a block of this size from every position."""
    (found,) = dense_outcomes(decoder, [chain], (size,), ROOM, None, drafter)
    return matched_lens(found.drafts["seeded", size].match) + 1


def main() -> None:
    """Compare, prompt by prompt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("adapter")
    parser.add_argument("--dataset-path", action="append", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=5, help="prompts of each file")
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    model = open_model(given.model, given.adapter, given.device, "bf16", merged_drafts=False)
    merged = copy.deepcopy(model.decoder)
    merge_drafts(merged)
    apart, whole, size = [], [], given.block_size
    for prompt in read_prompts(given.dataset_path, given.limit):
        assert model.tokenizer is not None
        ids = model.tokenizer.encode_chat(prompt.text)
        with torch.no_grad():
            (chain,) = greedy_chains(model.decoder, [ids], given.output_len, model.config.max_context, size)
            apart.append(accepted(model.decoder, chain, size, None))
            whole.append(accepted(model.decoder, chain, size, merged))
        print(prompt.prompt_id, told(apart, whole), flush=True)


def told(apart: list[Ints], whole: list[Ints]) -> str:
    """What was found so far, as text."""
    before, after = np.concatenate(apart), np.concatenate(whole)
    sums = np.array([(new - old).sum() for old, new in zip(apart, whole, strict=True)])
    counts = np.array([len(each) for each in apart])
    # of a ratio of sums over prompts, which are independent as positions of one are not
    mean = sums.sum() / counts.sum()
    error = np.sqrt(((sums - mean * counts) ** 2).sum()) / counts.sum()
    return (
        f"{len(before)} positions: apart {before.mean():.4f}, merged {after.mean():.4f}, {mean:+.4f} +- {error:.4f}, "
        f"{(before == after).mean():.1%} equal"
    )


if __name__ == "__main__":
    main()
