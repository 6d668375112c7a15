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

    A thread holds what its tiles divided by the threads make up, so longer sequences get narrower tiles and more
    warps; benchmarks/run_kernels.py --static shows that nothing spills.
    """
    rows = max(16, _power_of_two(t))
    width = {16: 128, 32: 64, 64: 32}[rows]
    if backward:
        width = {16: 64, 32: 32, 64: 32}[rows]
    warps = {16: 2, 32: 4, 64: 8}[rows]
    return Tiles(rows, min(max(16, _power_of_two(r)), 64), min(max(16, _power_of_two(m)), width), warps)


def _power_of_two(x: int) -> int:
    return 1 << (x - 1).bit_length()


def attend(q: Tensor, k: Tensor | None, v: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """out (N, T, m) and norm (N, T); k or v None is what stands before it."""
    keys = q if k is None else k
    values = keys if v is None else v
    n, t, r = q.shape
    m = values.shape[-1]
    size = tiles(t, r, m, backward=False)
    out, norm = values.new_empty(n, t, m), q.new_empty(n, t)
    if n:
        with torch.cuda.device_of(q):
            attention_forward[(n,)](
                q, keys, values, bias, out, norm,
                *q.stride(), *keys.stride(), *values.stride(), *_strides(bias, 2),
                T=t, R=r, M=m, **size.constants, BIAS=bias is not None,
                SAME_QK=k is None, SAME_KV=v is None and r <= size.features, num_warps=size.warps,
            )  # fmt: skip
    return out, norm


def attend_backward(
    q: Tensor, k: Tensor | None, v: Tensor | None, bias: Tensor | None, grad_out: Tensor, grad_norm: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, bias; empty for those that are None, whose gradient is in what they stand for."""
    keys = q if k is None else k
    values = keys if v is None else v
    n, t, r = q.shape
    m = values.shape[-1]
    size = tiles(t, r, m, backward=True)
    same_kv = v is None and r <= size.features
    dq, dv = q.new_empty(n, t, r), values.new_empty(n, t, m)
    dk = q.new_empty((n, t, r) if k is not None else 0)
    dbias = q.new_empty(0) if bias is None else bias.new_empty(n, t)
    if n:
        with torch.cuda.device_of(q):
            attention_backward[(n,)](
                q, keys, values, bias, grad_out, grad_norm, dq, dk, dv, dbias,
                *q.stride(), *keys.stride(), *values.stride(), *_strides(bias, 2),
                *grad_out.stride(), *grad_norm.stride(),
                T=t, R=r, M=m, **size.constants, BIAS=bias is not None,
                SAME_QK=k is None, SAME_KV=same_kv, num_warps=size.warps,
            )  # fmt: skip
    nothing = q.new_empty(0)
    if v is not None:
        return dq, dk, dv, dbias
    # The kernel's one sum of all that reached the shared tensor, or sums yet to be made.
    if k is None:
        return (dv if same_kv else dq + dv), nothing, nothing, dbias
    return dq, (dv if same_kv else dk + dv), nothing, dbias


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
    n, t, r = f.shape
    m = u.shape[-1]
    size = tiles(t, r, m, backward=False)
    tail = Tail(*map(_plain, tail))
    z = u.new_empty(n, t, m)
    if n:
        with torch.cuda.device_of(u):
            mix_forward[(n,)](
                f, u, _plain(bandwidth), *tail, z, *f.stride(), *u.stride(), tail.per_sigma(n),
                T=t, R=r, M=m, G=len(tail.gate), **size.constants, **tail.flags, num_warps=size.warps,
            )  # fmt: skip
    return z


def mix_gradients(
    f: Tensor, u: Tensor, bandwidth: Tensor, tail: Tail, grad: Tensor, parameters: bool
) -> tuple[Tensor, ...]:
    """Gradients of f, u, bandwidth, gate, threshold, per_noise, sigma; without ``parameters`` only two are not empty."""
    n, t, r = f.shape
    m, g = u.shape[-1], len(tail.gate)
    size = tiles(t, r, m, backward=True)
    tail, h = Tail(*map(_plain, tail)), _plain(bandwidth)
    programs = min(n, PROGRAMS) if parameters else n
    df, du = f.new_empty(n, t, r), u.new_empty(n, t, m)
    rows = programs if parameters else 0
    wide: dict[str, Any] = {"dtype": torch.float32}
    d_inverse, d_columns = u.new_empty(rows, **wide), u.new_empty(rows, 3, m, **wide)
    d_sigma = u.new_empty(n if parameters and tail.sigma is not None else 0, **wide)
    if n:
        with torch.cuda.device_of(u):
            mix_backward[(programs,)](
                f, u, h, *tail, grad, df, du, d_inverse, d_columns, d_sigma,
                *f.stride(), *u.stride(), *grad.stride(), tail.per_sigma(n), n, programs,
                T=t, R=r, M=m, G=g, **size.constants, **tail.flags, PARAMETERS=parameters, num_warps=size.warps,
            )  # fmt: skip
    if not parameters:
        return df, du, *(u.new_empty(0) for _ in range(5))
    d_bandwidth = -d_inverse.sum() / h.square()
    d_gate, d_tau0, d_tau1 = d_columns.view(rows, 3, m // g, g).sum((0, 2))
    empty = u.new_empty(0)
    return (
        df,
        du,
        d_bandwidth.to(bandwidth.dtype),
        d_gate.to(tail.gate.dtype),
        empty if tail.threshold is None else d_tau0,
        empty if tail.per_noise is None else d_tau1,
        empty if tail.sigma is None else d_sigma.view(len(tail.sigma), -1).sum(1),
    )


def _plain(x: Tensor | None) -> Tensor | None:
    """A small parameter as the kernels read it: float32, one after another."""
    return None if x is None else x.float().contiguous()


def _strides(x: Tensor | None, count: int) -> tuple[int, ...]:
    return (0,) * count if x is None else x.stride()
