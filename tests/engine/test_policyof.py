"""Policies by name, for whoever serves."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from engines import ADAPTIVE

from recguide.engine.policyof import identity_of, policy_of
from recguide.sim.adaptive import Equation3, Load, write_policy
from recguide.sim.costs import constant_costs, resolve_profile

SIZES = (2, 4, 8)
STATE = ("a" * 64, "b" * 64)


@pytest.mark.parametrize(
    ("weights", "adapter", "message"),
    [
        ("c" * 64, "b" * 64, "weights_sha256: fitted to cccccccccccccccc, but found aaaaaaaaaaaaaaaa"),
        ("a" * 64, "c" * 64, "adapter_sha256: fitted to cccccccccccccccc, but found bbbbbbbbbbbbbbbb"),
    ],
)
def test_a_policy_of_another_state_of_the_model_is_not_served(
    tmp_path: Path, weights: str, adapter: str, message: str
) -> None:
    costs, path = constant_costs(), tmp_path / "policy.json"
    provenance = {"profile": {"model": costs.model, "gpu": costs.gpu}, "trace": {"adapter_sha256": adapter}}
    loads = (Load(1, 100.0, {2: 1e-3, 4: 1.1e-3, 8: 1.2e-3}, 4),)
    write_policy(replace(ADAPTIVE, model="toy", weights_sha256=weights, loads=loads, provenance=provenance), path)
    with pytest.raises(ValueError, match=message):
        policy_of(f"adaptive:{path}", SIZES, "toy", costs, STATE)
    # where acceptance is another model's, its state is nobody's business
    assert isinstance(policy_of(f"adaptive:{path}", SIZES, "toy", costs), Equation3)


def test_what_is_only_simulated_is_refused() -> None:
    with pytest.raises(ValueError, match="policy 'ragged:B=4': only simulated, not served"):
        policy_of("ragged:B=4", SIZES, "toy", None)


def test_runs_name_the_profile_that_policies_decided_by() -> None:
    assert identity_of(None) == {}
    path = resolve_profile("nld-8b-h200")
    digest = sha256(path.read_bytes()).hexdigest()
    assert identity_of("nld-8b-h200") == {"profile": "nld-8b-h200", "profile_sha256": digest}
    assert identity_of(str(path)) == identity_of("nld-8b-h200")
