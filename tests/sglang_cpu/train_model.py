"""Makes the small trained model beside this file: `python tests/sglang_cpu/train_model.py`, a few minutes on one core.

It goes on with what a text repeats, and drafts as well as verifies: each step trains the next token of texts and,
behind them, blocks whose masks see each other. It is left half trained, so that drafts are accepted in part and margins
are low in places. Heads of 64 are what the kernels take. Seeds are fixed, and one thread adds in one order.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional as F  # noqa: N812

from recguide.engine.blocks import build
from recguide.engine.configs import read_config
from recguide.engine.model import Decoder
from recguide.engine.shapes import random_decoder

FOLDER = Path(__file__).with_name("model")
STEPS, ROWS, LENGTH, BLOCKS = 900, 32, 72, 6
FIRST_SYMBOL = 4
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "intermediate_size": 256,
    "vocab_size": 68,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "mask_token_id": 3,
}


def texts(rows: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """``[rows, length]`` Patterns of 3 to 7 symbols, repeated, every second one moved up by one symbol a repetition."""
    symbols = CONFIG["vocab_size"] - FIRST_SYMBOL
    periods = torch.randint(3, 8, (rows, 1), generator=generator)
    patterns = torch.randint(symbols, (rows, 7), generator=generator)
    moves = torch.randint(2, (rows, 1), generator=generator)
    places = torch.arange(length)
    return FIRST_SYMBOL + (patterns.gather(1, places % periods) + moves * (places // periods)) % symbols


def loss_of(decoder: Decoder, generator: torch.Generator) -> torch.Tensor:
    """Of the next tokens of some texts, and of blocks behind them."""
    clean = texts(ROWS, LENGTH, generator)
    size = (4, 8, 16)[int(torch.randint(3, (), generator=generator))]
    starts = torch.randint(12, LENGTH - size, (ROWS, BLOCKS), generator=generator)
    seeded = torch.rand((ROWS, BLOCKS), generator=generator) < 0.7
    ends = torch.full((ROWS,), LENGTH)
    batch = build(clean, ends, starts, seeded, size, decoder.config.mask_id, 0)
    hidden = decoder.hidden(batch.ids, batch.positions, batch.mask)
    logits = F.linear(hidden, decoder.head)
    following = F.cross_entropy(logits[:, 11 : LENGTH - 1].flatten(0, 1), clean[:, 12:].flatten())
    wanted = clean.gather(1, batch.targets.flatten(1)).flatten()[batch.scored.flatten()]
    drafted = logits[:, LENGTH:].flatten(0, 1)[batch.scored.flatten()]
    return following + F.cross_entropy(drafted, wanted)


def trained() -> Decoder:
    """The decoder after all steps."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    decoder = random_decoder(replace(read_config(FOLDER), name="toy"), "cpu", torch.float32, 0).requires_grad_(True)
    optimizer = torch.optim.AdamW(decoder.parameters(), 3e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, STEPS, pct_start=0.1)
    for step in range(STEPS):
        loss = loss_of(decoder, generator)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 99:
            print(step + 1, round(loss.item(), 3), flush=True)
    return decoder


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    decoder = trained()
    tensors = {
        name if name.startswith("lm_head") else f"model.{name}": tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in decoder.places().items()
    }
    save_file(tensors, FOLDER / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main()
