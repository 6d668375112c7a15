"""UT's steps against their formulas, and its energies on channels together, beyond test_models.py."""

from __future__ import annotations

import pytest
import torch

from vdenoise.models import build
from vdenoise.models.ut import UTConfig, UTLayer


def sequences(y: torch.Tensor) -> torch.Tensor:
    """(1, 1, 1, T, C, d) to the tokens of one place, channels side by side: (T, C·d)."""
    return y[0, 0, 0].flatten(1)


@pytest.mark.parametrize(("alpha1", "alpha2"), [(1.0, 1.0), (0.4, 0.7), (1.0, 1.6)])
@pytest.mark.parametrize("channels", [1, 3])
@torch.no_grad()
def test_an_iteration_is_its_formula(alpha1, alpha2, channels):
    torch.manual_seed(0)
    layer = UTLayer(UTConfig(width=6, features=4, alpha1=alpha1, alpha2=alpha2)).double()
    y, encoded = torch.rand(2, 1, 1, 1, 5, channels, 6, dtype=torch.float64) - 0.3
    w = torch.block_diag(*[layer.metric.T @ layer.metric] * channels)
    tokens = sequences(y)
    key_weight = 0.5 * ((tokens @ w) * tokens).sum(-1)
    a = (tokens @ w @ tokens.T - key_weight).softmax(-1)  # as the energy's gradient has it
    z = (1 - alpha1) * tokens + alpha1 * a @ tokens
    w_f = layer.symmetric_feedforward()
    w_s = -0.5 * alpha2 * (w_f + w_f.T) + (1 - alpha2) * torch.eye(6)
    expected = (z.view_as(y) @ w_s + alpha2 * encoded).clamp(min=0)
    torch.testing.assert_close(layer.project(layer.attend(y), encoded), expected)


@torch.no_grad()
def test_attention_on_channels_together_lowers_their_common_energy():
    """The channels share the weights of attention, so the energy is that of their tokens side by side."""
    torch.manual_seed(0)
    layer = UTLayer(UTConfig(width=6, features=3)).double()
    w = torch.block_diag(*[layer.metric.T @ layer.metric] * 3)

    def energy(y: torch.Tensor) -> float:
        d = sequences(y)[:, None] - sequences(y)[None]
        return -float((-0.5 * ((d @ w) * d).sum(-1)).exp().sum())

    for spread in (0.05, 0.2, 0.5, 1.0):
        for _ in range(20):
            y = torch.randn(1, 1, 1, 5, 3, 6, dtype=torch.float64) * spread
            assert energy(layer.attend(y)) <= energy(y) + 1e-12


def test_the_attention_step_follows_the_gradient_of_its_energy():
    """The step is −α₁ D⁻¹ ∇E_a W⁻¹, D the row sums of the kernel with each row's own 1."""
    torch.manual_seed(0)
    layer = UTLayer(UTConfig(width=3, features=3, alpha1=0.3)).double()
    y = torch.rand(1, 4, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer.energy(y, y).attention.sum(), y)
    w = layer.metric.T @ layer.metric  # 3×3 and invertible
    features = (y[0] @ layer.metric.T).detach()
    rows = (-0.5 * torch.cdist(features, features).square()).exp().sum(-1, keepdim=True)
    step = layer.attend(y.view(1, 1, 1, 4, 1, 3)).view(1, 4, 3) - y
    torch.testing.assert_close(step, -0.3 * (gradient @ torch.linalg.inv(w)) / rows)


@torch.no_grad()
def test_untied_iterations_with_equal_weights_are_tied_ones():
    torch.manual_seed(0)
    options = {"layers": 3, "width": 16, "features": 4}
    tied, untied = build("ut", **options), build("ut", **options, tied=False)
    for name in ("encoder", "readout", "overlap_add"):
        getattr(untied, name).load_state_dict(getattr(tied, name).state_dict())
    for step in untied.steps:
        step.load_state_dict(tied.steps[0].state_dict())
    noisy = torch.rand(1, 3, 1, 12, 16)
    torch.testing.assert_close(untied.iterates(noisy, 0.1), tied.iterates(noisy, 0.1))
    untied.steps[1].factor.mul_(0.5)
    pairs = zip(untied.iterates(noisy, 0.1), tied.iterates(noisy, 0.1), strict=True)
    assert [torch.equal(a, b) for a, b in pairs] == [True, False, False]
