"""The estimated error is the true one where its assumptions hold, and says so where they do not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import vdenoise
from vdenoise import certificate
from vdenoise.descent.certificate import stein
from vdenoise.descent.observed import Noise
from vdenoise.noise import add_noise, noise_character
from vdenoise.ops import soft_threshold

EXAMPLE = Path(__file__).parents[1] / "data" / "example.mp4"


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def signal(seed: int = 0, size: int = 40_000) -> Tensor:
    """Values within [0, 1], half of them at mid-grey: sparse around it."""
    g = seeded(seed)
    return 0.5 + 0.3 * (2 * torch.rand(size, generator=g) - 1) * (torch.rand(size, generator=g) < 0.5)


def soft(tau: float):
    return lambda y: [0.5 + soft_threshold(y - 0.5, torch.tensor(tau)), 0.5 + 0.3 * (y - 0.5)]


def truth(layers, noisy: Tensor, clean: Tensor) -> Tensor:
    return torch.stack([(x - clean).square().mean() for x in (noisy, *layers(noisy))]).double()


@pytest.fixture(scope="module")
def clean() -> Tensor:
    """Part of the example clip, grey (T, 1, H, W); it counts as the truth here."""
    with vdenoise.open(EXAMPLE) as reader:
        frames = reader.read(0, 6)
    gray = torch.from_numpy(np.ascontiguousarray(frames[:, 60:164, 100:248])).float().mean(-1) / 255
    return gray[:, None]


# The estimate itself


def test_a_linear_denoiser_has_its_exact_divergence():
    """Of Φ = A y every part of Stein's formula is known: the risk is the formula's, to rounding."""
    a = torch.diag(torch.linspace(0.1, 0.9, 50, dtype=torch.float64))
    y = torch.randn(50, generator=seeded(0)).double()
    found = stein(lambda z: [a @ z], y, Noise(0.3), seeded(1), probes=1)
    expected = ((y - a @ y).square().sum() - 50 * 0.09 + 2 * 0.09 * a.trace()) / 50
    assert float(found.risk[1]) == pytest.approx(float(expected), rel=1e-9)
    assert float(found.risk[0]) == pytest.approx(0.09)


def test_the_band_is_as_wide_as_the_error():
    """Over many draws the error has the deviation that is told, and the band holds about 95% of them."""
    clean, layers, z = signal(), soft(0.1), []
    for seed in range(60):
        noisy = clean + 0.1 * torch.randn(clean.shape, generator=seeded(100 + seed))
        found = stein(layers, noisy, Noise(0.1), seeded(1000 + seed), probes=1)
        z.append((found.risk - truth(layers, noisy, clean)) / found.deviation)
    scores = torch.stack(z)
    assert scores.mean(0).abs().max() < 0.4
    assert 0.8 < float(scores.square().mean().sqrt()) < 1.2
    assert float((scores.abs() < 1.96).double().mean()) > 0.9


def test_a_jump_is_not_missed():
    """A hard threshold has derivative 0 or 1 everywhere, but its risk has the jumps in it."""

    def hard(y: Tensor) -> list[Tensor]:
        return [torch.where((y - 0.5).abs() > 0.15, y, torch.tensor(0.5))]

    clean = signal(size=400_000)
    noisy = clean + 0.1 * torch.randn(clean.shape, generator=seeded(3))
    true = float(truth(hard, noisy, clean)[1])
    found = float(stein(hard, noisy, Noise(0.1), seeded(4), probes=4).risk[1])
    slope = float(((noisy - 0.5).abs() > 0.15).double().mean())
    by_derivative = float((hard(noisy)[0] - noisy).square().mean()) - 0.01 + 0.02 * slope
    assert found == pytest.approx(true, rel=0.03)
    assert by_derivative < 0.8 * true


def test_a_large_step_smooths_the_network():
    """Why ε is small: over a step of many deviations the kinks of the threshold are gone."""
    clean, layers = signal(size=200_000), soft(0.15)
    noisy = clean + 0.1 * torch.randn(clean.shape, generator=seeded(5))
    true = float(truth(layers, noisy, clean)[1])

    def error(step: float) -> float:
        return abs(float(stein(layers, noisy, Noise(0.1), seeded(6), step=step).risk[1]) / true - 1)

    assert error(0.02) < 0.02
    assert error(2.0) > 0.1


def test_poisson_gaussian_noise_has_its_own_estimate():
    clean, layers = signal(size=200_000), soft(0.1)
    kind = Noise(0.1**0.5 * 0.1, 1.8 * 0.1**2)
    noisy = add_noise(
        clean.view(1, 1, 400, 500), "poisson-gaussian", level=0.1, generator=seeded(7)
    ).flatten()
    true = truth(layers, noisy, clean)
    found = stein(layers, noisy, kind, seeded(8), probes=2)
    assert ((found.risk / true).sqrt() - 1).abs().max() < 0.02
    low, high = found.band()
    assert (low <= true).all()
    assert (true <= high).all()


def test_clipping_is_corrected_for():
    """Near black and white the noise is cut; without the correction the estimate is far off."""
    x = torch.rand(200_000, generator=seeded(9)).round(decimals=1)
    noisy = (x + 0.15 * torch.randn(x.shape, generator=seeded(10))).clamp(0, 1)

    def near(y: Tensor) -> list[Tensor]:
        # Knows the truth but for an error of its own and a little of the noise.
        return [x + 0.03 * torch.randn(x.shape, generator=seeded(11)) + 0.05 * (y - x)]

    true = truth(near, noisy, x)
    found = stein(near, noisy, Noise(0.15, clipped=True), seeded(12))
    plain = stein(near, noisy, Noise(0.15), seeded(12))
    assert ((found.risk / true).sqrt() - 1).abs().max() < 0.1
    assert float(plain.risk[1]) < 0
    low, high = found.band()
    assert (low <= true).all()
    assert (true <= high).all()


@pytest.mark.parametrize("x", [0.0, 0.2, 1.0])
def test_moments_of_clipped_noise(x):
    drawn = (x + 0.2 * torch.randn(1_000_000, generator=seeded(13)).double()).clamp(0, 1)
    mean, variance = Noise(0.2, clipped=True).clipped_moments(torch.tensor(x, dtype=torch.float64))
    assert float(mean) == pytest.approx(float(drawn.mean()), abs=1e-3)
    assert float(variance) == pytest.approx(float(drawn.var()), rel=0.01)


def test_parts_add_up_to_the_whole():
    clean, layers = signal().view(200, 200), soft(0.1)
    noisy = clean + 0.1 * torch.randn(clean.shape, generator=seeded(14))
    parts = [stein(layers, half, Noise(0.1), seeded(15), probes=8) for half in noisy.chunk(2)]
    whole = stein(layers, noisy, Noise(0.1), seeded(15), probes=8)
    both = parts[0] + parts[1]
    assert float(both.values) == 40_000
    torch.testing.assert_close(both.risk, whole.risk, rtol=0.02, atol=0)
    torch.testing.assert_close(both.deviation, whole.deviation, rtol=0.02, atol=0)


def test_rescaled_is_what_another_level_gives():
    noisy = signal() + 0.1 * torch.randn(40_000, generator=seeded(16))
    layers = soft(0.1)
    # The same probes' size: the step is in deviations of the noise.
    found = stein(layers, noisy, Noise(0.1), seeded(17), step=0.02).rescaled(1.1)
    other = stein(layers, noisy, Noise(0.11), seeded(17), step=0.02 / 1.1)
    torch.testing.assert_close(found.risk, other.risk, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(found.deviation, other.deviation, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Noise(-1.0), "at least 0"),
        (lambda: stein(soft(0.1), signal(), Noise(0.1), seeded(0), probes=0), "probes must be at least 1"),
        (lambda: stein(soft(0.1), signal(), Noise(0.1), seeded(0), step=0), "step must be above 0"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# On clips


def true_rmse(model, noisy: Tensor, clean: Tensor, sigma: float) -> list[float]:
    with torch.inference_mode():
        outputs = model.iterates(noisy[None], sigma / 255)
    return [255 * float((x - clean).square().mean().sqrt()) for x in (noisy, *(x[0] for x in outputs))]


@pytest.mark.parametrize("name", ["dust_erm", "ut_constrained", "vit_erm"])
@pytest.mark.parametrize("sigma", [10.0, 25.0, 75.0])
def test_within_three_per_cent_at_every_layer(clean, name, sigma):
    model = vdenoise.load(name)
    noisy = add_noise(clean, level=sigma / 255, generator=seeded(1))
    found = vdenoise.certify(model, noisy, sigma)
    true = true_rmse(model, noisy, clean, sigma)
    assert found.rmse == pytest.approx(true, rel=0.03)
    assert all(low <= t <= high for low, t, high in zip(found.low, true, found.high, strict=True))
    assert found.best == true.index(min(true))


def test_with_sigma_estimated_within_ten_per_cent(clean):
    model = vdenoise.load("ut_constrained")
    noisy = add_noise(clean, level=25 / 255, generator=seeded(2))
    found = vdenoise.certify(model, noisy)
    true = true_rmse(model, noisy, clean, found.sigma)
    assert not found.known
    assert found.rmse == pytest.approx(true, rel=0.1)
    assert all(low <= t <= high for low, t, high in zip(found.low, true, found.high, strict=True))


@pytest.mark.parametrize(
    ("kind", "sigma", "caution"),
    [
        ("gaussian", 25, "clipped"),
        ("correlated", 25, "coarse"),
        ("rows", 15, "coarse"),
        ("poisson-gaussian", 25, "brightness"),
        ("salt-and-pepper", 25, "impulses"),
        ("h264", 25, "no upper bound"),
    ],
)
def test_stored_noise_gets_a_band_that_holds_and_a_caution(clean, kind, sigma, caution):
    model = vdenoise.load("dust")
    # Towards black, where noise is clipped.
    dark = (clean - 0.15).clamp(0, 1) if kind == "gaussian" else clean
    noisy = add_noise(dark, kind, level=sigma / 255, generator=seeded(3), clip=True)
    stored = (255 * noisy).round() / 255
    found = vdenoise.certify(model, stored)
    true = true_rmse(model, stored, dark, found.sigma)
    assert any(caution in text for text in found.failures)
    assert caution in str(found)
    assert not found.valid
    assert all(low <= t <= high for low, t, high in zip(found.low, true, found.high, strict=True))


def test_a_known_level_of_correlated_noise_gives_the_triangle(clean):
    model = vdenoise.load("dust")
    noisy = add_noise(clean, "correlated", level=25 / 255, generator=seeded(4))
    found = vdenoise.certify(model, noisy, 25)
    true = true_rmse(model, noisy, clean, 25)
    assert found.correlation[0] > 0.1 < found.correlation[1]
    assert found.correlation[2] < 0.1
    assert all(math.isfinite(high) for high in found.high)
    assert all(low <= t <= high for low, t, high in zip(found.low, true, found.high, strict=True))


def test_a_level_that_is_too_low_is_noticed(clean):
    model = vdenoise.load("ut_constrained")
    noisy = add_noise(clean, level=30 / 255, generator=seeded(12))
    found = vdenoise.certify(model, noisy, 10)
    true = true_rmse(model, noisy, clean, 10)
    assert any("looks noisier" in text for text in found.failures)
    assert all(low <= t <= high for low, t, high in zip(found.low, true, found.high, strict=True))


def test_a_clean_clip_known_to_be_clean(clean):
    """σ = 0 given: the input is the truth, and the distance from it the error, however still the clip."""
    frames = clean[:1].expand(3, -1, -1, -1).contiguous()
    found = vdenoise.certify("ut_constrained", frames, 0)
    assert found.best == 0
    assert found.high == pytest.approx(
        true_rmse(vdenoise.load("ut_constrained"), frames, frames, 0), abs=0.02
    )


def test_poisson_gaussian_clips_by_gain(clean):
    model = vdenoise.load("ut_constrained")
    sigma, gain = 0.1**0.5 * 25, 2 * 0.9 * (25 / 255) ** 2 * 255
    noisy = add_noise(clean, "poisson-gaussian", level=25 / 255, generator=seeded(5))
    found = vdenoise.certify(model, noisy, sigma, gain=gain)
    assert found.valid
    assert found.rmse == pytest.approx(true_rmse(model, noisy, clean, 25), rel=0.03)


def test_white_noise_has_no_character(clean):
    white = noise_character(add_noise(clean, level=20 / 255, generator=seeded(6)))
    coarse = noise_character(add_noise(clean, "correlated", level=20 / 255, generator=seeded(6)))
    assert 0.7 < white.excess < 1.5
    assert white.still == 0
    assert coarse.excess > 10
    assert noise_character(clean[:1]).excess == 1


def test_tiles_and_windows_see_what_the_whole_does(clean, monkeypatch):
    model = vdenoise.load("ut_constrained")
    noisy = add_noise(clean[:4], level=25 / 255, generator=seeded(7))
    whole = vdenoise.certify(model, noisy, 25, probes=4)
    monkeypatch.setattr(certificate, "TILE", 48)
    tiled = vdenoise.certify(model, noisy, 25, probes=4)
    assert tiled.rmse == pytest.approx(whole.rmse, rel=0.01)
    assert len(vdenoise.certify(model, noisy, 25, window=3).rmse) == 7


def test_types_and_the_text(clean):
    frames = (255 * add_noise(clean, level=20 / 255, generator=seeded(8), clip=True)).round().byte()
    array = frames[:, 0].numpy()
    by_array = vdenoise.certify("ut_constrained", array, 20, probes=1)
    assert by_array.rmse == vdenoise.certify("ut_constrained", frames, 20, probes=1).rmse
    assert by_array.descends == all(a > b for a, b in zip(by_array.rmse, by_array.rmse[1:], strict=False))
    text = str(by_array)
    assert "σ 20.00 (given)" in text
    assert text.count("layer ") >= 6
    assert f"{by_array.rmse[by_array.best]:.2f}" in next(
        line for line in text.splitlines() if "least" in line
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": "blind"}, "auto"),
        ({"sigma": -1}, "0–255"),
        ({"gain": 1.0}, "gain"),
        ({"sigma": 5, "gain": -1}, "gain"),
        ({"sigma": 5, "probes": 0}, "probes"),
        ({"sigma": 5, "window": 0}, "window"),
    ],
)
def test_certify_refuses(clean, options, message):
    with pytest.raises(ValueError, match=message):
        vdenoise.certify("ut_erm", clean[:2], **options)


# Early exit


def test_leaving_early_gives_that_layer(clean):
    noisy = add_noise(clean, level=25 / 255, generator=seeded(9))
    model = vdenoise.load("vit_erm")
    for layers in (1, 3, 6):
        left = vdenoise.denoise(noisy, model, 25, layers=layers)
        with torch.inference_mode():
            expected = model.iterates(noisy[None], 25 / 255)[layers - 1][0]
        torch.testing.assert_close(left, expected, atol=1e-5, rtol=0)
    assert model.config.layers == 6
    assert len(model.steps) == 6


@pytest.mark.parametrize("name", ["dust_erm", "ut_erm", "vit_erm"])
def test_auto_leaves_at_the_good_layer_far_from_training(clean, name):
    """At four times the trained noise an earlier layer is better than the last."""
    model = vdenoise.load(name)
    noisy = add_noise(clean, level=80 / 255, generator=seeded(10))
    errors = true_rmse(model, noisy, clean, 80)
    left = vdenoise.denoise(noisy, model, 80, layers="auto")
    found = 255 * float((left - clean).square().mean().sqrt())
    assert found < 1.05 * min(errors)
    assert found < 0.95 * errors[-1]


def test_auto_keeps_a_clean_clip(clean):
    kept = vdenoise.denoise(clean, "ut_erm", 0, layers="auto")
    assert torch.equal(kept, clean)


def test_auto_in_a_stream(clean):
    noisy = (255 * add_noise(clean, level=60 / 255, generator=seeded(11), clip=True)).round().byte()
    frames = noisy.permute(0, 2, 3, 1).numpy()
    streamed = np.stack(list(vdenoise.denoise_stream(iter(frames), "ut_erm", 60, layers="auto")))
    np.testing.assert_array_equal(streamed, vdenoise.denoise(frames, "ut_erm", 60, layers="auto"))


@pytest.mark.parametrize(("layers", "message"), [(0, "1–6"), (7, "1–6"), ("some", "auto")])
def test_layers_that_are_not_there(clean, layers, message):
    with pytest.raises(ValueError, match=message):
        vdenoise.denoise(clean[:2], "ut_erm", 20, layers=layers)
