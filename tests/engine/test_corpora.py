"""Corpus files keep what was put into them, prompt files are read line by line, and damage is named."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.engine.corpora import (
    OPENINGS,
    encode_prompts,
    load_corpus,
    read_training_prompts,
    save_corpus,
    user_openings,
)
from recguide.engine.distill import Corpus


@given(st.integers(1, 4), st.integers(1, 9), st.sampled_from([300, 65_535, 131_071]), st.integers(0, 2**32 - 1))
def test_a_corpus_is_read_as_it_was_written(tmp_path_factory, rows, width, largest, seed):
    random = np.random.default_rng(seed)
    tokens = random.integers(0, largest, (rows, width), endpoint=True).astype(np.int32)
    tokens[0, 0] = largest
    lens = [random.integers(0, width, rows, endpoint=True).astype(np.int32) for _ in range(2)]
    path = tmp_path_factory.mktemp("corpus") / "c.npz"
    save_corpus(path, Corpus(tokens, *lens))
    found = load_corpus(path)
    for ours, theirs in zip((tokens, *lens), (found.tokens, found.prompt_lens, found.response_lens), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert theirs.dtype == np.int32
    assert [each.name for each in path.parent.iterdir()] == ["c.npz"]


@pytest.mark.parametrize("content", [b"", b"PK and no more", b"PK\x03\x04 and no more", b"\x93NUMPY"])
def test_a_file_that_is_no_corpus_is_named(tmp_path, content):
    path = tmp_path / "c.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"c\.npz: not a corpus file"):
        load_corpus(path)


def test_a_corpus_without_its_lengths_is_refused(tmp_path):
    np.savez(tmp_path / "c.npz", tokens=np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"c\.npz: not a corpus file .*prompt_lens"):
        load_corpus(tmp_path / "c.npz")


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.gz"])
def test_prompts_are_read_from_plain_and_compressed_files(tmp_path, name):
    text = "\n".join(json.dumps({"prompt": prompt}) for prompt in ("one", "zwei ü"))
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert read_training_prompts(tmp_path / name) == ["one", "zwei ü"]


@pytest.mark.parametrize("line", ["[1]", "{", '{"text": "x"}'])
def test_a_line_without_a_prompt_is_named(tmp_path, line):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "x"}\n' + line)
    with pytest.raises(ValueError, match=r"p\.jsonl:2: expected an object with a 'prompt'"):
        read_training_prompts(path)


def test_prompts_are_kept_by_their_length_in_tokens(model):
    texts = ["Hi", "Hi " * 40, "Hi " * 90]
    lengths = [len(model.tokenizer.encode_chat(text)) for text in texts]
    assert encode_prompts(model.tokenizer, texts, lengths[1], lengths[0]) == [model.tokenizer.encode_chat(texts[1])]


def test_openings_lead_to_where_the_user_speaks_and_the_closing_to_the_assistant(model):
    openings, closing = user_openings(model.tokenizer)
    assert len(openings) == len(OPENINGS)
    for opening, words in zip(openings, OPENINGS, strict=True):
        rest = model.tokenizer.encode("are the words.")
        assert model.tokenizer.decode([*opening, *rest, *closing]) == model.tokenizer.decode(
            model.tokenizer.encode_chat(words + "are the words.")
        )
