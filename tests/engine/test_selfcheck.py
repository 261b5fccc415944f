"""The check at start-up finds a draft adapter that is lost, and one that verification uses."""

import pytest
import torch
from engines import GRID
from tiny import tiny_model

from recguide.engine.adapters import merge_drafts, projections
from recguide.engine.model import Linear, LowRank
from recguide.engine.selfcheck import check_adapter
from recguide.engine.serving import Engine, EngineConfig
from recguide.sim.policies import fixed


def adapted(scale=0.5, draft_only=True):
    decoder = tiny_model(1, 0).decoder
    for name, linear in projections(decoder):
        if name.endswith("out"):
            a = torch.randn(2, linear.weight.shape[1], generator=torch.Generator().manual_seed(0))
            b = torch.randn(linear.weight.shape[0], 2, generator=torch.Generator().manual_seed(1)) * scale
            linear.updates.append(LowRank(a, b, draft_only).requires_grad_(False))
    return decoder


def test_a_model_with_an_active_draft_adapter_passes_and_says_so() -> None:
    found = Engine(adapted(), fixed(4), EngineConfig(GRID)).adapter
    assert found.present
    assert found.draft_difference > 0.01
    assert found.verify_difference == 0
    assert found.routed_difference > 0.01


@pytest.mark.parametrize("decoder", [tiny_model(1, 0).decoder, adapted(draft_only=False)], ids=["none", "shared"])
def test_a_model_without_a_draft_adapter_passes_and_says_so(decoder) -> None:
    found = check_adapter(decoder, 16)
    assert not found.present
    assert found.draft_difference == found.verify_difference == found.routed_difference == 0


def test_merged_weights_that_lack_the_adapter_are_found() -> None:
    decoder = adapted()
    merge_drafts(decoder)
    assert check_adapter(decoder, 16).drafting_difference > 0.01
    for _, linear in projections(decoder):
        if linear.draft_weight is not None:
            linear.draft_weight = linear.weight
    with pytest.raises(RuntimeError, match="drafts are the same without it"):
        check_adapter(decoder, 16)


def test_an_adapter_that_does_nothing_is_found() -> None:
    with pytest.raises(RuntimeError, match="drafts are the same without it"):
        check_adapter(adapted(scale=0.0), 16)


class Lost(Linear):
    def forward(self, x, draft):
        return super().forward(x, False)


class Leaking(Linear):
    def forward(self, x, draft):
        return super().forward(x, draft is not False and (not isinstance(draft, torch.Tensor) or bool(draft.any())))


@pytest.mark.parametrize(
    ("fault", "words"), [(Lost, "drafts are the same without it"), (Leaking, "changes what is verified")]
)
def test_an_adapter_that_is_not_routed_by_token_is_found(fault, words) -> None:
    decoder = adapted()
    for _, linear in projections(decoder):
        linear.__class__ = fault
    with pytest.raises(RuntimeError, match=words):
        Engine(decoder, fixed(4), EngineConfig(GRID))
