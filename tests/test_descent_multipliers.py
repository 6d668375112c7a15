"""The dual side: projected ascent, the resilient slack, the cone."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vdenoise.descent import LayerDescent, Multipliers, project_cone

number = st.floats(-10, 10, allow_nan=False, width=32)
share = st.floats(0.01, 0.99)
fast = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def point_and_alphas(draw, largest: int = 8) -> tuple[Tensor, tuple[float, ...]]:
    layers = draw(st.integers(1, largest))
    values = draw(st.lists(number, min_size=layers, max_size=layers))
    alphas = draw(st.lists(share, min_size=layers, max_size=layers))
    return torch.tensor(values, dtype=torch.float64), tuple(alphas)


def rays(alphas: tuple[float, ...]) -> Tensor:
    """The cone's extreme rays, one per row: (…, (1−α_{k−1})(1−α_k), 1−α_k, 1, 0, …)."""
    result = torch.zeros(len(alphas), len(alphas), dtype=torch.float64)
    for k in range(len(alphas)):
        result[k, k] = 1.0
        for i in reversed(range(k)):
            result[k, i] = (1 - alphas[i + 1]) * result[k, i + 1]
    return result


def in_cone(values: Tensor, alphas: tuple[float, ...], tolerance: float = 1e-9) -> bool:
    kept = 1 - torch.tensor(alphas[1:], dtype=values.dtype)
    return bool((values >= 0).all() and (values[:-1] - kept * values[1:] >= -tolerance).all())


# The update


@pytest.mark.parametrize("resilience", [None, 2.0])
def test_the_update_against_one_written_out(resilience):
    multipliers = Multipliers(
        LayerDescent(2),
        lr=0.5,
        resilience=resilience,
        slack_lr=0.25 if resilience else None,
    )
    steps = [(1.0, -3.0), (0.5, 2.0), (-4.0, 0.25), (2.0, 2.0)]
    if resilience is None:
        expected = [(0.5, 0.0), (0.75, 1.0), (0.0, 1.125), (1.0, 2.125)]
        slack = [(0.0, 0.0)] * 4
    else:
        # λ_1: .5; .5+.5(.5−.125)=.6875; [.6875+.5(−4−.234375)]₊=0; 0+.5(2−.1171875)=.94140625
        # u_1: .25·.5=.125; .125−.25(.25−.6875)=.234375; .234375−.25(.46875−0)=.1171875; …
        expected = [(0.5, 0.0), (0.6875, 1.0), (0.0, 1.0), (0.94140625, 1.8125)]
        slack = [(0.125, 0.0), (0.234375, 0.25), (0.1171875, 0.375), (0.2939453125, 0.640625)]
    for g, λ, u in zip(steps, expected, slack, strict=True):
        multipliers.ascend(torch.tensor(g))
        assert tuple(multipliers.values.tolist()) == λ
        assert tuple(multipliers.slack.tolist()) == u
    assert multipliers.updates == 4


def test_by_default_the_slack_makes_the_ascent_leaky():
    a, lr = 2.0, 0.3
    multipliers = Multipliers(LayerDescent(3), lr=lr, resilience=a)
    λ = torch.zeros(3, dtype=torch.float64)
    for _ in range(20):
        g = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(multipliers.updates))
        multipliers.ascend(g)
        λ = (λ + lr * (g - λ / a)).clamp(min=0)
        torch.testing.assert_close(multipliers.values, λ)


def test_rate_zero_keeps_the_multipliers():
    multipliers = Multipliers(LayerDescent(2), lr=0.0)
    multipliers.ascend(torch.ones(2))
    assert multipliers.values.tolist() == [0.0, 0.0]


def test_no_gradient_is_kept():
    multipliers = Multipliers(LayerDescent(2), lr=0.1)
    multipliers.ascend(torch.ones(2, requires_grad=True))
    assert not multipliers.values.requires_grad


@pytest.mark.parametrize(("resilience", "slack_lr"), [(None, None), (2.0, None), (2.0, 0.75)])
@fast
@given(st.lists(st.lists(number, min_size=3, max_size=3), min_size=1, max_size=12), st.booleans())
def test_multipliers_and_slack_are_never_negative(resilience, slack_lr, steps, cone):
    constraint = LayerDescent(3, alpha=(0.3, 0.1, 0.6))
    multipliers = Multipliers(constraint, lr=0.7, resilience=resilience, slack_lr=slack_lr, cone=cone)
    for g in steps:
        multipliers.ascend(torch.tensor(g))
        assert (multipliers.values >= 0).all()
        assert (multipliers.slack >= 0).all()
        assert not cone or in_cone(multipliers.values, constraint.alphas)


# A constraint that can't be met: f_0 = 0, an input without noise, so that g_1 = f_1 > 0 whatever a layer does


def infeasible(constraint: LayerDescent) -> Tensor:
    return constraint.slacks(torch.tensor([0.0, 0.3, 0.1], dtype=torch.float64))


def test_without_resilience_an_infeasible_multiplier_grows_linearly():
    constraint = LayerDescent(2, alpha=0.1)
    multipliers = Multipliers(constraint, lr=0.05)
    seen = []
    for _ in range(300):
        multipliers.ascend(infeasible(constraint))
        seen.append(multipliers.values[0].item())
    assert seen[0] == pytest.approx(0.05 * 0.3)
    assert seen[-1] == pytest.approx(300 * 0.05 * 0.3)  # η g per step, no bound
    assert seen[-1] - seen[-2] == pytest.approx(0.05 * 0.3)
    assert multipliers.values[1] == 0  # this one is met


@pytest.mark.parametrize("slack_lr", [None, 0.2])
def test_with_resilience_an_infeasible_multiplier_settles_where_the_slack_is_the_violation(slack_lr):
    a, constraint = 4.0, LayerDescent(2, alpha=0.1)
    multipliers = Multipliers(constraint, lr=0.5, resilience=a, slack_lr=slack_lr)
    for _ in range(400):
        multipliers.ascend(infeasible(constraint))
    assert multipliers.slack.tolist() == pytest.approx([0.3, 0.0], abs=1e-9)  # u = g = λ / a
    assert multipliers.values.tolist() == pytest.approx([a * 0.3, 0.0], abs=1e-9)


def test_skip_first_is_not_moved_by_an_infeasible_first_layer():
    constraint = LayerDescent(2, alpha=0.1, skip_first=True)
    multipliers = Multipliers(constraint, lr=1.0, resilience=3.0)
    multipliers.ascend(constraint.slacks(torch.tensor([0.0, 0.3, 0.9])))
    assert multipliers.values[0] == 0
    assert multipliers.slack[0] == 0
    assert multipliers.values[1] > 0


@fast
@given(st.floats(0.05, 10), st.floats(0.05, 10), st.floats(0.05, 10))
def test_rates_are_taken_if_and_only_if_the_two_updates_converge(a, lr, slack_lr):
    # (λ, u) ↦ (λ − η u, u − η_u (a u − λ + η u)), as a matrix: it converges if its radius is below 1.
    step = torch.tensor([[1, -lr], [slack_lr, 1 - slack_lr * a - slack_lr * lr]], dtype=torch.float64)
    radius = torch.linalg.eigvals(step).abs().max().item()
    if abs(radius - 1) < 1e-6:
        return
    if radius < 1:
        Multipliers(LayerDescent(1), lr=lr, resilience=a, slack_lr=slack_lr)
    else:
        with pytest.raises(ValueError, match="must be below 4 for λ to settle"):
            Multipliers(LayerDescent(1), lr=lr, resilience=a, slack_lr=slack_lr)


# The cone


def brute_force(values: Tensor, alphas: tuple[float, ...]) -> Tensor:
    """The projection by trying every face: the nearest of all least-squares fits with coefficients ≥ 0."""
    best, distance = torch.zeros_like(values), values.norm()
    all_rays = rays(alphas)
    for size in range(1, len(values) + 1):
        for face in combinations(range(len(values)), size):
            basis = all_rays[list(face)].T
            weights = torch.linalg.lstsq(basis, values.unsqueeze(1)).solution
            candidate = (basis @ weights).squeeze(1)
            if (weights >= 0).all() and (candidate - values).norm() < distance:
                best, distance = candidate, (candidate - values).norm()
    return best


@fast
@given(point_and_alphas(largest=5))
def test_the_projection_is_the_nearest_point_of_all_faces(case):
    values, alphas = case
    torch.testing.assert_close(
        project_cone(values, alphas), brute_force(values, alphas), rtol=1e-6, atol=1e-6
    )


@fast
@given(point_and_alphas())
def test_the_projection_has_the_certificate_of_one(case):
    values, alphas = case
    projected = project_cone(values, alphas)
    rest = values - projected
    # Moreau: p is the projection of v onto a cone K if and only if p ∈ K, v − p ⟂ p, and v − p ∈ K°.
    assert in_cone(projected, alphas)
    assert (rest @ projected).item() == pytest.approx(0, abs=1e-9)
    assert (rays(alphas) @ rest <= 1e-9).all()


@fast
@given(point_and_alphas())
def test_the_projection_is_idempotent(case):
    values, alphas = case
    once = project_cone(values, alphas)
    torch.testing.assert_close(project_cone(once, alphas), once, rtol=1e-12, atol=1e-12)


def test_what_is_in_the_cone_stays_to_the_bit():
    values = torch.tensor([1.0, 0.9, 1.1, 0.0, 0.0], dtype=torch.float64)
    assert torch.equal(project_cone(values, (0.2,) * 5), values)


def test_the_first_alpha_has_no_part_in_the_cone():
    values = torch.tensor([-1.0, 3.0, 1.0], dtype=torch.float64)
    assert torch.equal(project_cone(values, (0.1, 0.2, 0.3)), project_cone(values, (0.9, 0.2, 0.3)))


def test_a_deep_cone_does_not_overflow():
    layers = 200
    values = torch.linspace(-1, 1, layers, dtype=torch.float64)
    alphas = (0.99,) * layers  # weights of the textbook isotonic regression would reach 1e800
    projected = project_cone(values, alphas)
    assert torch.isfinite(projected).all()
    assert in_cone(projected, alphas)


def test_the_cone_keeps_the_type():
    assert project_cone(torch.ones(3), (0.1,) * 3).dtype == torch.float32


def test_the_rays_ask_for_descent_from_the_input():
    constraint = LayerDescent(4, alpha=(0.1, 0.2, 0.3, 0.4))
    f = torch.rand(5, dtype=torch.float64)
    for k, ray in enumerate(rays(constraint.alphas), start=1):
        kept = torch.prod(1 - torch.tensor(constraint.alphas[:k], dtype=torch.float64))
        torch.testing.assert_close(ray @ constraint.slacks(f), f[k] - kept * f[0])


# State and errors


def test_state_goes_through_a_file(tmp_path):
    constraint = LayerDescent(3)
    multipliers = Multipliers(constraint, lr=0.1, resilience=1.0)
    for _ in range(3):
        multipliers.ascend(torch.rand(3))
    torch.save(multipliers.state_dict(), tmp_path / "state")
    other = Multipliers(constraint, lr=0.1, resilience=1.0)
    other.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert torch.equal(other.values, multipliers.values)
    assert torch.equal(other.slack, multipliers.slack)
    assert other.updates == 3


def test_a_state_is_a_copy():
    multipliers = Multipliers(LayerDescent(2), lr=0.1)
    state = multipliers.state_dict()
    multipliers.load_state_dict(state)
    multipliers.ascend(torch.ones(2))
    assert state["values"].tolist() == [0.0, 0.0]


def test_a_state_of_another_depth():
    state = Multipliers(LayerDescent(2), lr=0.1).state_dict()
    with pytest.raises(ValueError, match="state must hold 3 multipliers, got 2"):
        Multipliers(LayerDescent(3), lr=0.1).load_state_dict(state)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_slack_that_is_not_finite_changes_nothing(bad):
    multipliers = Multipliers(LayerDescent(2), lr=0.1, resilience=1.0)
    multipliers.ascend(torch.ones(2))
    before = multipliers.state_dict()
    with pytest.raises(ValueError, match="slacks must be finite, got"):
        multipliers.ascend(torch.tensor([1.0, bad]))
    after = multipliers.state_dict()
    assert torch.equal(after["values"], before["values"])
    assert torch.equal(after["slack"], before["slack"])
    assert after["updates"] == 1


def test_slacks_of_another_shape():
    with pytest.raises(ValueError, match=r"slacks must have shape \(2,\), got \(3,\)"):
        Multipliers(LayerDescent(2), lr=0.1).ascend(torch.ones(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -0.1}, "lr of the multipliers must be at least 0, got -0.1"),
        ({"lr": float("nan")}, "lr of the multipliers must be at least 0, got nan"),
        ({"lr": 0.1, "resilience": 0.0}, "resilience must be above 0, or None for no slack, got 0.0"),
        ({"lr": 0.1, "resilience": 1.0, "slack_lr": 0.0}, "slack_lr must be above 0, or None for 1 / res"),
        ({"lr": 0.1, "slack_lr": 0.1}, "slack_lr must be None without resilience, got 0.1; give resilience"),
        ({"lr": 3.0, "resilience": 1.0}, "must be below 4 for λ to settle, got slack_lr=1.0"),
    ],
)
def test_settings_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Multipliers(LayerDescent(2), **options)


def test_the_remedy_for_rates_that_diverge():
    Multipliers(LayerDescent(2), lr=1.5, resilience=1.0)  # lower lr
    Multipliers(LayerDescent(2), lr=3.0, resilience=1.0, slack_lr=0.5)  # or slack_lr
    Multipliers(LayerDescent(2), lr=3.0, resilience=2.0)  # or raise resilience


def test_a_cone_without_the_first_layer_would_be_a_point():
    assert not project_cone(torch.tensor([0.0, 0.0, 0.0]), (0.1,) * 3).any()
    with pytest.raises(ValueError, match="cone must be False with skip_first, got True: λ_1 = 0"):
        Multipliers(LayerDescent(3, skip_first=True), lr=0.1, cone=True)
