"""Lagrange multipliers of the layers, and the resilient slack that keeps them finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vdenoise.descent.constraint import LayerDescent


class Multipliers:
    r"""λ ≥ 0, one per layer, moved by projected ascent on the dual function.

    .. math::
        \lambda &\leftarrow [\lambda + \eta_\lambda (g - u)]_+ \\
        u &\leftarrow [u - \eta_u (a u - \lambda)]_+

    λ and u start at 0. Without ``resilience`` u stays 0: the plain projected ascent of primal-dual training
    (arXiv 2601.17257). A constraint that can't be met then drives its λ up by η_λ g at every step, for ever.

    With it a constraint may be exceeded by u_l ≥ 0 at the cost h(u) = (a/2) ‖u‖² (Hounie, Ribeiro, Chamon,
    "Resilient Constrained Learning", NeurIPS 2023). The second line is a gradient step on h(u) − λᵀu with the
    new λ, at rest at u = λ/a. A violation g that can't be lowered thus ends at u = g, λ = a g. For such a g,
    and off the bounds, the two updates are linear, and converge if and only if η_u (2a + η_λ) < 4 (by the
    Jury criterion), which is checked.

    With ``cone`` λ is projected further, onto λ_l ≥ (1 − α_{l+1}) λ_{l+1} (ours; see :func:`project_cone`):
    then no f_l has a negative weight in the Lagrangian, and no layer is ever rewarded for getting worse. It
    has a price: the rays of that cone are (…, (1−α)², 1−α, 1, 0, …), whose constraints are f_k ≤ f_0 Π_{l≤k}
    (1−α_l), so it asks for descent from the input only, not from layer to layer. ``detach_previous`` makes it
    pointless.

    Args:
        constraint: whose multipliers they are.
        lr: η_λ ≥ 0; 0 keeps λ where it is.
        resilience: the cost a > 0 of slack, or None for none.
        slack_lr: η_u > 0; None is 1/a, which solves for u exactly, u = λ/a, and makes the pair the leaky
            ascent λ ← [λ + η_λ (g − λ/a)]₊ (ours).
        cone: project onto the cone.
        device: where λ and u live. That of the losses spares a wait for the device at every step.
        dtype: of λ and u. float64 adds up many small steps well, whatever the network computes in.

    Attributes:
        values: λ (L,).
        slack: u (L,).
        updates: dual steps taken.

    Raises:
        ValueError: for a rate or a cost out of range, rates that diverge, or ``cone`` with ``skip_first``.
    """

    def __init__(
        self,
        constraint: LayerDescent,
        *,
        lr: float,
        resilience: float | None = None,
        slack_lr: float | None = None,
        cone: bool = False,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        if not 0 <= lr < math.inf:
            raise ValueError(f"lr of the multipliers must be at least 0, got {lr}")
        if resilience is not None and not 0 < resilience < math.inf:
            raise ValueError(f"resilience must be above 0, or None for no slack, got {resilience}")
        if slack_lr is not None and resilience is None:
            raise ValueError(f"slack_lr must be None without resilience, got {slack_lr}; give resilience too")
        if slack_lr is not None and not 0 < slack_lr < math.inf:
            raise ValueError(f"slack_lr must be above 0, or None for 1 / resilience, got {slack_lr}")
        if cone and constraint.skip_first:
            raise ValueError("cone must be False with skip_first, got True: λ_1 = 0 would hold every λ at 0")
        if resilience is not None:
            slack_lr = 1 / resilience if slack_lr is None else slack_lr
            if not slack_lr * (2 * resilience + lr) < 4:
                raise ValueError(
                    f"slack_lr (2 resilience + lr) must be below 4 for λ to settle, got {slack_lr=},"
                    f" {resilience=}, {lr=}; lower lr or slack_lr, or raise resilience"
                )
        self.constraint, self.cone = constraint, cone
        self.lr, self.resilience, self.slack_lr = lr, resilience, slack_lr
        self.values = torch.zeros(constraint.layers, device=device, dtype=dtype)
        self.slack = torch.zeros_like(self.values)
        self.updates = 0

    def ascend(self, slacks: Tensor) -> None:
        """One dual step: λ, then u.

        Args:
            slacks: g_1 … g_L (L,) as :meth:`LayerDescent.slacks` gives them; no gradient is taken.

        Raises:
            ValueError: for another shape, or if one is not finite; nothing has changed then.
        """
        if slacks.shape != self.values.shape:
            raise ValueError(f"slacks must have shape {tuple(self.values.shape)}, got {tuple(slacks.shape)}")
        g = slacks.detach().to(self.values)
        if not bool(torch.isfinite(g).all()):
            raise ValueError(f"slacks must be finite, got {g.tolist()}; lower the rate of the weights")
        self.values = self._project(self.values + self.lr * (g - self.slack))
        if self.resilience is not None and self.slack_lr is not None:
            pull = self.resilience * self.slack - self.values
            self.slack = (self.slack - self.slack_lr * pull).clamp(min=0)
        self.updates += 1

    def _project(self, values: Tensor) -> Tensor:
        """The one place where λ is made feasible."""
        return project_cone(values, self.constraint.alphas) if self.cone else values.clamp(min=0)

    def state_dict(self) -> dict[str, Any]:
        """λ, u and the number of updates; tensors and an int, safe to load with ``weights_only=True``."""
        return {"values": self.values.clone(), "slack": self.slack.clone(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`, on this object's device and in its dtype.

        Raises:
            ValueError: if it belongs to another number of layers.
        """
        if state["values"].shape != self.values.shape:
            raise ValueError(
                f"state must hold {len(self.values)} multipliers, got {len(state['values'])};"
                " it is of a network with another number of layers"
            )
        self.values = state["values"].to(self.values, copy=True)
        self.slack = state["slack"].to(self.slack, copy=True)
        self.updates = int(state["updates"])


def project_cone(values: Tensor, alphas: Sequence[float]) -> Tensor:
    r"""The nearest point, in the Euclidean norm, of the cone on which no layer is rewarded for getting worse.

    .. math:: \{\lambda \ge 0,\ \lambda_l \ge (1-\alpha_{l+1}) \lambda_{l+1},\ l = 1 \dots L-1\}

    With :math:`c_l = \prod_{j \le l} (1-\alpha_j)` the cone says that :math:`\mu_l = c_l \lambda_l` does not
    rise with l, and the distance is a sum of squares weighted by :math:`c_l^{-2}`: isotonic regression,
    solved exactly by pooling adjacent violators. Cutting off below 0 afterwards gives the projection onto
    both (bounds commute with isotonic regression). Ours.

    Args:
        values: λ (L,), of any sign.
        alphas: α_1 … α_L; α_1 has no part in it.

    Returns:
        The projection (L,). It is computed on the processor: from another device, one wait.
    """
    # A block of pooled layers is λ_l = r_l t: t the value at its last layer, r_l the product of (1 − α) from
    # there back to l. Least squares gives t = Σ r_l λ_l / Σ r_l². In these units nothing overflows, as the
    # weights c_l^-2 would in a deep network.
    blocks: list[tuple[float, float, int]] = []  # Σ r λ, Σ r², index of the last layer
    for layer, value in enumerate(values.tolist()):
        top, bottom = value, 1.0
        while blocks:
            before_top, before_bottom, end = blocks[-1]
            r = math.prod(1 - alpha for alpha in alphas[end + 1 : layer + 1])
            if before_top / before_bottom >= r * top / bottom:
                break
            blocks.pop()
            top, bottom = r * before_top + top, r * r * before_bottom + bottom
        blocks.append((top, bottom, layer))

    projected: list[float] = []
    for top, bottom, end in blocks:
        t = max(top / bottom, 0.0)
        projected += [
            t * math.prod(1 - alpha for alpha in alphas[layer + 1 : end + 1])
            for layer in range(len(projected), end + 1)
        ]
    return values.new_tensor(projected)
