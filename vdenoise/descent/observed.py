"""What is observed of a truth: noise of known moments, and what clipping makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 64  # of an estimate, over which the mean of the input is taken


@dataclass(frozen=True)
class Noise:
    r"""What was put on the truth x: :math:`y = x + n`, independent values, :math:`v = g x + \sigma^2`.

    Args:
        sigma: σ ≥ 0, deviation of the part that does not depend on x.
        gain: g ≥ 0 of Poisson noise, :math:`g\,\mathrm{Poisson}(x / g)`; 0 is Gaussian noise.
        clipped: y was cut to [0, 1].

    Raises:
        ValueError: for negative or infinite numbers.
    """

    sigma: float
    gain: float = 0.0
    clipped: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.sigma < math.inf and 0 <= self.gain < math.inf):
            raise ValueError(f"sigma and gain must be at least 0, got {self.sigma} and {self.gain}")

    def variance(self, y: Tensor) -> Tensor:
        """v, unbiased from the noisy values: negative where y is far below 0, and it must be left so."""
        return (self.gain * y + self.sigma**2).expand(y.shape)

    def stronger(self, factor: float) -> Noise:
        """The same noise with ``factor`` times the deviation."""
        return Noise(self.sigma * factor, self.gain * factor**2, self.clipped)

    def clipped_moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Mean and variance of :math:`\mathrm{clip}(x + n, 0, 1)`, n Gaussian of this variance at x."""
        s = self.variance(x.clamp(min=0)).sqrt().clamp(min=1e-6)
        a, b = -x / s, (1 - x) / s
        below, above = torch.special.ndtr(a), torch.special.ndtr(-b)
        inner, at_a, at_b = 1 - below - above, _density(a), _density(b)
        mean = x * inner + s * (at_a - at_b) + above
        square = x * x * inner + 2 * x * s * (at_a - at_b) + s * s * (inner + a * at_a - b * at_b) + above
        return mean, (square - mean * mean).clamp(min=0)


def clipping(
    y: Tensor, found: Sequence[Tensor], diagonal: Sequence[Tensor], best: Tensor, noise: Noise
) -> tuple[Tensor, Tensor, list[Tensor]]:
    r"""What clipping adds to Stein's estimate, and the variance that it leaves.

    With m and v mean and variance of the clipped Gaussian, β = m − x, and V the unclipped variance:

    .. math:: 2 (v_i - V_i)\, \partial_i \Phi_i - (v_i - V_i) + 2 \beta_i (\Phi_i - m_i) + \beta_i^2

    x is read from the best layer: among all values whose estimate is alike, the mean of y is m(x), which is
    inverted.

    Args:
        y: the noisy input.
        found: L estimates Φ_l, of y's shape.
        diagonal: their ∂_i Φ_i.
        best: one of the estimates.
        noise: what y holds.

    Returns:
        the sums of it for the input and every layer (L + 1,), float64; v, of y's shape; and what is added at
        every value, L tensors.
    """
    x = unclip(y, best, noise)
    m, v = noise.clipped_moments(x)
    beta, change = m - x, v - noise.variance(y)
    square = beta.square()
    added = [
        2 * change * d - change + 2 * beta * (f - m) + square for f, d in zip(found, diagonal, strict=True)
    ]
    sums = [x.sum(dtype=torch.float64) for x in (change + square, *added)]
    return torch.stack(sums).cpu(), v, added


def unclip(y: Tensor, estimate: Tensor, noise: Noise) -> Tensor:
    """What y was before its noise was clipped: x in [0, 1] whose mean after clipping is that of y.

    The mean is taken over all values whose estimate is alike.

    Args:
        y: the noisy input, any shape.
        estimate: of what it shows, of y's shape.
        noise: what y holds.
    """
    bins = (estimate.clamp(0, 1) * (BINS - 1)).round().long().flatten()
    count = torch.bincount(bins, minlength=BINS).clamp(min=1)
    mean = torch.bincount(bins, y.flatten().double(), BINS) / count
    centre = torch.bincount(bins, estimate.flatten().double(), BINS) / count
    grid = torch.linspace(0, 1, 1025, dtype=torch.float64, device=y.device)
    reached, _ = noise.clipped_moments(grid)
    true = grid[torch.searchsorted(reached.contiguous(), mean).clamp(max=len(grid) - 1)]
    # Within a bin the estimate itself tells values apart.
    return (estimate + (true - centre)[bins].view(y.shape).to(y)).clamp(0, 1)


def _density(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
