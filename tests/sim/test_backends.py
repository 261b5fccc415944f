import os

import joblib
import pytest
from strategies import random_trace

from recguide.sim.backends import NEEDS, check_backend, running_on
from recguide.sim.costs import linear_costs
from recguide.sim.sweep import sweep

COSTS = linear_costs(1e-3, 2e-5, 1e-7)


def test_an_unknown_backend_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="backend: found 'mpi', allowed: loky, ray, dask"):
        check_backend("mpi")


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_a_backend_whose_package_is_missing_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEEDS, name, "a_package_that_nobody_has")
    with pytest.raises(
        ValueError, match=rf"backend {name}: .*a_package_that_nobody_has.*; pip install 'recguide\[{name}\]'"
    ):
        sweep(random_trace(0), COSTS, ["ar"], [1], backend=name)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", sorted(NEEDS))
def test_a_cluster_gives_the_results_of_this_machine(name: str) -> None:
    pytest.importorskip(NEEDS[name])
    trace = random_trace(0, 6)
    assert sweep(trace, COSTS, ["fixed:8"], [1, 2], jobs=2, backend=name) == sweep(trace, COSTS, ["fixed:8"], [1, 2])


def interrupted(workers: set[int]) -> None:
    """Note which processes work, and be interrupted."""
    with running_on("loky") as options:
        workers |= set(joblib.Parallel(n_jobs=2, **options)(joblib.delayed(os.getpid)() for _ in range(8)))
        raise KeyboardInterrupt


def test_an_interrupt_leaves_no_worker_behind() -> None:
    workers: set[int] = set()
    with pytest.raises(KeyboardInterrupt):
        interrupted(workers)
    assert workers
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
