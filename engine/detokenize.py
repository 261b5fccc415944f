"""Text out of tokens as they come: no half characters, and nothing behind a stop string."""

from collections.abc import Sequence

from recguide.engine.tokenizer import Tokenizer

HALF = "�"
"""What bytes decode to that are not yet a whole character."""


class TextStream:
    """Turns one output into text, bit by bit; text that may turn out to be a stop string is held back."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, [text for text in stop if text]
        self.stopped = False
        """Whether a stop string has come; the text ends before it."""
        self._ids: list[int] = []
        # a token's text may depend on the one before it: both ends of the part that gives the context
        self._context, self._told = 0, 0
        self._held = ""

    def push(self, tokens: Sequence[int]) -> str:
        """The text that more tokens bring."""
        self._ids += tokens
        return self._released(self._decoded(whole=False))

    def finish(self) -> str:
        """The rest, when no more tokens come."""
        text = self._released(self._decoded(whole=True))
        rest, self._held = ("" if self.stopped else self._held), ""
        return text + rest

    def _decoded(self, whole: bool) -> str:
        told = self.tokenizer.decode(self._ids[self._context : self._told])
        text = self.tokenizer.decode(self._ids[self._context :])
        if text.endswith(HALF) and not whole:
            return ""
        self._context, self._told = self._told, len(self._ids)
        return text[len(told) :]

    def _released(self, new: str) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        ends = [at for at in (text.find(stop) for stop in self.stop) if at >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)]
        keep = max((_overlap(text, stop) for stop in self.stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """The most characters at the end of ``text`` that a stop string may begin with."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
