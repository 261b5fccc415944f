"""Sampled output: a function of prompt and seed, with the model's own distribution."""

from collections import Counter

import numpy as np
import pytest
import torch
from engines import GRID, POLICIES, engine_of, loads, prompts
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tiny import tiny_model

from recguide.engine.requests import Wish
from recguide.engine.sampling import gumbel, perturbed
from recguide.engine.serving import Engine, EngineConfig
from recguide.sim.memory import Limits
from recguide.sim.overlap import Overlap
from recguide.sim.policies import ar

pytestmark = pytest.mark.usefixtures("one_thread")

# the tests are deterministic: a right sampler fails here only if somebody was unlucky when choosing the seeds
LEAST_P = 1e-3


def test_noise_is_gumbel_distributed_and_its_values_do_not_depend_on_each_other() -> None:
    noise = gumbel(torch.zeros(2000, dtype=torch.long), torch.arange(2000), 50).double()
    # exp(-exp(-x)) of such noise is uniform
    uniform = (-(-noise).exp()).exp()
    counts = torch.histc(uniform, 100, 0, 1).numpy()
    assert chisquare(counts).pvalue > LEAST_P
    for axis in (0, 1):
        left, right = uniform.roll(1, axis).flatten(), uniform.flatten()
        pairs = torch.bincount((left * 10).long() * 10 + (right * 10).long(), minlength=100).numpy()
        assert chisquare(pairs).pvalue > LEAST_P
    seeds = gumbel(torch.arange(2000), torch.zeros(2000, dtype=torch.long), 50)
    assert not torch.equal(seeds.double(), noise)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_largest_perturbed_score_is_a_sample_of_the_tempered_softmax(temperature) -> None:
    logits = torch.linspace(-3, 3, 12).expand(20000, -1)
    heat = torch.full((20000,), temperature)
    picked = perturbed(logits, heat, torch.full((20000,), 7), torch.arange(20000)).argmax(-1)
    expected = (logits[0].double() / temperature).softmax(-1).numpy() * 20000
    assert chisquare(np.bincount(picked.numpy(), minlength=12), expected).pvalue > LEAST_P


def test_a_temperature_of_0_leaves_scores_as_they_are() -> None:
    logits = torch.randn(4, 12)
    heat = torch.tensor([0.0, 1.0, 0.0, 0.3])
    scores = perturbed(logits, heat, torch.arange(4), torch.arange(4))
    assert torch.equal(scores[heat == 0], logits[heat == 0])
    assert not torch.isclose(scores[heat > 0], logits[heat > 0]).all()


@settings(max_examples=8)
@given(
    model_seed=st.integers(0, 50),
    shift=st.integers(0, 1),
    asked=prompts,
    load=loads(),
    heats=st.lists(st.sampled_from([0.0, 0.7, 3.0]), min_size=6, max_size=6),
    seeds=st.lists(st.integers(0, 2**31 - 1), min_size=6, max_size=6),
)
def test_sampled_text_depends_on_prompt_and_seed_alone(model_seed, shift, asked, load, heats, seeds) -> None:
    model = tiny_model(model_seed, shift)
    wishes = [Wish(load.max_new, heat, seed) for heat, seed in zip(heats, seeds, strict=True)]
    engine = engine_of(model, load)
    lives = [engine.add(prompt, wish) for prompt, wish in zip(asked, wishes, strict=False)]
    while engine.in_flight:
        engine.step()
        engine.check()
    for live, prompt, wish in zip(lives, asked, wishes, strict=False):
        alone = Engine(model.decoder, ar, EngineConfig(GRID, Limits(max_running=1), load.max_context))
        wanted = alone.add(prompt, wish)
        alone.drain()
        assert live.tokens == wanted.tokens


def test_served_text_has_the_distribution_of_one_token_sampling() -> None:
    model, prompt, count = tiny_model(8, 0), [4, 9, 5], 500
    engine = Engine(model.decoder, Overlap(4, 0.75), EngineConfig(GRID, Limits(max_running=250)))
    lives = [engine.add(prompt, Wish(3, 0.7, seed, ())) for seed in range(count)]
    engine.drain()
    found = Counter(tuple(live.tokens) for live in lives)
    expected = {text: p * count for text, p in chances(model.decoder, prompt, 3, 0.7).items()}
    # texts that are too rare to be tested one by one are tested together
    common = [text for text, n in expected.items() if n >= 5]
    rest = count - sum(expected[text] for text in common)
    counts = [found[text] for text in common]
    assert len(common) > 15
    pvalue = chisquare([*counts, count - sum(counts)], [*(expected[text] for text in common), rest]).pvalue
    assert pvalue > LEAST_P


def chances(decoder, prompt, length, temperature, text=()):
    """The probability of every text of this length, by one-token decoding."""
    if len(text) == length:
        return {text: 1.0}
    ids = torch.tensor([[*prompt, *text]])
    size = ids.shape[1]
    hidden = decoder.hidden(ids, torch.arange(size)[None], torch.ones(1, 1, size, size, dtype=torch.bool).tril())
    logits = decoder.logits(hidden[0, -1]).double()
    logits[decoder.config.mask_id] = float("-inf")
    found = {}
    for token, p in enumerate((logits / temperature).softmax(-1).tolist()):
        if p > 1e-4:
            rest = chances(decoder, prompt, length, temperature, (*text, token))
            found |= {whole: p * q for whole, q in rest.items()}
    return found


def test_drafts_with_the_noise_of_their_positions_match_more_often_than_greedy_ones() -> None:
    """What sharing the noise is for: with independent draws two flat distributions would hardly ever agree."""
    model = tiny_model(8, 0)
    engine = Engine(model.decoder, POLICIES["fixed:4"], EngineConfig(GRID))
    lives = [engine.add([4, 9, 5], Wish(30, 50.0, seed, ())) for seed in range(40)]
    engine.drain()
    assert all(len(live.tokens) == 30 for live in lives)
    run = engine.replay()
    assert run.emission_tokens[run.emission_block_size == 4].mean() > 3
