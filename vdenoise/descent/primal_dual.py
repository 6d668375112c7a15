"""One primal-dual step: down in the weights, up in the multipliers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from vdenoise.descent.constraint import LayerDescent
from vdenoise.descent.multipliers import Multipliers


@dataclass(frozen=True)
class StepReport:
    """What one step saw, without gradients: taken before the multipliers moved."""

    objective: Tensor  # f_L
    lagrangian: Tensor
    losses: Tensor  # f_0 … f_L (L + 1,)
    slacks: Tensor  # g_1 … g_L (L,)
    multipliers: Tensor  # λ_1 … λ_L (L,), after the dual step
    grad_norm: Tensor  # before clipping


class PrimalDual:
    r"""Primal-dual training of a layered network.

    .. math:: \mathcal L(\theta, \lambda) = f_L + \sum_l \lambda_l g_l, \qquad
              g_l = f_l - (1-\alpha_l) f_{l-1}

    Each step moves θ by the optimiser on 𝓛 and λ by projected ascent on the slacks (see :class:`Multipliers`). It
    costs one backward pass; the decoded intermediate layers are what the constraint costs, not the multipliers.

    Args:
        constraint: the constraint, or None for empirical risk minimisation of the last layer.
        multipliers: its multipliers; with no constraint they stay where they are.
        optimizer: of the weights; its state is the caller's to save.
        cadence: move λ after every "batch", or on :meth:`end_epoch` by the mean slacks of an "epoch".
        clip_norm: largest norm of the gradient, or None.

    Raises:
        ValueError: for another cadence.
    """

    def __init__(
        self,
        constraint: LayerDescent | None,
        multipliers: Multipliers,
        optimizer: torch.optim.Optimizer,
        *,
        cadence: str | Literal["batch", "epoch"] = "batch",
        clip_norm: float | None = None,
    ) -> None:
        if cadence not in ("batch", "epoch"):
            raise ValueError(f"cadence must be 'batch' or 'epoch', got {cadence!r}")
        self.constraint, self.multipliers, self.optimizer = constraint, multipliers, optimizer
        self.cadence, self.clip_norm = cadence, clip_norm
        self.steps = 0
        self._sum = torch.zeros_like(multipliers.values)
        self._count = 0

    def lagrangian(self, losses: Tensor, constraint_losses: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """𝓛 and the slacks.

        Args:
            losses: f_0 … f_L (L + 1,), differentiable.
            constraint_losses: the same from other samples, if the constraint is to hold on another distribution
                than the objective's (ours); None takes ``losses``.

        Returns:
            𝓛 (scalar) and g (L,).
        """
        objective = losses[-1]
        if self.constraint is None:
            return objective, losses.new_zeros(len(losses) - 1)
        g = self.constraint.slacks(losses if constraint_losses is None else constraint_losses)
        return objective + self.multipliers.values.to(g) @ g, g

    def step(self, losses: Tensor, constraint_losses: Tensor | None = None) -> StepReport:
        """One step of θ, and of λ where the cadence says so.

        Args:
            losses: as in :meth:`lagrangian`.
            constraint_losses: as in :meth:`lagrangian`.

        Returns:
            What was seen.

        Raises:
            ValueError: if a loss is not finite; nothing has changed then.
        """
        value, g = self.lagrangian(losses, constraint_losses)
        if not torch.isfinite(value.detach()):
            raise ValueError(
                f"the loss is not finite at step {self.steps} (losses {losses.tolist()});"
                " lower the learning rate or the gradient norm"
            )
        self.optimizer.zero_grad(set_to_none=True)
        value.backward()
        weights = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(weights, self.clip_norm or float("inf"))
        self.optimizer.step()
        self.steps += 1
        self._take(g.detach())
        return StepReport(
            losses[-1].detach(), value.detach(), losses.detach(), g.detach(), self.multipliers.values.clone(), norm
        )

    def _take(self, g: Tensor) -> None:
        """Slacks to the dual side. Several processes would average them here, so that all hold the same λ."""
        if self.constraint is None:
            return
        if self.cadence == "batch":
            self.multipliers.ascend(g)
        else:
            self._sum += g.to(self._sum)
            self._count += 1

    def end_epoch(self) -> None:
        """The dual step of the "epoch" cadence; nothing to do for the others."""
        if self._count:
            self.multipliers.ascend(self._sum / self._count)
            self._sum, self._count = torch.zeros_like(self._sum), 0

    def state_dict(self) -> dict[str, Any]:
        """Multipliers, counters and the slacks gathered so far; the optimiser's state is not in it."""
        return {
            "multipliers": self.multipliers.state_dict(),
            "steps": self.steps,
            "sum": self._sum.clone(),
            "count": self._count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        self.multipliers.load_state_dict(state["multipliers"])
        self.steps, self._sum, self._count = int(state["steps"]), state["sum"].clone(), int(state["count"])
