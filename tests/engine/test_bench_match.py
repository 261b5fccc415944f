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
from recguide.engine.loading import load_model
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
    assert divergences(ruler, outputs.items()) == []
    logits = logits_of(decoder, texts[2])[6]
    worst = int(logits.nan_to_num(neginf=1e9).argmin())
    outputs[2][6] = worst
    outputs[1] = outputs[1][:4]
    cut, wrong = divergences(ruler, outputs.items())
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
    assert (told["complete"], told["merge_drafts"]) == (True, False)
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


def figures(asked_ids, outputs, rows):
    """What `recguide bench sglang` writes, as far as it is read."""
    return {
        "policy": "fixed:4",
        "max_concurrency": 2,
        "temperature": 0.0,
        "failed": 0,
        "duration": 1.5,
        "input_lens": [len(asked_ids[row]) for row in rows],
        "rows": rows,
        "output_ids": outputs,
        "gpu": "some",
    }


@pytest.fixture
def answers(tiny_folder):
    """The prompts of `asked`, and what one-token decoding says to each, in the order of the file."""
    model = load_model(str(tiny_folder), "cpu", torch.float32)
    ids = [model.tokenizer.encode_chat(f"question {i}") for i in range(5)]
    return ids, [list(one.tokens) for one in autoregressive(model.decoder, ids, 6)]


def test_outputs_of_another_server_are_compared_as_runs_are(asked, answers, tmp_path) -> None:
    ids, wanted = answers
    rows = [3, 0, 1, 2, 4, 3]
    outputs = [list(wanted[row]) for row in rows]
    outputs[2][-1] = (outputs[2][-1] + 1) % TINY.vocab_size
    path = tmp_path / "ours.figures.json"
    path.write_text(json.dumps(figures(ids, outputs, rows)))
    done, output = asked("--outputs", path, "--output-len", 6, "--max-concurrency", "1,2")
    assert done.code == 1, done.stderr
    told = json.loads(output.read_text())
    (run,) = told["runs"]
    assert (run["policy"], run["concurrency"], run["requests"], run["equal"]) == ("sglang:fixed:4", 2, 6, 5)
    assert (run["above_noise"], run["seconds"]) == (1, 1.5)
    assert run["server"] == {"file": "ours.figures.json", "gpu": "some"}
    (line,) = told["divergences"]["sglang:fixed:4@2"]
    # prompts of both datasets have their turns: row 1 is the third
    assert line.split()[:2] == ["2", str(len(wanted[1]) - 1)]
    assert told["complete"] is True
    assert "sglang:fixed:4" in done.stdout


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"output_ids": None}, "output_ids: found null, allowed: a list of tokens"),
        ({"rows": []}, "rows: found []"),
        ({"rows": [7]}, "rows: found 7, allowed: 0 to 4"),
        ({"input_lens": [1]}, "input_lens: found 1 tokens in row 0, allowed: "),
        ({"output_ids": [[5] * 9]}, "output_ids: found 9 tokens in row 0, allowed: 6, as --output-len"),
        ({"temperature": 0.7}, "temperature: found 0.7, allowed: 0"),
        ({"failed": 2}, "failed: found 2"),
        ({"policy": 4}, "policy: found 4"),
    ],
)
def test_outputs_that_cannot_be_compared_are_refused(asked, answers, tmp_path, changed, words) -> None:
    ids, wanted = answers
    path = tmp_path / "ours.figures.json"
    path.write_text(json.dumps({**figures(ids, wanted[:1], [0]), **changed}))
    done, output = asked("--outputs", path, "--output-len", 6)
    assert (done.code, output.exists()) == (2, False)
    assert f"ours.figures.json: {words}" in done.stderr


def test_outputs_come_from_one_file_each_and_of_all_prompts(asked, answers, tmp_path) -> None:
    path = tmp_path / "ours.figures.json"
    path.write_text("[1]")
    assert "found a list" in asked("--outputs", path)[0].stderr
    ids, wanted = answers
    path.write_text(json.dumps(figures(ids, wanted, list(range(5)))))
    assert "each policy and concurrency once" in asked("--outputs", path, "--outputs", path)[0].stderr
    assert "--limit: found 2" in asked("--outputs", path, "--limit", 2)[0].stderr


def test_without_time_there_is_a_file_that_says_so(asked) -> None:
    done, output = asked("--policy", "fixed:4", "--time-limit", 0, "--output-len", 4)
    assert done.code == 75, done.stderr
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
        (("--output", "/"), "--output"),
    ],
)
def test_what_cannot_be_compared_is_refused(asked, arguments, words) -> None:
    done, output = asked(*arguments)
    assert done.code == 2
    assert words in done.stderr
    assert not output.exists()
