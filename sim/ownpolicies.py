"""Policies of users' own: functions in Python files that are named on the command line."""

import importlib.util
import re
from functools import partial
from pathlib import Path

import numpy as np

from recguide.sim.policies import BlockPolicy, Informed, Outcomes
from recguide.sim.rounds import Ints
from recguide.traces.errors import InputError

_NAME = re.compile(r"(?P<path>.+\.py):(?P<function>\w+)")


def is_own(name: str) -> bool:
    """Whether a policy's name is that of a function in a file, ``path/to/file.py:function``."""
    return _NAME.fullmatch(name) is not None


def own_policy(name: str) -> Informed:
    """The function ``path/to/file.py:function``, a policy with everything that ``Outcomes`` can hold.

    The file is run. FileNotFoundError without it, ValueError when it holds no such function.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise InputError(f"policy {name!r}: allowed: path/to/file.py:function")
    path = Path(found["path"])
    if not path.is_file():
        raise FileNotFoundError(f"policy {name!r}: no file {path}")
    spec = importlib.util.spec_from_file_location(f"recguide_policy_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"policy {name!r}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InputError(f"policy {name!r}: {path}:{error.lineno}: {error.msg}") from None
    function = getattr(module, found["function"], None)
    if not callable(function):
        there = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise InputError(f"policy {name!r}: no function {found['function']!r} in {path}; there are: {there or 'none'}")
    return Informed(partial(_chosen, name, function))


def _chosen(name: str, function: BlockPolicy, seen: Outcomes) -> int | Ints:
    """What the function chooses; ValueError with the policy's name where that are no block sizes."""
    found = function(seen)
    sizes = np.asarray(found)
    if sizes.dtype.kind not in "iu" or sizes.shape not in ((), seen.request.shape):
        raise InputError(f"policy {name!r}: gave {found!r}, allowed: a whole number, or an array of one a request")
    return found
