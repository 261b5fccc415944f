"""The fused forward is the decoder's own, with adapters and scaled rotary embeddings, over a paged cache."""

from dataclasses import replace

import pytest
import torch
from tiny import TINY

from recguide.engine.adapters import merge_drafts
from recguide.engine.attention import attend, draft_mask, mask_bias
from recguide.engine.fused import fused_hidden
from recguide.engine.model import KVCache
from recguide.engine.rotary import QueryScaling, Yarn
from recguide.engine.shapes import add_random_draft_adapter, random_decoder

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAGE = 4


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("draft", [False, True, "some"])
@pytest.mark.parametrize("scaled", [False, True])
def test_fused_forward_gives_the_hidden_states_and_keys_of_the_decoder(draft, scaled, merged):
    config = replace(TINY, rope_scaling=Yarn(2.0, 32), query_scaling=QueryScaling(0.1, 4)) if scaled else TINY
    decoder = random_decoder(config, DEVICE, torch.float32, 1)
    torch.manual_seed(0)
    add_random_draft_adapter(decoder, 2)
    for parameter in decoder.parameters():
        if parameter.dim() > 1:
            parameter.mul_(15)
    ids = torch.tensor([[5, 3, 3], [1, 8, 3]], device=DEVICE)
    cached = torch.tensor([6, 2], device=DEVICE)
    slots = cached[:, None] + torch.arange(3, device=DEVICE)
    gate = torch.tensor([[0, 1, 1], [1, 1, 0]], device=DEVICE).bool()[..., None] if draft == "some" else draft
    plain = KVCache(config, 2, 12, DEVICE, torch.float32)
    plain.keys.normal_()
    plain.values.normal_()
    # the same cache in pages: request n has the pages from 3 n on
    pages = [part.transpose(2, 3).flatten(1, 2).unflatten(1, (-1, PAGE)).clone() for part in (plain.keys, plain.values)]
    mask = draft_mask(cached, 3, 12)
    wanted = decoder.hidden(ids, slots, mask, plain, slots, gate)

    def attention(layer, q):
        keys, values = (part[layer].flatten(0, 1).unflatten(0, (2, 12)).transpose(1, 2) for part in pages)
        return attend(q.transpose(1, 2), keys, values, mask_bias(mask, q.dtype)).transpose(1, 2).flatten(2)

    flat = (slots + torch.tensor([[0], [12]], device=DEVICE)).flatten()
    if merged:
        merge_drafts(decoder)
    found = fused_hidden(decoder, ids, slots, flat, (pages[0], pages[1]), attention, gate)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    for part, theirs in zip(pages, (plain.keys, plain.values), strict=True):
        ours = part.flatten(1, 2).unflatten(1, (2, 12)).transpose(2, 3)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
