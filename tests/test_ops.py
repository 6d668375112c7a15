"""Attention over time and the soft threshold, against their formulas."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vdenoise.ops import attention, gaussian_attention, soft_threshold
from vdenoise.ops.attention import attention_weights


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(("t", "r", "m"), [(1, 3, 5), (5, 16, 60), (17, 1, 128)])
def test_attention_is_its_formula(t, r, m):
    q, k, v, bias = random(4, t, r), random(4, t, r) + 1, random(4, t, m), random(4, t)
    out, norm = attention(q, k, v, bias)
    for n in range(4):
        for i in range(t):
            w = torch.stack([(q[n, i] @ k[n, j] + bias[n, j]).exp() for j in range(t)])
            w = w / w.sum()
            torch.testing.assert_close(out[n, i], w @ v[n])
            torch.testing.assert_close(norm[n, i], w.norm())


def test_gaussian_attention_is_its_formula():
    f, v = random(3, 6, 4), random(3, 6, 7)
    out, norm = gaussian_attention(f, v, 1.7)
    w = (-(f[:, :, None] - f[:, None]).square().sum(-1) / 1.7).softmax(-1)
    torch.testing.assert_close(out, w @ v)
    torch.testing.assert_close(norm, w.norm(dim=-1))


def test_norm_says_how_much_noise_is_left():
    """Equal features average all T; features far apart keep their own value."""
    v = random(2000, 8, 1)
    _, norm = gaussian_attention(torch.zeros(2000, 8, 2, dtype=torch.float64), v)
    torch.testing.assert_close(norm, torch.full_like(norm, 8**-0.5))
    far = torch.arange(8.0, dtype=torch.float64).view(1, 8, 1).expand(2000, -1, -1) * 100
    out, norm = gaussian_attention(far, v)
    torch.testing.assert_close(norm, torch.ones_like(norm))
    torch.testing.assert_close(out, v)


@given(st.integers(1, 9), st.integers(1, 5))
@settings(deadline=None, max_examples=20)
def test_weights_are_a_distribution(t, r):
    w = attention_weights(random(2, t, r), random(2, t, r))
    assert (w >= 0).all()
    torch.testing.assert_close(w.sum(-1), torch.ones(2, t, dtype=torch.float64))


@given(st.integers(1, 12), st.floats(0.0, 30.0), st.integers(0, 10_000))
@settings(deadline=None, max_examples=40)
def test_norm_lies_between_a_mean_and_a_copy(t, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 2, t, 4, dtype=torch.float64, generator=generator)
    _, norm = attention(q * scale, k, v)
    assert norm.min() >= t**-0.5 - 1e-12
    assert norm.max() <= 1 + 1e-12


def test_gaussian_attention_has_the_right_gradients():
    f, v = random(2, 4, 3).requires_grad_(), random(2, 4, 5).requires_grad_()
    bandwidth = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gaussian_attention, (f, v, bandwidth))


def test_attention_has_the_right_gradients():
    q, k, v, b = random(2, 4, 3), random(2, 4, 3) * 2, random(2, 4, 5), random(2, 4)
    inputs = [x.requires_grad_() for x in (q, k, v, b)]
    assert torch.autograd.gradcheck(attention, inputs)


def test_soft_threshold_is_the_proximal_step():
    """No point on a fine grid has a lower ½(z − u)² + τ|z|."""
    grid = torch.linspace(-4, 4, 8001, dtype=torch.float64)
    for u in (-3.0, -0.4, 0.0, 0.2, 1.7):
        for tau in (0.0, 0.5, 2.0):
            z = soft_threshold(torch.tensor(u, dtype=torch.float64), torch.tensor(tau, dtype=torch.float64))
            best = grid[(0.5 * (grid - u) ** 2 + tau * grid.abs()).argmin()]
            assert abs(float(z - best)) <= 1e-3


def test_soft_threshold_has_the_right_gradients():
    u = random(3, 4, 5).requires_grad_()
    tau = (random(4, 1).abs() * 0.5).requires_grad_()
    assert ((u.abs() - tau).abs() > 1e-3).all()  # gradcheck needs to stay off the kinks
    assert torch.autograd.gradcheck(soft_threshold, (u, tau))


def test_soft_threshold_without_gradients_is_the_same():
    u, tau = random(50), torch.tensor(0.3, dtype=torch.float64)
    with torch.no_grad():
        plain = soft_threshold(u, tau)
    torch.testing.assert_close(soft_threshold(u.clone().requires_grad_(), tau).detach(), plain)
