"""The constraint by itself: slacks, their gradients, α over the layers."""

from __future__ import annotations

import pytest
import torch

from vdenoise.descent import LayerDescent, constant, geometric, linear

LOSSES = [8.0, 5.0, 4.0, 1.0]


def losses() -> torch.Tensor:
    return torch.tensor(LOSSES, dtype=torch.float64, requires_grad=True)


def test_slacks_are_the_formula():
    g = LayerDescent(3, alpha=(0.5, 0.25, 0.1)).slacks(losses())
    expected = torch.tensor([5 - 0.5 * 8, 4 - 0.75 * 5, 1 - 0.9 * 4], dtype=torch.float64)
    torch.testing.assert_close(g, expected)
    assert (g > 0).tolist() == [True, True, False]  # violated, violated, held


def test_it_is_a_difference_of_expectations_not_a_mean_of_ratios():
    per_sample = torch.tensor([[10.0, 4.0], [1.0, 1.2]])  # the second sample climbs
    g = LayerDescent(1, alpha=0.2).slacks(per_sample.mean(0))
    assert g.item() < 0


def test_slacks_keep_the_type_of_the_losses():
    assert LayerDescent(3).slacks(losses().float()).dtype == torch.float32


def test_skip_first_has_neither_a_slack_nor_a_gradient():
    f = losses()
    g = LayerDescent(3, alpha=0.5, skip_first=True).slacks(f)
    assert g.tolist() == [0.0, 4 - 0.5 * 5, 1 - 0.5 * 4]
    (gradient,) = torch.autograd.grad(g[0], f)
    assert gradient.tolist() == [0.0] * 4


def test_skip_first_of_one_layer_leaves_no_constraint():
    assert LayerDescent(1, skip_first=True).slacks(torch.tensor([1.0, 2.0])).tolist() == [0.0]


def test_skip_first_bears_a_first_loss_that_is_not_finite():
    g = LayerDescent(2, skip_first=True).slacks(torch.tensor([float("inf"), 2.0, 1.0]))
    assert torch.isfinite(g).all()


def test_exact_gradient():
    f = losses()
    LayerDescent(3, alpha=(0.5, 0.25, 0.1)).slacks(f).sum().backward()
    torch.testing.assert_close(f.grad, torch.tensor([-0.5, 1 - 0.75, 1 - 0.9, 1], dtype=torch.float64))


def test_detached_the_previous_layer_is_a_constant():
    exact, detached = losses(), losses()
    constraint = LayerDescent(3, alpha=0.25, detach_previous=True)
    g = constraint.slacks(detached)
    torch.testing.assert_close(g, LayerDescent(3, alpha=0.25).slacks(exact))
    g.sum().backward()
    assert detached.grad.tolist() == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_gradcheck(detach, skip):
    constraint = LayerDescent(3, alpha=(0.1, 0.5, 0.9), skip_first=skip, detach_previous=detach)
    fixed = losses().detach()

    def slacks(f: torch.Tensor) -> torch.Tensor:
        if not detach:
            return constraint.slacks(f)
        # What a detached tensor is to finite differences: the formula with f_{l−1} held where it was.
        g = f[1:] - (1 - f.new_tensor(constraint.alphas)) * fixed[:-1]
        return torch.cat([g.new_zeros(1), g[1:]]) if skip else g

    assert torch.autograd.gradcheck(slacks, losses())
    f, h = losses(), losses()
    weights = torch.tensor([0.3, 2.0, 0.7], dtype=torch.float64)
    (weights @ constraint.slacks(f)).backward()
    (weights @ slacks(h)).backward()
    torch.testing.assert_close(f.grad, h.grad, rtol=1e-14, atol=0)


def test_schedules():
    assert constant(3, 0.1) == (0.1, 0.1, 0.1)
    assert linear(3, 0.1, 0.2) == pytest.approx((0.1, 0.15, 0.2))
    assert geometric(3, 0.1, 0.4) == pytest.approx((0.1, 0.2, 0.4))
    assert geometric(3, 0.4, 0.1) == pytest.approx((0.4, 0.2, 0.1))
    assert linear(1, 0.1, 0.2) == geometric(1, 0.1, 0.2) == (0.1,)


@pytest.mark.parametrize("schedule", [constant(4, 0.3), linear(4, 0.1, 0.7), geometric(4, 0.02, 0.9)])
def test_a_schedule_is_an_alpha(schedule):
    constraint = LayerDescent(4, alpha=schedule)
    f = torch.rand(5, dtype=torch.float64)
    expected = torch.stack([f[i + 1] - (1 - schedule[i]) * f[i] for i in range(4)])
    torch.testing.assert_close(constraint.slacks(f), expected)


def test_a_list_is_read_as_its_tuple():
    assert LayerDescent(2, alpha=[0.1, 0.2]) == LayerDescent(2, alpha=(0.1, 0.2))


def test_geometric_needs_positive_ends_and_names_what_takes_any():
    with pytest.raises(ValueError, match=r"first and last must be above 0, got -0.1 and 0.2; linear\(\)"):
        geometric(3, -0.1, 0.2)
    assert linear(3, -0.1, 0.2)[0] == -0.1


@pytest.mark.parametrize("alpha", [0.0, 1.0, 1, -0.1, 1.5, float("nan"), (0.1, 0.0)])
def test_alpha_outside_its_range(alpha):
    with pytest.raises(ValueError, match=r"alpha must lie in 0 < α < 1, got"):
        LayerDescent(2, alpha=alpha)


def test_alpha_of_another_length():
    with pytest.raises(ValueError, match=r"alpha must be one number or 3 \(one per layer\), got 2 numbers"):
        LayerDescent(3, alpha=(0.1, 0.2))


def test_no_layers():
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        LayerDescent(0)


@pytest.mark.parametrize("shape", [(3,), (5,), (2, 4), ()])
def test_losses_of_another_shape(shape):
    with pytest.raises(ValueError, match=r"losses must be f_0 … f_3, shape \(4,\), got .*; f_0 is"):
        LayerDescent(3).slacks(torch.ones(shape))
