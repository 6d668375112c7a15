"""Gaussian attention together with what a layer does to its result: DUST's gate and threshold, UT's residual.

Axes: N sequences, T frames, r features, m values: C channels of g codes side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vdenoise.ops._dispatch import takes_kernel
from vdenoise.ops.attention import gaussian_attention, gaussian_logits, softmax_backward, softmax_weights
from vdenoise.ops.shrink import soft_threshold

CACHED = 2**18  # bytes of u in a piece: with its temporaries it stays in a core's second-level cache


def gaussian_mix(
    f: Tensor,
    u: Tensor,
    bandwidth: Tensor | float,
    gate: Tensor | float,
    threshold: Tensor | None = None,
    per_noise: Tensor | None = None,
    sigma: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    r"""Mix frames that look alike, keep a part of each as it was, shrink by what noise is left.

    .. math:: M = \mathrm{softmax}_j(-\lVert f_i - f_j\rVert^2 / h)\, U, \qquad
              Z = S_\tau(g \odot M + (1 - g) \odot U), \qquad
              \tau_i = \tau_0 + \tau_1 \sigma \lVert w_i \rVert_2

    One layer of DUST; without thresholds Z = (1 − g) U + g M, the attention step of UT. The kernel reads
    ``u`` once and writes Z once, where the formula passes over memory many times.

    Args:
        f: features (N, T, r).
        u: values (N, T, m).
        bandwidth: h > 0, a scalar.
        gate: 0 ≤ g ≤ 1, a number or one per code (g,); m is a multiple of g, the channels share them.
        threshold: τ₀ ≥ 0 per code (g,); None for no threshold at all.
        per_noise: τ₁ ≥ 0 per code (g,); None for thresholds that do not depend on the noise.
        sigma: σ ≥ 0 (b,), each for N / b neighbouring sequences; goes with ``per_noise``.
        backend: as in :func:`vdenoise.ops.attention`.

    Returns:
        Z (N, T, m).

    Raises:
        ValueError: for parameters that do not fit one another, an unknown backend, or "triton" where it
            can't run.
    """
    _check(f, u, gate, threshold, per_noise, sigma)
    if takes_kernel(backend, f, u):
        codes = gate if isinstance(gate, Tensor) else torch.full((1,), gate, device=u.device)
        h = bandwidth if isinstance(bandwidth, Tensor) else torch.full((), bandwidth, device=u.device)
        z: Tensor = torch.ops.vdenoise.gaussian_mix(f, u, h, codes, threshold, per_noise, sigma)
        return z
    # Without gradients nothing need be kept, and a processor is done sooner with what fits in its cache.
    size = u.shape[1] * u.shape[2] * u.element_size()
    if (
        u.is_cpu
        and len(u) * size > CACHED
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    ):
        return mix_by_pieces(f, u, bandwidth, gate, threshold, per_noise, sigma, max(1, CACHED // size))
    return mix_formula(f, u, bandwidth, gate, threshold, per_noise, sigma)


def mix_formula(
    f: Tensor,
    u: Tensor,
    bandwidth: Tensor | float,
    gate: Tensor | float,
    threshold: Tensor | None,
    per_noise: Tensor | None,
    sigma: Tensor | None,
) -> Tensor:
    """:func:`gaussian_mix` by its formula, all sequences at once."""
    mixed, norm = gaussian_attention(f, u, bandwidth, "torch")
    own, mixed = by_codes(u, gate), by_codes(mixed, gate)
    x = torch.lerp(own, mixed, gate)
    if threshold is None:
        return x.view(u.shape)
    return soft_threshold(x, thresholds(norm, threshold, per_noise, sigma)).view(u.shape)


def mix_by_pieces(
    f: Tensor,
    u: Tensor,
    bandwidth: Tensor | float,
    gate: Tensor | float,
    threshold: Tensor | None,
    per_noise: Tensor | None,
    sigma: Tensor | None,
    piece: int,
) -> Tensor:
    """:func:`mix_formula` on ``piece`` sequences after another, in place: the same numbers, no gradients."""
    z = torch.empty_like(u, memory_format=torch.contiguous_format)
    q, bias = gaussian_logits(f, bandwidth)
    if sigma is not None:
        sigma = sigma.repeat_interleave(len(u) // len(sigma))
    for i in range(0, len(u), piece):
        now = slice(i, i + piece)
        w = softmax_weights(q[now], q[now], bias[now])
        x = by_codes(torch.bmm(w, u[now], out=z[now]), gate)
        torch.lerp(by_codes(u[now], gate), x, gate, out=x)
        if threshold is not None:
            norm = w.square_().sum(-1).sqrt_()
            tau = thresholds(norm, threshold, per_noise, None if sigma is None else sigma[now])
            x -= x.clamp(-tau, tau)
    return z


def by_codes(u: Tensor, gate: Tensor | float) -> Tensor:
    """(N, T, m) to (N, T, C, g), whose last axis the gate and the thresholds have."""
    return u.unflatten(-1, (-1, len(gate) if isinstance(gate, Tensor) else u.shape[-1]))


def thresholds(norm: Tensor, threshold: Tensor, per_noise: Tensor | None, sigma: Tensor | None) -> Tensor:
    """τ₀ + τ₁ σ‖w‖, broadcastable to (N, T, C, g)."""
    if per_noise is None or sigma is None:
        return threshold
    left = sigma.view(-1, 1) * norm.view(len(sigma), -1)
    return torch.addcmul(threshold, per_noise, left.view(*norm.shape, 1, 1))


def mix_gradients(
    f: Tensor,
    u: Tensor,
    bandwidth: Tensor,
    gate: Tensor,
    threshold: Tensor | None,
    per_noise: Tensor | None,
    sigma: Tensor | None,
    grad: Tensor,
) -> tuple[Tensor, ...]:
    r"""The backward pass of :func:`gaussian_mix` by its formula, which the kernel follows.

    With x = g ⊙ M + (1 − g) ⊙ U, dx = dZ where |x| > τ and 0 elsewhere, dτ = −sign(x) dx:

    .. math:: dU = (1 - g) \odot dx + w^\top (g \odot dx), \quad dg = \textstyle\sum dx \odot (M - U), \quad
              dw = (g \odot dx)\, U^\top + \frac{w}{\lVert w\rVert} \sigma \textstyle\sum_c \tau_1 d\tau

    and from ds, the gradient of the logits d_ij / h with d_ij = 2 f_iᵀf_j − ‖f_j‖²,

    .. math:: df_i = \tfrac2h \left[ \textstyle\sum_j (ds_{ij} + ds_{ji}) f_j - (\sum_j ds_{ji}) f_i \right],
              \qquad dh = -\textstyle\sum ds \odot d / h^2

    Returns:
        Gradients of f, u, bandwidth, gate, threshold, per_noise, sigma; empty for what is None.
    """
    distances = 2 * f @ f.transpose(-1, -2) - f.square().sum(-1).unsqueeze(-2)
    w = (distances / bandwidth).softmax(-1)
    norm = w.square().sum(-1).sqrt()
    own, mixed, dx = by_codes(u, gate), by_codes(w @ u, gate), by_codes(grad, gate)
    dw = torch.zeros_like(w)
    d_threshold, d_per_noise, d_sigma = (u.new_empty(0) for _ in range(3))
    if threshold is not None:
        x = torch.lerp(own, mixed, gate)
        dx = dx * (x.abs() > thresholds(norm, threshold, per_noise, sigma))
        d_tau = -x.sign() * dx
        d_threshold = d_tau.sum((0, 1, 2))
        if per_noise is not None and sigma is not None:
            level = sigma.repeat_interleave(len(u) // len(sigma)).unsqueeze(-1)
            d_per_noise = (d_tau * (level * norm)[..., None, None]).sum((0, 1, 2))
            d_left = (d_tau * per_noise).sum((-1, -2))  # of σ‖w‖, (N, T)
            d_sigma = (d_left * norm).view(len(sigma), -1).sum(-1)
            dw = w * (d_left * level / norm).unsqueeze(-1)
    d_mixed = (gate * dx).flatten(-2)
    ds = softmax_backward(w, dw + d_mixed @ u.transpose(-1, -2))
    both = ds + ds.transpose(-1, -2)
    return (
        2 / bandwidth * (both @ f - ds.sum(-2).unsqueeze(-1) * f),
        ((1 - gate) * dx).flatten(-2) + w.transpose(-1, -2) @ d_mixed,
        -(ds * distances).sum() / bandwidth.square(),
        (dx * (mixed - own)).sum((0, 1, 2)),
        d_threshold,
        d_per_noise,
        d_sigma,
    )


def _check(
    f: Tensor,
    u: Tensor,
    gate: Tensor | float,
    threshold: Tensor | None,
    per_noise: Tensor | None,
    sigma: Tensor | None,
) -> None:
    if f.ndim != 3 or u.ndim != 3 or f.shape[:2] != u.shape[:2]:
        raise ValueError(
            f"f and u must be (N, T, r) and (N, T, m), got {tuple(f.shape)} and {tuple(u.shape)}"
        )
    if (per_noise is None) != (sigma is None) or (threshold is None and per_noise is not None):
        raise ValueError(
            "per_noise and sigma go together, and with a threshold; give all three, or neither of two"
        )
    if sigma is not None and (sigma.ndim != 1 or not len(sigma) or len(u) % len(sigma)):
        raise ValueError(
            f"sigma must be (b,) with the {len(u)} sequences a multiple of b, got shape {tuple(sigma.shape)}"
        )
    codes = gate if isinstance(gate, Tensor) else None
    for name, x in (("gate", codes), ("threshold", threshold), ("per_noise", per_noise)):
        if x is not None and (x.ndim != 1 or not len(x) or u.shape[-1] % len(x)):
            raise ValueError(
                f"{name} must be (g,), {u.shape[-1]} values a multiple of g, got shape {tuple(x.shape)}"
            )
    sizes = {len(x) for x in (codes, threshold, per_noise) if x is not None}
    if len(sizes) > 1:
        raise ValueError(f"gate, threshold and per_noise must be of one length, got {sorted(sizes)}")
