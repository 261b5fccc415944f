"""Launches that begin while the kernel before them still runs (CUDA's programmatic dependent launch).

What such a launch saves is its own time: the kernel is there when the one before it ends. It calls ``gdc_wait`` before
it touches any memory.
"""

from typing import Any

import torch
from torch import Tensor

LEAST_CAPABILITY = 9
"""Of GPUs that can do so: Hopper's."""


def overlapping(x: Tensor) -> dict[str, Any]:
    """Keywords of a launch on the device of ``x``; the kernel has to wait where ``OVERLAP`` says so."""
    if x.is_cuda and torch.cuda.get_device_capability(x.device)[0] >= LEAST_CAPABILITY:
        return {"OVERLAP": True, "launch_pdl": True}
    return {"OVERLAP": False}
