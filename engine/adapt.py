"""Turning a causal language model into a diffusion-AR self-speculator by training low-rank updates.

Rows are ``[clean | blocks]`` (engine/blocks.py). The draft loss is the cross-entropy of block slots on the model's own
greedy text, weighted towards early positions (a draft token counts only when all before it are right; DFlash weighs
alike), mixed with the distribution of the verifying half. The AR loss holds the verifying half to the frozen base.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from recguide.engine.adapters import projections
from recguide.engine.blocks import BlockBatch, build
from recguide.engine.distill import Corpus
from recguide.engine.model import Decoder, Layer, LowRank
from recguide.traces.checks import require
from recguide.traces.errors import InputError


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train. Ranks of 0 leave an update out; with ``shared_rank`` 0 the base stays frozen and AR exact."""

    seconds: float
    steps: int = 100_000
    shared_rank: int = 64
    draft_rank: int = 96
    draft_shift: int = 0
    block_sizes: tuple[int, ...] = (4, 8, 16, 32)
    block_weights: tuple[float, ...] = (0.1, 0.2, 0.4, 0.3)
    block_tokens: int = 512
    tokens_per_step: int = 65_536
    continuation_share: float = 0.15
    decay: float = 7.0
    soft: float = 0.0
    ar_weight: float = 1.0
    learning_rate: float = 1e-3
    warmup_steps: int = 60
    seed: int = 0


def check(recipe: Recipe) -> None:
    """ValueError, naming the option of `recguide adapt`, for a recipe that cannot be followed."""
    ranks = recipe.shared_rank + recipe.draft_rank
    require(ranks > 0, "--draft-rank", recipe.draft_rank, "1 or more where --shared-rank is 0")
    largest = max(recipe.block_sizes)
    require(recipe.block_tokens >= largest, "--block-tokens", recipe.block_tokens, f"{largest} or more")
    for name in ("seconds", "decay", "learning_rate"):
        value = getattr(recipe, name)
        require(0 < value < math.inf, "--" + name.replace("_", "-"), value, "a positive number")


def add_updates(decoder: Decoder, recipe: Recipe) -> list[nn.Parameter]:
    """Freeze a decoder, give every projection fresh updates, and return all that is to be trained, in fp32."""
    decoder.requires_grad_(False)
    generator = torch.Generator(decoder.device).manual_seed(recipe.seed)
    for _, linear in projections(decoder):
        outputs, inputs = linear.weight.shape
        for rank, draft_only in ((recipe.shared_rank, False), (recipe.draft_rank, True)):
            if rank:
                a = torch.randn(rank, inputs, device=decoder.device, generator=generator) / math.sqrt(inputs)
                linear.updates.append(LowRank(a, torch.zeros(outputs, rank, device=decoder.device), draft_only))
    # the base's own row may be that of an untrained special token: start from the mean token
    decoder.mask_embedding = nn.Parameter(decoder.embed_tokens.detach().float().mean(0))
    return trainable(decoder)


def trainable(decoder: Decoder) -> list[nn.Parameter]:
    """The parameters that training changes."""
    return [parameter for parameter in decoder.parameters() if parameter.requires_grad]


class Batches:
    """Random ``[clean | blocks]`` batches from corpora of different lengths, about equally many tokens a batch."""

    def __init__(self, corpora: Sequence[Corpus], shares: Sequence[float], decoder: Decoder, recipe: Recipe) -> None:
        self.recipe, self.config, self.device = recipe, decoder.config, decoder.device
        self.random = np.random.default_rng(recipe.seed + 1000 * rank_of_process())
        self.shares = np.array(shares) / sum(shares)
        self.corpora = [
            [torch.from_numpy(array).long().to(decoder.device) for array in kept(corpus)] for corpus in corpora
        ]

    def draw(self) -> tuple[BlockBatch, Tensor, Tensor]:
        """A batch, and which clean tokens predict a response token (index of the predictor), ``[N, L]`` bool."""
        tokens, prompt_lens, response_lens = self.corpora[self.random.choice(len(self.corpora), p=self.shares)]
        recipe = self.recipe
        size = max(1, recipe.tokens_per_step // (tokens.shape[1] + recipe.block_tokens))
        rows = torch.from_numpy(self.random.integers(len(tokens), size=size)).to(self.device)
        block_size = int(self.random.choice(recipe.block_sizes, p=recipe.block_weights))
        prompts, responses = prompt_lens[rows], response_lens[rows]
        shape = (size, recipe.block_tokens // block_size)
        anchors = prompts[:, None] - 1 + (self._uniform(shape) * responses[:, None]).long()
        seeded = self._uniform(shape) >= recipe.continuation_share
        starts = (anchors + (~seeded).long()).clamp(max=tokens.shape[1] - 1)
        ends = prompts + responses
        batch = build(tokens[rows], ends, starts, seeded, block_size, self.config.mask_id, recipe.draft_shift)
        places = torch.arange(tokens.shape[1], device=self.device)
        return batch, tokens[rows], (places >= prompts[:, None] - 1) & (places < ends[:, None] - 1)

    def _uniform(self, shape: tuple[int, int]) -> Tensor:
        return torch.from_numpy(self.random.random(shape)).to(self.device)


def kept(corpus: Corpus, min_response: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arrays of a corpus without responses shorter than ``min_response`` tokens; ValueError if all of them are."""
    rows = corpus.response_lens >= min_response
    if not rows.any():
        raise InputError(f"corpus: {len(rows)} responses, and none of {min_response} tokens or more")
    return corpus.tokens[rows], corpus.prompt_lens[rows], corpus.response_lens[rows]


def rank_of_process() -> int:
    """This process's rank, 0 when training is not distributed."""
    return dist.get_rank() if dist.is_initialized() else 0


def chunked(loss: Callable[..., Tensor], *tensors: Tensor, size: int = 8192) -> Tensor:
    """The sum of ``loss`` over chunks of rows; a chunk's logits are recomputed in the backward pass, never kept.

    Chunks are alike, so that compiled code is compiled once: the last is filled up with zeros, which a loss must not
    count (its weights are among ``tensors``). Fewer rows than ``size`` make one chunk, of the next power of two.
    """
    rows = len(tensors[0])
    size = min(size, 1 << (rows - 1).bit_length())
    filled = [torch.cat([tensor, tensor.new_zeros(-rows % size, *tensor.shape[1:])]) for tensor in tensors]
    total = torch.zeros((), device=tensors[0].device)
    for parts in zip(*(tensor.split(size) for tensor in filled), strict=True):
        total = total + checkpoint(loss, *parts, use_reentrant=False)
    return total


def hard_loss(head: Tensor, soft: float, hidden: Tensor, labels: Tensor, weights: Tensor, teacher: Tensor) -> Tensor:
    """Weighted cross-entropy of draft slots on token ids, mixed with ``soft`` parts of the verifier's distribution."""
    scores = F.linear(hidden, head).float()
    cross = F.cross_entropy(scores, labels, reduction="none")
    if soft:
        target = F.linear(teacher, head).float().softmax(-1)
        cross = (1 - soft) * cross + soft * F.cross_entropy(scores, target, reduction="none")
    return (cross * weights).sum()


def soft_loss(head: Tensor, hidden: Tensor, teacher: Tensor, weights: Tensor) -> Tensor:
    """Weighted cross-entropy of the verifying half on the frozen base's distribution."""
    target = F.linear(teacher, head).float().softmax(-1)
    return (F.cross_entropy(F.linear(hidden, head).float(), target, reduction="none") * weights).sum()


def losses(
    decoder: Decoder, base: Decoder | None, batch: BlockBatch, clean: Tensor, predicts: Tensor, recipe: Recipe
) -> tuple[Tensor, Tensor]:
    """Mean draft loss and mean AR loss of a batch; the AR loss is 0 without a ``base`` to hold on to."""
    length = clean.shape[1]
    hidden = decoder.hidden(batch.ids, batch.positions, batch.mask, draft=batch.draft)
    verified, drafted = hidden[:, :length], hidden[:, length:].unflatten(1, batch.targets.shape[1:])
    weights = torch.exp(-batch.offsets.clamp(min=0) / recipe.decay).expand_as(batch.scored)[batch.scored]
    labels = clean.gather(1, batch.targets.flatten(1)).view_as(batch.targets)[batch.scored]
    rows = torch.arange(len(clean), device=clean.device)[:, None, None].expand_as(batch.targets)
    teacher = verified.detach()[rows[batch.scored], batch.targets[batch.scored] - 1]
    head = decoder.head.detach()
    draft = (
        chunked(partial(hard_loss, head, recipe.soft), drafted[batch.scored], labels, weights, teacher) / weights.sum()
    )
    if base is None:
        return draft, torch.zeros((), device=draft.device)
    with torch.no_grad():
        truth = base.hidden(clean, batch.positions[:, :length], batch.mask[:, :, :length, :length])
    weights = predicts[predicts].float()
    return draft, chunked(partial(soft_loss, head), verified[predicts], truth[predicts], weights) / weights.sum()


def train(
    decoder: Decoder,
    base: Decoder,
    corpora: Sequence[Corpus],
    shares: Sequence[float],
    recipe: Recipe,
    say: Callable[[str], None],
    prepare: Callable[[Decoder, Recipe], list[nn.Parameter]] = add_updates,
) -> dict[str, float | int]:
    """Train a decoder's updates in place for ``recipe.seconds`` at most; every process of a group trains alike.

    ``base`` is the untouched model; ``prepare`` gives the decoder its updates and returns what is to be trained.
    Returns steps, seconds and the last losses.
    """
    parameters = prepare(decoder, recipe)
    optimiser = torch.optim.AdamW(
        parameters, recipe.learning_rate, (0.9, 0.95), weight_decay=0.0, fused=decoder.device.type == "cuda"
    )
    batches = Batches(corpora, shares, decoder, recipe)
    held = base if recipe.shared_rank else None
    warm_up(decoder, held, batches, recipe)
    started, step, seen = time.monotonic(), 0, {"draft": math.nan, "ar": math.nan}
    while (done := progress(started, step, recipe, decoder.device)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate * schedule(step, done, recipe)
        with torch.autocast(decoder.device.type, torch.bfloat16):
            batch, clean, predicts = batches.draw()
            draft, ar = losses(decoder, held, batch, clean, predicts, recipe)
            loss = draft + recipe.ar_weight * ar
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(parameters)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        if step % 50 == 0:
            seen = {"draft": draft.item(), "ar": ar.item()}
            say(f"step {step} {time.monotonic() - started:.0f}s draft {seen['draft']:.3f} ar {seen['ar']:.3f}")
        step += 1
    return {"steps": step, "seconds": round(time.monotonic() - started, 1), **seen}


def warm_up(decoder: Decoder, base: Decoder | None, batches: Batches, recipe: Recipe) -> None:
    """Run a few batches forwards and backwards, so that compilation is no part of the training time."""
    for _ in range(2):
        with torch.autocast(decoder.device.type, torch.bfloat16):
            draft, ar = losses(decoder, base, *batches.draw(), recipe)
        (draft + ar).backward()


def schedule(step: int, done: float, recipe: Recipe) -> float:
    """Learning-rate factor: linear warm-up, then a cosine over the share of training ``done`` down to 2%."""
    return min(1.0, (step + 1) / recipe.warmup_steps) * max(0.02, 0.5 * (1 + math.cos(math.pi * done)))


def progress(started: float, step: int, recipe: Recipe, device: torch.device) -> float:
    """Share of the time or step budget used, the same in every process (the first one's clock counts)."""
    share = max((time.monotonic() - started) / recipe.seconds, step / recipe.steps)
    if not dist.is_initialized():
        return share
    agreed = torch.tensor(share, device=device)
    dist.broadcast(agreed, 0)
    return float(agreed)


def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Average the gradients over all processes; nothing to do in a lone one."""
    if not dist.is_initialized():
        return
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.copy_(flat[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()


def compile_parts() -> None:
    """Fuse the point-wise work of the layers and of the losses; worth its start-up time on a GPU."""
    global hard_loss, soft_loss
    Layer.projections = torch.compile(Layer.projections, dynamic=True)  # type: ignore[method-assign]
    Layer.finish = torch.compile(Layer.finish, dynamic=True)  # type: ignore[method-assign]
    hard_loss, soft_loss = torch.compile(hard_loss, dynamic=False), torch.compile(soft_loss, dynamic=False)
