"""The steps behind `recguide serve`."""

import signal
import time
from pathlib import Path

import typer

from recguide.engine.garbage import settled
from recguide.engine.inputs import counts_up_to
from recguide.engine.loading import open_model
from recguide.engine.policyof import costs_of, policy_of
from recguide.engine.server_answers import Service
from recguide.engine.server_app import make_app
from recguide.engine.server_command import ServerOptions
from recguide.engine.server_connections import listening, make_server
from recguide.engine.server_limits import Gate, ServerLimits, is_loopback
from recguide.engine.server_metrics import Metrics
from recguide.engine.serving import Engine, EngineConfig
from recguide.engine.shapes import SHAPES
from recguide.engine.sizes import profiled_sizes
from recguide.engine.streaming import AsyncEngine
from recguide.engine.tokenizer import Tokenizer
from recguide.sim.batching import batching_named
from recguide.sim.memory import Limits
from recguide.traces.checks import require
from recguide.traces.errors import InputError


def run(options: ServerOptions) -> None:
    """Serve until a signal ends it; ValueError for what cannot be served."""
    local = is_loopback(options.host)
    require(local or options.api_key is not None, "--host", options.host, "one of this machine, or --api-key beside it")
    # before the model is read, which takes a while
    listener = listening(options.host, options.port)
    with listener:
        service = make_service(options)
        app = make_app(service, options.api_key, options.host)
        server = make_server(app, service.limits, options.drain_s)
        _tell(options, service, listener.getsockname()[1])
        # uvicorn raises a signal again once it has done what it asks for: by then it means nothing more
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        with settled():
            server.run(sockets=[listener])
    typer.echo("recguide serve: ended", err=True)


def _tell(options: ServerOptions, service: Service, port: int) -> None:
    host = f"[{options.host}]" if ":" in options.host else options.host
    engine = service.serving.engine
    typer.echo(
        f"recguide serve: {service.name} under {options.policy} at http://{host}:{port}/v1, "
        f"context {engine.max_context}, {engine.limits.kv_pages} KV pages of {engine.limits.page_size} tokens, "
        f"{'with' if options.api_key else 'without'} a key",
        err=True,
    )


def make_service(options: ServerOptions) -> Service:
    """The model, its engine, and what the server takes on."""
    require(options.model not in SHAPES, "model", options.model, "one with a tokenizer, which random weights have not")
    costs = costs_of(options.profile)
    batching = batching_named(options.batching)
    model = open_model(options.model, options.adapter, options.device, options.dtype, options.merge_drafts)
    if model.tokenizer is None:
        raise InputError(f"model {options.model!r}: has no tokenizer, and a server answers with text")
    longest = model.config.max_context
    require((options.max_model_len or 2) <= longest, "--max-model-len", options.max_model_len, f"up to {longest}")
    policy = policy_of(options.policy, options.block_sizes, model.config.name, costs, model.state)
    limits = _limits(options)
    sizes = profiled_sizes(options.profile, model.decoder, options.dtype)
    config = EngineConfig(
        options.block_sizes, limits, options.max_model_len, batching, False, options.enforce_eager, sizes=sizes
    )
    engine = Engine(model.decoder, policy, config)
    if engine.forwards.graphs:
        kinds = engine.prepare(counts_up_to(options.max_num_seqs))
        typer.echo(f"recguide serve: {kinds} kinds of rounds are prepared", err=True)
    return service_of(engine, model.tokenizer, _name(options), _server_limits(options), options.temperature)


def service_of(
    engine: Engine, tokenizer: Tokenizer, name: str, limits: ServerLimits, temperature: float = 1.0
) -> Service:
    """An engine as a service."""
    serving, created = AsyncEngine(engine), int(time.time())
    return Service(name, serving, tokenizer, limits, Gate(limits), Metrics(engine), temperature, created)


def _name(options: ServerOptions) -> str:
    folder = Path(options.model)
    return options.served_model_name or (folder.resolve().name if folder.is_dir() else options.model)


def _server_limits(options: ServerOptions) -> ServerLimits:
    return ServerLimits(
        max_running=options.max_num_seqs,
        max_queue=options.max_queue,
        max_streams=options.max_streams,
        max_body_bytes=options.max_body_bytes,
        max_prompt_tokens=options.max_prompt_tokens,
    )


def _limits(options: ServerOptions) -> Limits:
    """What runs at a time; without --kv-tokens the engine finds out how many pages there is memory for."""
    size, pages = options.kv_page_size, None
    if options.kv_tokens is not None:
        pages = options.kv_tokens // size
        require(pages >= 1, "--kv-tokens", options.kv_tokens, f"at least {size}, one page")
    return Limits(options.max_num_batched_tokens, options.prefill_chunk, options.max_num_seqs, size, pages)
