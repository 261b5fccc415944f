"""Where training text comes from: prompt files, and prompts that the model writes itself from a few first words."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from recguide.engine.distill import Corpus
from recguide.engine.tokenizer import Tokenizer
from recguide.traces.errors import InputError
from recguide.traces.files import replacing

# first words of prompts that the model completes: much code and mathematics, since those are scarce in prompt files
OPENINGS = (
    "Write a Python function to ",
    "Write a python function that ",
    "Write a function to find ",
    "Write a function to check ",
    "Write a Python program that ",
    "Complete the following Python function. Reply with the whole function.\n\n```python\n",
    "Complete the following Python function. Reply with the whole function.\n\n```python\ndef ",
    "Complete the following Python function.\n\n```python\nfrom typing import List\n\n\ndef ",
    "You are given an array of integers ",
    "You are given a string ",
    "Implement a Python class ",
    "If ",
    "Find the ",
    "What is the value of ",
    "How many ",
    "Solve for ",
    "Let ",
    "A ",
    "John has ",
    "Which of the following ",
    "Explain ",
    "Write a ",
    "Describe ",
    "",
    "",
    "",
)


def save_corpus(path: Path, corpus: Corpus) -> None:
    """Write a corpus as a compressed npz file, through a temporary name."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            tokens=corpus.tokens.astype(np.uint32 if corpus.tokens.max() > 65_535 else np.uint16),
            prompt_lens=corpus.prompt_lens,
            response_lens=corpus.response_lens,
        )


def load_corpus(path: Path) -> Corpus:
    """Read what :func:`save_corpus` wrote."""
    try:
        # opened here: numpy does not close a file that it cannot read
        with path.open("rb") as raw, np.load(raw) as file:
            arrays = [file[name].astype(np.int32) for name in ("tokens", "prompt_lens", "response_lens")]
    except (OSError, KeyError, ValueError, EOFError, BadZipFile) as error:
        raise InputError(f"{path}: not a corpus file ({error})") from error
    return Corpus(*arrays)


def read_training_prompts(path: Path) -> list[str]:
    """The ``prompt`` of every line of a JSONL file, gzipped or not."""
    opener = gzip.open if path.suffix == ".gz" else open
    prompts = []
    with opener(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                prompts.append(str(json.loads(line)["prompt"]))
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise InputError(f"{path}:{number}: expected an object with a 'prompt', found {line[:60]!r}") from error
    return prompts


def encode_prompts(tokenizer: Tokenizer, prompts: Sequence[str], longest: int, shortest: int = 0) -> list[list[int]]:
    """Chat-encoded prompts of more than ``shortest`` and at most ``longest`` tokens; the others are left out."""
    encoded = [tokenizer.encode_chat(prompt) for prompt in prompts]
    return [ids for ids in encoded if shortest < len(ids) <= longest]


def user_openings(tokenizer: Tokenizer) -> tuple[list[list[int]], list[int]]:
    """Token ids up to where a user starts to speak, one for each opening, and the ids that close a user's turn.

    Found by encoding a marker, so that they follow whatever chat template the model has.
    """
    marker = tokenizer.encode("\u2603")
    whole = tokenizer.encode_chat("\u2603")
    at = next((i for i in range(len(whole)) if whole[i : i + len(marker)] == marker), None)
    if at is None:
        raise InputError("tokenizer: the chat template does not keep the user's text apart from its own")
    openings = [[*whole[:at], *tokenizer.encode(opening)] for opening in OPENINGS]
    return openings, whole[at + len(marker) :]
