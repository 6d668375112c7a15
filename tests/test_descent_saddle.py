"""A convex problem whose primal and dual solutions are known, and the same path as another library takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vdenoise.descent import LayerDescent, Multipliers, PrimalDual

ALPHAS = (0.2, 0.5, 0.3)
SOLUTION = torch.tensor([1.0, 1.0], dtype=torch.float64)


class Quadratic:
    r"""f_l(θ) = ½ ‖θ − p_l‖² + c_l, f_0 = c_0, built backwards from its solution.

    g_l has the Hessian α_l I (I for l = 1): the problem is convex though every constraint takes a difference.
    p_3 is set so that the gradient of the Lagrangian vanishes at θ* with the multipliers λ* asked for, and
    the c_l so that the g_l there are those asked for: 0 or λ*/a where λ*_l > 0, below 0 where λ*_l = 0.
    The conditions of Karush, Kuhn and Tucker hold, hence (θ*, λ*) is the solution.
    """

    def __init__(self, multipliers: tuple[float, ...], slacks: tuple[float, ...]) -> None:
        λ, kept = multipliers, [1 - alpha for alpha in ALPHAS]
        p1, p2 = torch.tensor([[0.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
        weights = (λ[0] - kept[1] * λ[1], λ[1] - kept[2] * λ[2], 1 + λ[2])
        pull = weights[0] * (SOLUTION - p1) + weights[1] * (SOLUTION - p2)
        self.centres = (p1, p2, SOLUTION + pull / weights[2])
        values = [4.0]  # f_0, then the f_l(θ*) that give these slacks
        for g, k in zip(slacks, kept, strict=True):
            values.append(g + k * values[-1])
        distances = [0.0] + [0.5 * (SOLUTION - p).square().sum().item() for p in self.centres]
        self.offsets = torch.tensor(
            [v - d for v, d in zip(values, distances, strict=True)], dtype=torch.float64
        )

    def losses(self, θ: Tensor) -> Tensor:
        terms = [0.5 * (θ - p).square().sum() for p in self.centres]
        return torch.stack([θ.new_zeros(()), *terms]) + self.offsets


def solve(problem: Quadratic, steps: int = 500, **options) -> tuple[Tensor, PrimalDual]:
    θ = torch.nn.Parameter(torch.tensor([-1.0, 3.0], dtype=torch.float64))
    constraint = LayerDescent(3, alpha=ALPHAS)
    multipliers = Multipliers(constraint, lr=0.3, **options)
    primal_dual = PrimalDual(constraint, multipliers, torch.optim.SGD([θ], lr=0.3))
    for _ in range(steps):
        report = primal_dual.step(problem.losses(θ))
    assert report.grad_norm < 1e-6
    return θ.detach(), primal_dual


@pytest.mark.parametrize(
    ("multipliers", "slacks"),
    [
        ((0.0, 0.0, 0.0), (-0.5, -0.2, -0.1)),  # nothing binds: the minimum of f_3
        ((0.5, 0.75, 0.0), (0.0, 0.0, -0.3)),  # two bind
        ((0.2, 0.75, 0.0), (0.0, 0.0, -0.3)),  # and f_1 has a negative weight, 0.2 − 0.5 · 0.75
        ((0.0, 0.0, 1.5), (-0.4, -0.2, 0.0)),  # only the last layer's
    ],
)
def test_it_converges_to_the_primal_and_the_dual_solution(multipliers, slacks):
    problem = Quadratic(multipliers, slacks)
    θ, primal_dual = solve(problem)
    torch.testing.assert_close(θ, SOLUTION, rtol=0, atol=1e-6)
    assert primal_dual.multipliers.values.tolist() == pytest.approx(multipliers, abs=1e-6)
    g = primal_dual.constraint.slacks(problem.losses(θ))
    assert g.tolist() == pytest.approx(slacks, abs=1e-6)


@pytest.mark.parametrize("slack_lr", [None, 0.05])
def test_with_resilience_it_converges_to_the_relaxed_solution(slack_lr):
    a, multipliers = 5.0, (0.5, 0.75, 0.0)
    problem = Quadratic(multipliers, (0.5 / a, 0.75 / a, -0.3))  # g = u = λ / a where it binds
    θ, primal_dual = solve(problem, resilience=a, slack_lr=slack_lr)
    torch.testing.assert_close(θ, SOLUTION, rtol=0, atol=1e-6)
    assert primal_dual.multipliers.values.tolist() == pytest.approx(multipliers, abs=1e-6)
    assert primal_dual.multipliers.slack.tolist() == pytest.approx([0.1, 0.15, 0.0], abs=1e-6)


def test_the_cone_converges_to_descent_from_the_input():
    # λ* on the second ray alone, (1 − α_2, 1, 0): f_2 ≤ (1 − α_1)(1 − α_2) f_0 binds, that is
    # g_2 + 0.5 g_1 = 0, while the constraint of layer 2 is violated, g_2 = 0.2: what the cone gives up.
    problem = Quadratic((0.4, 0.8, 0.0), (-0.4, 0.2, -0.5))
    θ, primal_dual = solve(problem, cone=True)
    torch.testing.assert_close(θ, SOLUTION, rtol=0, atol=1e-6)
    assert primal_dual.multipliers.values.tolist() == pytest.approx((0.4, 0.8, 0.0), abs=1e-6)


def test_the_multipliers_of_cooper_step_by_step():
    import cooper

    problem = Quadratic((0.5, 0.75, 0.0), (0.0, 0.0, -0.3))
    constraint = LayerDescent(3, alpha=ALPHAS)

    class Problem(cooper.ConstrainedMinimizationProblem):
        def __init__(self) -> None:
            super().__init__()
            self.descent = cooper.Constraint(
                constraint_type=cooper.ConstraintType.INEQUALITY,
                formulation_type=cooper.formulations.Lagrangian,
                multiplier=cooper.multipliers.DenseMultiplier(num_constraints=3, dtype=torch.float64),
            )

        def compute_cmp_state(self, θ: Tensor) -> cooper.CMPState:
            f = problem.losses(θ)
            # Written out, so that not even the slacks are ours.
            g = torch.stack([f[i + 1] - (1 - ALPHAS[i]) * f[i] for i in range(3)])
            return cooper.CMPState(
                loss=f[-1], observed_constraints={self.descent: cooper.ConstraintState(violation=g)}
            )

    theirs = torch.nn.Parameter(torch.tensor([-1.0, 3.0], dtype=torch.float64))
    cmp = Problem()
    cooper_optimizer = cooper.optim.SimultaneousOptimizer(
        cmp=cmp,
        primal_optimizers=torch.optim.SGD([theirs], lr=0.1),
        dual_optimizers=torch.optim.SGD(cmp.dual_parameters(), lr=0.1, maximize=True),
    )
    ours = torch.nn.Parameter(theirs.detach().clone())
    primal_dual = PrimalDual(constraint, Multipliers(constraint, lr=0.1), torch.optim.SGD([ours], lr=0.1))
    moved = set()
    for _ in range(200):
        cooper_optimizer.roll(compute_cmp_state_kwargs={"θ": theirs})
        primal_dual.step(problem.losses(ours))
        torch.testing.assert_close(
            primal_dual.multipliers.values, cmp.descent.multiplier.weight.detach(), rtol=1e-10, atol=1e-12
        )
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-10, atol=1e-12)
        moved |= {i for i, value in enumerate(primal_dual.multipliers.values) if value > 0}
    assert {0, 1} <= moved
