"""The bound holds where its assumptions do, is tight where it should be, and says where they fail."""

from __future__ import annotations

import pytest
import torch

from vdenoise.descent import LayerDescent, descent_bound
from vdenoise.descent.bound import wasserstein


def contraction(rate: float, layers: int, n: int = 400, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Losses of a network whose every layer keeps about ``rate`` of the loss, (n, L + 1)."""
    generator = torch.Generator().manual_seed(seed)
    first = scale * (1 + 0.2 * torch.randn(n, 1, generator=generator).double())
    steps = rate * (1 + 0.05 * torch.randn(n, layers, generator=generator).double())
    return torch.cat([first, first * steps.cumprod(1)], 1)


def test_it_bounds_fresh_samples():
    constraint = LayerDescent(5, alpha=0.3)
    found = descent_bound(constraint, contraction(0.6, 5), torch.zeros(5), delta=0.01)
    fresh = contraction(0.6, 5, n=20_000, seed=1).mean(0)
    assert (fresh <= found.sequence).all()
    assert (fresh <= found.tight).all()
    assert (found.tight[1:] < found.sequence[1:]).all()
    assert found.tight.tolist() == pytest.approx(fresh.tolist(), abs=0.1)
    assert (found.sequence.diff() < 0).all()
    assert found.failures == ()


def test_it_is_the_recursion_by_hand():
    losses = torch.tensor([[4.0, 3.0], [4.0, 3.0]])
    found = descent_bound(LayerDescent(1, alpha=0.5), losses, torch.tensor([2.0]), delta=0.2)
    # No spread: ζ is the slack 3 − 0.5 · 4 = 1, and a failure costs 0.2 / 0.8 of the largest mean loss, 4.
    assert found.slacks.tolist() == [1.0]
    assert found.excess.tolist() == pytest.approx([1.0])
    assert found.sequence.tolist() == pytest.approx([4.0, 0.5 * 4 + 1 + 1])
    assert found.limit == pytest.approx((1 + 1) / 0.5)
    assert found.price.tolist() == pytest.approx([2.0])
    assert any("missed at layers 1" in text for text in found.failures)


def test_many_equal_layers_come_to_the_limit():
    layers = 200
    losses = torch.ones(50, layers + 1).double()
    found = descent_bound(LayerDescent(layers, alpha=0.1), losses, torch.zeros(layers), delta=0.01)
    assert float(found.sequence[-1]) == pytest.approx(found.limit, rel=1e-6)


def test_a_shift_is_paid_for():
    """On another distribution the bound holds too, by the distance of the slacks."""
    constraint = LayerDescent(4, alpha=0.3)
    own, other = contraction(0.6, 4), contraction(0.9, 4, seed=2, scale=3.0)
    found = descent_bound(constraint, own, torch.zeros(4), shifted=other)
    assert (found.shift > 0).all()
    assert (contraction(0.9, 4, n=20_000, seed=3, scale=3.0).mean(0) <= found.sequence).all()
    same = descent_bound(constraint, own, torch.zeros(4), shifted=own)
    assert same.shift.abs().max() < 1e-12


def test_wasserstein_of_known_pairs():
    a = torch.randn(5000, generator=torch.Generator().manual_seed(0)).double()
    assert float(wasserstein(a, a + 2)) == pytest.approx(2.0)
    assert float(wasserstein(a, a.flip(0))) == 0
    zeros, halves = torch.zeros(4).double(), torch.tensor([0.0, 1.0]).double()
    assert float(wasserstein(zeros, halves)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("options", "rate", "multipliers", "text"),
    [
        ({}, 0.9, [0.0, 0.0, 0.0], "missed at layers 1, 2, 3"),
        ({}, 0.5, [0.5, 0.4, 0.3], "not at rest"),
        ({}, 0.6, [0.0, 0.0, 1.0], "negative weight"),
        ({"detach_previous": True}, 0.6, [0.0, 0.0, 0.0], "gradient"),
        ({}, 0.99, [0.0, 0.0, 0.0], "says nothing"),
    ],
)
def test_failures_are_said(options, rate, multipliers, text):
    constraint = LayerDescent(3, alpha=0.3, **options)
    found = descent_bound(constraint, contraction(rate, 3), torch.tensor(multipliers), delta=0.1)
    assert any(text in failure for failure in found.failures)
    assert text in str(found)


@pytest.mark.parametrize(
    ("losses", "multipliers", "options", "message"),
    [
        (torch.ones(4, 3), torch.zeros(3), {}, "losses must have shape"),
        (torch.ones(1, 4), torch.zeros(3), {}, "losses must have shape"),
        (torch.ones(4, 4), torch.zeros(2), {}, "multipliers must have shape"),
        (torch.ones(4, 4), torch.zeros(3), {"shifted": torch.ones(4, 5)}, "shifted must have shape"),
        (torch.ones(4, 4), torch.zeros(3), {"delta": 1.0}, "delta"),
    ],
)
def test_what_is_refused(losses, multipliers, options, message):
    with pytest.raises(ValueError, match=message):
        descent_bound(LayerDescent(3), losses, multipliers, **options)
