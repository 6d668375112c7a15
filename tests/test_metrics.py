"""Metrics against scikit-image, by hand, and at their limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from skimage import metrics as theirs

from vdenoise import metrics


def pair(channels: int = 1, frames: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    clean = torch.rand(frames, channels, 40, 36, generator=generator)
    clean = torch.nn.functional.avg_pool2d(clean, 5, 1, 2)
    return (clean + 0.05 * torch.randn(clean.shape, generator=generator)).clamp(0, 1), clean


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
    np.testing.assert_allclose(metrics.ssim_per_frame(noisy, clean).numpy(), by_frame, atol=1e-3)


def test_pooled_and_per_frame_differ():
    noisy, clean = pair(frames=2)
    noisy[0] = clean[0] + 0.2
    by_frame = metrics.psnr_per_frame(noisy, clean)
    assert by_frame.shape == (2,)
    pooled = -10 * math.log10(float((10 ** (-by_frame / 10)).mean()))
    assert metrics.psnr(noisy, clean) == pytest.approx(pooled)
    assert metrics.psnr(noisy, clean) < float(by_frame.mean())


def test_identical_clips():
    _, clean = pair()
    assert metrics.psnr(clean, clean) == math.inf
    assert metrics.rmse(clean, clean) == 0
    assert metrics.ssim(clean, clean) == pytest.approx(1)


def test_one_level_is_an_rmse_of_one():
    clean = torch.full((2, 1, 16, 16), 0.5)
    assert metrics.rmse(clean + 1 / 255, clean) == pytest.approx(1, rel=1e-5)


def test_flicker_is_inconsistent_and_stillness_is_not():
    still = pair()[1][:1].expand(6, -1, -1, -1).contiguous()
    flicker = still + torch.linspace(-0.1, 0.1, 6)[torch.tensor([0, 5, 1, 4, 2, 3])].view(-1, 1, 1, 1)
    assert metrics.warping_error(still, still) < 0.1
    assert metrics.warping_error(flicker, still) > 10


def test_motion_that_the_flow_follows_is_consistent():
    rough = torch.rand(1, 1, 14, 14, generator=torch.Generator().manual_seed(2))
    wide = torch.nn.functional.interpolate(rough, (96, 120), mode="bicubic", align_corners=False)[0]
    moving = torch.stack([wide[..., 2 * t : 2 * t + 96] for t in range(6)]).clamp(0, 1)
    plain = 255 * float((moving[1:] - moving[:-1]).square().mean().sqrt())
    assert metrics.warping_error(moving, moving) < 0.3 * plain


def test_lpips_runs_on_a_stand_in_backbone():
    """The weights can't be had everywhere; what is ours is the range, the grey and the frames."""
    seen = []

    def network(a, b):
        seen.append((a.shape, float(a.min()), float(a.max())))
        return (a - b).abs().mean(dim=(1, 2, 3))

    noisy, clean = pair()
    distance = metrics.lpips_per_frame(noisy, clean, network)
    assert distance.shape == (3,)
    assert (distance > 0).all()
    assert seen[0][0] == (3, 3, 40, 36)
    assert seen[0][1] < 0 <= 1 >= seen[0][2]
    assert metrics.lpips_per_frame(clean, clean, network).sum() == 0


@pytest.mark.filterwarnings("ignore::UserWarning:torchvision")  # lpips still says pretrained= to torchvision
def test_lpips_without_its_weights_says_what_to_do(tmp_path):
    bad = tmp_path / "alexnet.pth"
    torch.save({"nothing": torch.zeros(1)}, bad)
    with pytest.raises(ValueError, match="weights=PATH") as caught:
        metrics.lpips_network(bad)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::UserWarning:torchvision")
def test_lpips_takes_a_local_file(tmp_path):
    import torchvision

    torch.manual_seed(0)
    backbone = torchvision.models.alexnet()
    path = tmp_path / "alexnet.pth"
    torch.save(backbone.state_dict(), path)
    network = metrics.lpips_network(path)
    assert torch.equal(next(network.net.parameters()), backbone.features[0].weight)
    noisy, clean = (torch.nn.functional.interpolate(x, (64, 64)) for x in pair())
    assert (metrics.lpips_per_frame(noisy, clean, network) > 0).all()


def test_bad_clips_are_told():
    noisy, clean = pair()
    for call, message in [
        (lambda: metrics.psnr(noisy[:2], clean), "one shape"),
        (lambda: metrics.rmse(noisy[0], clean[0]), "one shape"),
        (lambda: metrics.rmse(noisy * 255, clean * 255), "divide uint8 by 255"),
        (lambda: metrics.rmse((noisy * 255).byte(), clean), "divide uint8 by 255"),
        (lambda: metrics.ssim(noisy[..., :9, :9], clean[..., :9, :9]), "11×11"),
        (lambda: metrics.warping_error(noisy[:1], clean[:1]), "at least 2 frames"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
