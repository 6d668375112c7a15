"""Motion followed: S and its adjoint, known motion, still parts untouched, no seam where it was followed."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor

from vdenoise import denoise, denoise_stream, follow
from vdenoise.models import load
from vdenoise.models.dust import DUST, DUSTConfig
from vdenoise.models.registry import first_layers
from vdenoise.restore import PRESETS, chosen
from vdenoise.tiling import halo


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Something with structure at every scale, in [0.2, 0.8]."""
    rng = np.random.default_rng(seed)
    layers = [
        cv2.resize(
            rng.random((height // s + 2, width // s + 2)), (width, height), interpolation=cv2.INTER_CUBIC
        )
        for s in (4, 8, 16)
    ]
    return (0.2 + 0.6 * np.clip(np.mean(layers, axis=0), 0, 1)).astype(np.float32)


def pan(frames: int, height: int, width: int, step: tuple[int, int], channels: int = 1) -> Tensor:
    """A camera that moves by whole pixels (y, x) per frame."""
    dy, dx = (abs(s) * frames for s in step)
    whole = picture(height + dy, width + dx)
    starts = [tuple(s * t if s >= 0 else -s * (frames - t) for s in step) for t in range(frames)]
    cut = [whole[y : y + height, x : x + width] for y, x in starts]
    return torch.from_numpy(np.stack(cut))[:, None].repeat(1, channels, 1, 1)


def noise(clip: Tensor, sigma: float = 0.1) -> Tensor:
    return clip + sigma * torch.randn(clip.shape, generator=torch.Generator().manual_seed(0))


def mean_over_time(frames: Tensor) -> Tensor:
    return frames.mean(0, keepdim=True).expand_as(frames)


def mse(a: Tensor, b: Tensor) -> float:
    return float((a - b).square().mean())


def test_put_back_is_the_adjoint_of_pick():
    """⟨S x, z⟩ = ⟨x, Sᵀ z⟩ for any map, also one that takes a pixel twice and another never."""
    g = torch.Generator().manual_seed(0)
    x, z = torch.randn(4, 3, 9, 11, generator=g), torch.randn(4, 3, 5, 6, generator=g)
    source = torch.randint(0, 99, (4, 5, 6), generator=g)
    counts = torch.rand(4, 5, 6, generator=g) < 0.7
    picked = follow.pick(x, source) * counts[:, None]
    back, ones = torch.zeros_like(x), torch.zeros(4, 1, 9, 11)
    for t in range(4):
        follow.put_back(back[t], ones[t], z[t], source[t], counts[t])
    torch.testing.assert_close((picked * z).sum(), (x * back).sum())
    assert ones.sum() == counts.sum()


@pytest.mark.parametrize("step", [(0, 3), (2, -1), (0, 12)])
def test_known_motion_is_followed(step):
    """A mean over time blurs what moves in place; along the motion it averages noise alone."""
    clean = pan(12, 96, 128, step)
    noisy = noise(clean)
    inner = (..., slice(24, -24), slice(24, -24))
    followed = follow.follow(mean_over_time, noisy, clean, 0)
    assert mse(followed[inner], clean[inner]) < 0.35 * mse(noisy, clean)
    assert mse(followed[inner], clean[inner]) < 0.35 * mse(mean_over_time(noisy)[inner], clean[inner])


def test_with_the_identity_every_pixel_comes_back_to_its_place():
    noisy = noise(pan(9, 61, 83, (1, 4), channels=3))
    first = pan(9, 61, 83, (1, 4), channels=3)
    out = follow.follow(lambda x: x, noisy, first, 0)
    back = (out - noisy).abs() < 1e-6
    assert back.float().mean() > 0.8
    torch.testing.assert_close(out[~back], first[~back])  # what nothing came back to keeps the first pass


def test_a_still_clip_costs_nothing():
    clean = pan(1, 64, 64, (0, 0)).repeat(8, 1, 1, 1)

    def never(frames: Tensor) -> Tensor:
        raise AssertionError("the network was asked about a clip that stands still")

    assert torch.equal(follow.follow(never, noise(clean), clean, 32), clean)


@pytest.mark.parametrize("shape", [(1, 1, 64, 64), (5, 3, 15, 200), (2, 1, 16, 16)])
def test_clips_too_small_to_follow_are_left_alone(shape):
    first = torch.rand(shape)
    assert follow.follow(lambda x: x, first, first, 8).shape == first.shape


def test_a_small_moving_thing_costs_what_it_covers_and_leaves_no_seam(monkeypatch):
    """In boxes around what moves, the result is that of the whole frame."""
    torch.manual_seed(0)
    net = DUST(DUSTConfig(layers=2, codes=16, features=4)).eval()
    clean = torch.from_numpy(picture(160, 240))[None, None].repeat(8, 1, 1, 1)
    thing = torch.from_numpy(picture(28, 28, seed=1))
    for t in range(8):
        clean[t, 0, 60:88, 60 + 3 * t : 88 + 3 * t] = thing
    noisy, areas = noise(clean), []

    @torch.inference_mode()
    def network(frames: Tensor) -> Tensor:
        areas.append(frames.shape[-2] * frames.shape[-1])
        return net(frames[None], 0.1)[0]

    margin = halo(net)[0]
    apart = follow.follow(network, noisy, clean, margin)
    assert max(areas) < 0.5 * 160 * 240
    monkeypatch.setattr(follow, "boxes", lambda moving, h, w, margin: [(slice(0, h), slice(0, w))])
    torch.testing.assert_close(follow.follow(network, noisy, clean, margin), apart, rtol=1e-5, atol=1e-5)
    still = (..., slice(128, None), slice(None))
    assert torch.equal(apart[still], clean[still])


def test_presets_and_the_stream():
    net = first_layers(load("dust"), 1)
    noisy = (noise(pan(10, 48, 48, (0, 2))).clamp(0, 1) * 255).round().byte().numpy()[:, 0]
    plain, followed = (denoise(noisy, net, 25, preset=name) for name in ("balanced", "best"))
    assert not np.array_equal(plain, followed)
    np.testing.assert_array_equal(denoise(noisy, net, 25, follow=True), followed)
    np.testing.assert_array_equal(denoise(noisy, net, 25, preset="best", follow=False), plain)
    streamed = np.stack(list(denoise_stream(iter(noisy[..., None]), net, 25, preset="best")))[..., 0]
    np.testing.assert_array_equal(streamed, followed)
    with pytest.raises(ValueError, match="one of fast, balanced, best, got 'good'"):
        denoise(noisy, preset="good")
    assert chosen("fast") == (PRESETS["fast"].model, False)
    assert chosen("best", "mine.pt") == ("mine.pt", True)
