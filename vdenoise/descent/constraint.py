"""The layer-descent constraint, and schedules of its α over the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerDescent:
    r"""Every layer lowers the expected loss by at least a share α_l of what the layer before left.

    .. math:: E f_l \le (1 - \alpha_l)\, E f_{l-1}, \qquad l = 1 \dots L, \quad 0 < \alpha_l < 1

    f_l is the task loss of the output decoded after layer l, and f_0 that of the noisy input itself. The
    constraint holds between expectations: it is a difference of means over samples, not a mean of per-sample
    ratios, and single samples may climb.

    Source: problem (P-CUT) of Porras-Valenzuela, Hadou, Ribeiro, "A Constrained Optimization Perspective of
    Unrolled Transformers", arXiv 2601.17257. The default α is the value in the public code of the group's
    earlier unrolling work; which α the paper uses is not known to us.

    Args:
        layers: L, at least 1.
        alpha: one α for all layers, or one per layer (:func:`constant`, :func:`linear`, :func:`geometric`).
        skip_first: no constraint at l = 1, as one of the group's public codes has it. Wanted where f_0 may be
            0, an input without noise, which no layer can improve on.
        detach_previous: stop the gradient through f_{l−1} (ours, an ablation). The exact Lagrangian, which is
            the default, gives f_l the weight λ_l − (1 − α_{l+1}) λ_{l+1}; where that is negative it rewards a
            worse layer l. Detached, the weight is λ_l.

    Raises:
        ValueError: for no layers, an α outside (0, 1), or a number of them other than L.
    """

    layers: int
    alpha: float | tuple[float, ...] = 0.05
    skip_first: bool = False
    detach_previous: bool = False

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"layers must be at least 1, got {self.layers}")
        if isinstance(self.alpha, Sequence):  # a list, as JSON reads it
            object.__setattr__(self, "alpha", tuple(self.alpha))
        if len(self.alphas) != self.layers:
            raise ValueError(
                f"alpha must be one number or {self.layers} (one per layer), got {len(self.alphas)} numbers"
            )
        for alpha in self.alphas:
            if not 0 < alpha < 1:
                raise ValueError(f"alpha must lie in 0 < α < 1, got {alpha}; 0.05 asks every layer for 5%")

    @property
    def alphas(self) -> tuple[float, ...]:
        """α_1 … α_L, whichever way ``alpha`` was given."""
        return self.alpha if isinstance(self.alpha, tuple) else (self.alpha,) * self.layers

    def slacks(self, losses: Tensor) -> Tensor:
        r"""How far each constraint is from holding: above 0 where violated, in the units of the losses.

        .. math:: g_l = f_l - (1 - \alpha_l) f_{l-1}

        Args:
            losses: f_0 … f_L, shape (L + 1,), estimates of the expectations; differentiable.

        Returns:
            g_1 … g_L, shape (L,). With ``skip_first`` g_1 is 0 and has no gradient.

        Raises:
            ValueError: for another number of losses.
        """
        if losses.shape != (self.layers + 1,):
            raise ValueError(
                f"losses must be f_0 … f_{self.layers}, shape ({self.layers + 1},), got"
                f" {tuple(losses.shape)}; f_0 is the loss of the noisy input"
            )
        previous = losses[:-1].detach() if self.detach_previous else losses[:-1]
        kept = torch.tensor([1 - alpha for alpha in self.alphas], dtype=losses.dtype)
        kept = kept.to(losses.device, non_blocking=True)  # the device need not be waited for
        slacks = losses[1:] - kept * previous
        return torch.cat([slacks.new_zeros(1), slacks[1:]]) if self.skip_first else slacks


def constant(layers: int, alpha: float) -> tuple[float, ...]:
    r"""The same α for every layer: α_l = α.

    Args:
        layers: L.
        alpha: α.

    Returns:
        α_1 … α_L.
    """
    return (alpha,) * layers


def linear(layers: int, first: float, last: float) -> tuple[float, ...]:
    r"""α in even steps from layer to layer (ours).

    .. math:: \alpha_l = \alpha_1 + \frac{l-1}{L-1} (\alpha_L - \alpha_1)

    Args:
        layers: L.
        first: α_1; the only one where L = 1.
        last: α_L.

    Returns:
        α_1 … α_L.
    """
    return tuple(first + (last - first) * step / max(1, layers - 1) for step in range(layers))


def geometric(layers: int, first: float, last: float) -> tuple[float, ...]:
    r"""α by a constant factor from layer to layer (ours).

    .. math:: \alpha_l = \alpha_1 \left(\frac{\alpha_L}{\alpha_1}\right)^{(l-1)/(L-1)}

    Args:
        layers: L.
        first: α_1 > 0; the only one where L = 1.
        last: α_L > 0.

    Returns:
        α_1 … α_L.

    Raises:
        ValueError: for an end that is not positive.
    """
    if not (first > 0 and last > 0):
        raise ValueError(f"first and last must be above 0, got {first} and {last}; linear() takes any")
    return tuple(first * (last / first) ** (step / max(1, layers - 1)) for step in range(layers))
