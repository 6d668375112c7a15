"""Attention over the frames of one place: short sequences, wide values, very many of them.

Axes: N sequences, T frames, r features, m values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Mix the values of each sequence by softmax weights, and say how much each row averages.

    .. math:: w = \mathrm{softmax}(q k^\top + b), \quad \mathrm{out} = w v, \quad
              \mathrm{norm}_i = \lVert w_i \rVert_2

    The norm is 1 where a row keeps its own value and :math:`1/\sqrt T` where it averages all T:
    independent noise of deviation σ in ``v`` has deviation σ·norm in ``out``.

    Args:
        q: queries (N, T, r); no 1/√r is applied.
        k: keys (N, T, r).
        v: values (N, T, m).
        bias: one logit per key (N, T), or None.

    Returns:
        out (N, T, m) and norm (N, T).
    """
    logits = q @ k.transpose(-1, -2)
    if bias is not None:
        logits = logits + bias.unsqueeze(-2)
    w = logits.softmax(-1)
    return w @ v, w.square().sum(-1).sqrt()


def gaussian_attention(f: Tensor, v: Tensor, bandwidth: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    r"""Attention with the Gaussian kernel, as :func:`attention` computes it.

    .. math:: w_{ij} = \exp(-\lVert f_i - f_j \rVert^2 / h) \;/\; \sum_k \exp(-\lVert f_i - f_k \rVert^2 / h)

    :math:`-\lVert f_i-f_j\rVert^2 = 2 f_i^\top f_j - \lVert f_j\rVert^2 - \lVert f_i\rVert^2`, and the last
    term is the same for all keys of a row, so the softmax does not see it: q = k = √(2/h) f, b = −‖f‖²/h.

    Args:
        f: features (N, T, r).
        v: values (N, T, m).
        bandwidth: h > 0, a scalar.

    Returns:
        out (N, T, m) and norm (N, T).
    """
    scaled = f * (bandwidth**-0.5)
    q = scaled * math.sqrt(2.0)
    return attention(q, q, v, -scaled.square().sum(-1))


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """The weights softmax(q kᵀ + b) themselves (N, T, T), for pictures and tests."""
    eye = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device).expand(*k.shape[:-1], -1)
    return attention(q, k, eye, bias)[0]
