"""Tensors to kernels: sizes of the tiles, strides, room for the results.

Tensors are float32, bfloat16 or float16 on one CUDA device, or on the CPU under Triton's interpreter.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from vdenoise.ops._triton.attention import attention_backward, attention_forward
from vdenoise.ops._triton.mix import mix_backward, mix_forward

PROGRAMS = 2048  # of a backward pass with parameters: fills a large card, and their sums stay in its cache
REGISTERS = 255  # of a thread at most, as the card has; the assembler's own choice is fewer, and then spills


class Tiles(NamedTuple):
    """Sizes of a kernel's tiles and how many warps share one."""

    rows: int
    features: int
    values: int
    warps: int

    @property
    def constants(self) -> dict[str, int]:
        """As the kernels name them."""
        return {"BT": self.rows, "BR": self.features, "BM": self.values}


def tiles(t: int, r: int, m: int, backward: bool) -> Tiles:
    """Tiles for sequences (t, r) and (t, m): powers of two of at least 16, as tl.dot asks.

    A thread holds what its tiles divided by the threads make up, so longer sequences get narrower tiles and
    more warps; benchmarks/run_kernels.py --static shows that nothing spills.
    """
    rows = max(16, _power_of_two(t))
    values = {16: 32, 32: 16, 64: 16} if backward else {16: 128, 32: 64, 64: 32}
    features = {16: 64, 32: 64, 64: 32}
    warps = {16: 4, 32: 8, 64: 8} if backward else {16: 2, 32: 4, 64: 8}
    return Tiles(
        rows,
        min(max(16, _power_of_two(r)), features[rows]),
        min(max(16, _power_of_two(m)), values[rows]),
        warps[rows],
    )


def _power_of_two(x: int) -> int:
    return 1 << (x - 1).bit_length()


def launch(
    kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any], warps: int
) -> None:
    """Run a kernel on the device of its first tensor."""
    if programs:
        with torch.cuda.device_of(arguments[0]):
            kernel[(programs,)](*arguments, **constants, num_warps=warps, maxnreg=REGISTERS)


def attend(q: Tensor, k: Tensor | None, v: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """out (N, T, m) and norm (N, T); k or v None is what stands before it."""
    keys = q if k is None else k
    values = keys if v is None else v
    (n, t, r), m = q.shape, values.shape[-1]
    size = tiles(t, r, m, backward=False)
    out, norm = values.new_empty(n, t, m), q.new_empty(n, t)
    strides = (*q.stride(), *keys.stride(), *values.stride(), *_strides(bias))
    shared = {"SAME_QK": k is None, "SAME_KV": v is None and r <= size.features, "BIAS": bias is not None}
    constants = {"T": t, "R": r, "M": m, **size.constants, **shared}
    launch(attention_forward, n, (q, keys, values, bias, out, norm, *strides), constants, size.warps)
    return out, norm


def attend_backward(
    q: Tensor, k: Tensor | None, v: Tensor | None, bias: Tensor | None, grad_out: Tensor, grad_norm: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, bias; empty for those that are None, whose gradient is in what they stand for."""
    keys = q if k is None else k
    values = keys if v is None else v
    (n, t, r), m = q.shape, values.shape[-1]
    size = tiles(t, r, m, backward=True)
    same_kv = v is None and r <= size.features
    dq, dv = q.new_empty(0 if same_kv and k is None else (n, t, r)), values.new_empty(n, t, m)
    dk = q.new_empty(0) if k is None else q.new_empty(n, t, r)
    dbias = q.new_empty(0) if bias is None else bias.new_empty(n, t)
    strides = (*q.stride(), *keys.stride(), *values.stride(), *_strides(bias))
    strides = (*strides, *grad_out.stride(), *grad_norm.stride())
    shared = {"SAME_QK": k is None, "SAME_KV": same_kv, "BIAS": bias is not None}
    constants = {"T": t, "R": r, "M": m, **size.constants, **shared}
    arguments = (q, keys, values, bias, grad_out, grad_norm, dq, dk, dv, dbias, *strides)
    launch(attention_backward, n, arguments, constants, size.warps)
    if v is not None:
        return dq, dk, dv, dbias
    # The kernel's one sum of all that reached the shared tensor, or sums yet to be made.
    if k is None:
        return (dv if same_kv else dq + dv), dk, q.new_empty(0), dbias
    return dq, (dv if same_kv else dk + dv), q.new_empty(0), dbias


class Tail(NamedTuple):
    """What follows the mean: gate (g,), thresholds (g,) and their slope per noise (g,), noise levels (b,)."""

    gate: Tensor
    threshold: Tensor | None
    per_noise: Tensor | None
    sigma: Tensor | None

    @property
    def flags(self) -> dict[str, bool]:
        """As the kernels name them."""
        return {"THRESHOLD": self.threshold is not None, "ADAPTIVE": self.per_noise is not None}

    def per_sigma(self, sequences: int) -> int:
        """How many neighbouring sequences have one noise level."""
        return 1 if self.sigma is None else max(1, sequences // len(self.sigma))


def mix(f: Tensor, u: Tensor, bandwidth: Tensor, tail: Tail) -> Tensor:
    """z (N, T, m)."""
    (n, t, r), m = f.shape, u.shape[-1]
    size = tiles(t, r, m, backward=False)
    z = u.new_empty(n, t, m)
    arguments = (f, u, _plain(bandwidth), *map(_plain, tail), z, *f.stride(), *u.stride(), tail.per_sigma(n))
    constants = {"T": t, "R": r, "M": m, "G": len(tail.gate), **size.constants, **tail.flags}
    launch(mix_forward, n, arguments, constants, size.warps)
    return z


def mix_gradients(
    f: Tensor, u: Tensor, bandwidth: Tensor, tail: Tail, grad: Tensor, parameters: bool
) -> tuple[Tensor, ...]:
    """Gradients of f, u, bandwidth and the tail; without ``parameters`` all but two are empty."""
    (n, t, r), (m, g) = f.shape, (u.shape[-1], len(tail.gate))
    size = tiles(t, r, m, backward=True)
    df, du = f.new_empty(n, t, r), u.new_empty(n, t, m)
    programs = min(n, PROGRAMS) if parameters else n
    rows = programs if parameters else 0
    d_inverse, d_columns, d_sigma = (
        torch.empty(shape, dtype=torch.float32, device=u.device)
        for shape in ((rows,), (rows, 3, m), (n if parameters and tail.sigma is not None else 0,))
    )
    results = (df, du, d_inverse, d_columns, d_sigma)
    strides = (*f.stride(), *u.stride(), *grad.stride(), tail.per_sigma(n))
    arguments = (f, u, _plain(bandwidth), *map(_plain, tail), grad, *results, *strides, n, programs)
    constants = {"T": t, "R": r, "M": m, "G": g, **size.constants, **tail.flags, "PARAMETERS": parameters}
    launch(mix_backward, programs, arguments, constants, size.warps)
    if not parameters:
        return df, du, *(u.new_empty(0) for _ in range(5))
    by_code = d_columns.view(rows, 3, m // g, g)
    sums = (*(by_code[:, i].sum((0, 1)) for i in range(3)), d_sigma.view(-1, tail.per_sigma(n)).sum(1))
    d_tail = (u.new_empty(0) if x is None else total.to(x.dtype) for x, total in zip(tail, sums, strict=True))
    return df, du, (-d_inverse.sum() / bandwidth.float().square()).to(bandwidth.dtype), *d_tail


def _plain(x: Tensor | None) -> Tensor | None:
    """A small parameter as the kernels read it: float32, one after another."""
    return None if x is None else x.float().contiguous()


def _strides(bias: Tensor | None) -> tuple[int, ...]:
    return (0, 0) if bias is None else bias.stride()
