"""`recguide bench match`: outputs against those of one-token decoding, and what it says where they part."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from engines import GRID, POLICIES
from tiny import TINY, tiny_model

from recguide.engine.attention import causal_mask
from recguide.engine.decode import autoregressive
from recguide.engine.matching import Run, divergences, first_difference, noise_of, row_of
from recguide.engine.rereading import Reading, Ruler, Shape, Text, reread
from recguide.engine.served_reading import reread_served
from recguide.engine.serving import Engine, EngineConfig
from recguide.sim.memory import Limits

pytestmark = pytest.mark.usefixtures("one_thread")
ASKED = [[4, 5, 6], [8, 10, 9, 4], [5, 1, 5, 1, 9, 9, 8], [9]]
SHAPES = [Shape(4, 8), Shape(4, 1), Shape(1, 3), Shape(1, 1)]


@pytest.fixture(scope="module")
def decoder():
    return tiny_model(3, 0).decoder


@pytest.fixture(scope="module")
def texts(decoder):
    return [Text(prompt, one.tokens) for prompt, one in zip(ASKED, autoregressive(decoder, ASKED, 30), strict=True)]


def logits_of(decoder, text):
    """[output tokens, vocabulary] From one pass over all of it, without a cache."""
    ids = torch.tensor([[*text.prompt, *text.output]])
    slots = torch.arange(ids.shape[1])[None]
    with torch.no_grad():
        hidden = decoder.hidden(ids, slots, causal_mask(torch.zeros(1, dtype=torch.long), ids.shape[1], ids.shape[1]))
        logits = decoder.logits(hidden)[0, len(text.prompt) - 1 : -1]
    logits[:, TINY.mask_id] = float("-inf")
    return logits


def ruler_of(decoder, exact, texts, shapes):
    readings = [Reading(decoder, partial(reread, decoder), texts, shape) for shape in shapes]
    return Ruler(texts, readings, Reading(exact, partial(reread, exact), texts, shapes[0]))


@pytest.mark.parametrize("rounded", [None, False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_texts_are_read_as_in_one_pass_whatever_the_shape(decoder, texts, shape, rounded) -> None:
    reader = partial(reread, decoder)
    if rounded is not None:
        config = EngineConfig(GRID, Limits(8, None, 4, 4, 60), 80, rounded=rounded)
        reader = partial(reread_served, Engine(decoder, POLICIES["fixed:8"], config))
    reading = Reading(decoder, reader, texts, shape)
    assert len(reading) == len(texts)
    for row, text in enumerate(texts):
        wanted = logits_of(decoder, text)
        count = len(text.output)
        assert len(wanted) == count
        others = wanted.scatter(1, torch.tensor(text.output)[:, None], float("-inf")).max(-1)
        assert reading.runners_up(row, text.output) == others.indices.tolist()
        gaps = reading.gaps(row, range(count), text.output, others.indices.tolist())
        own = wanted[torch.arange(count), list(text.output)]
        np.testing.assert_allclose(gaps, (own - others.values).numpy(), atol=1e-4)


def test_a_reading_is_of_the_first_texts_where_all_would_take_too_long(decoder, texts, monkeypatch) -> None:
    monkeypatch.setattr("recguide.engine.rereading.MOST_FORWARDS", 28)
    assert [len(text.output) for text in texts] == [19, 10, 16, 4]
    for shape, count in ((Shape(1, 1), 1), (Shape(2, 1), 2), (Shape(4, 8), 4)):
        assert len(Reading(decoder, partial(reread, decoder), texts, shape)) == count


@pytest.mark.parametrize(
    ("reference", "found", "place"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([1], [1, 2], 1), ([], [], None)],
)
def test_outputs_part_where_they_first_differ(reference, found, place) -> None:
    assert first_difference(reference, found) == place


def test_a_wrong_token_is_further_off_than_noise(decoder, texts) -> None:
    ruler = ruler_of(decoder, decoder, texts, SHAPES)
    outputs = {row: list(text.output) for row, text in enumerate(texts)}
    assert divergences(ruler, outputs) == []
    logits = logits_of(decoder, texts[2])[6]
    worst = int(logits.nan_to_num(neginf=1e9).argmin())
    outputs[2][6] = worst
    outputs[1] = outputs[1][:4]
    cut, wrong = divergences(ruler, outputs)
    assert (cut.request, cut.position, cut.gap) == (1, 4, None)
    assert (wrong.request, wrong.position) == (2, 6)
    assert wrong.gap == pytest.approx(float(logits.max() - logits[worst]), abs=1e-4)
    noise, exact_noise = noise_of(ruler, {(1, 4), (2, 6)})
    assert noise["positions"] == sum(len(text.output) for text in texts) - 2
    assert 0 <= noise["p50"] <= noise["p999"] <= noise["max"] < 1e-3
    row = row_of(Run("fixed:4", 1, 4, 1.0, 9, 0, [cut, wrong]), noise, exact_noise)
    assert (row["equal"], row["above_noise"], row["first_divergence_p50"]) == (2, 2, 5.0)
    assert row["largest_gap"] == wrong.gap


def test_noise_is_how_far_apart_readings_are(decoder, texts) -> None:
    coarse = tiny_model(3, 0).decoder.bfloat16()
    ruler = ruler_of(coarse, decoder, texts, [Shape(4, 8), Shape(1, 1)])
    noise, exact_noise = noise_of(ruler, set())
    assert 0 < exact_noise["p50"] < exact_noise["max"] < 10
    first, second = ruler.readings
    others = first.runners_up(0, texts[0].output)
    asked = range(len(others)), texts[0].output, others
    apart = np.abs(first.gaps(0, *asked) - second.gaps(0, *asked))
    assert ruler.noise[0].tolist() == apart.tolist()
    assert noise["max"] >= apart.max()


@pytest.fixture
def asked(recguide, tiny_folder, tmp_path):
    """Runs the command on five prompts of two datasets."""
    data = tmp_path / "data.jsonl"
    rows = [{"prompt": f"question {i}", "id": str(i), "dataset": "aaabb"[i]} for i in range(5)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = ("--dataset-path", data, "--device", "cpu", "--dtype", "fp32", "--block-sizes", "4,8")
    output = tmp_path / "match.json"

    def run(*arguments):
        return recguide("bench", "match", tiny_folder, *common, "--output", output, *arguments), output

    return run


def test_in_fp32_every_policy_gives_the_tokens_of_one_token_decoding(asked) -> None:
    policies = ("ar", "fixed:4", "fixed:8", "overlap:B=4", "tidar:B=4", "window")
    done, output = asked(
        *(word for name in policies for word in ("--policy", name)),
        *("--max-concurrency", "1,3", "--output-len", 9, "--requests-each", 1),
    )
    assert done.code == 0, done.stderr
    told = json.loads(output.read_text())
    assert told["complete"] is True
    assert told["prompts"] == ["0", "3", "1", "4", "2"]
    points = [(row["policy"], row["concurrency"]) for row in told["runs"]]
    assert points == [(name, concurrency) for name in policies for concurrency in (3, 1)]
    for row in told["runs"]:
        assert row["requests"] == row["equal"] == row["concurrency"], row
        assert row["errors"] == row["above_noise"] == 0
        assert row["first_divergence_p50"] is None
        assert row["output_tokens"] > 0
    assert told["noise"]["max"] < 1e-3
    assert told["reference_tokens"] == told["noise"]["positions"]
    assert "tidar:B=4" in done.stdout


def test_without_time_there_is_a_file_that_says_so(asked) -> None:
    done, output = asked("--policy", "fixed:4", "--time-limit", 0, "--output-len", 4)
    assert done.code == 0, done.stderr
    told = json.loads(output.read_text())
    assert (told["complete"], told["runs"]) == (False, [])
    assert "the time is over" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "ar", "--policy", "ar"), "--policy"),
        (("--policy", "oracle"), "knows the future"),
        (("--dtype", "fp8"), "--dtype: found 'fp8'"),
        (("--max-concurrency", "0"), "--max-concurrency"),
        (("--output", "/nowhere/match.json"), "--output"),
    ],
)
def test_what_cannot_be_compared_is_refused(asked, arguments, words) -> None:
    done, output = asked(*arguments)
    assert done.code == 2
    assert words in done.stderr
    assert not output.exists()
