"""A model as SGLang finds it, and the arguments that its engine is started with."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from recguide.engine import smollm2
from recguide.engine.bench_load import BenchLoad
from recguide.engine.checkpoints import read_weights, weights_sha256
from recguide.engine.configs import read_config
from recguide.engine.export import export, export_shape
from recguide.engine.hub import cached_folder
from recguide.engine.loading import LoadedModel, adapter_ranks, find_adapter, load_model
from recguide.engine.model import Decoder, ModelConfig
from recguide.engine.shapes import SHAPES, random_sha256
from recguide.engine.shared_options import DTYPES
from recguide.engine.tokenizer import Tokenizer, read_tokenizer
from recguide.traces.files import file_sha256

if TYPE_CHECKING:
    from recguide.engine.bench_sglang_command import SglangOptions

PAGE_SIZE = 16
"""Of our engines on a GPU: fewer pages to look up. SGLang's own keep its default."""
MERGED = "as stored, with the adapter's updates of every token"
BASELINE = {"sglang:ar": {}, "sglang:ngram": {"speculative_algorithm": "NGRAM"}}


@dataclass(frozen=True, slots=True)
class Model:
    """A directory that SGLang loads, and what is known of the model in it."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer | None
    weights_sha256: str
    adapter: str | None
    drawn: bool
    """Whether weights are random, and SGLang's to draw."""
    merged: Path | None = None
    """The same with what an adapter adds for every token: our policies merge that, and baselines load it."""

    @property
    def told(self) -> str:
        """Which weights all engines serve."""
        return MERGED if self.merged else "as stored"

    def loaded(self) -> LoadedModel:
        """What prompts are made for; there are no weights in it."""
        return LoadedModel(Decoder(self.config, "meta", torch.float32), self.tokenizer, self.weights_sha256, None)


def model_of(name: str, adapter: str | None, dtype: str = "bf16") -> Model:
    """The model of that name, directory or id. Those that only we know are written as directories into the cache.

    So are those that an adapter changes for every token, in the precision ``dtype`` that they are served in.
    """
    model = _base(name, adapter)
    if adapter is None or model.drawn or not adapter_ranks(path := find_adapter(adapter, name))[0]:
        return model
    folder = _cache(f"{model.folder.name}-{file_sha256(path)[:12]}-{dtype}")
    if not (folder / "model.safetensors").exists():
        # merged in the served precision, as the plugin does
        export(load_model(name, "cpu", getattr(torch, DTYPES[dtype]), path), folder)
    return replace(model, merged=folder)


def _base(name: str, adapter: str | None) -> Model:
    if name in SHAPES:
        folder = _cache(name)
        export_shape(SHAPES[name], folder)
        return Model(folder, SHAPES[name], None, random_sha256(SHAPES[name], 0), adapter, drawn=True)
    if name == smollm2.NAME:
        folder = _cache(name)
        loaded = load_model(name, "cpu", torch.float32)
        if not (folder / "model.safetensors").exists():
            export(loaded, folder)
        return Model(folder, loaded.config, loaded.tokenizer, loaded.weights_sha256, adapter, drawn=False)
    folder = Path(name) if Path(name).is_dir() else cached_folder(name)
    config = read_config(folder, None if Path(name).is_dir() else name)
    digest = weights_sha256(read_weights(folder, config).tensors)
    return Model(folder, config, read_tokenizer(folder), digest, adapter, drawn=False)


def _cache(name: str) -> Path:
    folder = smollm2.cache_folder() / "sglang" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine runs, and how much of it there is."""

    device: torch.device
    most_running: int
    folder: Path
    """Its own."""
    trace: Path
    """That acceptance is forced from."""


def arguments_of(options: "SglangOptions", model: Model, load: BenchLoad, name: str, place: Place) -> dict[str, Any]:
    """What an engine is started with: for our policies those of the plugin, for baselines SGLang's own."""
    longest = options.max_model_len or load.longest(options.block_sizes[-1])
    common = {
        "model_path": str(model.merged or model.folder if name in BASELINE else model.folder),
        "skip_tokenizer_init": True,
        "dtype": DTYPES[options.dtype],
        "context_length": min(longest, model.config.max_context),
        "max_running_requests": place.most_running,
        # measured runs are replayed without reused prefixes
        "disable_radix_cache": True,
        "grammar_backend": "none",
        "sampling_backend": "pytorch",
        "load_format": "dummy" if model.drawn else "auto",
        "log_level": "error",
        "random_seed": options.seed,
        **_of_device(place),
    }
    own = BASELINE[name] if name in BASELINE else _of_plugin(options, model, load, name, place)
    return {**common, **options.arguments, **own}


def _of_device(place: Place) -> dict[str, Any]:
    if place.device.type == "cpu":
        return {
            "device": "cpu",
            "attention_backend": "torch_native",
            "disable_cuda_graph": True,
            "mem_fraction_static": 0.1,
            "max_total_tokens": 16384,
        }
    return {"cuda_graph_max_bs_decode": place.most_running, "cuda_graph_backend_prefill": "disabled"}


def _of_plugin(options: "SglangOptions", model: Model, load: BenchLoad, name: str, place: Place) -> dict[str, Any]:
    told: dict[str, Any] = {
        "policy": name,
        "block_sizes": list(options.block_sizes),
        "batching": options.batching,
        "log": str(place.folder / "log"),
    }
    if options.profile is not None:
        told["profile"] = options.profile
    if load.judge is not None:
        told["forced_trace"] = str(place.trace)
    if options.merge_drafts:
        told["merge_drafts"] = True
    return {
        "speculative_algorithm": "RECGUIDE",
        "speculative_adaptive_config": json.dumps(told),
        "speculative_draft_model_path": model.adapter,
        **({} if place.device.type == "cpu" else {"attention_backend": "recguide", "page_size": PAGE_SIZE}),
    }
