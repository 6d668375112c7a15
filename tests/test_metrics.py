"""Metrics against scikit-image, by hand, and at their limits."""

from __future__ import annotations

import math
import urllib.error

import numpy as np
import pytest
import torch
from skimage import metrics as theirs

from vdenoise import metrics


def pair(channels: int = 1, frames: int = 3, side: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    clean = torch.rand(frames, channels, side, side - 4, generator=generator)
    clean = torch.nn.functional.avg_pool2d(clean, 5, 1, 2)
    return (clean + 0.05 * torch.randn(clean.shape, generator=generator)).clamp(0, 1), clean


def panning(frames: int = 5, side: int = 96, step: int = 2) -> torch.Tensor:
    """A smooth picture that moves by ``step`` pixels per frame."""
    rough = torch.rand(1, 1, 14, 14, generator=torch.Generator().manual_seed(2))
    wide = torch.nn.functional.interpolate(rough, (side, side + 24), mode="bicubic", align_corners=False)[0]
    return torch.stack([wide[..., step * t : step * t + side] for t in range(frames)]).clamp(0, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_as_scikit_image_has_them(channels):
    noisy, clean = pair(channels)
    a, b = noisy.double().numpy(), clean.double().numpy()
    assert metrics.psnr(noisy, clean) == pytest.approx(
        theirs.peak_signal_noise_ratio(b, a, data_range=1), abs=1e-6
    )
    assert metrics.rmse(noisy, clean) == pytest.approx(
        255 * math.sqrt(theirs.mean_squared_error(a, b)), rel=1e-6
    )
    by_frame = [
        theirs.structural_similarity(
            x, y, data_range=1, channel_axis=0, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
        )
        for x, y in zip(a, b, strict=True)
    ]
    np.testing.assert_allclose(metrics.ssim_per_frame(noisy, clean).numpy(), by_frame, atol=2e-5)
    assert metrics.ssim(noisy, clean) == pytest.approx(np.mean(by_frame), abs=2e-5)


def test_pooled_and_per_frame_differ():
    noisy, clean = pair(frames=2)
    noisy[0] = clean[0] + 0.2
    by_frame = metrics.psnr_per_frame(noisy, clean)
    assert by_frame.shape == (2,)
    pooled = -10 * math.log10(float((10 ** (-by_frame / 10)).mean()))
    assert metrics.psnr(noisy, clean) == pytest.approx(pooled)
    assert metrics.psnr(noisy, clean) < float(by_frame.mean())
    rms = metrics.rmse_per_frame(noisy, clean)
    assert float(rms[0]) == pytest.approx(51, rel=1e-5)
    assert metrics.rmse(noisy, clean) == pytest.approx(float(rms.square().mean().sqrt()))
    assert metrics.rmse(noisy, clean) > float(rms.mean())


def test_identical_clips():
    _, clean = pair()
    assert metrics.psnr(clean, clean) == math.inf
    assert metrics.psnr_per_frame(clean, clean).tolist() == [math.inf] * 3
    assert metrics.rmse(clean, clean) == 0
    assert metrics.ssim(clean, clean) == pytest.approx(1, abs=1e-6)
    black = torch.zeros(1, 1, 16, 16)
    assert metrics.ssim(black, black) == pytest.approx(1, abs=1e-6)


def test_one_level_is_an_rmse_of_one():
    clean = torch.full((2, 1, 16, 16), 0.5)
    assert metrics.rmse(clean + 1 / 255, clean) == pytest.approx(1, rel=1e-5)
    assert metrics.psnr(clean + 1 / 255, clean) == pytest.approx(20 * math.log10(255), rel=1e-5)


def test_opposite_pictures_have_negative_ssim():
    _, clean = pair()
    stretched = (clean - clean.mean()) * 4 + 0.5
    assert metrics.ssim(1 - stretched, stretched) < -0.5


def test_flicker_is_inconsistent_and_stillness_is_not():
    still = pair()[1][:1].expand(6, -1, -1, -1).contiguous()
    offsets = torch.linspace(-0.1, 0.1, 6)[torch.tensor([0, 5, 1, 4, 2, 3])]
    flicker = still + offsets.view(-1, 1, 1, 1)
    assert metrics.warping_error(still, still) < 0.1
    # Nothing moves, so the error of a frame is the step of its brightness.
    steps = 255 * offsets.diff().abs()
    torch.testing.assert_close(
        metrics.warping_error_per_frame(flicker, still).float(), steps, rtol=0.01, atol=0.1
    )
    pooled = float(steps.square().mean().sqrt())
    assert metrics.warping_error(flicker, still) == pytest.approx(pooled, rel=0.01)


def test_motion_that_the_flow_follows_is_consistent():
    moving = panning()
    plain = 255 * float((moving[1:] - moving[:-1]).square().mean().sqrt())
    assert metrics.warping_error(moving, moving) < 0.3 * plain


def test_noise_is_inconsistent_along_the_motion():
    moving = panning()
    noisy = moving + 0.1 * torch.randn(moving.shape, generator=torch.Generator().manual_seed(0))
    # √2 σ for two frames; where the flow points between pixels, interpolation takes part of the second's.
    assert 1.1 * 25.5 < metrics.warping_error(noisy, moving) < 1.5 * 25.5


def test_a_colour_estimate_may_have_a_grey_guide():
    moving = panning(frames=3)
    colour = moving.expand(-1, 3, -1, -1) * torch.tensor([1.0, 0.8, 0.6]).view(3, 1, 1)
    assert metrics.warping_error(colour, moving) < metrics.warping_error(moving, moving)


def test_without_anything_to_follow_there_is_no_number():
    flashing = torch.tensor([0.0, 1.0, 0.0]).view(3, 1, 1, 1).expand(3, 1, 32, 32)
    assert metrics.warping_error_per_frame(flashing, flashing).isnan().all()


@pytest.mark.parametrize("channels", [1, 3])
def test_lpips_runs_on_a_stand_in_backbone(channels):
    """The weights can't be had everywhere; what is ours is the range, the grey and the frames."""
    seen = []

    def network(a, b):
        seen.append((tuple(a.shape), float(torch.minimum(a, b).min()), float(torch.maximum(a, b).max())))
        return (a - b).abs().mean(dim=(1, 2, 3), keepdim=True)

    noisy, clean = pair(channels)
    noisy = (noisy - 0.5) * 8 + 0.5  # far outside of the range
    distance = metrics.lpips_per_frame(noisy, clean, network)
    assert distance.shape == (3,)
    torch.testing.assert_close(distance, 2 * (noisy.clamp(0, 1) - clean).abs().mean(dim=(1, 2, 3)))
    assert metrics.lpips(noisy, clean, network) == pytest.approx(float(distance.mean()))
    assert seen[0] == ((1, 3, 40, 36), -1, 1)
    assert metrics.lpips(clean, clean, network) == 0


def test_lpips_without_a_network_says_what_to_do(monkeypatch):
    import lpips

    def unreachable(**options):
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(lpips, "LPIPS", unreachable)
    with pytest.raises(ValueError, match=r"no route.*alexnet.*weights=PATH") as caught:
        metrics.lpips_network()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [{"nothing": torch.zeros(1)}, {"features.0.weight": torch.zeros(3)}, [1], None]
)
def test_lpips_with_other_weights_says_what_to_do(tmp_path, content):
    bad = tmp_path / "squeezenet.pth"
    if content is None:
        bad.write_bytes(b"no weights at all")
    else:
        torch.save(content, bad)
    for path in (bad, tmp_path / "missing.pth"):
        with pytest.raises(ValueError, match="weights=PATH") as caught:
            metrics.lpips_network(path, net="squeeze")
        assert "\n" not in str(caught.value)


def test_lpips_takes_a_local_file(tmp_path):
    import torchvision

    torch.manual_seed(0)
    backbone = torchvision.models.squeezenet1_1()
    path = tmp_path / "squeezenet.pth"
    torch.save(backbone.state_dict(), path)
    network = metrics.lpips_network(path, net="squeeze")
    for mine, original in zip(network.net.parameters(), backbone.features.parameters(), strict=True):
        assert torch.equal(mine, original)
    noisy, clean = pair(side=52)
    assert (metrics.lpips_per_frame(noisy, clean, network) > 0).all()
    assert metrics.lpips(clean, clean, network) == 0


def test_bad_clips_are_told():
    noisy, clean = pair()
    broken = noisy.clone()
    broken[0, 0, 0, 0] = math.nan
    for call, message in [
        (lambda: metrics.psnr(noisy[:2], clean), "one shape"),
        (lambda: metrics.rmse(noisy[0], clean[0]), "one shape"),
        (lambda: metrics.rmse(noisy[:0], clean[:0]), "at least one frame"),
        (lambda: metrics.rmse(noisy * 255, clean * 255), "divide uint8 by 255"),
        (lambda: metrics.rmse((noisy * 255).byte(), clean), "divide uint8 by 255"),
        (lambda: metrics.rmse(broken, clean), "got up to nan"),
        (lambda: metrics.ssim(noisy[..., :9, :9], clean[..., :9, :9]), "11×11 pixels, got 9×9"),
        (lambda: metrics.warping_error(noisy[:1], clean[:1]), "at least 2 frames"),
        (lambda: metrics.warping_error(noisy[..., :12], clean[..., :12]), "16×16 pixels, got 40×12"),
        (lambda: metrics.warping_error(noisy, clean[..., 1:]), "one shape"),
        (lambda: metrics.lpips(noisy[..., :30], clean[..., :30], None), "32×32 pixels, got 40×30"),
        (lambda: metrics.lpips(noisy.expand(3, 2, -1, -1), clean.expand(3, 2, -1, -1), None), "C = 2"),
        (lambda: metrics.lpips_network(net="resnet"), "alex, vgg, squeeze"),
    ]:
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
