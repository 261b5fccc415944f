"""Draft adapters on SGLang's projections: low-rank updates for draft tokens alone, or for every token once merged.

An update hangs on its projection as a forward hook, so that weights keep the names that SGLang loads them by. Under
tensor parallelism each process has its share of an update, cut as the projection's own weight is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from sglang.srt.distributed import tensor_model_parallel_all_reduce
from sglang.srt.layers.linear import LinearBase, RowParallelLinear
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from recguide.engine.sglang_inputs import BlockForward
from recguide.traces.errors import InputError


class Routing:
    """Which tokens of the forward that runs are drafts: all, none, or bool ``[tokens, 1]``."""

    def __init__(self) -> None:
        self.gate: bool | Tensor = False

    def follow(self, spec_info: object) -> None:
        """Take it from a forward; those that are not the plugin's, prefill above all, have no drafts."""
        if not isinstance(spec_info, BlockForward):
            self.gate = False
        elif spec_info.draft == "some":
            self.gate = spec_info.gate[:, None]
        else:
            self.gate = spec_info.draft == "all"


@dataclass(frozen=True, slots=True)
class Cut:
    """Which part of a projection's weight this process has: of its outputs, or of its inputs."""

    parts: tuple[tuple[int, int], ...]
    """Outputs of each projection that the weight is fused from, and into how many pieces they can be cut. With fewer
    pieces than processes some have the same one, as of a key head that several need. Empty: inputs are cut."""
    rank: int
    size: int

    def outputs(self, whole: Tensor) -> Tensor:
        """This process's rows of ``[outputs, ...]``."""
        if self.size == 1 or not self.parts:
            return whole
        fused = zip(whole.split([outputs for outputs, _ in self.parts]), self.parts, strict=True)
        return torch.cat([self._piece(part, min(pieces, self.size)) for part, (_, pieces) in fused])

    def _piece(self, part: Tensor, pieces: int) -> Tensor:
        if len(part) % pieces or self.size % pieces:
            raise InputError(f"--tp {self.size}: an adapter's {len(part)} outputs do not divide into {pieces} pieces")
        return part.chunk(pieces)[self.rank * pieces // self.size]

    def inputs(self, whole: Tensor) -> Tensor:
        """This process's columns of ``[..., inputs]``."""
        return whole if self.parts else whole.chunk(self.size, -1)[self.rank]


class DraftUpdate(nn.Module):
    """``b @ a`` of one projection, for draft tokens; computed in its own dtype, and added before the sum is rounded."""

    def __init__(self, projection: LinearBase, rank: int, cut: Cut, routing: Routing, dtype: torch.dtype) -> None:
        super().__init__()
        self.cut, self.routing = cut, routing
        inputs = projection.input_size // (1 if cut.parts else cut.size)
        outputs = projection.output_size // (cut.size if cut.parts else 1)
        self.a = nn.Parameter(torch.zeros(rank, inputs, dtype=dtype), requires_grad=False)
        self.b = nn.Parameter(torch.zeros(outputs, rank, dtype=dtype), requires_grad=False)
        self.merged: Tensor | None = None
        """The projection's weight with this merged, for forwards that only draft; None: those add to what it gives."""
        self._plain: nn.Parameter | None = None
        projection.register_forward_pre_hook(self._begun)
        projection.register_forward_hook(self._added)

    def load(self, a: Tensor, b: Tensor) -> None:
        """Take a whole update, ``[rank, inputs]`` and ``[outputs, rank]``."""
        self.a.copy_(self.cut.inputs(a))
        self.b.copy_(self.cut.outputs(b))

    def merge(self, projection: LinearBase) -> None:
        """Keep the weight as it is with the update, once both are there; InputError for weights that are not plain."""
        weight = _plain_weight(projection, "--merge-drafts keeps plain weights with the draft adapter")
        self.merged = torch.addmm(weight.data.float(), self.b.float(), self.a.float()).to(weight.dtype)

    def _begun(self, projection: nn.Module, _: tuple[Tensor, ...]) -> None:
        if self.routing.gate is True and self.merged is not None:
            # hooks cannot take the product's place, only the weight's
            self._plain = projection.get_parameter("weight")
            projection.weight = nn.Parameter(self.merged, requires_grad=False)

    def _added(
        self, projection: nn.Module, given: tuple[Tensor, ...], found: tuple[Tensor, Tensor | None]
    ) -> tuple[Tensor, Tensor | None] | None:
        gate, y = self.routing.gate, found[0]
        if self._plain is not None:
            projection.weight, self._plain = self._plain, None
            return None
        if gate is False:
            return None
        inner = F.linear(given[0].to(self.a.dtype), self.a)
        if self.cut.size > 1 and not self.cut.parts:
            inner = tensor_model_parallel_all_reduce(inner)
        if isinstance(gate, Tensor):
            inner = inner * gate
        if y.dtype == self.b.dtype:
            # the product adds to what is there; tokens that are no drafts get a sum with zeros
            return y.addmm_(inner, self.b.T), found[1]
        return (y + F.linear(inner, self.b)).to(y.dtype), found[1]


def merge(projection: LinearBase, cut: Cut, a: Tensor, b: Tensor) -> None:
    """Add a whole update to a projection's weight, for every token."""
    weight = _plain_weight(projection, "the adapter has updates of every token, and merges them into plain weights")
    part = cut.outputs(b).to(weight.device) @ cut.inputs(a).to(weight.device)
    if part.shape != weight.shape:
        raise InputError(
            f"--tp {cut.size}: this process has {list(weight.shape)} of a weight, and {list(part.shape)} of its adapter"
        )
    weight.data.add_(part.to(weight.dtype))


def _plain_weight(projection: LinearBase, why: str) -> nn.Parameter:
    weight = getattr(projection, "weight", None)
    if not isinstance(weight, nn.Parameter) or not weight.is_floating_point() or weight.element_size() < 2:
        raise InputError(f"quantization: {why}")
    return weight


def cut_of(projection: LinearBase, parts: Sequence[tuple[int, int]], rank: int, size: int) -> Cut:
    """How a projection is cut; ``parts`` are those that it is fused from, as in ``Cut``."""
    return Cut(() if isinstance(projection, RowParallelLinear) else tuple(parts), rank, size)
