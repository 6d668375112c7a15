"""What the constraint promises for the expected loss of every layer, from what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vdenoise.descent.constraint import LayerDescent


@dataclass(frozen=True)
class Bound:
    r"""A certified sequence of expected losses, and where what it rests on fails.

    Args:
        losses: Ê f_0 … f_L (L + 1,), of the distribution that was sampled first.
        slacks: Ê g_1 … g_L (L,).
        excess: ζ_l (L,): what each slack may exceed 0 by, measurement error included.
        shift: C τ_l (L,): what a slack may rise by on the other distribution; 0 without one.
        sequence: the certified bound of E f_0 … f_L (L + 1,), on the other distribution where there is one.
        tight: the same with the room that the constraints have, negative slacks and all (L + 1,).
        limit: :math:`\frac1\alpha (\zeta + \frac{C \delta \nu}{1 - \delta} + C \tau)`, for ever more layers.
        price: λ_l ζ_l (L,): by duality, how much the objective would rise if the constraint held exactly.
        failures: what contradicts the assumptions, a sentence each.
    """

    losses: Tensor
    slacks: Tensor
    excess: Tensor
    shift: Tensor
    sequence: Tensor
    tight: Tensor
    limit: float
    price: Tensor
    failures: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{'layer':>5} {'E f':>9} {'certified':>9} {'slack':>9} {'zeta':>9} {'C tau':>9}"]
        for layer, (loss, bound) in enumerate(zip(self.losses.tolist(), self.sequence.tolist(), strict=True)):
            line = f"{layer:5d} {loss:9.4f} {bound:9.4f}"
            if layer:
                parts = (self.slacks[layer - 1], self.excess[layer - 1], self.shift[layer - 1])
                line += "".join(f" {float(part):9.4f}" for part in parts)
            lines.append(line)
        lines.append(f"limit for ever more layers: {self.limit:.4f}")
        return "\n".join([*lines, *(f"Caution: {text}" for text in self.failures)])


def descent_bound(
    constraint: LayerDescent,
    losses: Tensor,
    multipliers: Tensor,
    *,
    shifted: Tensor | None = None,
    delta: float = 0.01,
) -> Bound:
    r"""Bound the expected loss of every layer.

    The published bound (Porras-Valenzuela, Hadou, Ribeiro, as their poster prints it; a shift of the input's
    distribution by a distance τ adds the last term):

    .. math:: \lim_{l \to \infty} \min_{k \le l} E \Delta^*_k \le
              \frac1\alpha \Big( \zeta + \frac{C \delta \nu}{1 - \delta} + C \tau \Big), \qquad
              \Delta^*_k = f(\Phi_k) - f(Y^*)

    Its proof, step by step and with one ζ for every layer, is the sequence that is certified here:

    .. math:: B_0 = E f_0, \qquad
              B_l = (1 - \alpha_l) B_{l-1} + \zeta_l + \frac{C \delta \nu}{1 - \delta} + C \tau_l

    It knows only that the constraints hold, not with how much room; ``tight`` (ours) puts the measured slack,
    also below 0, in the place of ζ_l.

    The paper's text was not to be had; our reading of the symbols, and what is put in for them: ζ, by how
    much a constraint may be missed, is the measured slack, if above 0, and its error at confidence 1 − δ
    (normal, over all layers by Bonferroni's inequality). δ, the probability with which that fails; C ν, the
    loss that a failure can cost, is the largest mean loss of a layer or of the input. C τ, what the shift
    costs a slack, is the Wasserstein-1 distance of the single samples' slacks,
    :math:`f_l - (1 - \alpha_l) f_{l-1}`, between the two sets: the least that Kantorovich's duality allows in
    its place. f(Y*) is 0, as for squared errors.

    Args:
        constraint: the constraint, which gives α and L.
        losses: f_0 … f_L of single fresh samples (n, L + 1), n ≥ 2.
        multipliers: λ (L,) at the end of training.
        shifted: the same on another distribution (m, L + 1), or their estimates where the truth is not known.
        delta: δ, 0 < δ < 1.

    Returns:
        The bound. ``failures`` says where constraints are missed, multipliers are not at rest, a layer was
        rewarded for getting worse, or the bound says nothing.

    Raises:
        ValueError: for other shapes, fewer than two samples, or a δ out of range.
    """
    width = constraint.layers + 1
    for name, value in (("losses", losses), ("shifted", losses if shifted is None else shifted)):
        if value.ndim != 2 or value.shape[1] != width or len(value) < 2:
            raise ValueError(f"{name} must have shape (samples ≥ 2, {width}), got {tuple(value.shape)}")
    if multipliers.shape != (constraint.layers,):
        raise ValueError(
            f"multipliers must have shape ({constraint.layers},), got {tuple(multipliers.shape)}"
        )
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in 0 < δ < 1, got {delta}")
    losses, multipliers = losses.double().cpu(), multipliers.double().cpu()
    kept = torch.tensor([1 - alpha for alpha in constraint.alphas], dtype=torch.float64)
    mean, slack = losses.mean(0), losses[:, 1:] - kept * losses[:, :-1]
    sure = math.sqrt(2) * float(torch.erfinv(torch.tensor(1 - 2 * delta / width, dtype=torch.float64)))
    error = sure * slack.std(0) / len(losses) ** 0.5
    excess = slack.mean(0).clamp(min=0) + error
    failing = delta / (1 - delta) * float(mean.max())
    shift, start = torch.zeros_like(excess), losses
    if shifted is not None:
        start = shifted.double().cpu()
        other = start[:, 1:] - kept * start[:, :-1]
        shift = torch.stack([wasserstein(a, b) for a, b in zip(slack.T, other.T, strict=True)])
        failing = delta / (1 - delta) * float(start.mean(0).max())
    first = float(start[:, 0].mean() + sure * start[:, 0].std() / len(start) ** 0.5)
    sequence, tight = [first], [first]
    for layer, share in enumerate(kept.tolist()):
        other_costs = float(shift[layer]) + failing
        sequence.append(share * sequence[-1] + float(excess[layer]) + other_costs)
        tight.append(share * tight[-1] + float(slack[:, layer].mean() + error[layer]) + other_costs)
    limit = float((excess.max() + failing + shift.max()) / (1 - kept.max()))
    return Bound(
        losses=mean,
        slacks=slack.mean(0),
        excess=excess,
        shift=shift,
        sequence=torch.tensor(sequence, dtype=torch.float64),
        tight=torch.tensor(tight, dtype=torch.float64),
        limit=limit,
        price=multipliers * excess,
        failures=_failures(constraint, slack.mean(0), error, multipliers, sequence, limit),
    )


def wasserstein(a: Tensor, b: Tensor) -> Tensor:
    r"""Wasserstein-1 distance of two samples of numbers, :math:`\int |F_a^{-1}(q) - F_b^{-1}(q)|\, dq`.

    Args:
        a: (n,).
        b: (m,).
    """
    both = torch.cat([a, b]).sort().values
    ends = [torch.searchsorted(x.sort().values, both[:-1], right=True) / len(x) for x in (a, b)]
    return ((ends[0] - ends[1]).abs() * both.diff()).sum()


def _failures(
    constraint: LayerDescent,
    slack: Tensor,
    error: Tensor,
    multipliers: Tensor,
    sequence: list[float],
    limit: float,
) -> tuple[str, ...]:
    """Where what the bound rests on does not hold."""
    found = []
    missed = [layer + 1 for layer in range(len(slack)) if slack[layer] > error[layer]]
    if missed:
        found.append(f"the constraint is missed at layers {_listed(missed)}; ζ carries it")
    at_rest = [i + 1 for i in range(len(slack)) if multipliers[i] > 0 and slack[i] < -error[i]]
    if at_rest:
        found.append(f"λ > 0 at layers {_listed(at_rest)}, whose constraints hold: not at rest")
    kept = [1 - alpha for alpha in constraint.alphas]
    if not constraint.detach_previous:
        rewarded = [i + 1 for i in range(len(slack) - 1) if multipliers[i] < kept[i + 1] * multipliers[i + 1]]
        if rewarded:
            found.append(f"layers {_listed(rewarded)} are rewarded for a larger loss (negative weight)")
    else:
        found.append(
            "the gradient through f_{l−1} was stopped: the weights are no saddle point of the Lagrangian"
        )
    empty = [layer for layer in range(1, len(sequence)) if sequence[layer] >= sequence[0]]
    if empty:
        found.append(f"the bound says nothing at layers {_listed(empty)}: it is above the input's")
    if limit >= sequence[0]:
        found.append(f"the limit {limit:.3g} is above the input's loss: it says nothing")
    return tuple(found)


def _listed(layers: list[int]) -> str:
    return ", ".join(str(layer) for layer in layers)
