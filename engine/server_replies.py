"""Answers in the form of OpenAI's API, whole and in chunks."""

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REASONS = {"eos": "stop", "stop": "stop", "length": "length"}
"""Why an output ended, in the API's words."""
LAST = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Reply:
    """One answer while it is made."""

    model: str
    chat: bool
    prompt_tokens: int
    include_usage: bool = False
    """At the end of a stream."""
    tokens: int = 0
    text: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def whole(self, reason: str) -> dict[str, Any]:
        """The answer at once."""
        said = {"message": {"role": "assistant", "content": self.text, "refusal": None}}
        choice = self._choice(said if self.chat else {"text": self.text}, reason)
        return {**self._head("chat.completion"), "choices": [choice], "usage": self._usage()}

    def opening(self) -> list[bytes]:
        """What a stream begins with."""
        return [self._chunk({"role": "assistant", "content": ""}, None)] if self.chat else []

    def part(self, text: str, reason: str | None) -> bytes:
        """A chunk of a stream: some text, or why it ended."""
        if self.chat:
            return self._chunk({"content": text} if text else {}, reason)
        return self._chunk(text, reason)

    def closing(self) -> list[bytes]:
        """What a stream ends with."""
        if not self.include_usage:
            return [LAST]
        return [sse({**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage()}), LAST]

    def _chunk(self, said: object, reason: str | None) -> bytes:
        choice = self._choice({"delta" if self.chat else "text": said}, reason)
        usage = {"usage": None} if self.include_usage else {}
        return sse({**self._head("chat.completion.chunk"), "choices": [choice], **usage})

    def _choice(self, said: Mapping[str, object], reason: str | None) -> dict[str, Any]:
        return {"index": 0, **said, "logprobs": None, "finish_reason": None if reason is None else REASONS[reason]}

    def _head(self, kind: str) -> dict[str, Any]:
        key = f"chatcmpl-{self.key}" if self.chat else f"cmpl-{self.key}"
        return {
            "id": key,
            "object": kind if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
        }

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt_tokens + self.tokens,
        }


def sse(document: Mapping[str, Any]) -> bytes:
    """A server-sent event; JSON in ASCII holds no line break."""
    return b"data: " + json.dumps(document, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n\n"


def model_card(name: str, created: int, max_context: int) -> dict[str, Any]:
    """A model as /v1/models tells of it."""
    return {"id": name, "object": "model", "created": created, "owned_by": "recguide", "max_model_len": max_context}
