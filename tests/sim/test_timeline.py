import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import profiles
import pytest
from running import Recguide
from strategies import random_trace

from recguide.traces.files import write_trace

Event = dict[str, Any]


@pytest.fixture
def sources(tmp_path: Path) -> tuple[object, ...]:
    write_trace(random_trace(0, 12), tmp_path / "trace.parquet")
    return "--trace", tmp_path / "trace.parquet", "--profile", profiles.write(tmp_path / "profile.csv")


def events(recguide: Recguide, sources: tuple[object, ...], out: Path, *options: object) -> list[Event]:
    done = recguide("timeline", *sources, "--output", out, *options)
    assert (done.code, done.stdout) == (0, f"{out}\n")
    found: list[Event] = json.loads(out.read_text())["traceEvents"]
    return found


def slices(events: list[Event], pid: int) -> dict[int, list[Event]]:
    tracks: dict[int, list[Event]] = {}
    for event in events:
        if event["ph"] == "X" and event["pid"] == pid:
            tracks.setdefault(event["tid"], []).append(event)
    return tracks


def tracks(events: list[Event], pid: int) -> dict[int, str]:
    named = [event for event in events if event["name"] == "thread_name" and event["pid"] == pid]
    return {event["tid"]: event["args"]["name"] for event in named}


def test_there_is_a_track_for_the_gpu_and_every_bucket_and_request(
    recguide: Recguide, sources: tuple[object, ...], tmp_path: Path
) -> None:
    found = events(recguide, sources, tmp_path / "t.json", "--policy", "oracle", "--concurrency", 4)
    assert tracks(found, 1) == {0: "GPU 0", 1: "GPU 0: forwards", 2: "host"}
    assert set(tracks(found, 2)) == set(slices(found, 2)) >= {0, 4, 8, 16}
    assert {tracks(found, 2)[key] for key in (0, 8)} == {"prefill", "B = 8"}
    assert len(tracks(found, 3)) == 32
    # 32 requests out of 12 recorded ones
    assert set(Counter(name.split(": ")[1] for name in tracks(found, 3).values()).values()) <= {2, 3}


def test_no_two_slices_of_a_track_overlap_and_the_gpu_is_never_idle(
    recguide: Recguide, sources: tuple[object, ...], tmp_path: Path
) -> None:
    found = events(recguide, sources, tmp_path / "t.json", "--policy", "oracle")
    for pid in (1, 2, 3):
        for track in slices(found, pid).values():
            ordered = sorted(track, key=lambda event: event["ts"])
            for before, after in itertools.pairwise(ordered):
                assert before["ts"] + before["dur"] <= after["ts"] + 0.01
    gpu = slices(found, 1)[0]
    assert sum(event["dur"] for event in gpu) == pytest.approx(gpu[-1]["ts"] + gpu[-1]["dur"])


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--policy", "fixed:8"], {"prefill", "draft", "verify", "host"}),
        (["--policy", "oracle", "--batching", "pad"], {"prefill", "decode", "draft", "verify", "host"}),
        (["--policy", "oracle", "--batching", "ragged"], {"prefill", "decode", "draft", "verify", "host"}),
        (["--policy", "ragged:B=8"], {"prefill", "draft", "verify", "host"}),
        (["--policy", "overlap:B=8"], {"prefill", "draft", "verify and draft", "host"}),
        (["--policy", "tidar:B=8"], {"prefill", "verify and draft", "host"}),
    ],
)
def test_the_forwards_and_the_host_fill_every_step(
    recguide: Recguide, sources: tuple[object, ...], tmp_path: Path, options: list[str], parts: set[str]
) -> None:
    found = events(recguide, sources, tmp_path / "t.json", *options)
    gpu = slices(found, 1)
    pieces = sorted([*gpu[1], *gpu[2]], key=lambda event: event["ts"])
    assert parts - {"decode"} <= {event["name"] for event in pieces} <= parts
    assert sum(event["dur"] for event in pieces) == pytest.approx(sum(event["dur"] for event in gpu[0]), rel=1e-6)
    for before, after in itertools.pairwise(pieces):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=0.01)
    # the profile's host takes 50 us a round, whatever its shape, and every forward 400 us and more
    assert {round(event["dur"], 2) for event in gpu[2]} == {50.0}
    assert min(event["dur"] for event in gpu[1]) > 400


def test_the_tokens_on_the_request_tracks_are_the_outputs(
    recguide: Recguide, sources: tuple[object, ...], tmp_path: Path
) -> None:
    found = events(recguide, sources, tmp_path / "t.json", "--num-prompts", 12)
    emitted = sorted(
        sum(event["args"]["tokens"] for event in track if event["cat"] == "round")
        for track in slices(found, 3).values()
    )
    assert emitted == sorted(request.output_tokens for request in random_trace(0, 12).requests)


def test_a_later_arrival_starts_later(recguide: Recguide, sources: tuple[object, ...], tmp_path: Path) -> None:
    found = events(recguide, sources, tmp_path / "t.json", "--request-rate", 10, "--num-prompts", 5)
    starts = [min(event["ts"] for event in track) for track in slices(found, 3).values()]
    assert starts == sorted(starts)
    assert starts[-1] > 1e5


def test_the_same_run_gives_the_same_bytes(recguide: Recguide, sources: tuple[object, ...], tmp_path: Path) -> None:
    for name in ("one", "two"):
        events(recguide, sources, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_bad_options_exit_2_and_write_nothing(recguide: Recguide, sources: tuple[object, ...], tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    for options, message in (
        (("--policy", "best"), "policy 'best'"),
        (("--batching", "none"), "batching"),
        (("--output", tmp_path / "no" / "t.json"), "output: found"),
        (("--request-rate", -1), "request-rate: found -1.0"),
    ):
        done = recguide("timeline", *sources, "--output", out, *options)
        assert done.code == 2
        assert message in done.stderr
        assert not out.exists()
