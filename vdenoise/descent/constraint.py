"""The layer-descent constraint, P-CUT (Porras-Valenzuela, Hadou, Ribeiro; arXiv 2601.17257)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerDescent:
    r"""Every layer lowers the expected loss by a share α_l of what the one before left.

    .. math:: E f_l \le (1 - \alpha_l)\, E f_{l-1}, \qquad l = 1 \dots L, \quad 0 < \alpha_l < 1

    f_0 is the loss of the noisy input itself. It is a difference of expectations, not a mean of ratios, and holds
    in expectation, not for each sample.

    Args:
        layers: L.
        alpha: one α for all layers, or one per layer (see :func:`linear`, :func:`geometric`). The default is the
            group's published value.
        skip_first: no constraint at l = 1, as the authors' related code has it.
        detach_previous: stop the gradient through f_{l−1}. Ours, an ablation: the exact Lagrangian gives f_l the
            weight λ_l − (1 − α_{l+1}) λ_{l+1}, which may be negative and then rewards a worse layer l.

    Raises:
        ValueError: for α outside (0, 1), or as many of them as there are no layers.
    """

    layers: int
    alpha: float | tuple[float, ...] = 0.05
    skip_first: bool = False
    detach_previous: bool = False

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"layers must be at least 1, got {self.layers}")
        if len(self.alphas) != self.layers:
            raise ValueError(
                f"alpha must be one number or one per layer ({self.layers}), got {len(self.alphas)} numbers"
            )
        for alpha in self.alphas:
            if not 0 < alpha < 1:
                raise ValueError(f"alpha must lie in 0 < α < 1, got {alpha}; 0.05 asks for 5% per layer")

    @property
    def alphas(self) -> tuple[float, ...]:
        """α_1 … α_L."""
        return self.alpha if isinstance(self.alpha, tuple) else (self.alpha,) * self.layers

    def slacks(self, losses: Tensor) -> Tensor:
        r"""How far each constraint is from holding; positive where it is violated.

        .. math:: g_l = f_l - (1 - \alpha_l) f_{l-1}

        Args:
            losses: f_0 … f_L (L + 1,), estimates of the expectations.

        Returns:
            g_1 … g_L (L,); g_1 is 0 and has no gradient with ``skip_first``.

        Raises:
            ValueError: for another number of losses.
        """
        if losses.shape != (self.layers + 1,):
            raise ValueError(
                f"losses must hold f_0 … f_{self.layers}, shape ({self.layers + 1},), got {tuple(losses.shape)}"
            )
        previous = losses[:-1].detach() if self.detach_previous else losses[:-1]
        g = losses[1:] - (1 - losses.new_tensor(self.alphas)) * previous
        return torch.cat([g.new_zeros(1), g[1:]]) if self.skip_first else g


def constant(layers: int, alpha: float) -> tuple[float, ...]:
    """The same α for every layer."""
    return (alpha,) * layers


def linear(layers: int, first: float, last: float) -> tuple[float, ...]:
    """α going evenly from ``first`` to ``last``."""
    return tuple(torch.linspace(first, last, layers, dtype=torch.float64).tolist())


def geometric(layers: int, first: float, last: float) -> tuple[float, ...]:
    """α going from ``first`` to ``last`` by a constant factor."""
    if first <= 0 or last <= 0:
        raise ValueError(f"first and last must be above 0, got {first} and {last}")
    ratio = (last / first) ** (1 / max(1, layers - 1))
    return tuple(first * ratio**l for l in range(layers))  # noqa: E741 (l is the field's name for a layer)
