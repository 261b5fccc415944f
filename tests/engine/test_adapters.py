"""Adapter files: what is saved is what acts after loading, on the right model alone, and damage is named."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny import TINY, recorded, tiny_model
from torch import nn
from toy_adapter import write_adapter

from recguide.engine.adapters import (
    AdapterInfo,
    draft_only_decoder,
    drafts_merged,
    load_adapter,
    merge_drafts,
    merges_drafts,
    pack,
    projections,
    quantise,
    read_info,
    resolve_adapter,
    save_adapter,
)
from recguide.engine.attention import causal_mask
from recguide.engine.decode import linear_self_speculation
from recguide.engine.loading import LoadedModel, adapted, open_model
from recguide.engine.model import Decoder, LowRank

INFO = AdapterInfo(1, "tiny", "0" * 64, mask_id=5, draft_shift=1, shared_rank=3, draft_rank=2, training={"steps": 7})
IDS = torch.tensor([[1, 5, 8, 5, 5, 0]])
ASKED = (None, True, False)
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def with_updates(decoder: Decoder, shared: int = 3, draft: int = 2, scale: float = 0.1) -> Decoder:
    """A copy with random updates and a mask embedding: what training leaves behind."""
    tuned = copy.deepcopy(decoder)
    generator = torch.Generator().manual_seed(1)
    for _, linear in projections(tuned):
        outputs, inputs = linear.weight.shape
        for rank, draft_only in ((shared, False), (draft, True)):
            if rank:
                a = torch.randn(rank, inputs, generator=generator) * scale
                b = torch.randn(outputs, rank, generator=generator) * scale
                linear.updates.append(LowRank(a, b, draft_only))
    tuned.mask_embedding = nn.Parameter(torch.randn(tuned.config.hidden_size, generator=generator))
    return tuned.requires_grad_(False)


def scores(decoder: Decoder, draft) -> torch.Tensor:
    mask = causal_mask(torch.tensor([0]), IDS.shape[1], IDS.shape[1])
    positions = torch.arange(IDS.shape[1])[None]
    return decoder.logits(decoder.hidden(IDS, positions, mask, draft=draft))


@pytest.fixture
def base() -> Decoder:
    return tiny_model(0, 0).decoder


@pytest.fixture
def path(base, tmp_path):
    path = tmp_path / "a.safetensors"
    save_adapter(path, pack(with_updates(base)), INFO)
    return path


@pytest.mark.parametrize("draft", [False, True, 2])
def test_a_loaded_adapter_acts_as_the_updates_that_were_saved(base, path, draft):
    tuned = with_updates(base)
    tuned.config = replace(tuned.config, mask_id=5, draft_shift=1)
    loaded = copy.deepcopy(base)
    assert load_adapter(loaded, path, "0" * 64) == INFO == read_info(path)
    assert loaded.config == tuned.config
    expected, untouched = scores(tuned, draft), scores(base, draft)
    # int8 moves scores by little, next to what the adapter itself does
    assert (scores(loaded, draft) - expected).abs().max() < 0.05 * (untouched - expected).abs().max()


def test_the_updates_of_draft_tokens_leave_the_other_tokens_alone(base, tmp_path):
    save_adapter(tmp_path / "d", pack(with_updates(base, shared=0)), replace(INFO, shared_rank=0, mask_id=9))
    loaded = adapted(LoadedModel(base, None, "0" * 64, None), tmp_path / "d").decoder
    assert torch.equal(scores(loaded, False), scores(base, False))
    assert not torch.equal(scores(loaded, True), scores(base, True))


@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 1]), st.floats(-6, 6))
def test_int8_is_off_by_half_a_step_of_its_row_at_most(seed, axis, magnitude):
    matrix = torch.randn(5, 7, generator=torch.Generator().manual_seed(seed)) * 10.0**magnitude
    values, scale = quantise(matrix, axis)
    assert values.dtype == torch.int8
    error = (values.float() * scale.unsqueeze(axis) - matrix).abs()
    assert (error <= scale.unsqueeze(axis) * 0.5001).all()
    assert torch.allclose(scale, matrix.abs().amax(axis) / 127)


def test_drafts_may_be_named_by_their_place_by_a_mask_or_all_at_once(base):
    tuned = with_updates(base)
    by_mask = scores(tuned, (torch.arange(IDS.shape[1]) >= 2)[None, :, None])
    torch.testing.assert_close(scores(tuned, 2), by_mask, atol=1e-5, rtol=0)
    torch.testing.assert_close(scores(tuned, 0), scores(tuned, True), atol=1e-5, rtol=0)
    torch.testing.assert_close(scores(tuned, IDS.shape[1]), scores(tuned, False), atol=1e-5, rtol=0)


def test_a_decoder_that_drafts_alone_gives_the_scores_of_draft_tokens(base):
    tuned = with_updates(base)
    merged = draft_only_decoder(tuned)
    assert not any(update.draft_only for _, linear in projections(merged) for update in linear.updates)
    for draft in (True, False):
        torch.testing.assert_close(scores(merged, draft), scores(tuned, True), atol=2e-5, rtol=0)


@pytest.mark.parametrize("draft_shift", [0, 1])
def test_recording_with_merged_updates_gives_the_rounds_of_the_adapter_apart(base, draft_shift):
    tuned = with_updates(base)
    tuned.config = replace(tuned.config, draft_shift=draft_shift)
    model = LoadedModel(tuned, None, "0" * 64, None)
    prompts = [[1, 5, 8], [8], [4, 4, 6, 10]]
    apart, merged = (
        recorded(model, prompts, (4, 8), 20, drafter=drafter) for drafter in (None, draft_only_decoder(tuned))
    )
    served = linear_self_speculation(tuned, prompts, 8, 20)
    for left, right, one in zip(apart.requests, merged.requests, served, strict=True):
        assert left.output_ids.tolist() == right.output_ids.tolist() == list(one.tokens)
        for key, drafts in left.drafts.items():
            assert drafts.match.tolist() == right.drafts[key].match.tolist()
            assert np.abs(drafts.margin.astype(int) - right.drafts[key].margin).max() <= 1


def test_an_adapter_of_other_weights_is_refused_with_both_hashes(base, path):
    with pytest.raises(
        ValueError, match=r"a\.safetensors: made for tiny with weights 000000000000, but .* 111111111111"
    ):
        load_adapter(base, path, "1" * 64)


def test_tensors_that_are_missing_or_left_over_are_named(base, path, tmp_path):
    tensors = load_file(path)
    text = {"recguide_adapter": json.dumps({name: getattr(INFO, name) for name in INFO.__slots__})}
    fewer = {key: tensor for key, tensor in tensors.items() if key != "draft.layers.1.down.b_scale"}
    save_file(fewer, tmp_path / "fewer", text)
    with pytest.raises(ValueError, match=r"fewer: does not fit tiny: 'draft\.layers\.1\.down\.b_scale'"):
        load_adapter(copy.deepcopy(base), tmp_path / "fewer", "0" * 64)
    save_file({**tensors, "shared.layers.9.out.a": torch.zeros(1)}, tmp_path / "more", text)
    with pytest.raises(ValueError, match=r"more: tensors left over: \['shared\.layers\.9\.out\.a'\]"):
        load_adapter(copy.deepcopy(base), tmp_path / "more", "0" * 64)


def test_an_adapter_of_another_shape_is_refused(path):
    other = tiny_model(0, 0).decoder
    wide = Decoder(replace(TINY, intermediate_size=56), "cpu", torch.float32)
    assert wide.config.name == other.config.name
    with pytest.raises(ValueError, match=r"a\.safetensors: does not fit tiny"):
        load_adapter(wide.requires_grad_(False), path, "0" * 64)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "no 'recguide_adapter' metadata"),
        ('{"format": 99}', "recguide_adapter: format: found 99, allowed: 1"),
        ('{"format": 1}', "recguide_adapter: .*missing 7 required"),
        ("[1]", "recguide_adapter: "),
        ("{", "recguide_adapter: "),
    ],
)
def test_a_file_of_another_kind_is_refused(base, tmp_path, metadata, message):
    metadata = {} if metadata is None else {"recguide_adapter": metadata}
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors", metadata)
    with pytest.raises(ValueError, match=rf"other\.safetensors: {message}"):
        load_adapter(base, tmp_path / "other.safetensors", "0" * 64)


def test_merged_drafts_are_those_of_the_updates_and_nothing_else_changes(base):
    tuned = with_updates(base)
    apart = {draft: scores(tuned, draft) for draft in (False, True, 2)}
    weights = {name: linear.weight.clone() for name, linear in projections(tuned)}
    merge_drafts(tuned)
    for name, linear in projections(tuned):
        assert linear.draft_weight is not None
        assert torch.equal(linear.weight, weights[name])
    assert not torch.equal(apart[True], apart[False])
    for draft, wanted in apart.items():
        torch.testing.assert_close(scores(tuned, draft), wanted, rtol=1e-4, atol=1e-5)
    for draft in (False, 2):
        assert torch.equal(scores(tuned, draft), apart[draft])
    # they go where the weights go, but not into files, nor into what drafts alone
    assert not any("draft_weight" in name for name in tuned.state_dict())
    kinds = {linear.draft_weight.dtype for _, linear in projections(copy.deepcopy(tuned).to(torch.float64))}
    assert kinds == {torch.float64}
    assert all(linear.draft_weight is None for _, linear in projections(draft_only_decoder(tuned)))
    # with the merged weights gone wrong, forwards that only draft change, and they alone
    for _, linear in projections(tuned):
        linear.draft_weight.zero_()
    assert not torch.allclose(scores(tuned, True), apart[True])
    assert torch.equal(scores(tuned, 2), apart[2])


def test_nothing_is_kept_of_weights_that_drafts_share(base):
    tuned = with_updates(base, draft=0)
    merge_drafts(tuned)
    assert all(linear.draft_weight is None for _, linear in projections(tuned))


def test_drafts_are_merged_on_a_gpu_unless_somebody_says_no():
    cpu, gpu = torch.device("cpu"), torch.device("cuda:1")
    assert [merges_drafts(asked, cpu) for asked in ASKED] == [False, True, False]
    assert [merges_drafts(asked, gpu) for asked in ASKED] == [True, True, False]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_a_model_that_is_opened_merges_its_drafts_where_that_is_the_default(tiny_folder, tmp_path, device):
    adapter = str(write_adapter(tmp_path / "a.safetensors", tiny_folder))
    found = [drafts_merged(open_model(str(tiny_folder), adapter, device, "fp32", asked).decoder) for asked in ASKED]
    assert found == [device == "cuda", True, False]
    plain = [
        drafts_merged(open_model(str(tiny_folder), None, device, "fp32", asked).decoder) for asked in (None, False)
    ]
    assert plain == [False, False]
    with pytest.raises(ValueError, match=r"--merge-drafts: found .* without a draft adapter"):
        open_model(str(tiny_folder), None, device, "fp32", True)


def test_a_truncated_file_is_named(base, path):
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"a\.safetensors: not a readable safetensors file"):
        load_adapter(base, path, "0" * 64)


def test_an_unknown_name_lists_the_shipped_adapters():
    with pytest.raises(
        ValueError, match=r"adapter 'nowhere': no such file, and the shipped ones are \['smollm2-135m'\]"
    ):
        resolve_adapter("nowhere")
