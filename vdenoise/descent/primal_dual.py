"""One primal-dual step: down in the weights, up in the multipliers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vdenoise.descent.constraint import LayerDescent
from vdenoise.descent.multipliers import Multipliers


@dataclass(frozen=True)
class StepReport:
    """What one step saw: tensors without gradients, on their own device. Reading a number waits for it.

    Attributes:
        objective: f_L, before the step.
        lagrangian: 𝓛, before the step, with the multipliers as they were then.
        losses: f_0 … f_L (L + 1,) of the objective's samples, before the step.
        slacks: g_1 … g_L (L,) of the constraint's samples, before the step; 0 without a constraint.
        multipliers: λ_1 … λ_L (L,), after the step.
        grad_norm: norm of the gradient of 𝓛, before clipping.
    """

    objective: Tensor
    lagrangian: Tensor
    losses: Tensor
    slacks: Tensor
    multipliers: Tensor
    grad_norm: Tensor


class PrimalDual:
    r"""Primal-dual training of a layered network; with no constraint, plain training through the same step.

    .. math:: \mathcal L(\theta, \lambda) = f_L + \sum_l \lambda_l g_l, \qquad
              g_l = f_l - (1-\alpha_l) f_{l-1}

    Each step moves θ by the optimiser on 𝓛, and λ by projected ascent on the slacks g of the same θ
    (:class:`Multipliers`), once per batch or once per epoch on the epoch's mean slacks: the group's public
    codes have either. It costs one backward pass; what the constraint costs beyond plain training is decoding
    the intermediate layers.

    Source: Lagrangian and alternation as in arXiv 2601.17257. Clipping the gradient is ours.

    Args:
        constraint: the constraint, or None for empirical risk minimisation (ERM) of the last layer alone.
        multipliers: the multipliers of ``constraint``; without a constraint they stay where they are.
        optimizer: of the weights.
        cadence: move λ at every step ("batch"), or in :meth:`end_epoch` ("epoch").
        clip_norm: largest norm of the gradient over all weights, > 0, or None.

    Raises:
        ValueError: for another cadence, a norm that is not positive, or multipliers that are not the
            constraint's.
    """

    def __init__(
        self,
        constraint: LayerDescent | None,
        multipliers: Multipliers,
        optimizer: torch.optim.Optimizer,
        *,
        cadence: str = "batch",
        clip_norm: float | None = None,
    ) -> None:
        if cadence not in ("batch", "epoch"):
            raise ValueError(f"cadence must be 'batch' or 'epoch', got {cadence!r}")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm must be above 0, or None for no clipping, got {clip_norm}")
        if constraint is not None and multipliers.constraint != constraint:
            raise ValueError(
                f"multipliers must be of the constraint {constraint}, got those of {multipliers.constraint};"
                " make them with Multipliers(constraint, …)"
            )
        self.constraint, self.multipliers, self.optimizer = constraint, multipliers, optimizer
        self.cadence, self.clip_norm = cadence, clip_norm
        self.steps = 0
        self._sum = torch.zeros_like(multipliers.values)  # slacks since the last dual step, by epoch
        self._count = 0

    def lagrangian(self, losses: Tensor, constraint_losses: Tensor | None = None) -> Tensor:
        r"""The Lagrangian, differentiable in the losses.

        .. math:: \mathcal L = f_L + \sum_l \lambda_l\, [ f'_l - (1-\alpha_l) f'_{l-1} ]

        Args:
            losses: f_0 … f_L (L + 1,), means over the samples of the objective.
            constraint_losses: f'_0 … f'_L (L + 1,), means over other samples, where the constraint shall hold
                on another distribution than the objective's, more noise say (ours). None takes ``losses``.

        Returns:
            𝓛, a scalar; f_L without a constraint.
        """
        return self._evaluate(losses, constraint_losses)[0]

    def _evaluate(self, losses: Tensor, constraint_losses: Tensor | None) -> tuple[Tensor, Tensor]:
        """𝓛 and g."""
        if self.constraint is None:
            return losses[-1], losses.new_zeros(len(losses) - 1)
        slacks = self.constraint.slacks(losses if constraint_losses is None else constraint_losses)
        return losses[-1] + self.multipliers.values.to(slacks) @ slacks, slacks

    def step(self, losses: Tensor, constraint_losses: Tensor | None = None) -> StepReport:
        """One step of the weights, and of the multipliers where the cadence is "batch".

        The gradients of the optimiser's weights are cleared first: what was in them plays no part.

        Args:
            losses: as in :meth:`lagrangian`.
            constraint_losses: as in :meth:`lagrangian`; it has no use without a constraint.

        Returns:
            What was seen.

        Raises:
            ValueError: if a loss or the gradient is not finite. Weights, optimiser and multipliers are then
                as they were before, gradients cleared.
        """
        lagrangian, slacks = self._evaluate(losses, constraint_losses)
        self.optimizer.zero_grad(set_to_none=True)
        lagrangian.backward()
        grad_norm = self._clip()
        # Looked at once, and only now: one wait for the device per step, and ranks that share their gradients
        # all see the same norm, so that none waits for another that has stopped.
        parts = (losses, slacks, lagrangian, grad_norm)
        seen = torch.cat([part.detach().to(losses).reshape(-1) for part in parts])
        if not bool(torch.isfinite(seen).all()):
            self.optimizer.zero_grad(set_to_none=True)
            raise ValueError(
                f"losses and gradient must be finite, got losses {losses.tolist()}, slacks {slacks.tolist()},"
                f" gradient norm {float(grad_norm)} at step {self.steps}; lower the learning rate"
            )
        self._dual(slacks.detach())
        self.optimizer.step()
        self.steps += 1
        return StepReport(
            objective=losses[-1].detach(),
            lagrangian=lagrangian.detach(),
            losses=losses.detach(),
            slacks=slacks.detach(),
            multipliers=self.multipliers.values,
            grad_norm=grad_norm,
        )

    def _clip(self) -> Tensor:
        """Clip the gradient; returns its norm before."""
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        if self.clip_norm is not None:
            return torch.nn.utils.clip_grad_norm_(weights, self.clip_norm)
        return torch.nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])

    def _dual(self, slacks: Tensor) -> None:
        """The one way of the slacks to λ. Several processes would average theirs here, to agree on λ."""
        if self.constraint is None:
            return
        if self.cadence == "batch":
            self.multipliers.ascend(slacks)
        else:
            self._sum = self._sum + slacks.to(self._sum)
            self._count += 1

    def end_epoch(self) -> None:
        """The dual step of the "epoch" cadence, on the mean slacks since the last; "batch" has none."""
        if self._count:
            self.multipliers.ascend(self._sum / self._count)
            self._sum, self._count = torch.zeros_like(self._sum), 0

    def state_dict(self) -> dict[str, Any]:
        """Multipliers, counters and running sums of the epoch; the optimiser's state is the caller's to save.

        Holds tensors and plain numbers only, safe to load with ``weights_only=True``.
        """
        return {
            "multipliers": self.multipliers.state_dict(),
            "steps": self.steps,
            "sum": self._sum.clone(),
            "count": self._count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`.

        Raises:
            ValueError: if the state belongs to another number of layers.
        """
        self.multipliers.load_state_dict(state["multipliers"])
        self._sum = state["sum"].to(self._sum, copy=True)
        self.steps, self._count = int(state["steps"]), int(state["count"])
