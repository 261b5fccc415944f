"""Rotary embedding: what transformers computes from the same settings."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, Ministral3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.ministral3.modeling_ministral3 import Ministral3RotaryEmbedding

from recguide.engine.configs import parse_config
from recguide.engine.rotary import QueryScaling, Yarn, frequencies, rotary_table, scaled, yarn_kept
from recguide.engine.shapes import SHAPES

FIELDS = {
    "model_type": "ministral3",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2**18,
    "mask_token_id": 3,
    "eos_token_id": 2,
}


def ours_and_theirs(rope: dict, head_dim: int, reference: type = Ministral3Config) -> tuple:
    """Frequencies and attention factor from the same settings, by us and by transformers."""
    config = parse_config("here", FIELDS | {"head_dim": head_dim, "rope_parameters": rope}, "here")
    theirs, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](reference(head_dim=head_dim, rope_parameters=dict(rope)))
    ours = frequencies(head_dim, config.rope_theta, config.rope_scaling)
    return ours, theirs, getattr(config.rope_scaling, "attention_factor", 1.0), factor


@given(
    head_dim=st.sampled_from([8, 16, 64, 128]),
    theta=st.floats(100, 1e9),
    factor=st.floats(1, 64),
    original=st.integers(2, 2**17),
    slow=st.floats(0.1, 4),
    ratio=st.floats(1.1, 64),
    mscale=st.sampled_from([{}, {"mscale": 1.0, "mscale_all_dim": 1.0}, {"mscale": 0.7, "mscale_all_dim": 1.2}]),
    truncate=st.sampled_from([{}, {"truncate": True}, {"truncate": False}]),
    given_factor=st.sampled_from([{}, {"attention_factor": 1.3}, {"mscale": 1.0, "mscale_all_dim": 0.0}]),
)
def test_yarn_frequencies_are_those_of_transformers(
    head_dim, theta, factor, original, slow, ratio, mscale, truncate, given_factor
):
    rope = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": slow * ratio,
        "beta_slow": slow,
        **mscale,
        **truncate,
        **given_factor,
    }
    ours, theirs, our_factor, their_factor = ours_and_theirs(rope, head_dim)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    assert our_factor == pytest.approx(their_factor, rel=1e-12)


@given(st.sampled_from([16, 64, 128]), st.floats(1e4, 1e6), st.floats(1, 32), st.floats(0.5, 2), st.floats(1.5, 8))
def test_llama_3_frequencies_are_those_of_transformers(head_dim, theta, factor, low, ratio):
    rope = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": low * ratio,
        "original_max_position_embeddings": 8192,
    }
    ours, theirs, *_ = ours_and_theirs(rope, head_dim, LlamaConfig)
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0)


@pytest.mark.parametrize("name", SHAPES)
def test_tables_of_the_released_shapes_are_those_of_transformers_to_the_last_bit(name):
    """One bit of a frequency is a hundredth of a radian at position 200,000."""
    config = SHAPES[name]
    rope = config.rope_scaling
    parameters = {
        "rope_type": "yarn",
        "rope_theta": config.rope_theta,
        "factor": rope.factor,
        "original_max_position_embeddings": rope.original_context,
        "beta_fast": rope.beta_fast,
        "beta_slow": rope.beta_slow,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    reference = Ministral3RotaryEmbedding(Ministral3Config(head_dim=config.head_dim, rope_parameters=parameters))
    positions = torch.tensor([[0, 1, 4095, 16384, 200_000]])
    cos, sin = rotary_table(positions, frequencies(config.head_dim, config.rope_theta, rope), rope.attention_factor)
    their_cos, their_sin = reference(torch.zeros(1), positions)
    assert torch.equal(cos[:, :, 0], their_cos[..., :64])
    assert torch.equal(sin[:, :, 0], their_sin[..., :64])


@given(st.floats(1e4, 1e7), st.integers(64, 2**15), st.floats(2, 64))
def test_yarn_keeps_what_turns_often_divides_what_turns_seldom_and_never_leaves_that_range(theta, original, factor):
    yarn = Yarn(factor, original)
    kept, plain = yarn_kept(128, theta, yarn), frequencies(128, theta, None)
    changed = frequencies(128, theta, yarn)
    assert (kept.diff() <= 0).all()
    assert ((kept >= 0) & (kept <= 1)).all()
    turns = original * plain / (2 * math.pi)
    # truncation widens the range by less than one index on either side
    step = theta ** (2 / 128)
    assert (kept[turns > 32 * step * 1.001] == 1).all()
    assert (kept[turns < 1 / step / 1.001] == 0).all()
    assert ((changed <= plain * 1.0001) & (changed * factor >= plain * 0.9999)).all()


@given(st.floats(0.01, 1), st.integers(1, 2**15), st.lists(st.integers(0, 2**18 - 1), min_size=1, max_size=9))
def test_a_query_grows_with_the_logarithm_of_the_periods_before_it(beta, period, positions):
    cos, sin = scaled((torch.ones(1), torch.full((1,), 2.0)), torch.tensor([positions]), QueryScaling(beta, period))
    expected = [1 + beta * math.log(1 + position // period) for position in positions]
    assert cos.flatten().tolist() == pytest.approx(expected, rel=1e-6)
    assert torch.equal(sin, 2 * cos)
    assert cos.shape == (1, len(positions), 1, 1)


def test_queries_below_the_period_are_not_scaled_at_all():
    table = (torch.rand(1, 5, 1, 8), torch.rand(1, 5, 1, 8))
    ids = torch.tensor([[0, 1, 999, 8000, 16383]])
    for before, after in zip(table, scaled(table, ids, QueryScaling(0.1, 16384)), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "longrope"}, "rope_type: 'longrope'; expected one of default, yarn, llama3"),
        ({"type": ["yarn"]}, r"type: \['yarn'\]; expected one of"),
        ({"rope_type": "yarn"}, "factor: missing; expected a positive number"),
        ({"rope_type": "yarn", "factor": 0}, "factor: 0; expected a positive number"),
        ({"rope_type": "yarn", "factor": 2}, "original_max_position_embeddings: missing"),
        ({"beta_slow": 40, "factor": 2, "type": "yarn", "original_max_position_embeddings": 9}, "beta_fast: missing"),
        ({"rope_type": "yarn", "factor": 2, "low_freq_factor": 1}, "low_freq_factor: 1; expected no such field beside"),
        ({"rope_type": "default", "factor": 2}, "factor: 2; expected no such field beside default"),
        ({"rope_theta": 1.0}, "rope_theta: 1.0; expected more than 1"),
        ({"rope_theta": float("inf")}, "rope_theta: inf; expected a positive number"),
        ({"llama_4_scaling_beta": float("nan")}, "llama_4_scaling_beta: nan; expected a positive number"),
        ({"llama_4_scaling_beta": 0.1}, "original_max_position_embeddings: missing"),
    ],
)
def test_rotary_settings_that_cannot_be_followed_are_refused_by_field(rope, message):
    with pytest.raises(ValueError, match=f"here: rope_parameters.{message}"):
        parse_config("here", FIELDS | {"rope_parameters": {"rope_theta": 1e4} | rope}, "here")


@given(st.floats(1e4, 1e6))
def test_settings_beside_the_rotary_object_are_the_same_settings(theta):
    rope = {"type": "yarn", "factor": 2, "original_max_position_embeddings": 512}
    inside = FIELDS | {"rope_parameters": rope | {"rope_theta": theta, "llama_4_scaling_beta": 0.2}}
    beside = FIELDS | {"rope_scaling": rope, "rope_theta": theta, "llama_4_scaling_beta": 0.2}
    assert parse_config("here", inside, "here") == parse_config("here", beside, "here")
