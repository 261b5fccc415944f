"""Encoding and decoding, and the chat template, agree with transformers."""

import time
from threading import Thread

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from recguide.engine.tokenizer import Tokenizer, read_tokenizer

TEXTS = (
    "Natalia sold 48/2 = 24 clips in May.",
    "def f(x):\n\treturn x ** 2  # squared\n",
    "naïve café, 東京, 🙂\u200d🙂, \x00\x7f",
    "<|im_start|>user\nhello<|im_end|>",
    "",
)


@pytest.fixture(scope="module")
def reference(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(model.tokenizer.to_json(), encoding="utf-8")
    return PreTrainedTokenizerFast(tokenizer_file=str(path), chat_template=model.tokenizer.chat_template)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_transformers(model, reference, text):
    assert model.tokenizer.encode(text) == reference.encode(text, add_special_tokens=False)


def test_a_long_text_keeps_no_other_thread_waiting(model):
    text = "7 " * 100_000
    worker, ticks = Thread(target=model.tokenizer.encode, args=(text,)), 0
    worker.start()
    while worker.is_alive():
        time.sleep(0.01)
        ticks += 1
    assert ticks > 5


# the vocabulary has no bytes for some control characters and for code points that are not assigned
@given(st.text(st.characters(exclude_categories=["Cc", "Cn", "Cs"])))
def test_text_survives_encoding_and_decoding(model, text):
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text


@given(st.integers(0, 10**12))
def test_digits_are_tokens_of_their_own(model, number):
    assert len(model.tokenizer.encode(str(number))) == len(str(number))


def test_the_chat_template_gives_what_transformers_gives(model, reference):
    for text in TEXTS[:3]:
        messages = [{"role": "user", "content": text}]
        expected = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert model.tokenizer.encode_chat(text) == model.tokenizer.encode(expected)


def test_templates_may_use_what_published_ones_use(model, reference):
    template = (
        "{%- if tools is not none %}tools{% endif %}{{ messages[0] | tojson }}{% for m in [1, 2] %}{{ m }}{% break %}"
        "{% endfor %}{{ messages | tojson(indent=2) }}{{ strftime_now('%Y') }}"
    )
    messages = [{"role": "user", "content": "<b>é</b>'&"}]
    expected = reference.apply_chat_template(messages, chat_template=template, tokenize=False)
    theirs = Tokenizer(tokenizers.Tokenizer.from_str(model.tokenizer.to_json()), template)
    assert theirs.encode_chat(messages[0]["content"]) == model.tokenizer.encode(expected)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "chat template: line 1: "),
        ("{{ messages[0].content.lost.lost }}", "chat template: .*lost"),
        ("{{ raise_exception('no system prompt') }}", "chat template: no system prompt"),
    ],
)
def test_a_template_that_fails_says_so(model, template, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer(tokenizers.Tokenizer.from_str(model.tokenizer.to_json()), template).encode_chat("Hi")


def test_a_chat_begins_with_the_default_system_prompt_and_ends_where_the_assistant_speaks(model):
    ids = model.tokenizer.encode_chat("Hi")
    assert ids[0] == 1
    assert "You are a helpful AI assistant named SmolLM, trained by Hugging Face" in model.tokenizer.decode(ids)
    assert ids[-4:] == model.tokenizer.encode("<|im_start|>assistant\n")


def test_the_mask_and_eos_tokens_are_the_configured_ones(model):
    assert model.tokenizer.token_id("<repo_name>") == model.config.mask_id
    assert (model.tokenizer.token_id("<|im_end|>"),) == model.config.eos_ids


def test_a_directory_without_a_tokenizer_has_none(tmp_path):
    assert read_tokenizer(tmp_path) is None


def test_a_malformed_tokenizer_file_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer"):
        read_tokenizer(tmp_path)


def test_a_tokenizer_directory_gives_its_chat_template_and_named_special_tokens(model, tmp_path):
    (tmp_path / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"bos_token": {"content": "<|im_start|>"}, "chat_template": "{{ bos_token }}{{ messages[0].content }}"}',
        encoding="utf-8",
    )
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.encode_chat("Hi") == [1, *tokenizer.encode("Hi")]


def test_without_a_template_there_is_no_chat(model, tmp_path):
    (tmp_path / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    with pytest.raises(ValueError, match="no chat template"):
        read_tokenizer(tmp_path).encode_chat("Hi")
