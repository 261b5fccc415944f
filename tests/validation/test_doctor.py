"""The doctor finds what is missing or does not match, and names the command that mends it."""

import json
from dataclasses import replace

import hand_traces
import profiles
import pytest

from recguide.traces.files import write_trace
from recguide.validation.doctor import FAILURE, OK, WARNING, examine
from recguide.validation.machine import ENGINE, SERVE, SIMULATION, Machine

PACKAGES = dict.fromkeys(("recguide", *SIMULATION, *ENGINE, *SERVE), "1.0")
HERE = Machine("3.12.1", PACKAGES, ("Test GPU",), "580.1")


@pytest.fixture
def sources(tmp_path):
    """Write a trace and a profile of one model, changed by keyword, and give their names."""

    def made(adapter: str = "a" * 64, **header: str) -> tuple[list[str], str]:
        trace = hand_traces.trace(hand_traces.request("r", 4, (4,)), block_sizes=(4,))
        origin = replace(trace.provenance, model="tiny", adapter_sha256=adapter, dtype="bf16")
        write_trace(replace(trace, provenance=origin), tmp_path / "t.parquet")
        fields = {"weights_sha256": origin.weights_sha256, "dtype": "bf16", "torch": "1.0", "driver": "580.1"}
        command = "recguide profile tiny --adapter mine --output p.csv"
        profiles.write(tmp_path / "p.csv", **fields | {"adapter_sha256": "a" * 64, "command": command} | header)
        return [str(tmp_path / "t.parquet")], str(tmp_path / "p.csv")

    return made


def states(found, subject: str) -> list[str]:
    return [diagnosis.state for diagnosis in found if diagnosis.subject.startswith(subject)]


def test_all_is_well_where_everything_matches(sources):
    found = examine(HERE, *sources())
    assert {diagnosis.state for diagnosis in found} == {OK}
    assert not any(diagnosis.remedy for diagnosis in found)
    subjects = [diagnosis.subject.split()[0] for diagnosis in found]
    assert subjects == ["python", "simulation", "engine", "server", "gpu", "profile", "trace", "trace"]


def test_missing_packages_are_named_with_what_installs_them(sources):
    machine = replace(HERE, packages=PACKAGES | {"torch": None, "simpy": None})
    by_name = {diagnosis.subject: diagnosis for diagnosis in examine(machine, *sources())}
    assert (by_name["simulation"].state, by_name["simulation"].remedy) == (FAILURE, "pip install 'recguide'")
    assert (by_name["engine"].state, by_name["engine"].remedy) == (WARNING, "pip install 'recguide[engine]'")
    assert by_name["engine"].found == "not installed: torch"


def test_a_profile_of_another_gpu_or_torch_is_worth_a_warning_and_a_new_one(sources):
    remedy = "recguide profile tiny --adapter mine --output my_gpu.csv"
    for changes, text in (
        ({"gpu": "Other GPU"}, "of Other GPU, this machine has Test GPU"),
        ({"torch": "0.9"}, "torch 0.9, here 1.0"),
        ({"driver": "5"}, "driver 5, here 580.1"),
    ):
        (found,) = (diagnosis for diagnosis in examine(HERE, *sources(**changes)) if diagnosis.subject == "profile p")
        assert (found.state, found.remedy) == (WARNING, remedy)
        assert text in found.found
    merged = sources(torch="0.9", drafts="by weights with the adapter merged")
    (found,) = (diagnosis for diagnosis in examine(HERE, *merged) if diagnosis.subject == "profile p")
    assert found.remedy == "recguide profile tiny --adapter mine --merge-drafts --output my_gpu.csv"


def test_without_a_gpu_any_profile_will_do_to_simulate(sources):
    found = examine(replace(HERE, gpus=(), driver=None), *sources(gpu="Other GPU"))
    assert states(found, "gpu") == [WARNING]
    assert states(found, "profile") == [OK]


def test_a_trace_with_another_adapter_than_the_profile_is_a_failure(sources):
    found = examine(HERE, *sources(adapter="b" * 64))
    assert states(found, "trace and profile") == [FAILURE]


def test_a_trace_of_another_model_is_worth_a_warning(sources):
    found = examine(HERE, *sources(model="huge"))
    assert states(found, "trace and profile") == [WARNING]


def test_what_cannot_be_read_is_a_failure_and_hides_nothing_else(sources, tmp_path):
    _, profile = sources()
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    found = examine(HERE, [str(tmp_path / "t.parquet")], profile)
    assert states(found, "trace") == [FAILURE]
    assert states(found, "profile") == [OK]
    assert "t.parquet" in found[-1].found


def test_the_command_exits_1_when_something_must_be_mended_and_0_when_not(sources, recguide):
    (trace,), profile = sources(adapter="b" * 64)
    done = recguide("doctor", "--trace", trace, "--profile", profile)
    assert done.code == 1
    assert "adapter_sha256" in done.stdout
    (trace,), profile = sources()
    done = recguide("doctor", "--trace", trace, "--profile", profile, "--json")
    assert done.code == 0
    assert all(diagnosis["state"] != FAILURE for diagnosis in json.loads(done.stdout))


def test_the_shipped_trace_and_profile_go_together(recguide):
    done = recguide("doctor", "--json")
    assert done.code == 0, done.stdout
    (last,) = [line for line in json.loads(done.stdout) if line["subject"] == "trace and profile"]
    # recorded in fp32 for exactness, profiled in bf16 as it is served
    assert (last["state"], "dtype" in last["found"]) == (WARNING, True)
