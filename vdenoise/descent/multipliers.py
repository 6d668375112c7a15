"""Lagrange multipliers of the layers, and the slack that keeps them finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vdenoise.descent.constraint import LayerDescent


class Multipliers:
    r"""λ ≥ 0, one for each layer, moved by projected ascent on the dual function.

    .. math:: \lambda \leftarrow [\lambda + \eta_\lambda (g - u)]_+, \qquad
              u \leftarrow [u - \eta_u (a u - \lambda)]_+

    Without resilience u = 0. With it a constraint may be exceeded by u at the cost h(u) = (a/2) ‖u‖² (Hounie,
    Ribeiro, Chamon, "Resilient Constrained Learning", 2023); at equilibrium u = λ/a, and λ stays finite where the
    constraint can't be met.

    Args:
        constraint: whose multipliers they are.
        lr: η_λ.
        resilience: the cost a > 0, or None for none.
        slack_lr: η_u; None is 1/(2a), half of the largest that is stable by itself.
        cone: project on λ_l ≥ (1 − α_{l+1}) λ_{l+1} after every step, so that f_l never has a negative weight in
            the Lagrangian (ours). The rays of that cone are (…, (1−α)², 1−α, 1, 0, …): it relaxes layer descent
            to f_l ≤ Π(1−α) f_0, descent from the input only.

    Raises:
        ValueError: for a step or a cost that is not positive.
    """

    def __init__(
        self,
        constraint: LayerDescent,
        *,
        lr: float,
        resilience: float | None = None,
        slack_lr: float | None = None,
        cone: bool = False,
    ) -> None:
        if lr <= 0:
            raise ValueError(f"lr of the multipliers must be above 0, got {lr}")
        if resilience is not None and resilience <= 0:
            raise ValueError(f"resilience must be above 0 or None, got {resilience}")
        if slack_lr is not None and slack_lr <= 0:
            raise ValueError(f"slack_lr must be above 0 or None, got {slack_lr}")
        self.constraint, self.lr, self.resilience, self.cone = constraint, lr, resilience, cone
        self.slack_lr = slack_lr if slack_lr is not None else 0.5 / (resilience or 1.0)
        # float64 whatever the network is in: thousands of small steps add up exactly enough to resume to the bit.
        self.values = torch.zeros(constraint.layers, dtype=torch.float64)
        self.slack = torch.zeros(constraint.layers, dtype=torch.float64)
        self.updates = 0

    def ascend(self, g: Tensor) -> None:
        """One dual step.

        Args:
            g: slacks of the constraint g_1 … g_L (L,).

        Raises:
            ValueError: if one is not finite; nothing has changed then.
        """
        g = g.detach().to("cpu", torch.float64)
        if not torch.isfinite(g).all():
            raise ValueError(f"slacks must be finite, got {g.tolist()}; lower the learning rate")
        values = self._project(self.values + self.lr * (g - self.slack))
        if self.constraint.skip_first:
            values[0] = 0.0
        if self.resilience is not None:
            self.slack = (self.slack - self.slack_lr * (self.resilience * self.slack - values)).clamp(min=0)
        self.values = values
        self.updates += 1

    def _project(self, values: Tensor) -> Tensor:
        """The one place where λ is made feasible."""
        return project_cone(values, self.constraint.alphas) if self.cone else values.clamp(min=0)

    def state_dict(self) -> dict[str, Any]:
        """λ, u and the number of updates."""
        return {"values": self.values.clone(), "slack": self.slack.clone(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`.

        Raises:
            ValueError: if it belongs to another number of layers.
        """
        if state["values"].shape != self.values.shape:
            raise ValueError(
                f"the state holds {len(state['values'])} multipliers, this network has {len(self.values)} layers"
            )
        self.values = state["values"].to(torch.float64).clone()
        self.slack = state["slack"].to(torch.float64).clone()
        self.updates = int(state["updates"])


def project_cone(values: Tensor, alphas: tuple[float, ...]) -> Tensor:
    r"""The nearest point of :math:`\{\lambda \ge 0,\ \lambda_l \ge (1-\alpha_{l+1}) \lambda_{l+1}\}`.

    With :math:`c_l = \prod_{j \le l} (1-\alpha_j)` the cone says that :math:`\mu_l = c_l \lambda_l` does not rise
    with l, and the distance is weighted by :math:`c_l^{-2}`: isotonic regression, solved exactly by pooling
    adjacent violators; non-negativity is cut off afterwards, which keeps the order.

    Args:
        values: λ (L,).
        alphas: α_1 … α_L.

    Returns:
        The projection (L,).
    """
    scale = torch.cumprod(1 - torch.tensor(alphas, dtype=values.dtype), 0)
    blocks: list[list[float]] = []  # mean of μ, weight, length
    for mu, weight in zip((values * scale).tolist(), scale.pow(-2).tolist(), strict=True):
        blocks.append([mu, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            mu2, w2, n2 = blocks.pop()
            mu1, w1, n1 = blocks.pop()
            blocks.append([(mu1 * w1 + mu2 * w2) / (w1 + w2), w1 + w2, n1 + n2])
    pooled = [max(mu, 0.0) for mu, _, count in blocks for _ in range(int(count))]
    return torch.tensor(pooled, dtype=values.dtype) / scale
