"""Training lowers the losses and leaves alone what it should; its command makes adapters that load."""

import copy
import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tiny import tiny_model
from torch.nn import functional as F  # noqa: N812

from recguide.engine.adapt import Batches, Recipe, chunked, hard_loss, losses, schedule, soft_loss, train
from recguide.engine.adapters import projections
from recguide.engine.attention import causal_mask
from recguide.engine.corpora import load_corpus, save_corpus
from recguide.engine.distill import Corpus, distil
from recguide.engine.loading import load_model
from recguide.engine.steps import StepDecoder
from recguide.traces.files import file_sha256

IDS = torch.tensor([[1, 5, 8, 4, 6, 9]])
QUICK = Recipe(60.0, steps=25, shared_rank=4, draft_rank=4, block_sizes=(4,), block_weights=(1.0,), block_tokens=16)
SMALL = {"tokens_per_step": 400, "warmup_steps": 3, "learning_rate": 2e-2}


def changed(recipe: Recipe, **fields) -> Recipe:
    return Recipe(**{name: getattr(recipe, name) for name in recipe.__slots__} | SMALL | fields)


@pytest.fixture(scope="module")
def base():
    return tiny_model(1, 0).decoder


@pytest.fixture(scope="module")
def corpus(base):
    prompts = [[token, other] for token in (1, 4, 5, 6, 8) for other in range(12)]
    return distil(StepDecoder(base, 20, 26), prompts, 2, 24, lambda done: True)


def scores(decoder):
    mask = causal_mask(torch.tensor([0]), IDS.shape[1], IDS.shape[1])
    with torch.no_grad():
        return decoder.logits(decoder.hidden(IDS, torch.arange(IDS.shape[1])[None], mask))


def draft_loss(decoder, base, corpus, recipe) -> float:
    batches = Batches([corpus], [1.0], decoder, recipe)
    with torch.no_grad():
        return float(np.mean([losses(decoder, base, *batches.draw(), recipe)[0].item() for _ in range(8)]))


@pytest.mark.parametrize("draft_shift", [0, 1])
@pytest.mark.parametrize("soft", [0.0, 0.5])
def test_a_few_steps_lower_the_draft_loss(base, corpus, draft_shift, soft):
    recipe = changed(QUICK, draft_shift=draft_shift, soft=soft)
    tuned = copy.deepcopy(base)
    before = draft_loss(tuned, None, corpus, recipe)
    said = []
    result = train(tuned, base, [corpus], [1.0], recipe, said.append)
    assert result["steps"] == 25
    assert math.isfinite(result["draft"])
    assert math.isfinite(result["ar"])
    assert said[0].startswith("step 0 ")
    assert draft_loss(tuned, None, corpus, recipe) < 0.8 * before


def test_without_a_shared_update_the_verifier_stays_the_same_bit_by_bit(base, corpus):
    tuned = copy.deepcopy(base)
    train(tuned, base, [corpus], [1.0], changed(QUICK, shared_rank=0), lambda text: None)
    assert torch.equal(scores(tuned), scores(base))
    assert all(update.draft_only for _, linear in projections(tuned) for update in linear.updates)


def test_a_shared_update_changes_the_verifier_and_its_loss_holds_it_back(base, corpus):
    distances = []
    for ar_weight in (0.0, 10.0):
        tuned = copy.deepcopy(base)
        train(tuned, base, [corpus], [1.0], changed(QUICK, ar_weight=ar_weight), lambda text: None)
        distances.append(F.kl_div(scores(tuned).log_softmax(-1), scores(base).softmax(-1), reduction="sum").item())
    assert 0 < distances[1] < distances[0]


def test_corpora_are_drawn_by_their_shares_and_stay_within_their_texts(base, corpus):
    short = Corpus(corpus.tokens[:, :20], corpus.prompt_lens, np.minimum(corpus.response_lens, 18))
    batches = Batches([corpus, short], [0.0, 1.0], base, changed(QUICK))
    for _ in range(5):
        batch, clean, predicts = batches.draw()
        assert clean.shape[1] == 20
        assert not predicts[:, 0].any()
        assert predicts.any(1).all()
        assert (batch.targets[batch.scored] < 20).all()


def test_a_corpus_of_answers_too_short_to_train_on_is_refused(base):
    short = Corpus(np.zeros((2, 9), np.int32), np.array([2, 2]), np.array([7, 3]))
    with pytest.raises(ValueError, match="corpus: 2 responses, and none of 8 tokens or more"):
        Batches([short], [1.0], base, changed(QUICK))


@pytest.mark.parametrize("rows", [1, 5, 8, 9, 21])
@pytest.mark.parametrize("soft", [0.0, 0.3])
def test_losses_in_chunks_are_those_of_all_rows_at_once(rows, soft):
    torch.manual_seed(0)
    head, hidden, teacher = torch.randn(11, 6), torch.randn(rows, 6, requires_grad=True), torch.randn(rows, 6)
    labels, weights = torch.randint(11, (rows,)), torch.rand(rows)
    seen = []

    def counted(loss, *parts):
        seen.append(tuple(part.shape for part in parts))
        return loss(*parts)

    for loss, tensors in (
        (partial(hard_loss, head, soft), (hidden, labels, weights, teacher)),
        (partial(soft_loss, head), (hidden, teacher, weights)),
    ):
        seen.clear()
        whole, parted = loss(*tensors), chunked(partial(counted, loss), *tensors, size=8)
        torch.testing.assert_close(parted, whole)
        for one, other in zip(*(torch.autograd.grad(total, hidden) for total in (parted, whole)), strict=True):
            torch.testing.assert_close(one, other)
        # one shape, whatever is left over for the last chunk
        assert len(set(seen)) == 1


def test_the_learning_rate_warms_up_and_falls():
    rates = [schedule(step, step / 100, changed(QUICK, warmup_steps=10)) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == max(rates[9:11])
    assert rates[-1] == pytest.approx(0.02, abs=1e-3)


@pytest.fixture
def adapt(recguide, tiny_folder, tmp_path, monkeypatch):
    """Run the command on a tiny model, one prompt file beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": f"Say {i}."}) for i in range(4)))
    options = {"--steps": 3, "--shared-rank": 2, "--draft-rank": 2, "--block-tokens": 64, "--tokens-per-step": 200}
    sizes = {"--max-prompt": 64, "--max-response": 12, "--batch": 4, "--device": "cpu"}
    words = [word for pair in (options | sizes).items() for word in pair]
    return lambda *more: recguide("adapt", tiny_folder, *words, *more)


def test_the_command_goes_from_prompts_to_an_adapter_that_loads(adapt, tiny_folder, tmp_path):
    done = adapt("--prompts", "prompts.jsonl", "--output", "a.safetensors", "--save-corpus", "c.npz")
    assert done.code == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result["steps"] == 3
    assert result["responses"] == 4
    assert result["command"].startswith(f"recguide adapt {tiny_folder} --steps 3")
    loaded = load_model(str(tiny_folder), "cpu", torch.float32, tmp_path / "a.safetensors")
    assert loaded.adapter_sha256 is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "c.npz", "prompts.jsonl"]


def test_text_that_was_kept_is_trained_on_again(adapt, tmp_path):
    adapt("--prompts", "prompts.jsonl", "--output", "a.safetensors", "--save-corpus", "c.npz")
    corpus = load_corpus(tmp_path / "c.npz")
    # a mark that only the kept file has
    save_corpus(tmp_path / "c.npz", Corpus(corpus.tokens[:3], corpus.prompt_lens[:3], corpus.response_lens[:3]))
    done = adapt("--prompts", "prompts.jsonl", "--output", "b.safetensors", "--save-corpus", "c.npz")
    assert json.loads(done.stdout)["responses"] == 3
    done = adapt("--corpus", "c.npz", "--output", "b.safetensors")
    assert json.loads(done.stdout)["responses"] == 3


def tensors_of(path):
    with safe_open(path, framework="pt") as file:
        return {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118


def test_training_goes_on_from_an_adapter_and_says_from_which(adapt, tmp_path):
    adapt("--prompts", "prompts.jsonl", "--output", "a.safetensors", "--save-corpus", "c.npz")
    still = ["--corpus", "c.npz", "--from-adapter", "a.safetensors", "--learning-rate", "1e-12", "--steps", "1"]
    done = adapt("--output", "b.safetensors", *still)
    assert done.code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["earlier_steps"] == 3
    assert result["start_sha256"] == file_sha256(tmp_path / "a.safetensors")
    # at a rate that changes nothing what comes out is what went in
    one, other = tensors_of(tmp_path / "a.safetensors"), tensors_of(tmp_path / "b.safetensors")
    assert one.keys() == other.keys()
    for key, tensor in one.items():
        torch.testing.assert_close(other[key], tensor, msg=key)
    assert any(tensor.abs().sum() > 0 for key, tensor in one.items() if key.endswith(".b"))


def test_going_on_with_other_ranks_is_refused(adapt):
    adapt("--prompts", "prompts.jsonl", "--output", "a.safetensors", "--save-corpus", "c.npz")
    done = adapt(
        "--corpus", "c.npz", "--from-adapter", "a.safetensors", "--output", "b.safetensors", "--draft-rank", "3"
    )
    assert done.code == 2
    assert "--draft-rank: found 3, allowed: 2, as in a.safetensors" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nothing to train on: give --prompts, --corpus or --invent"),
        (["--prompts", "missing.jsonl"], "missing.jsonl"),
        (
            ["--prompts", "prompts.jsonl", "--from-adapter", "no"],
            "adapter 'no': no such file, and the shipped ones are",
        ),
        (["--corpus", "prompts.jsonl"], "prompts.jsonl: not a corpus file"),
        (["--prompts", "prompts.jsonl", "--max-prompt", "3"], "nothing to distil: no prompt of 1 to 3 tokens"),
        (["--prompts", "prompts.jsonl", "--output", "nowhere/a"], "--output: found 'nowhere/a'"),
        (["--prompts", "prompts.jsonl", "--device", "tpu9"], "device 'tpu9': not a device"),
        (["--prompts", "prompts.jsonl", "--shared-rank", "-1"], "--shared-rank"),
        (["--prompts", "prompts.jsonl", "--shared-rank", "0", "--draft-rank", "0"], "--draft-rank"),
        (["--prompts", "prompts.jsonl", "--soft", "1.5"], "--soft"),
        (["--prompts", "prompts.jsonl", "--steps", "0"], "--steps"),
        (["--prompts", "prompts.jsonl", "--seconds", "nan"], "--seconds"),
        (["--prompts", "prompts.jsonl", "--block-tokens", "16"], "--block-tokens: found 16, allowed: 32 or more"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_bad_input_exits_2_with_a_message_and_leaves_nothing_behind(adapt, tmp_path, options, message):
    output = [] if "--output" in options else ["--output", "a.safetensors"]
    done = adapt(*output, *options)
    assert (done.code, done.stdout) == (2, "")
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]
