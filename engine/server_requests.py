"""What clients may ask of the server: OpenAI's fields, checked one by one, and ours.

Fields that cannot change the output are ignored. Those that would change it, and that the engine does not know, are
accepted only with the value that changes nothing.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError, from_json

from recguide.engine.requests import MAX_SEED
from recguide.engine.server_errors import Refusal, invalid, shown

COMPLETION_TOKENS = 16
"""Of a text completion that names no limit, as in OpenAI's API."""
MAX_STOPS, MAX_STOP_CHARACTERS = 4, 256
IGNORED = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "parallel_tool_calls",
    "prediction",
)
"""Fields that change no output here; ``prediction`` is a draft, and we make our own."""
NEUTRAL: Mapping[str, Collection[object]] = {
    "n": (1,),
    "best_of": (1,),
    "top_p": (1, 1.0),
    "top_k": (0, -1),
    "min_p": (0, 0.0),
    "min_tokens": (0,),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "web_search_options": (),
}
"""The values of other fields that change nothing; null and absent are always among them."""


def _text_of(content: object) -> object:
    """The text of a message, which may come in parts."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.keys() != {"type", "text"} or part["type"] != "text":
            kind = part.get("type") if isinstance(part, dict) else part
            raise PydanticCustomError("parts", "found a part {found}, allowed: text alone", {"found": shown(kind)})
        if not isinstance(part["text"], str):
            raise PydanticCustomError("parts", "found a text part without text, allowed: a string", {})
        texts.append(part["text"])
    return "".join(texts)


def _prompt_of(prompt: object) -> object:
    """A text or token ids, alone or as the one prompt of a list."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt)):
        return prompt
    raise PydanticCustomError(
        "prompt", "found {found}, allowed: one text, or one list of ids", {"found": shown(prompt)}
    )


def _wrapped(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


def _nothing(value: object) -> object:
    if value:
        raise PydanticCustomError("nothing", "found {found}, allowed: null", {"found": shown(value)})
    return None


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stops = Annotated[list[StopString], Field(max_length=MAX_STOPS), BeforeValidator(_wrapped)]
Nothing = Annotated[object, AfterValidator(_nothing)]
TokenCount = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    """How a stream is told."""

    include_usage: bool = False
    include_obfuscation: bool | None = None
    """Ignored: nothing is padded."""


class Ours(_Strict):
    """RecGuide's own wishes, under ``recguide``."""

    policy: str | None = None
    """``ar`` or ``fixed:B``, for this request alone."""


class Message(_Strict):
    """One message of a conversation; what an answer of ours has beside its text may come back empty."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_text_of)]
    name: str | None = None
    refusal: Nothing = None
    audio: Nothing = None
    tool_calls: Nothing = None
    function_call: Nothing = None
    annotations: Nothing = None


class Asked(_Strict):
    """What both kinds of requests have."""

    model: str
    max_tokens: TokenCount | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    """As in vLLM: the output ends at its limit alone."""
    recguide: Ours | None = None

    @property
    def wanted(self) -> int | None:
        """Output tokens at most, as far as the request says."""
        return self.max_tokens

    @property
    def limit(self) -> int | None:
        """Output tokens at most; None: as many as the context has room for."""
        return self.wanted

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the counts of its tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def folded_seed(self) -> int | None:
        """The seed among those that the engine has."""
        return None if self.seed is None else self.seed & MAX_SEED

    def check(self) -> None:
        """Refuse fields that contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "an object without stream", 'beside "stream": true alone')


class AskedChat(Asked):
    """Of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: TokenCount | None = None

    @property
    def wanted(self) -> int | None:
        """Under either of its names."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def check(self) -> None:
        """Refuse two limits, too."""
        super().check()
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise invalid("max_tokens", shown(self.max_tokens), "max_completion_tokens alone, its newer name")


class AskedText(Asked):
    """Of /v1/completions."""

    prompt: Annotated[str | list[int], BeforeValidator(_prompt_of)]

    @property
    def limit(self) -> int | None:
        """With the API's own default."""
        return COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens


Kind = TypeVar("Kind", bound=Asked)


def parsed(body: bytes, kind: type[Kind]) -> Kind:
    """The request in a body; Refusal with the first field that is at fault."""
    try:
        fields = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(400, f"body: not JSON: {error}", None, "invalid_json") from None
    if not isinstance(fields, dict):
        raise invalid("body", shown(fields), "a JSON object")
    kept = {name: value for name, value in fields.items() if name not in IGNORED and not _neutral(name, value)}
    try:
        asked = kind.model_validate(kept)
    except ValidationError as error:
        raise _first(error) from None
    asked.check()
    return asked


def _neutral(name: str, value: object) -> bool:
    """Whether a field is one that must change nothing; Refusal where it would."""
    if name not in NEUTRAL:
        return False
    allowed = NEUTRAL[name]
    if value is None or any(value == one and type(value) is type(one) for one in allowed):
        return True
    values = ", ".join(dict.fromkeys(f"{one!r}" for one in allowed if not isinstance(one, float)))
    raise invalid(
        name, shown(value), f"{values or 'null'}; the engine has nothing else, and an ignored wish changes the text"
    )


def _first(error: ValidationError) -> Refusal:
    problem: Any = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(str(part) for part in problem["loc"]) or "body"
    kind, words = problem["type"], problem["msg"].removeprefix("Input should be ")
    if kind == "missing":
        return Refusal(400, f"{name}: missing", name)
    if kind == "extra_forbidden":
        return Refusal(400, f"{shown(name)}: unknown field", shown(name)[1:-1])
    if kind in ("parts", "prompt", "nothing"):
        return Refusal(400, f"{name}: {words}", name)
    return invalid(name, shown(problem["input"]), words[:1].lower() + words[1:])
