"""Prompts that begin alike: what a later one need not prefill again (prefix caching, off unless asked for)."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from recguide.traces.dense import DenseRequest, DenseTrace


class Prefix(NamedTuple):
    """What a prompt begins with."""

    keys: tuple[int, ...]
    """One for each stretch from the start on; prompts with the same key are alike up to the end of that stretch."""
    tokens: int
    """Of a stretch."""


def prefixes_of(trace: DenseTrace, page_size: int) -> list[Prefix]:
    """Those of recorded prompts, page by page: by token ids, or where there are none each prompt like itself alone."""
    return [Prefix(tuple(_keys(request, page_size)), page_size) for request in trace.requests]


def _keys(request: DenseRequest, page_size: int) -> Iterator[int]:
    ids, digest = request.prompt_ids, blake2b(digest_size=8)
    if ids is None:
        digest.update(request.prompt_sha256.encode())
    for end in range(page_size, request.prompt_tokens + 1, page_size):
        digest.update(b"page" if ids is None else ids[end - page_size : end].tobytes())
        yield int.from_bytes(digest.digest(), "big")


class Kept:
    """Stretches of prompts that were prefilled; all are kept, so this is for caches without a limit."""

    def __init__(self) -> None:
        self._keys: set[int] = set()
        self.reused_tokens = 0

    def cached(self, prefix: Prefix | None, tokens: int) -> int:
        """Tokens of a prompt of this length that are there already; at least its last one is not."""
        if prefix is None:
            return 0
        whole = next((i for i, key in enumerate(prefix.keys) if key not in self._keys), len(prefix.keys))
        return min(whole * prefix.tokens, tokens - 1)

    def keep(self, prefix: Prefix | None, tokens: int) -> None:
        """A prompt was prefilled; its last stretch stays only if it is whole."""
        if prefix is not None:
            self._keys.update(prefix.keys[: tokens // prefix.tokens])
