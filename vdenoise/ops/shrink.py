"""Soft thresholding, the proximal step of the ℓ1 norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def soft_threshold(u: Tensor, tau: Tensor) -> Tensor:
    r"""Shrink towards zero by τ: the minimiser of :math:`\tfrac12 \lVert z-u\rVert^2 + \tau\lVert z\rVert_1`.

    .. math:: S_\tau(u) = \mathrm{sign}(u)\,\max(|u| - \tau, 0) = u - \mathrm{clip}(u, -\tau, \tau)

    Where |u| ≤ τ both derivatives are 0; elsewhere dz/du = 1 and dz/dτ = −sign(z).

    Args:
        u: any shape.
        tau: threshold ≥ 0, broadcastable to ``u``.

    Returns:
        A tensor of ``u``'s shape.
    """
    if torch.is_grad_enabled() and (u.requires_grad or tau.requires_grad):
        shrunk: Tensor = _SoftThreshold.apply(u, tau)
        return shrunk
    return _shrink(u, tau)


def _shrink(u: Tensor, tau: Tensor) -> Tensor:
    return u - u.minimum(tau).maximum(-tau)


class _SoftThreshold(torch.autograd.Function):
    """The result alone tells both derivatives: one saved tensor and two passes, where autograd needs nine."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, tau: Tensor) -> Tensor:
        z = _shrink(u, tau)
        ctx.save_for_backward(z)
        ctx.tau_shape = tau.shape
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (z,) = ctx.saved_tensors
        sign = z.sign()
        grad_u = grad * sign.abs() if ctx.needs_input_grad[0] else None
        grad_tau = -(grad * sign).sum_to_size(ctx.tau_shape) if ctx.needs_input_grad[1] else None
        return grad_u, grad_tau
