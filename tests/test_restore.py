"""A clip in, a clip out: types kept, no seam in space or time, memory bounded."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from vdenoise import denoise, denoise_stream, layer_estimates
from vdenoise.models.dust import DUST, DUSTConfig
from vdenoise.tiling import by_tiles, halo


@pytest.fixture(scope="module")
def model() -> DUST:
    torch.manual_seed(0)
    return DUST(DUSTConfig(layers=2, codes=24, features=4)).eval()


def clip(*shape: int, dtype: type = np.uint8) -> np.ndarray:
    values = np.random.default_rng(0).integers(60, 190, shape)
    return (values / 255).astype(dtype) if np.issubdtype(dtype, np.floating) else values.astype(dtype)


@pytest.mark.parametrize("shape", [(5, 20, 17), (1, 16, 16), (3, 24, 20, 1), (2, 19, 16, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_numpy_comes_back_as_it_went_in(model, shape, dtype):
    noisy = clip(*shape, dtype=dtype)
    clean = denoise(noisy, model, sigma=25)
    assert type(clean) is np.ndarray
    assert clean.shape == noisy.shape
    assert clean.dtype == noisy.dtype
    assert not np.array_equal(clean, noisy)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.bfloat16])
def test_torch_comes_back_as_it_went_in(model, dtype):
    noisy = torch.from_numpy(clip(3, 3, 18, 21))
    noisy = noisy if dtype == torch.uint8 else (noisy / 255).to(dtype)
    clean = denoise(noisy, model, sigma=25)
    assert clean.shape == noisy.shape
    assert clean.dtype == dtype


def test_scales_agree(model):
    noisy = clip(4, 24, 24)
    by_int = denoise(noisy, model, sigma=20).astype(float)
    by_float = denoise(noisy.astype(np.float32) / 255, model, sigma=20) * 255
    assert np.abs(by_int - np.clip(by_float, 0, 255)).max() <= 0.5 + 1e-3


def test_a_stream_and_a_clip_give_the_same(model):
    noisy = clip(23, 16, 16, 1)
    whole = denoise(noisy, model, sigma=25, window=8)
    streamed = np.stack(list(denoise_stream(iter(noisy), model, sigma=25, window=8)))
    np.testing.assert_array_equal(streamed, whole)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 13, 14, 15, 16, 31])
@pytest.mark.parametrize("window", [1, 2, 8])
def test_one_frame_out_for_every_frame_in(model, count, window):
    noisy = clip(count, 12, 12, 1)
    assert len(list(denoise_stream(iter(noisy), model, sigma=25, window=window))) == count


def test_windows_put_every_frame_in_its_place():
    """With the identity in place of a network, cross-fading gives back the frames in order."""

    class Identity(torch.nn.Module):
        grid = DUST(DUSTConfig(layers=1, codes=2, features=1)).grid
        config = DUSTConfig(layers=1)

        def forward(self, noisy, sigma):
            return noisy

    noisy = np.arange(37, dtype=np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2)
    np.testing.assert_array_equal(denoise(noisy, Identity(), sigma=1, window=8), noisy)


def test_tiles_leave_no_seam(model):
    frames = torch.rand(2, 1, 70, 93)
    with torch.inference_mode():
        whole = model(frames[None], 0.1)[0]
        tiled = by_tiles(lambda x: model(x[None], 0.1)[0], frames, halo(model), tile=24)
    torch.testing.assert_close(tiled, whole, atol=1e-6, rtol=0)


def test_a_halo_too_narrow_would_show(model):
    frames = torch.rand(2, 1, 70, 93)
    with torch.inference_mode():
        whole = model(frames[None], 0.1)[0]
        tiled = by_tiles(lambda x: model(x[None], 0.1)[0], frames, (4, 4), tile=24)
    assert (tiled - whole).abs().max() > 1e-4


def test_a_long_stream_holds_one_window(model):
    alive: list[weakref.ref] = []
    most = 0

    class Frame(np.ndarray):
        pass

    def frames():
        nonlocal most
        for _ in range(40):
            frame = clip(12, 12, 1).view(Frame)
            alive.append(weakref.ref(frame))
            most = max(most, sum(ref() is not None for ref in alive))
            yield frame

    assert sum(1 for _ in denoise_stream(frames(), model, sigma=25, window=6)) == 40
    assert most <= 8


def test_sigma_auto_follows_the_noise(model):
    seen = []

    class Spy(DUST):
        def forward(self, noisy, sigma):
            seen.append(float(sigma))
            return super().forward(noisy, sigma)

    spy = Spy(model.config).eval()
    noise = np.random.default_rng(0).normal(0, 20, (6, 64, 64))
    denoise(np.clip(128 + noise, 0, 255).astype(np.uint8), spy, sigma="auto")
    assert seen[0] * 255 == pytest.approx(20, rel=0.1)


def test_layer_estimates_end_in_the_result(model):
    noisy = clip(4, 20, 20, 1)
    layers = layer_estimates(noisy, model, sigma=25)
    assert len(layers) == 2
    np.testing.assert_array_equal(np.rint(layers[-1]).astype(np.uint8), denoise(noisy, model, sigma=25))


@pytest.mark.parametrize(
    ("frames", "options", "message"),
    [
        (clip(4, 20, 20, 2), {}, "shape"),
        (clip(4, 20), {}, "shape"),
        (clip(4, 20, 20).astype(np.int64), {}, "uint8, uint16 or float"),
        (clip(4, 20, 20).astype(np.float32), {}, "0–1"),
        (np.full((2, 16, 16), np.nan, np.float32), {}, "finite"),
        (np.zeros((0, 20, 20), np.uint8), {}, "empty"),
        (clip(4, 5, 20), {}, "one patch"),
        ([1, 2], {}, "numpy array or a torch tensor"),
        (clip(4, 20, 20), {"sigma": "blind"}, "auto"),
        (clip(4, 20, 20), {"sigma": -1}, "0–255"),
        (clip(4, 20, 20), {"window": 0}, "window"),
        (clip(4, 20, 20), {"device": "abacus"}, "abacus"),
        (clip(4, 20, 20), {"model": "nonesuch"}, "no checkpoint"),
    ],
)
def test_bad_input_is_told_in_one_line(model, frames, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        denoise(frames, **{"model": model, "sigma": 25, **options})
    assert "\n" not in str(caught.value)
