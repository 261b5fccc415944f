"""Where the points of a sweep are computed: processes of this machine, or a Ray or Dask cluster, through joblib."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import joblib
from joblib.externals.loky import get_reusable_executor

from recguide.traces.errors import InputError

BACKENDS = ("loky", "ray", "dask")
NEEDS = {"ray": "ray.util.joblib", "dask": "dask.distributed"}


def check_backend(name: str) -> None:
    """ValueError for a backend that is unknown, or whose package is not installed."""
    if name not in BACKENDS:
        raise InputError(f"backend: found {name!r}, allowed: {', '.join(BACKENDS)}")
    _loaded(name)


def _loaded(name: str) -> Any:  # noqa: ANN401 - a module of a package that need not be there
    try:
        return import_module(NEEDS[name]) if name in NEEDS else None
    except ImportError as error:
        raise InputError(f"backend {name}: {error}; pip install 'recguide[{name}]' brings it") from None


@contextmanager
def running_on(name: str) -> Iterator[dict[str, str]]:
    """Let joblib use the backend inside the block; gives what ``joblib.Parallel`` must be told for it.

    Ray is reached as its own ``RAY_ADDRESS`` says, Dask as ``DASK_SCHEDULER_ADDRESS`` does; without them both start on
    this machine.
    """
    check_backend(name)
    module = _loaded(name)
    if name == "ray":
        module.register_ray()
    client = module.Client() if name == "dask" else None
    try:
        with joblib.parallel_config(backend=name):
            # a cluster hands its results over together
            yield {"return_as": "generator" if name == "loky" else "list"}
    except KeyboardInterrupt:
        # a worker that was just starting would otherwise wait for work for good, and this process for the worker
        get_reusable_executor().shutdown(kill_workers=True)
        raise
    finally:
        if client is not None:
            client.close()
