"""A random adapter of ours for a toy model: updates of every token, updates of drafts, and a mask token."""

from pathlib import Path

import torch

from recguide.engine.adapters import AdapterInfo, pack, projections, save_adapter
from recguide.engine.loading import load_model
from recguide.engine.model import LowRank


def write_adapter(path: Path, model: Path, shared: float = 0.06, draft: float = 0.04) -> Path:
    """Write one for a model's directory; updates of size 0 are left out."""
    loaded = load_model(str(model), "cpu", torch.float32)
    decoder, draw = loaded.decoder, torch.Generator().manual_seed(1)
    for _, linear in projections(decoder):
        outputs, inputs = linear.weight.shape
        for draft_only, size in ((False, shared), (True, draft)):
            if size:
                sides = (size * torch.randn(shape, generator=draw) for shape in ((4, inputs), (outputs, 4)))
                linear.updates.append(LowRank(*sides, draft_only))
    decoder.mask_embedding = torch.nn.Parameter(decoder.embed_tokens[3] * 1.1)
    info = AdapterInfo(1, "toy", loaded.weights_sha256, 3, 0, 4 if shared else 0, 4 if draft else 0, {})
    save_adapter(path, pack(decoder), info)
    return path
