"""Which implementation of an operation runs: plain PyTorch or the Triton kernels.

``backend="torch"`` is the plain formula. ``"triton"`` is the fused kernel, and raises where it can't run.
``"auto"`` takes the kernel for tensors on a CUDA device and the formula elsewhere; where the kernel can't
serve a CUDA tensor it warns, once, and takes the formula.
"""

from __future__ import annotations

import importlib.util
import os
import warnings

import torch
from torch import Tensor

BACKENDS = ("torch", "triton", "auto")
LONGEST = 64  # frames of a sequence whose T×T weights a kernel holds on the chip
TYPES = (torch.float32, torch.bfloat16, torch.float16)
# Constants, so that torch.compile traces past them. Triton comes with PyTorch for CUDA on Linux; whether it
# emulates kernels on the CPU it reads once, at its own import.
INSTALLED = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def takes_kernel(backend: str, *tensors: Tensor) -> bool:
    """Whether the kernel runs for these inputs (N, T, ·).

    Raises:
        ValueError: for an unknown backend, or "triton" where it can't run.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "torch" or (backend == "auto" and not tensors[0].is_cuda):
        return False
    problem = obstacle(*tensors)
    if problem is None:
        return True
    if backend == "triton":
        raise ValueError(
            f"backend 'triton' can't run here: {problem}; use 'torch', or 'auto' to choose by itself"
        )
    warnings.warn(f"attention by plain PyTorch, slower: {problem}", stacklevel=2)
    return False


def obstacle(*tensors: Tensor) -> str | None:
    """Why the kernels can't take these inputs, None if they can."""
    first = tensors[0]
    if not INSTALLED:
        return "triton is not installed"
    if not kernels_serve(first):
        return (
            f"tensors must be on a CUDA device, got {first.device} (TRITON_INTERPRET=1 emulates one, slowly)"
        )
    if first.shape[-2] > LONGEST:
        return f"sequences must have at most {LONGEST} frames, got {first.shape[-2]}"
    for x in tensors:
        if x.dtype not in TYPES:
            return f"tensors must be float32, bfloat16 or float16, got {x.dtype}"
        if x.device != first.device:
            return f"tensors must be on one device, got {first.device} and {x.device}"
    return None


def kernels_serve(x: Tensor) -> bool:
    """Whether Triton has a device for this tensor: a CUDA one, or its interpreter on the CPU."""
    return x.is_cuda or (x.device.type == "cpu" and INTERPRETED)
