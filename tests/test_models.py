"""What every denoiser promises, and what each claims for itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vdenoise.models import MODELS, build
from vdenoise.models.dust import DUST, FEATURE_FLOOR, DUSTConfig, DUSTLayer
from vdenoise.models.tokens import OverlapAdd, PatchGrid, as_sigma
from vdenoise.models.ut import UTConfig, UTLayer

SMALL = {
    "dust": {"layers": 2, "codes": 12, "features": 3},
    "ut": {"layers": 3, "width": 16, "features": 4},
    "vit": {"layers": 2, "width": 16, "heads": 2},
}


def small(name: str, **options) -> torch.nn.Module:
    torch.manual_seed(0)
    return build(name, **{**SMALL[name], **options}).eval()


# --- patches ---------------------------------------------------------------------------------------------

sizes = st.integers(8, 30)


@given(
    sizes, sizes, st.sampled_from([(8, 4), (8, 8), (8, 2), (6, 3), (5, 5), (4, 1)]), st.sampled_from([1, 3])
)
@settings(deadline=None, max_examples=40)
def test_blocks_hold_the_frame(height, width, shape, channels):
    grid = PatchGrid(*shape)
    frames = torch.rand(1, 2, channels, height, width)
    back = grid.from_blocks(grid.to_blocks(frames), height, width)
    torch.testing.assert_close(back, frames, atol=1e-6, rtol=0)


@given(st.integers(1, 5), st.integers(1, 5), st.sampled_from([(8, 4), (8, 8), (6, 2)]))
@settings(deadline=None, max_examples=20)
def test_fold_is_the_adjoint_of_unfold(h, w, shape):
    grid = PatchGrid(*shape)
    k = grid.overlap
    generator = torch.Generator().manual_seed(h * 7 + w)
    blocks = torch.randn(
        2, h + k - 1, w + k - 1, 3, 1, grid.stride**2, dtype=torch.float64, generator=generator
    )
    patches = torch.randn(2, h, w, 3, 1, grid.pixels, dtype=torch.float64, generator=generator)
    torch.testing.assert_close((grid.unfold(blocks) * patches).sum(), (blocks * grid.fold(patches)).sum())


def test_patches_are_what_they_say():
    grid = PatchGrid(4, 2)
    frames = torch.arange(8.0 * 10).view(1, 1, 1, 8, 10)
    patches = grid.unfold(grid.to_blocks(frames))
    # Place (1, 1) starts at pixel (0, 0): padding before is p − s = 2 pixels, one place.
    top_left = patches[0, 1, 1, 0, 0].view(2, 2, 2, 2).permute(0, 2, 1, 3).reshape(4, 4)
    torch.testing.assert_close(top_left, frames[0, 0, 0, :4, :4])


def test_overlap_add_of_consistent_patches_gives_the_frame_back():
    grid = PatchGrid(8, 4)
    add = OverlapAdd(grid)
    torch.nn.init.normal_(add.log_window)
    blocks = grid.to_blocks(torch.rand(1, 2, 1, 21, 17))
    again = add(grid.unfold(blocks)) / add.weight(blocks)
    torch.testing.assert_close(again, blocks)


def test_pieces_add_up_to_the_whole():
    grid = PatchGrid(8, 4)
    blocks = grid.to_blocks(torch.rand(1, 2, 1, 45, 38))
    pieces = grid.pieces(blocks, 9)
    assert len(pieces) > 4
    parts = [grid.fold(grid.unfold(blocks[region])) for _, region in pieces]
    torch.testing.assert_close(grid.join(parts, pieces, blocks), grid.fold(grid.unfold(blocks)))


def test_white_noise_stays_white_in_luma_and_chroma():
    noise = torch.randn(1, 40, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    blocks = PatchGrid(4, 4).to_blocks(noise)
    samples = blocks.movedim(4, 0).flatten(1)
    torch.testing.assert_close(samples.cov(correction=0), torch.eye(3), atol=0.02, rtol=0)


@pytest.mark.parametrize("shape", [(8, 3), (8, 0), (0, 1), (8, 16)])
def test_bad_grids_are_told(shape):
    with pytest.raises(ValueError, match="divisor"):
        PatchGrid(*shape)


# --- every model -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 8, 8), (2, 5, 1, 19, 23), (1, 3, 3, 20, 17)])
@pytest.mark.parametrize("grid", [{}, {"stride": 8}])
def test_one_estimate_per_layer(name, shape, grid):
    model = small(name, **grid)
    outputs = model.iterates(torch.rand(shape), torch.full((shape[0],), 0.1))
    assert [x.shape for x in outputs] == [torch.Size(shape)] * SMALL[name]["layers"]
    assert all(torch.isfinite(x).all() for x in outputs)


@pytest.mark.parametrize("name", MODELS)
def test_the_result_is_the_last_estimate(name):
    model, x = small(name), torch.rand(1, 3, 1, 16, 20)
    torch.testing.assert_close(model(x, 0.1), model.iterates(x, 0.1)[-1])


@pytest.mark.parametrize("name", MODELS)
def test_inference_and_training_agree(name):
    """Inference goes through the grid in pieces, training takes it whole."""
    model, x = small(name), torch.rand(1, 4, 1, 70, 66)
    with torch.no_grad():
        pieces = model.iterates(x, 0.1)
    for a, b in zip(pieces, model.iterates(x, 0.1), strict=True):
        torch.testing.assert_close(a, b.detach(), atol=2e-6, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_time_has_no_order(name):
    model, x = small(name), torch.rand(1, 6, 1, 16, 16)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x[:, order], 0.1), model(x, 0.1)[:, order], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_clips_of_a_batch_do_not_mix(name):
    model, x = small(name), torch.rand(2, 3, 1, 16, 16)
    together = model(x, torch.tensor([0.05, 0.2]))
    torch.testing.assert_close(together[1:], model(x[1:], 0.2), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_reach_every_weight(name):
    model = small(name).train()
    noisy = torch.rand(1, 3, 1, 16, 16)
    torch.stack([x.square().mean() for x in model.iterates(noisy, 0.1)]).sum().backward()
    for key, weight in model.named_parameters():
        assert weight.grad is not None, key
        assert torch.isfinite(weight.grad).all(), key
        assert weight.grad.abs().max() > 0, key


@pytest.mark.parametrize("name", MODELS)
def test_gradient_of_the_input(name):
    model = small(name).double()
    x = torch.rand(1, 2, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: model(x, 0.1), (x,), nondet_tol=1e-9, fast_mode=True)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("shape", "sigma", "message"),
    [
        ((1, 2, 1, 7, 16), 0.1, "one patch"),
        ((2, 1, 16, 16), 0.1, r"\(B, T, C, H, W\)"),
        ((2, 1, 1, 16, 16), torch.ones(3), "one value per clip"),
        ((2, 1, 1, 16, 16), torch.ones(2, 1), "one value per clip"),
    ],
)
def test_bad_input_is_told(name, shape, sigma, message):
    with pytest.raises(ValueError, match=message):
        small(name)(torch.rand(shape), sigma)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dust", {"layers": 0}),
        ("dust", {"codes": 0}),
        ("ut", {"alpha1": 1.5}),
        ("ut", {"alpha2": 2.0}),
        ("ut", {"width": 0}),
        ("vit", {"width": 10, "heads": 4}),
        ("vit", {"layers": 0}),
    ],
)
def test_bad_shapes_of_a_network_are_told(name, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        build(name, **options)


# --- DUST ------------------------------------------------------------------------------------------------


def test_a_dust_layer_is_its_formula():
    torch.manual_seed(0)
    layer = DUSTLayer(DUSTConfig(codes=10, features=3, patch=4, stride=2), first=False)
    z, residual, sigma = torch.randn(5, 10), torch.randn(5, 16), 0.1
    got = layer(
        z.view(1, 1, 1, 5, 1, 10),
        residual.view(1, 1, 1, 5, 1, 16),
        torch.tensor(sigma).view(1, 1, 1, 1, 1, 1),
    )
    u = z - residual @ layer.analysis
    f = z @ layer.to_features / (sigma + FEATURE_FLOOR)
    w = (-torch.cdist(f, f).square() / layer.log_bandwidth.exp()).softmax(-1)
    g = layer.gate.sigmoid()
    mixed = g * (w @ u) + (1 - g) * u
    tau = layer.threshold.abs() + layer.threshold_per_noise.abs() * sigma * w.norm(dim=-1, keepdim=True)
    expected = mixed.sign() * (mixed.abs() - tau).clamp(min=0)
    torch.testing.assert_close(got.view(5, 10), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_without_overlap_a_layer_is_a_proximal_gradient_step():
    """With plain patches, A = Dᵀ, T = 1 and a constant threshold DUST is ISTA: the objective never rises."""
    torch.manual_seed(0)
    model = DUST(DUSTConfig(layers=8, codes=20, patch=8, stride=8, noise_adaptive=False)).double()
    atoms = model.steps[0].analysis / torch.linalg.matrix_norm(model.steps[0].analysis, 2)
    for step in model.steps:
        step.analysis.data = atoms
        step.dictionary.data = atoms.T
        step.threshold.data.fill_(0.05)
    y = torch.rand(1, 1, 1, 16, 16, dtype=torch.float64)
    grid = model.grid
    patches = grid.unfold(grid.to_blocks(y))
    target = patches - patches.mean(dim=(3, 5), keepdim=True)
    codes, values = None, []
    residual = -target
    for step in model.steps:
        codes = step(codes, residual, as_sigma(0.1, y))
        residual = codes @ step.dictionary - target
        values.append(float(0.5 * residual.square().sum() + 0.05 * codes.abs().sum()))
    assert all(a >= b - 1e-12 for a, b in pairwise(values))
    assert values[-1] < values[0]


def test_thresholds_grow_with_the_noise_and_shrink_with_what_was_averaged():
    model = small("dust")
    still = torch.rand(1, 1, 1, 16, 16).expand(-1, 12, -1, -1, -1)

    def zeros(frames: torch.Tensor, sigma: float) -> float:
        blocks = model.grid.to_blocks(frames)
        patches = model.grid.unfold(blocks)
        residual = patches.mean(dim=(3, 5), keepdim=True) - patches
        return float((model.steps[0](None, residual, as_sigma(sigma, frames)) == 0).double().mean())

    assert zeros(still, 0.4) > zeros(still, 0.1) > zeros(still, 0.0)
    assert zeros(still[:, :1], 0.2) > zeros(still, 0.2)


def test_plain_dust_has_no_use_for_sigma():
    model, x = small("dust", noise_adaptive=False), torch.rand(1, 3, 1, 16, 16)
    torch.testing.assert_close(model(x, 0.01), model(x, 0.5))
    assert not any("per_noise" in name for name, _ in model.named_parameters())


# --- UT --------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.floats(0.05, 1.0), st.floats(0.1, 4.0), st.integers(0, 10_000))
@settings(deadline=None, max_examples=60)
def test_attention_never_raises_its_energy(t, alpha1, spread, seed):
    torch.manual_seed(seed)
    layer = UTLayer(UTConfig(width=6, features=3, alpha1=alpha1)).double()
    y = torch.randn(20, t, 6, dtype=torch.float64) * spread
    after = layer.attend(y.view(20, 1, 1, t, 1, 6)).view(20, t, 6)
    rise = layer.energy(after, y).attention - layer.energy(y, y).attention
    assert rise.max() <= 1e-12


def test_attention_without_the_key_weight_can_raise_it():
    """softmax(y_iᵀ W y_j), as the public code has it, follows the longest key, not the nearest."""
    torch.manual_seed(0)
    layer = UTLayer(UTConfig(width=6, features=3)).double()
    y = torch.randn(200, 5, 6, dtype=torch.float64)
    f = y @ layer.metric.T
    without = (f @ f.mT).softmax(-1) @ y
    rise = layer.energy(without, y).attention - layer.energy(y, y).attention
    assert rise.max() > 0.1


@given(st.floats(0.1, 1.9), st.floats(0.1, 3.0), st.integers(0, 10_000))
@settings(deadline=None, max_examples=60)
def test_the_feedforward_step_never_raises_its_energy(alpha2, scale, seed):
    torch.manual_seed(seed)
    layer = UTLayer(UTConfig(width=6, features=3, alpha2=alpha2)).double()
    layer.factor.data = torch.randn(6, 6, dtype=torch.float64) * scale
    encoded = torch.randn(20, 4, 6, dtype=torch.float64)
    y = torch.randn(20, 4, 6, dtype=torch.float64).relu()
    after = layer.project(y, encoded)
    rise = layer.energy(after, encoded).feedforward - layer.energy(y, encoded).feedforward
    assert rise.max() <= 1e-9 * (1 + layer.energy(y, encoded).feedforward.abs().max())
    assert (after >= 0).all()


def test_the_feedforward_step_follows_the_gradient_of_its_energy():
    torch.manual_seed(0)
    layer = UTLayer(UTConfig(width=5, features=2, alpha2=0.3)).double()
    encoded = torch.rand(2, 3, 5, dtype=torch.float64)
    y = (torch.rand(2, 3, 5, dtype=torch.float64) + 5).requires_grad_()
    (gradient,) = torch.autograd.grad(layer.energy(y, encoded).feedforward.sum(), y)
    torch.testing.assert_close(layer.project(y, encoded), (y - 0.3 * gradient).relu())


@torch.no_grad()
def test_the_published_energy_is_the_sum_of_its_parts():
    torch.manual_seed(0)
    layer = UTLayer(UTConfig(width=4, features=4)).double()
    y, b = torch.rand(1, 3, 4, dtype=torch.float64), torch.rand(1, 3, 4, dtype=torch.float64)
    w = layer.metric.T @ layer.metric
    expected = 0.0
    for i in range(3):
        expected += 0.5 * float(y[0, i] @ w @ y[0, i]) + 0.5 * float((y[0, i] - b[0, i]).square().sum())
        expected += 0.5 * float(y[0, i] @ layer.symmetric_feedforward() @ y[0, i])
        for j in range(i):
            d = y[0, i] - y[0, j]
            expected -= float((-0.5 * d @ w @ d).exp())
    assert float(layer.energy(y, b).total) == pytest.approx(expected)


def test_tied_iterations_share_their_weights():
    count = {
        tied: sum(p.numel() for p in small("ut", tied=tied).steps.parameters()) for tied in (True, False)
    }
    assert count[False] == 3 * count[True]
