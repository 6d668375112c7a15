"""How near an estimate is to the truth. Frames are (T, C, H, W) float in [0, 1] unless said otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor


def mse_per_frame(estimate: Tensor, clean: Tensor) -> Tensor:
    """Mean squared error of every frame (T,), in squared units of the frames."""
    _check(estimate, clean)
    return (estimate.double() - clean.double()).square().mean(dim=(1, 2, 3))


def rmse(estimate: Tensor, clean: Tensor) -> float:
    r"""Root of the mean squared error pooled over the clip, on the 0–255 scale.

    .. math:: 255 \sqrt{\mathrm{mean}_{t,c,h,w} (\hat x - x)^2}
    """
    return 255 * float(mse_per_frame(estimate, clean).mean().sqrt())


def psnr(estimate: Tensor, clean: Tensor) -> float:
    """Peak signal-to-noise ratio in dB, from the error pooled over the clip; inf for identical clips."""
    return float(-10 * mse_per_frame(estimate, clean).mean().log10())


def psnr_per_frame(estimate: Tensor, clean: Tensor) -> Tensor:
    """PSNR of every frame (T,) in dB; inf where identical. Its mean is not the pooled PSNR."""
    return -10 * mse_per_frame(estimate, clean).log10()


def ssim_per_frame(estimate: Tensor, clean: Tensor) -> Tensor:
    """Structural similarity of every frame (T,), −1 … 1, mean over channels.

    Gaussian window of 11 pixels, deviation 1.5 (Wang, Bovik, Sheikh, Simoncelli, IEEE TIP 2004), by kornia.
    """
    from kornia.metrics import ssim as kornia_ssim

    _check(estimate, clean)
    if min(clean.shape[-2:]) < 11:
        raise ValueError(f"ssim needs frames of at least 11×11 pixels, got {tuple(clean.shape[-2:])}")
    return kornia_ssim(estimate.float(), clean.float(), window_size=11, padding="valid").mean(dim=(1, 2, 3))


def ssim(estimate: Tensor, clean: Tensor) -> float:
    """Mean of :func:`ssim_per_frame`."""
    return float(ssim_per_frame(estimate, clean).mean())


def lpips_network(weights: str | Path | None = None, net: str = "alex") -> Any:
    """The LPIPS network (Zhang et al., CVPR 2018), from the package lpips.

    Args:
        weights: a local file with the backbone's torchvision state dict; None lets torchvision find it in its
            cache or download it.
        net: "alex", "vgg" or "squeeze".

    Raises:
        ValueError: if the backbone's weights are not to be had; the message says what to do.
    """
    import lpips

    try:
        if weights is None:
            return lpips.LPIPS(net=net, verbose=False).eval()
        network = lpips.LPIPS(net=net, pnet_rand=True, verbose=False).eval()
        import torchvision

        builders = {"alex": "alexnet", "vgg": "vgg16", "squeeze": "squeezenet1_1"}
        backbone = getattr(torchvision.models, builders[net])()
        backbone.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        sources = [p for name, p in backbone.named_parameters() if name.startswith("features")]
        with torch.no_grad():
            for target, source in zip(network.net.parameters(), sources, strict=True):
                target.copy_(source)
        return network
    except (OSError, RuntimeError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"LPIPS needs the {net} backbone's weights, which could not be loaded ({reason}); download"
            f" torchvision's file for it elsewhere and pass weights=PATH"
        ) from error


def lpips_per_frame(estimate: Tensor, clean: Tensor, network: Any) -> Tensor:
    """Learned perceptual distance of every frame (T,), 0 for identical; grey is shown to the network as RGB.

    Args:
        estimate: (T, C, H, W) in [0, 1].
        clean: the same shape.
        network: from :func:`lpips_network`, or any callable of two (N, 3, H, W) in [−1, 1].
    """
    _check(estimate, clean)
    a, b = (x.float().clamp(0, 1).expand(-1, 3, -1, -1) * 2 - 1 for x in (estimate, clean))
    with torch.inference_mode():
        return torch.as_tensor(network(a, b)).flatten()


def warping_error(estimate: Tensor, guide: Tensor) -> float:
    r"""Temporal consistency: what does not stay along the flow, on the 0–255 scale; 0 is perfectly steady.

    .. math:: 255 \sqrt{\mathrm{mean}\,(\hat x_t - W_{t \to t-1} \hat x_{t-1})^2}

    The flow (OpenCV's DIS) is computed on ``guide``; pixels that it can't follow there are left out.

    Args:
        estimate: (T, C, H, W), T ≥ 2.
        guide: the clean clip, or the estimate itself where there is none.
    """
    _check(estimate, guide)
    if len(estimate) < 2:
        raise ValueError("temporal consistency needs at least 2 frames, got 1")
    flow_of = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    gray = (guide.mean(1).clamp(0, 1) * 255).round().byte().numpy()
    h, w = gray.shape[1:]
    grid = np.stack(np.meshgrid(np.arange(w), np.arange(h)), -1).astype(np.float32)
    total, count = 0.0, 0
    for t in range(1, len(gray)):
        where = grid + flow_of.calc(gray[t], gray[t - 1], np.zeros((h, w, 2), np.float32))
        inside = (where >= 0).all(-1) & (where[..., 0] <= w - 1) & (where[..., 1] <= h - 1)
        followed = np.abs(_warp(gray[t - 1].astype(np.float32), where) - gray[t]) < 10
        keep = inside & followed
        before = _warp(np.ascontiguousarray(estimate[t - 1].permute(1, 2, 0).numpy()), where)
        now = estimate[t].permute(1, 2, 0).numpy()
        error = (now - before.reshape(now.shape))[keep]
        total, count = total + float(np.square(error, dtype=np.float64).sum()), count + error.size
    return 255 * (total / count) ** 0.5 if count else float("nan")


def _warp(image: np.ndarray, where: np.ndarray) -> np.ndarray:
    x, y = np.ascontiguousarray(where[..., 0]), np.ascontiguousarray(where[..., 1])
    return cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def _check(estimate: Tensor, clean: Tensor) -> None:
    if estimate.shape != clean.shape or estimate.ndim != 4:
        raise ValueError(
            f"both clips must have one shape (T, C, H, W), got {tuple(estimate.shape)}, {tuple(clean.shape)}"
        )
    for name, clip in (("estimate", estimate), ("clean clip", clean)):
        if not clip.is_floating_point() or clip.abs().max() > 8:
            raise ValueError(f"the {name} must be float in [0, 1] (plus noise); divide uint8 by 255 first")
