"""Random dense traces: plain functions from a seed, and Hypothesis strategies over them."""

import hashlib
from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from recguide.traces.dense import VIEWS, DenseRequest, DenseTrace, Drafts, Provenance, num_draft_tokens

BLOCK_SIZES = (4, 8, 16, 32)
# past the output's end, so that the last drafts have tokens to be scored against
AHEAD = 64


def provenance(block_sizes: tuple[int, ...] = BLOCK_SIZES, **changes: Any) -> Provenance:
    """A provenance with every field filled, changed by keyword."""
    fields: dict[str, Any] = {
        "model": "tiny",
        "weights_sha256": "a" * 64,
        "adapter_sha256": None,
        "dtype": "float32",
        "engine_commit": "0" * 40,
        "gpu": "none",
        "driver": "none",
        "torch": "none",
        "prompt_set_sha256": "b" * 64,
        "block_sizes": tuple(block_sizes),
        "draft_shift": 0,
        "max_output_tokens": 4096,
        "max_context": 8192,
        "command": "random_trace",
        "created": "2026-01-01T00:00:00+00:00",
        "dropped": {},
        "base_agreement": 1.0,
    }
    return Provenance(**(fields | changes))


def random_trace(
    seed: int,
    num_requests: int = 4,
    block_sizes: tuple[int, ...] = BLOCK_SIZES,
    *,
    min_output_tokens: int = 1,
    max_output_tokens: int = 60,
    ease: float = 0.6,
    with_ids: bool = False,
    **changes: Any,
) -> DenseTrace:
    """A trace with stretches of long and short acceptance, as real text has them.

    ``ease`` in [0, 1] moves the acceptance: 0 never accepts a draft token, 1 accepts all of them, 0.5 gives a mean
    acceptance length of about 4 at B = 16. ``changes`` go to the provenance.
    """
    rng = np.random.default_rng(seed)
    requests = tuple(
        _random_request(rng, f"r{i}", block_sizes, (min_output_tokens, max_output_tokens), ease, with_ids)
        for i in range(num_requests)
    )
    return DenseTrace(provenance(block_sizes, **changes), requests)


def constant_trace(
    accept_len: int, num_requests: int = 4, output_tokens: int = 60, block_sizes: tuple[int, ...] = BLOCK_SIZES
) -> DenseTrace:
    """A trace whose every draft at B gives an acceptance length of min(B, accept_len), and every continuation hits."""
    requests = tuple(
        _request(f"r{i}", output_tokens, "length", np.ones(output_tokens, np.float32), {}) for i in range(num_requests)
    )
    for request in requests:
        for view in VIEWS:
            for block_size in block_sizes:
                request.drafts[view, block_size] = _constant_drafts(view, block_size, accept_len, output_tokens)
    return DenseTrace(provenance(block_sizes), requests)


def _constant_drafts(view: str, block_size: int, accept_len: int, output_tokens: int) -> Drafts:
    num_tokens = num_draft_tokens(view, block_size)
    matched = min(accept_len - (view == "seeded"), num_tokens)
    masks = [np.full(output_tokens, bits, np.uint32) for bits in ((1 << matched) - 1, 0, 0)]
    margin = np.full((output_tokens, num_tokens), 200, np.uint8)
    margin[:, matched:] = 60
    return Drafts(*masks, margin, margin + np.uint8(20) if view == "seeded" else None)


def _request(
    name: str, size: int, finish: str, entropy: NDArray[np.float32], drafts: dict[Any, Drafts]
) -> DenseRequest:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return DenseRequest(name, "random", "math", digest, 20, size, finish, entropy, drafts)


def _random_request(
    rng: np.random.Generator,
    name: str,
    block_sizes: tuple[int, ...],
    lengths: tuple[int, int],
    ease: float,
    with_ids: bool,
) -> DenseRequest:
    size = int(rng.integers(lengths[0], lengths[1] + 1))
    finish = "eos" if rng.random() < 0.7 else "length"
    hardness = _hardness(rng, size + AHEAD)
    drafts = {
        (view, block_size): _random_drafts(rng, view, block_size, size, finish, hardness, ease)
        for view in VIEWS
        for block_size in block_sizes
    }
    entropy = (hardness[:size] * rng.uniform(0.2, 1.0, size)).astype(np.float32)
    dataset, category = [("gsm8k", "math"), ("mbpp", "code"), ("mt-bench", "chat")][int(rng.integers(3))]
    prompt_tokens = int(rng.integers(1, 200))
    digest = hashlib.sha256(name.encode()).hexdigest()
    ids = [rng.integers(0, 49152, n).astype(np.int32) if with_ids else None for n in (prompt_tokens, size)]
    return DenseRequest(name, dataset, category, digest, prompt_tokens, size, finish, entropy, drafts, *ids)


def _hardness(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """[size] How hard each chain token is to foresee: easy and hard stretches, and spikes inside both."""
    lengths = rng.geometric(1 / 15, size + 1)
    easy = np.repeat(rng.random(size + 1) < 0.35, lengths)[:size]
    return np.where(easy, 0.02, 1.0) * rng.gamma(0.8, 1.25, size)


def _random_drafts(
    rng: np.random.Generator,
    view: str,
    block_size: int,
    size: int,
    finish: str,
    hardness: NDArray[np.float64],
    ease: float,
) -> Drafts:
    num_tokens = num_draft_tokens(view, block_size)
    target = np.arange(size)[:, None] + np.arange(num_tokens)
    # a token is harder to foresee from further away, and a little differently at every block size
    doubt = hardness[target] * (1 + 0.3 * np.arange(num_tokens)) * rng.gamma(8.0, 1 / 8, target.shape)
    match = (doubt < 5 * ease**2) | (ease >= 1)
    match &= ease > 0
    if finish == "eos":
        match &= target < size
    second = ~match & (target < size) & (rng.random(target.shape) < 0.5 / (1 + 0.2 * doubt))
    no_eos = second & (rng.random(target.shape) < 0.99)
    # the draft knows its own doubt only roughly, so that some confident tokens are wrong and some doubtful ones right
    felt = doubt * rng.gamma(3.0, 1 / 3, target.shape)
    p1 = np.clip(np.exp(-0.35 * felt), 0.02, 1)
    margin = np.clip(p1 - (1 - p1) * rng.uniform(0.3, 1.0, target.shape), 0, 1)
    return Drafts(
        *(_pack(bits) for bits in (match, second, no_eos)),
        _steps(margin),
        _steps(p1) if view == "seeded" else None,
    )


def _pack(bits: NDArray[np.bool_]) -> NDArray[np.uint32]:
    return (bits.astype(np.uint32) << np.arange(bits.shape[-1], dtype=np.uint32)).sum(axis=-1).astype(np.uint32)


def _steps(probability: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.minimum(255, np.floor(256 * probability)).astype(np.uint8)


def grids() -> st.SearchStrategy[tuple[int, ...]]:
    """Grids of block sizes, one to five of them."""
    sizes = st.lists(st.sampled_from((2, 4, 8, 16, 32)), min_size=1, unique=True)
    return sizes.map(lambda chosen: tuple(sorted(chosen)))


def dense_traces(
    max_requests: int = 4, max_output_tokens: int = 60, with_ids: st.SearchStrategy[bool] | None = None
) -> st.SearchStrategy[DenseTrace]:
    """Small dense traces over any grid of block sizes, from never to always accepting."""
    return st.builds(
        random_trace,
        seed=st.integers(0, 2**32 - 1),
        num_requests=st.integers(1, max_requests),
        block_sizes=grids(),
        max_output_tokens=st.integers(1, max_output_tokens),
        ease=st.sampled_from((0.0, 0.3, 0.6, 0.9, 1.0)),
        with_ids=st.booleans() if with_ids is None else with_ids,
        draft_shift=st.sampled_from((0, 1)),
    )


def assert_same_trace(found: DenseTrace, wanted: DenseTrace) -> None:
    """Assert that two traces are equal in every field and every array, dtypes included."""
    assert found.provenance == wanted.provenance
    assert len(found.requests) == len(wanted.requests)
    for ours, theirs in zip(found.requests, wanted.requests, strict=True):
        _assert_same_fields(ours, theirs, skip=("drafts",))
        assert set(ours.drafts) == set(theirs.drafts)
        for key, drafts in ours.drafts.items():
            _assert_same_fields(drafts, theirs.drafts[key])


def _assert_same_fields(found: Any, wanted: Any, skip: tuple[str, ...] = ()) -> None:
    for field in fields(found):
        if field.name not in skip:
            ours, theirs = getattr(found, field.name), getattr(wanted, field.name)
            assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None), field.name
            np.testing.assert_array_equal(ours, theirs, err_msg=field.name)
