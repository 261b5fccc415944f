"""`recguide serve`: options, named as those of `vllm serve` where they mean the same."""

from dataclasses import dataclass
from typing import Annotated

import typer

from recguide.engine.shared_options import DTYPES, MergeDrafts, parse_block_sizes
from recguide.traces.checks import require
from recguide.traces.errors import InputError

LOCAL = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The command line, parsed and checked."""

    model: str
    adapter: str | None
    merge_drafts: bool | None
    policy: str
    profile: str | None
    batching: str
    block_sizes: tuple[int, ...]
    host: str
    port: int
    api_key: str | None
    served_model_name: str | None
    temperature: float
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    prefill_chunk: int | None
    kv_tokens: int | None
    kv_page_size: int
    enforce_eager: bool
    max_body_bytes: int
    max_prompt_tokens: int | None
    max_queue: int
    max_streams: int
    drain_s: int
    dtype: str
    device: str


def serve(
    model: Annotated[str, typer.Argument(help="smollm2-135m, a directory, or an id in the local cache")],
    adapter: Annotated[str | None, typer.Option(help="adapter file or folder, or the name of a shipped one")] = None,
    merge_drafts: MergeDrafts = None,
    policy: Annotated[str, typer.Option(help="name and options, docs/policies.md")] = "fixed:16",
    profile: Annotated[str | None, typer.Option(help="of this GPU and model, for policies that look at costs")] = None,
    batching: Annotated[str, typer.Option(help="of unequal blocks: bucket, bucket:oldest, pad, ragged")] = "bucket",
    block_sizes: Annotated[str, typer.Option(help="block sizes that rounds may have")] = "4,8,16,32",
    host: Annotated[str, typer.Option(help="another one than this machine itself asks for --api-key")] = LOCAL,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one")] = 8000,
    api_key: Annotated[str | None, typer.Option(envvar="RECGUIDE_API_KEY", help="that clients must know")] = None,
    served_model_name: Annotated[str | None, typer.Option(help="what clients call the model")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="of requests that name none")] = 1.0,
    max_model_len: Annotated[int | None, typer.Option(min=2, help="context; default: the model's")] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="requests that run at a time")] = 64,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="prompt tokens of a prefill step")] = 2048,
    prefill_chunk: Annotated[int | None, typer.Option(min=1, help="split prompts into steps of so many tokens")] = None,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="tokens that the KV cache holds")] = None,
    kv_page_size: Annotated[int, typer.Option(min=1, help="tokens of a KV page")] = 16,
    enforce_eager: Annotated[bool, typer.Option("--enforce-eager", help="do without CUDA graphs")] = False,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="of a request")] = 2**20,
    max_prompt_tokens: Annotated[int | None, typer.Option(min=1, help="default: what the context has room for")] = None,
    max_queue: Annotated[int, typer.Option(min=0, help="requests that wait beyond those that run")] = 256,
    max_streams: Annotated[int, typer.Option(min=1, help="streams open at a time")] = 256,
    drain_s: Annotated[int, typer.Option(min=0, help="seconds for answers on their way when the server ends")] = 30,
    dtype: Annotated[str, typer.Option(help="fp32 or bf16")] = "bf16",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Serve a model over HTTP, with OpenAI's API for chats and completions; docs/serve.md.

    What happens goes to stderr. Ctrl-C or SIGTERM ends the server once the answers on their way are sent.
    """
    require(dtype in DTYPES, "--dtype", dtype, " or ".join(DTYPES))
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key != ""):
        # its value belongs into no message
        raise InputError("--api-key: found one that no header can carry, allowed: ASCII without spaces around it")
    given = locals()
    fields = {name: given[name] for name in ServerOptions.__dataclass_fields__}
    options = ServerOptions(**fields | {"block_sizes": parse_block_sizes(block_sizes)})

    from recguide.engine.server_run import run

    run(options)
