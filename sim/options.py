"""Options inside a name: `key=value` pairs with commas between."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from recguide.traces.dense import is_risky
from recguide.traces.errors import InputError

Options = Mapping[str, Callable[[str], Any]]
"""By key, what reads its value; ValueError says what is allowed."""


def parse_options(argument: str, known: Options) -> dict[str, Any]:
    """``key=value`` pairs with commas between; ValueError for an unknown key, one given twice, or a bad value."""
    found: dict[str, Any] = {}
    for part in argument.split(",") if argument else []:
        key, _, text = part.partition("=")
        if key not in known or key in found:
            raise InputError(f"option {part!r}: allowed, once each: {', '.join(f'{name}=...' for name in known)}")
        try:
            found[key] = known[key](text)
        except ValueError as error:
            raise InputError(f"option {key}: {error}") from None
    return found


def number(least: int, most: int) -> Callable[[str], int]:
    """Reads a whole number."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise InputError(f"found {text!r}, allowed: a whole number from {least} to {most}")
        return int(text)

    return read


def one_of(*words: str) -> Callable[[str], str]:
    """Reads one of a few words."""

    def read(text: str) -> str:
        if text not in words:
            raise InputError(f"found {text!r}, allowed: {', '.join(words)}")
        return text

    return read


def yes_or_no(text: str) -> bool:
    """Reads a switch."""
    return one_of("yes", "no")(text) == "yes"


def multiple_of_a_256th(text: str) -> float:
    """Reads a threshold on margins, which are stored in steps of 1/256."""
    try:
        delta = float(text)
    except ValueError:
        raise InputError(f"found {text!r}, allowed: multiples of 1/256 between 0 and 1") from None
    is_risky(np.zeros(0, np.uint8), delta)
    return delta


def at_least_0(text: str) -> float:
    """Reads a number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"found {text!r}, allowed: a number of at least 0")
    return value


def text_of(text: str) -> str:
    """Reads any text but none."""
    if not text:
        raise InputError("found nothing")
    return text
