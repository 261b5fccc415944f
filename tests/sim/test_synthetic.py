from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from strategies import assert_same_trace

from recguide.sim.paper.acceptance import GRID, Parameters, paper_trace, parameters_of, synthetic_trace
from recguide.sim.paper.calibration import accept_len, branch_shares, eased, root
from recguide.sim.paper.published import BENCHMARKS, MODELS, TABLE1, TABLE2_TAU, TABLE3
from recguide.traces.checks import check_trace
from recguide.traces.dense import matched_lens
from recguide.traces.replays import replay
from recguide.traces.summaries import transitions


def test_a_synthetic_trace_keeps_every_promise_of_a_recorded_one_and_says_what_it_is() -> None:
    trace = synthetic_trace("8b", parameters_of("8b"), requests=2)
    check_trace(trace)
    assert trace.provenance.note.startswith("SYNTHETIC")
    assert trace.provenance.block_sizes == GRID
    assert {request.dataset: request.category for request in trace.requests} == dict(BENCHMARKS)


def test_the_same_seed_gives_the_same_trace_and_another_one_another() -> None:
    made = [synthetic_trace("14b", parameters_of("14b"), 1, seed) for seed in (0, 0, 1)]
    assert_same_trace(made[0], made[1])
    assert not np.array_equal(made[0].requests[0].entropy, made[2].requests[0].entropy)


def test_a_part_of_a_synthetic_trace_is_as_in_the_whole() -> None:
    parameters = parameters_of("8b")
    whole, part = synthetic_trace("8b", parameters, 1), synthetic_trace("8b", parameters, 1, only="mbpp", grid=(16,))
    mine = next(request for request in whole.requests if request.dataset == "mbpp")
    drafts = {key: mine.drafts[key] for key in (("seeded", 16), ("continuation", 16))}
    assert_same_trace(part, replace(part, requests=(replace(mine, drafts=drafts),)))


def test_a_made_trace_is_kept_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path))
    made = paper_trace("8b", requests=1)
    kept = list((tmp_path / "synthetic").glob("*.parquet"))
    assert len(kept) == 1
    assert_same_trace(paper_trace("8b", requests=1), made)
    paper_trace("8b", requests=1, seed=1)
    assert len(list((tmp_path / "synthetic").glob("*.parquet"))) == 2


def test_a_model_that_nothing_is_published_of_is_refused() -> None:
    with pytest.raises(ValueError, match="model: found '3b', allowed: 8b, 14b"):
        parameters_of("3b")


@pytest.mark.parametrize("model", MODELS)
def test_plain_rounds_emit_what_the_paper_says(model: str) -> None:
    trace = synthetic_trace(model, parameters_of(model), grid=(16,))
    for place, benchmark in enumerate(BENCHMARKS):
        part = replace(trace, requests=tuple(r for r in trace.requests if r.dataset == benchmark))
        assert accept_len(part, 16) == pytest.approx(TABLE2_TAU[model]["LinearSS"][place], rel=0.03)


def test_adjacent_rounds_go_together_as_in_the_papers_table_1() -> None:
    rates = transitions(replay(synthetic_trace("8b", parameters_of("8b"), grid=(32,)), 32)).rates
    assert 100 * np.array(rates, np.float64) == pytest.approx(np.array(TABLE1), abs=3.0)


def test_branches_are_ready_and_used_as_in_the_papers_table_3() -> None:
    for model in MODELS:
        for category in ("math", "code", "qa"):
            trace = synthetic_trace(model, parameters_of(model), only=category, grid=(16,))
            found = np.array(list(branch_shares(trace).values()))
            assert found == pytest.approx(np.array(TABLE3[model][category]), abs=3.0)


def test_a_shorter_block_of_the_same_seed_is_nearly_the_beginning_of_a_longer_one() -> None:
    trace = synthetic_trace("8b", parameters_of("8b"), 4)
    lens = {
        size: np.concatenate([matched_lens(r.drafts["seeded", size].match) for r in trace.requests]) for size in GRID
    }
    whole = lens[32] == 31
    assert 0.9 < (lens[8][whole] == 7).mean() < 1


def test_easing_a_benchmark_moves_it_to_its_tau_and_leaves_the_others() -> None:
    parameters: Parameters = parameters_of("8b")
    off = replace(parameters, ease={**parameters.ease, "gsm8k": parameters.ease["gsm8k"] - 0.5})
    back = eased("8b", off, "gsm8k", 24)
    assert accept_len(synthetic_trace("8b", back, 24, only="gsm8k", grid=(16,)), 16) == pytest.approx(9.94, rel=0.02)
    assert {name: ease for name, ease in back.ease.items() if name != "gsm8k"} == {
        name: ease for name, ease in parameters.ease.items() if name != "gsm8k"
    }


def test_a_root_is_found_by_secants() -> None:
    assert root(lambda x: float(np.exp(x) - 2), 0.0, 0.1) == pytest.approx(np.log(2), abs=2e-3)
