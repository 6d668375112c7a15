"""Noise has the level it says and the same bytes for a seed; its level is found again blindly."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sigma_rivals import METHODS
from vdenoise.noise import NOISES, add_noise, estimate_sigma, estimate_sigma_per_frame, gamma_level
from vdenoise.noise.estimate import _clipped_share
from vdenoise.video.compress import compress, quantiser

DRAWN = [kind for kind in NOISES if kind != "h264"]  # the encoder draws nothing


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def grey(value: float = 0.5, frames: int = 8, side: int = 64, channels: int = 1) -> torch.Tensor:
    return torch.full((frames, channels, side, side), value)


def picture(frames: int = 6, side: int = 96, channels: int = 1) -> torch.Tensor:
    """Smooth shapes with an edge, moving by one pixel per frame."""
    rough = torch.rand(1, channels, 12, 12, generator=generator(3)) * 0.5 + 0.25
    wide = torch.nn.functional.interpolate(rough, (side, side + frames), mode="bicubic", align_corners=False)
    wide[..., 30:60, 40:70] += 0.15
    return torch.stack([wide[0, ..., t : t + side] for t in range(frames)])


def stored(frames: torch.Tensor) -> torch.Tensor:
    """As 8 bits hold it."""
    return (frames.clamp(0, 1) * 255).round() / 255


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_seed_gives_the_same_bytes(kind, channels):
    clean = picture(3, 33, channels)
    first = add_noise(clean, kind, level=0.1, generator=generator())
    assert torch.equal(first, add_noise(clean, kind, level=0.1, generator=generator()))
    assert first.shape == clean.shape
    assert not torch.equal(first, clean)
    if kind in DRAWN:
        assert not torch.equal(first, add_noise(clean, kind, level=0.1, generator=generator(1)))
    low, high = add_noise(clean, kind, level=0.5, generator=generator(), clip=True).aminmax()
    assert low >= 0
    assert high <= 1


@pytest.mark.parametrize("kind", NOISES)
def test_level_zero_changes_nothing(kind):
    clean = picture()
    torch.testing.assert_close(add_noise(clean, kind, level=0.0, generator=generator()), clean)


@pytest.mark.parametrize("kind", DRAWN)
def test_at_mid_grey_the_level_is_the_deviation(kind):
    noisy = add_noise(grey(frames=400, side=32), kind, level=0.08, generator=generator())
    assert float((noisy - 0.5).square().mean().sqrt()) == pytest.approx(0.08, rel=0.1)
    assert float((noisy - 0.5).mean()) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("kind", NOISES)
def test_every_clip_of_a_batch_may_have_its_level(kind):
    clean = torch.stack([picture(2, 32), picture(2, 32), picture(2, 32)])
    noisy = add_noise(clean, kind, level=torch.tensor([0.0, 0.02, 0.2]), generator=generator())
    spoilt = (noisy - clean).square().mean(dim=(1, 2, 3, 4))
    assert spoilt[0] == 0
    assert 0 < spoilt[1] < spoilt[2]


def test_the_dtype_does_not_change_the_noise():
    clean = picture()
    once = add_noise(clean, level=0.1, generator=generator())
    twice = add_noise(clean.double(), level=0.1, generator=generator())
    assert twice.dtype == torch.float64
    torch.testing.assert_close(once.double(), twice)


def test_uniform_noise_is_bounded():
    noise = add_noise(grey(), "uniform", level=0.1, generator=generator()) - 0.5
    assert float(noise.abs().max()) == pytest.approx(0.1 * 3**0.5, rel=1e-3)


def test_shot_noise_grows_with_the_light():
    dark, light = (
        add_noise(grey(v), "poisson-gaussian", level=0.1, generator=generator()) for v in (0.1, 0.9)
    )
    assert float(dark.std()) == pytest.approx(0.1 * (0.1 + 0.18) ** 0.5, rel=0.05)
    assert float(light.std()) == pytest.approx(0.1 * (0.1 + 1.62) ** 0.5, rel=0.05)
    assert float(light.mean()) == pytest.approx(0.9, abs=0.005)


def test_salt_and_pepper_hits_the_share_it_says():
    noisy = add_noise(grey(frames=20), "salt-and-pepper", level=0.2, generator=generator())
    assert float((noisy == 0).double().mean()) == pytest.approx(0.08, rel=0.1)
    assert float((noisy == 1).double().mean()) == pytest.approx(0.08, rel=0.1)
    assert float((noisy == 0.5).double().mean()) == pytest.approx(0.84, rel=0.02)
    everything = add_noise(grey(), "salt-and-pepper", level=0.9, generator=generator())
    assert set(everything.unique().tolist()) == {0.0, 1.0}


def test_correlated_noise_is_correlated():
    noise = add_noise(grey(), "correlated", level=0.1, generator=generator()) - 0.5
    for axis in (-1, -2):
        near = (noise * noise.roll(1, axis)).mean() / noise.square().mean()
        assert float(near) == pytest.approx(2 / 3, abs=0.05)
    assert float((noise[1:] * noise[:-1]).mean() / noise.square().mean()) == pytest.approx(0, abs=0.05)


def test_rows_and_flicker_have_their_shape():
    by_row = add_noise(grey(), "rows", level=0.1, generator=generator())
    assert float(by_row.std(dim=-1).max()) < 1e-6
    assert float(by_row.std(dim=-2).min()) > 0.05
    by_frame = add_noise(grey(), "flicker", level=0.1, generator=generator())
    assert float(by_frame.std(dim=(1, 2, 3)).max()) < 1e-6
    assert float(by_frame.mean(dim=(1, 2, 3)).std()) > 0.03


def test_the_published_scale():
    assert gamma_level(0.5, 51.0) == pytest.approx(0.1)


def test_h264_is_coarser_at_a_higher_level():
    clean = picture(4, 48)
    error = [
        float((add_noise(clean, "h264", level=s / 255, generator=generator()) - clean).square().mean())
        for s in (5, 20, 60)
    ]
    assert error[0] < error[1] < error[2]
    assert error[0] ** 0.5 < 5 / 255


@pytest.mark.parametrize(("height", "width"), [(1, 1), (7, 30), (16, 16)])
@pytest.mark.parametrize("channels", [1, 3])
def test_h264_keeps_shape_and_level_of_a_flat_clip(height, width, channels):
    flat = torch.full((3, height, width, channels), 77, dtype=torch.uint8).numpy()
    lossy = compress(flat, quantiser(2.0))
    assert lossy.shape == flat.shape
    assert abs(lossy.astype(int) - 77).max() <= 1


def test_the_quantiser_has_the_step_it_says():
    for sigma in (2.0, 7.0, 25.0):
        step = 0.625 * 2 ** (quantiser(sigma) / 6)
        assert step / math.sqrt(12) == pytest.approx(sigma, rel=0.06)  # indices are whole
    assert quantiser(1e-9) == 1
    assert quantiser(255.0) == 51


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "rain"}, "one of gaussian"),
        ({"level": -1.0}, "at least 0"),
        ({"level": math.nan}, "at least 0"),
        ({"clean": grey().byte()}, "divide uint8 by 255"),
        ({"clean": torch.zeros(8, 8)}, r"\(…, T, C, H, W\)"),
        ({"kind": "h264", "clean": grey(channels=2)}, "1 or 3 channels, got 2"),
    ],
)
def test_bad_noise_is_told(options, message):
    with pytest.raises(ValueError, match=message):
        add_noise(**{"clean": grey(), "kind": "gaussian", "level": 0.1, **options}, generator=generator())


@pytest.mark.parametrize("sigma", [5, 10, 25, 50, 75])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_level_is_found_again(sigma, clip, channels):
    noisy = add_noise(picture(channels=channels), level=sigma / 255, generator=generator())
    assert estimate_sigma(stored(noisy) if clip else noisy) * 255 == pytest.approx(sigma, rel=0.05)


@pytest.mark.parametrize("method", METHODS)
def test_its_rivals_find_it_where_that_is_easy(method):
    noisy = add_noise(picture(), level=30 / 255, generator=generator())
    assert METHODS[method](noisy) * 255 == pytest.approx(30, rel=0.05)


@pytest.mark.parametrize("value", [0.0, 0.1, 0.9, 1.0])
@pytest.mark.parametrize("sigma", [10, 50])
def test_clipping_is_undone(value, sigma):
    noisy = stored(add_noise(grey(value), level=sigma / 255, generator=generator()))
    assert estimate_sigma(noisy) * 255 == pytest.approx(sigma, rel=0.06)


def test_the_variance_of_clipped_noise_is_tabulated():
    levels, table = _clipped_share()
    nearest = int((levels - 0.2).abs().argmin())
    sigma = float(levels[nearest])
    for mu in (0.0, 0.1, 0.5, 0.8):
        drawn = (mu + sigma * torch.randn(400_000, generator=generator())).clamp(0, 1)
        found = table[nearest, round(float(drawn.mean()) * (table.shape[1] - 1))] * sigma**2
        assert float(found) == pytest.approx(float(drawn.var()), rel=0.02)


def test_texture_is_not_noise_where_it_stands_still():
    grain = (torch.rand(1, 1, 96, 96, generator=generator(5)) * 0.6 + 0.2).expand(6, -1, -1, -1)
    noisy = add_noise(grain, level=10 / 255, generator=generator())
    assert estimate_sigma(noisy) * 255 == pytest.approx(10, rel=0.05)
    assert estimate_sigma(noisy[:1]) * 255 > 30  # one frame alone can't tell them apart


def test_texture_of_luma_is_not_noise_in_colour():
    grain = (torch.rand(1, 1, 96, 96, generator=generator(5)) * 0.1 + 0.4).expand(1, 3, -1, -1)
    noisy = add_noise(grain, level=10 / 255, generator=generator())
    assert estimate_sigma(noisy) * 255 == pytest.approx(10, rel=0.05)


def test_noise_of_luma_is_noise_in_colour():
    """Video stored in 4:2:0 has none of it in the colour differences."""
    luma = add_noise(picture(), level=10 / 255, generator=generator())
    assert estimate_sigma(luma.expand(-1, 3, -1, -1)) * 255 == pytest.approx(10, rel=0.05)


def test_one_frame_is_enough():
    noisy = add_noise(picture(1), level=20 / 255, generator=generator())
    assert estimate_sigma(noisy) * 255 == pytest.approx(20, rel=0.05)


def test_one_block_is_enough():
    estimates = [
        estimate_sigma(add_noise(grey(0.5, 1, 8), level=0.1, generator=generator(seed))) for seed in range(40)
    ]
    assert sum(estimates) / 40 == pytest.approx(0.1, rel=0.06)


def test_bars_do_not_count():
    noisy = add_noise(picture(), level=25 / 255, generator=generator())
    boxed = torch.zeros(6, 1, 150, 300)
    boxed[..., 20:116, 100:196] = noisy.clamp(0, 1)
    assert estimate_sigma(boxed) * 255 == pytest.approx(25, rel=0.05)


def test_flat_places_without_noise_do_not_count():
    noisy = add_noise(picture(), level=25 / 255, generator=generator())
    noisy[..., 30:70, 20:60] = 0.4
    assert estimate_sigma(noisy) * 255 == pytest.approx(25, rel=0.05)


def test_repeated_frames_do_not_count():
    noisy = add_noise(picture(4), level=25 / 255, generator=generator()).repeat_interleave(2, 0)
    assert estimate_sigma(noisy) * 255 == pytest.approx(25, rel=0.05)
    assert estimate_sigma(noisy[:1].expand(5, -1, -1, -1)) * 255 == pytest.approx(25, rel=0.06)


def test_a_level_that_varies_is_found_frame_by_frame():
    sigma = torch.tensor([5.0, 30.0, 10.0, 50.0, 20.0])
    clean = torch.stack([picture(1)] * 5)  # a batch of clips of one frame, which stands still
    noisy = add_noise(clean, level=sigma / 255, generator=generator())[:, 0]
    by_frame = estimate_sigma_per_frame(noisy) * 255
    torch.testing.assert_close(by_frame, sigma, rtol=0.08, atol=0)
    assert estimate_sigma(noisy) * 255 == pytest.approx(float(sigma.square().mean().sqrt()), rel=0.1)


def test_texture_is_not_noise_frame_by_frame():
    grain = (torch.rand(1, 1, 96, 96, generator=generator(5)) * 0.6 + 0.2).expand(4, -1, -1, -1)
    noisy = add_noise(grain, level=10 / 255, generator=generator())
    torch.testing.assert_close(
        estimate_sigma_per_frame(noisy) * 255, torch.full((4,), 10.0), rtol=0.2, atol=0
    )


@pytest.mark.parametrize(
    "frames",
    [
        grey(),
        grey(0.0),
        grey(1.0),
        picture(),
        stored(picture(channels=3)),
        torch.linspace(0, 1, 64).expand(3, 3, 64, 64),
        grey(0.5, 1, 8),
        grey(0.5, 1, 1),
        grey(0.3, 3, 9, 3),
    ],
    ids=["constant", "black", "white", "clean", "clean 8 bit", "ramp", "tiny", "one pixel", "odd colour"],
)
def test_clean_constant_and_tiny_clips_have_none(frames):
    assert 0 <= estimate_sigma(frames) * 255 < 0.6
    by_frame = estimate_sigma_per_frame(frames) * 255
    assert by_frame.shape == (len(frames),)
    assert by_frame.min() >= 0
    assert by_frame.max() < 0.6


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 20), st.integers(1, 20)),
    sigma=st.floats(0, 0.5),
    clip=st.booleans(),
)
def test_every_shape_has_an_answer(shape, sigma, clip):
    frames = add_noise(torch.full(shape, 0.4), level=sigma, generator=generator(), clip=clip)
    assert 0 <= estimate_sigma(frames) <= 1.1 * 255
    assert estimate_sigma_per_frame(frames).isfinite().all()


@settings(max_examples=20, deadline=None)
@given(scale=st.floats(0.1, 1), flip=st.booleans())
def test_the_estimate_scales_with_the_frames(scale, flip):
    frames = add_noise(picture(3, 48), level=0.05, generator=generator()) - 0.5  # never taken for clipped
    other = frames.flip(-1, -2).transpose(-1, -2) if flip else frames
    assert estimate_sigma(scale * other) == pytest.approx(
        scale * estimate_sigma(frames), rel=0.15 if flip else 1e-3
    )


@pytest.mark.parametrize("estimate", [estimate_sigma, estimate_sigma_per_frame])
@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (torch.zeros(8, 8), r"\(T, C, H, W\)"),
        (torch.zeros(0, 1, 8, 8), "none of them 0"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), "divide uint8 by 255"),
        (torch.full((1, 1, 8, 8), 128.0), "up to 128"),
        (torch.full((1, 1, 8, 8), math.nan), "finite"),
    ],
)
def test_bad_frames_are_told(estimate, frames, message):
    with pytest.raises(ValueError, match=message) as caught:
        estimate(frames)
    assert "\n" not in str(caught.value)
