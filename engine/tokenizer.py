"""Text to token ids and back, with the chat template of the model: one thin class over a `tokenizers` tokenizer."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from recguide.traces.documents import read_json
from recguide.traces.errors import InputError


def _refuse(message: str) -> NoReturn:
    raise InputError(f"chat template: {message}")


def _json(value: object, indent: int | None = None) -> str:
    # jinja's own filter escapes for HTML
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _compiled(template: str) -> jinja2.Template:
    # the settings, loop controls and functions that published chat templates are written for
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = _json
    try:
        return environment.from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise InputError(f"chat template: line {error.lineno}: {error.message}") from error


class Tokenizer:
    """Encodes and decodes. ``chat_template`` is the model's Jinja template; without one there is no chat encoding."""

    def __init__(self, backend: tokenizers.Tokenizer, chat_template: str | None = None, **special: str) -> None:
        self._backend = backend
        self._template = None if chat_template is None else _compiled(chat_template)
        self._special = special
        self.chat_template = chat_template

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def token_id(self, token: str) -> int | None:
        """The id of a token by its exact string, or None."""
        return self._backend.token_to_id(token)

    def token(self, number: int) -> str | None:
        """The exact string of a token, or None."""
        return self._backend.id_to_token(number)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` as it stands: nothing is added, and the names of special tokens become those tokens."""
        # a batch of one: the library's other way in keeps all threads waiting, for seconds where a text is long
        (encoding,) = self._backend.encode_batch([text], add_special_tokens=False)
        return list(encoding.ids)

    def encode_chat(self, text: str) -> list[int]:
        """Ids of a conversation in which the user has said ``text`` and the assistant is about to answer.

        The template supplies the model's default system prompt. Raises ValueError when the model has no template.
        """
        return self.encode_messages([{"role": "user", "content": text}])

    def encode_messages(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation that the assistant is about to answer; messages have a ``role`` and a ``content``.

        Raises ValueError when the model has no template, and for what its template refuses.
        """
        if self._template is None:
            raise InputError("tokenizer: the model has no chat template")
        # templates ask whether tools are none, and would take what is undefined for some
        given = {"messages": messages, "add_generation_prompt": True, "tools": None, "documents": None}
        try:
            return self.encode(self._template.render(given | self._special))
        except jinja2.TemplateError as error:
            raise InputError(f"chat template: {error}") from error

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens left out."""
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def to_json(self) -> str:
        """The tokenizer (without its chat template) as the content of a ``tokenizer.json``."""
        return self._backend.to_str()


def byte_level_bpe(tokens: Sequence[str], merges: Sequence[str], special: Sequence[str]) -> tokenizers.Tokenizer:
    """SmolLM2's tokenizer from its vocabulary (id = index), its merges ("left right") and its special tokens.

    Digits are split off one by one before the byte-level split, as llama.cpp's pre-tokenizer "smollm" does.
    """
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    backend = tokenizers.Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return backend


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of a Hugging Face directory (``tokenizer.json`` and its chat template), or None without one."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception on any malformed file
        raise InputError(f"{path}: not a tokenizer: {error}") from error
    settings = _settings(folder)
    special = {name: _text(settings[name]) for name in ("bos_token", "eos_token") if settings.get(name)}
    return Tokenizer(backend, _chat_template(folder, settings), **special)


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.exists():
        return {}
    settings: dict[str, Any] = read_json(path)
    return settings


def _text(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        # several named templates: the one for plain conversation
        return next((str(entry["template"]) for entry in template if entry["name"] == "default"), None)
    return template
