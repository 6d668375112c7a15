"""Attention over the frames of one place: short sequences, wide values, very many of them.

Axes: N sequences, T frames, r features, m values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vdenoise.ops._dispatch import takes_kernel


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    r"""Mix the values of each sequence by softmax weights, and say how much each row averages.

    .. math:: w = \mathrm{softmax}(q k^\top + b), \quad \mathrm{out} = w v, \quad
              \mathrm{norm}_i = \lVert w_i \rVert_2

    The norm is 1 where a row keeps its own value and :math:`1/\sqrt T` where it averages all T:
    independent noise of deviation σ in ``v`` has deviation σ·norm in ``out``.

    Args:
        q: queries (N, T, r); no 1/√r is applied.
        k: keys (N, T, r). The kernel reads one tensor given twice, ``k is q`` or ``v is k``, once.
        v: values (N, T, m).
        bias: one logit per key (N, T), or None.
        backend: "torch", "triton" (T ≤ 64; float32, bfloat16 or float16 with float32 sums; any strides), or
            "auto": the kernel for CUDA tensors.

    Returns:
        out (N, T, m) and norm (N, T).

    Raises:
        ValueError: for an unknown backend, or "triton" where it can't run.
    """
    if takes_kernel(backend, q, k, v, *([] if bias is None else [bias])):
        out: Tensor
        norm: Tensor
        shared = (None if k is q else k, None if v is k else v)
        out, norm = torch.ops.vdenoise.attention(q, *shared, bias)
        return out, norm
    w = softmax_weights(q, k, bias)
    return w @ v, w.square().sum(-1).sqrt()


def gaussian_attention(
    f: Tensor, v: Tensor, bandwidth: Tensor | float = 1.0, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    r"""Attention with the Gaussian kernel, as :func:`attention` computes it.

    .. math:: w_{ij} = \exp(-\lVert f_i - f_j \rVert^2 / h) \;/\; \sum_k \exp(-\lVert f_i - f_k \rVert^2 / h)

    :math:`-\lVert f_i-f_j\rVert^2 = 2 f_i^\top f_j - \lVert f_j\rVert^2 - \lVert f_i\rVert^2`, and the last
    term is the same for all keys of a row, so the softmax does not see it: q = k = √(2/h) f, b = −‖f‖²/h.

    Args:
        f: features (N, T, r).
        v: values (N, T, m).
        bandwidth: h > 0, a scalar.
        backend: as in :func:`attention`.

    Returns:
        out (N, T, m) and norm (N, T).
    """
    q, bias = gaussian_logits(f, bandwidth)
    return attention(q, q, v, bias, backend)


def gaussian_logits(f: Tensor, bandwidth: Tensor | float) -> tuple[Tensor, Tensor]:
    """q = k = √(2/h) f (N, T, r) and b = −‖f‖²/h (N, T), whose softmax(q kᵀ + b) is the Gaussian kernel's."""
    scaled = f * (bandwidth**-0.5)
    return scaled * math.sqrt(2.0), -scaled.square().sum(-1)


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """The weights softmax(q kᵀ + b) themselves (N, T, T), for pictures and tests."""
    return softmax_weights(q, k, bias)


def softmax_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ + b), (N, T, T)."""
    logits = q @ k.transpose(-1, -2)
    if bias is not None:
        logits = logits + bias.unsqueeze(-2)
    return logits.softmax(-1)


def attention_gradients(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, grad_out: Tensor, grad_norm: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""The backward pass of :func:`attention` by its formula, which the kernel follows.

    .. math:: dw = d\mathrm{out}\, v^\top + \frac{d\mathrm{norm}}{\mathrm{norm}} w, \quad
              ds = w \odot (dw - \textstyle\sum_j w\, dw), \quad
              dq = ds\, k, \; dk = ds^\top q, \; dv = w^\top d\mathrm{out}, \; db_j = \textstyle\sum_i ds_{ij}

    Returns:
        dq, dk (N, T, r), dv (N, T, m), dbias (N, T).
    """
    w = softmax_weights(q, k, bias)
    norm = w.square().sum(-1).sqrt()
    ds = softmax_backward(w, grad_out @ v.transpose(-1, -2) + (grad_norm / norm).unsqueeze(-1) * w)
    return ds @ k, ds.transpose(-1, -2) @ q, w.transpose(-1, -2) @ grad_out, ds.sum(-2)


def softmax_backward(w: Tensor, dw: Tensor) -> Tensor:
    """Gradient of the logits of w = softmax(s): ds = w ⊙ (dw − Σ_j w dw)."""
    return w * (dw - (w * dw).sum(-1, keepdim=True))
