"""Noise has the level it says and the same bytes for a seed; its level is found again blindly."""

from __future__ import annotations

import pytest
import torch

from vdenoise.noise import NOISES, add_noise, estimate_sigma


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def grey(value: float = 0.5, frames: int = 8, side: int = 64, channels: int = 1) -> torch.Tensor:
    return torch.full((frames, channels, side, side), value)


def texture(frames: int = 8, side: int = 96) -> torch.Tensor:
    """Smooth shapes with an edge, moving by one pixel per frame."""
    rough = torch.rand(1, 1, 12, 12, generator=generator(3)) * 0.5 + 0.25
    wide = torch.nn.functional.interpolate(rough, (side, side + frames), mode="bicubic", align_corners=False)[
        0
    ]
    wide[:, 30:60, 40:70] += 0.15
    return torch.stack([wide[..., t : t + side] for t in range(frames)])


@pytest.mark.parametrize("kind", NOISES)
def test_a_seed_gives_the_same_bytes(kind):
    clean = texture()
    first = add_noise(clean, kind, level=0.1, generator=generator())
    assert torch.equal(first, add_noise(clean, kind, level=0.1, generator=generator()))
    if kind != "h264":  # a codec draws nothing
        assert not torch.equal(first, add_noise(clean, kind, level=0.1, generator=generator(1)))
    assert first.shape == clean.shape
    assert add_noise(clean, kind, level=0.3, generator=generator(), clip=True).aminmax() >= (0, 0)


@pytest.mark.parametrize("kind", NOISES)
def test_level_zero_changes_nothing(kind):
    clean = texture()
    torch.testing.assert_close(add_noise(clean, kind, level=0.0, generator=generator()), clean)


@pytest.mark.parametrize(
    "kind", ["gaussian", "uniform", "poisson-gaussian", "speckle", "correlated", "rows", "flicker"]
)
def test_at_mid_grey_the_level_is_the_deviation(kind):
    noisy = add_noise(grey(frames=400, side=32), kind, level=0.08, generator=generator())
    assert float((noisy - 0.5).std()) == pytest.approx(0.08, rel=0.1)
    assert float((noisy - 0.5).mean()) == pytest.approx(0, abs=0.01)


def test_shot_noise_grows_with_the_light():
    dark, light = (
        add_noise(grey(v), "poisson-gaussian", level=0.1, generator=generator()) for v in (0.1, 0.9)
    )
    assert float(dark.std()) == pytest.approx(0.1 * (0.1 + 0.18) ** 0.5, rel=0.05)
    assert float(light.std()) == pytest.approx(0.1 * (0.1 + 1.62) ** 0.5, rel=0.05)


def test_salt_and_pepper_hits_the_share_that_has_the_deviation():
    """A share p of black and white has the deviation √p / 2 at mid-grey."""
    noisy = add_noise(grey(frames=20), "salt-and-pepper", level=0.2, generator=generator())
    assert float((noisy == 0).double().mean()) == pytest.approx(0.08, rel=0.1)
    assert float((noisy == 1).double().mean()) == pytest.approx(0.08, rel=0.1)


def test_correlated_noise_is_correlated():
    noise = add_noise(grey(), "correlated", level=0.1, generator=generator()) - 0.5
    assert float((noise[..., 1:] * noise[..., :-1]).mean() / noise.square().mean()) == pytest.approx(
        2 / 3, abs=0.05
    )


@pytest.mark.parametrize(
    ("options", "message"), [({"kind": "rain"}, "one of gaussian"), ({"level": -1.0}, "at least 0")]
)
def test_bad_noise_is_told(options, message):
    with pytest.raises(ValueError, match=message):
        add_noise(grey(), **{"kind": "gaussian", "level": 0.1, **options}, generator=generator())


@pytest.mark.parametrize(
    ("sigma", "clip"), [(s, c) for s in (5, 10, 25, 50) for c in (False, True)] + [(75, False)]
)
def test_the_level_is_found_again(sigma, clip):
    noisy = add_noise(texture(), level=sigma / 255, generator=generator(), clip=clip)
    noisy = (noisy * 255).round() / 255
    assert estimate_sigma(noisy) * 255 == pytest.approx(sigma, rel=0.1)


def test_one_frame_is_enough():
    noisy = add_noise(texture(1), level=20 / 255, generator=generator())
    assert estimate_sigma(noisy) * 255 == pytest.approx(20, rel=0.1)


def test_black_borders_do_not_count():
    noisy = add_noise(texture(), level=25 / 255, generator=generator())
    noisy[..., :40, :] = 0
    assert estimate_sigma(noisy.clamp(0, 1)) * 255 == pytest.approx(25, rel=0.15)


@pytest.mark.parametrize(
    "frames",
    [grey(), grey(0.0), grey(1.0), texture(), grey(0.5, 1, 8), grey(0.5, 1, 1), grey(0.3, 3, 9, 3)],
    ids=["constant", "black", "white", "clean", "tiny", "one pixel", "odd colour"],
)
def test_clean_constant_and_tiny_clips_have_none(frames):
    assert 0 <= estimate_sigma(frames) * 255 < 1


def test_a_frame_must_have_four_axes():
    with pytest.raises(ValueError, match=r"\(T, C, H, W\)"):
        estimate_sigma(torch.zeros(8, 8))
