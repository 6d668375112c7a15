"""How near an estimate is to the truth. Clips are (T, C, H, W) float in [0, 1], plus noise.

Every measure comes pooled over the clip and, with ``_per_frame``, for each frame. Pooled RMSE and PSNR come
from the mean squared error of all values; they are not the mean of the frames' own.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

SSIM_WINDOW = 11  # pixels
LPIPS_SIDE = 32  # pixels; the backbones halve the frame several times
FLOW_SIDE = 16  # pixels; below 12 OpenCV's DIS refuses some shapes and crashes on others
FOLLOWED = 10  # grey levels by which the guide may differ along a flow that counts

Perceptual = Callable[[Tensor, Tensor], Any]


def mse_per_frame(estimate: Tensor, clean: Tensor) -> Tensor:
    """Mean squared error of every frame (T,), in squared units of the frames, float64."""
    _check(estimate, clean)
    return (estimate.double() - clean.double()).square().mean(dim=(1, 2, 3))


def rmse(estimate: Tensor, clean: Tensor) -> float:
    r"""Root of the mean squared error pooled over the clip, on the 0–255 scale; 0 for identical clips.

    .. math:: 255 \sqrt{\mathrm{mean}_{t,c,h,w} (\hat x - x)^2}

    Args:
        estimate: x̂ (T, C, H, W).
        clean: x, the same shape.

    Raises:
        ValueError: for other shapes, integers, or values far outside of [0, 1], as all of this module.
    """
    return 255 * float(mse_per_frame(estimate, clean).mean().sqrt())


def rmse_per_frame(estimate: Tensor, clean: Tensor) -> Tensor:
    """:func:`rmse` of every frame (T,), on the 0–255 scale."""
    return 255 * mse_per_frame(estimate, clean).sqrt()


def psnr(estimate: Tensor, clean: Tensor) -> float:
    r"""Peak signal-to-noise ratio in dB from the error pooled over the clip; inf for identical clips.

    .. math:: -10 \log_{10} \mathrm{mean}_{t,c,h,w} (\hat x - x)^2
    """
    return float(-10 * mse_per_frame(estimate, clean).mean().log10())


def psnr_per_frame(estimate: Tensor, clean: Tensor) -> Tensor:
    """:func:`psnr` of every frame (T,) in dB; inf where identical. Its mean is not the pooled PSNR."""
    return -10 * mse_per_frame(estimate, clean).log10()


def ssim_per_frame(estimate: Tensor, clean: Tensor) -> Tensor:
    r"""Structural similarity of every frame (T,), −1 … 1, 1 for identical; mean over pixels and channels.

    .. math:: \frac{(2 \mu_x \mu_y + c_1)(2 \sigma_{xy} + c_2)}
              {(\mu_x^2 + \mu_y^2 + c_1)(\sigma_x^2 + \sigma_y^2 + c_2)}, \qquad c_1 = 0.01^2,\ c_2 = 0.03^2

    Gaussian window of 11 pixels and deviation 1.5, only where it lies within the frame (Wang, Bovik, Sheikh,
    Simoncelli, IEEE TIP 2004); through kornia.

    Args:
        estimate: (T, C, H, W), H and W at least 11.
        clean: the same shape.

    Raises:
        ValueError: for smaller frames.
    """
    from kornia.metrics import ssim as ssim_map

    _check(estimate, clean)
    if min(clean.shape[-2:]) < SSIM_WINDOW:
        raise ValueError(
            f"SSIM needs frames of at least {SSIM_WINDOW}×{SSIM_WINDOW} pixels, got {_size(clean)}; "
            "use psnr for smaller ones"
        )
    found = ssim_map(estimate.float(), clean.float(), SSIM_WINDOW, eps=0.0, padding="valid")
    return found.double().mean(dim=(1, 2, 3))


def ssim(estimate: Tensor, clean: Tensor) -> float:
    """Mean of :func:`ssim_per_frame` over the clip, −1 … 1."""
    return float(ssim_per_frame(estimate, clean).mean())


def lpips_network(weights: str | Path | None = None, net: str = "alex") -> Perceptual:
    """The network of LPIPS 0.1 (Zhang et al., CVPR 2018), from the package lpips.

    The package has the weights of its own layers; those of the backbone, trained on ImageNet, it has not.

    Args:
        weights: local file with torchvision's state dict of alexnet, vgg16 or squeezenet1_1; without it
            torchvision looks into its cache and then downloads the file.
        net: the backbone, "alex", "vgg" or "squeeze".

    Raises:
        ValueError: if the backbone's weights are not to be had, or are another network's.
    """
    names = {"alex": "alexnet", "vgg": "vgg16", "squeeze": "squeezenet1_1"}
    if net not in names:
        raise ValueError(f"net={net!r}: LPIPS has the backbones {', '.join(names)}")
    remedy = f"download torchvision's {names[net]} weights where there is a network and pass weights=PATH"
    if weights is None:
        try:
            return _lpips(net, random=False)
        except OSError as error:
            raise ValueError(
                f"LPIPS lacks its {net} backbone's weights ({_line(error)}); {remedy}"
            ) from error
    try:
        state = torch.load(weights, map_location="cpu", weights_only=True)
        given = [v for k, v in state.items() if k.startswith("features.") and isinstance(v, Tensor)]
    except (OSError, RuntimeError, ValueError, AttributeError, pickle.UnpicklingError) as error:
        raise ValueError(
            f"weights={weights}: not a readable state dict ({_line(error)}); {remedy}"
        ) from error
    network = _lpips(net, random=True)
    wanted = list(network.net.parameters())  # in the order of torchvision's features
    if [x.shape for x in given] != [x.shape for x in wanted]:
        raise ValueError(
            f"weights={weights}: not the {names[net]} of torchvision, {len(given)} feature tensors; {remedy}"
        )
    with torch.no_grad():
        for target, source in zip(wanted, given, strict=True):
            target.copy_(source)
    return network


def _lpips(net: str, random: bool) -> Any:
    import lpips

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torchvision")  # lpips still says pretrained= to torchvision
        return lpips.LPIPS(net=net, pnet_rand=random, verbose=False)


def lpips_per_frame(estimate: Tensor, clean: Tensor, network: Perceptual) -> Tensor:
    """Learned perceptual distance of every frame (T,), ≥ 0, 0 for identical.

    Values are cut to [0, 1] and stretched to [−1, 1], as the network was trained; grey is shown to it as RGB.

    Args:
        estimate: (T, C, H, W), C = 1 or 3, H and W at least 32.
        clean: the same shape.
        network: of :func:`lpips_network`, or any callable of two (1, 3, H, W) in [−1, 1] with one value.

    Raises:
        ValueError: for other numbers of channels, or smaller frames.
    """
    _check(estimate, clean)
    if clean.shape[1] not in (1, 3):
        raise ValueError(f"LPIPS needs grey or RGB frames, C = 1 or 3, got C = {clean.shape[1]}")
    if min(clean.shape[-2:]) < LPIPS_SIDE:
        raise ValueError(
            f"LPIPS needs frames of at least {LPIPS_SIDE}×{LPIPS_SIDE} pixels, got {_size(clean)}; use ssim"
        )
    found = []
    with torch.inference_mode():
        for pair in zip(estimate, clean, strict=True):  # frame by frame, since the features take much memory
            a, b = (x[None].float().clamp(0, 1).expand(-1, 3, -1, -1) * 2 - 1 for x in pair)
            found.append(torch.as_tensor(network(a, b)).flatten())
    return torch.cat(found)


def lpips(estimate: Tensor, clean: Tensor, network: Perceptual) -> float:
    """Mean of :func:`lpips_per_frame` over the clip."""
    return float(lpips_per_frame(estimate, clean, network).double().mean())


def warping_error_per_frame(estimate: Tensor, guide: Tensor) -> Tensor:
    r"""What does not stay along the flow, of every frame but the first (T − 1,), 0–255 scale; 0 is steady.

    .. math:: 255 \sqrt{\mathrm{mean}_{c, p \in V_t} (\hat x_t(p) - \hat x_{t-1}(p + f_t(p)))^2}

    f_t is the flow from frame t to frame t − 1 of the guide (OpenCV's DIS: Kroeger et al., ECCV 2016), V_t
    where it stays in the frame and the guide's grey value differs along it by less than 10 of 255, which
    leaves out what is covered or uncovered (after Lai et al., ECCV 2018). nan where nothing can be followed.
    The clean clip's own error is not 0, since the flow has errors: compare with that.

    Args:
        estimate: x̂ (T, C, H, W), T ≥ 2.
        guide: the clean clip, or a denoised one where there is none; a noisy one gives no useful flow.

    Raises:
        ValueError: for a single frame, or for frames below 16×16 pixels.
    """
    total, count = _warped_squares(estimate, guide)
    return 255 * (total / count).sqrt()


def warping_error(estimate: Tensor, guide: Tensor) -> float:
    """:func:`warping_error_per_frame` pooled over all values of the clip that count, on the 0–255 scale."""
    total, count = _warped_squares(estimate, guide)
    return 255 * float((total.sum() / count.sum()).sqrt())


def _warped_squares(estimate: Tensor, guide: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the squared differences along the flow, and their number, for every frame but the first."""
    _check(estimate, guide, channels=False)
    t, _, height, width = guide.shape
    if t < 2:
        raise ValueError(f"the warping error needs at least 2 frames, got {t}")
    if min(height, width) < FLOW_SIDE:
        raise ValueError(
            f"the warping error needs frames of at least {FLOW_SIDE}×{FLOW_SIDE} pixels, got {_size(guide)}"
        )
    gray = (guide.mean(1).clamp(0, 1) * 255).round().byte().cpu().numpy()
    frames = estimate.detach().float().permute(0, 2, 3, 1).cpu().numpy()
    flow_of = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    grid = np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1).astype(np.float32)
    sums = torch.zeros(2, t - 1, dtype=torch.float64)
    for now in range(1, t):
        where = grid + flow_of.calc(gray[now], gray[now - 1], np.zeros_like(grid))
        inside = (where >= 0).all(-1) & (where <= (width - 1, height - 1)).all(-1)
        followed = np.abs(_warp(gray[now - 1].astype(np.float32), where) - gray[now]) < FOLLOWED
        before = _warp(frames[now - 1], where).reshape(frames[now].shape)
        error = (frames[now] - before)[inside & followed].astype(np.float64)
        sums[0, now - 1], sums[1, now - 1] = float(np.square(error).sum()), error.size
    return sums[0], sums[1]


def _warp(image: np.ndarray, where: np.ndarray) -> np.ndarray:
    x, y = np.ascontiguousarray(where[..., 0]), np.ascontiguousarray(where[..., 1])
    return cv2.remap(np.ascontiguousarray(image), x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def _check(estimate: Tensor, clean: Tensor, channels: bool = True) -> None:
    """Both must be clips of one shape; a guide may have other channels."""
    axes = [0, 1, 2, 3] if channels else [0, 2, 3]
    shapes = tuple(estimate.shape), tuple(clean.shape)
    if estimate.ndim != 4 or clean.ndim != 4 or any(shapes[0][i] != shapes[1][i] for i in axes):
        raise ValueError(
            f"both clips must have one shape (T, C, H, W), got {shapes[0]}, {shapes[1]}; crop the larger"
        )
    if not clean.numel():
        raise ValueError(f"both clips must have at least one frame and pixel, got {shapes[1]}")
    for name, clip in (("estimate", estimate), ("clean clip", clean)):
        if not clip.is_floating_point():
            raise ValueError(
                f"the {name} must be float in [0, 1], got {clip.dtype}; divide uint8 by 255 first"
            )
        largest = float(clip.abs().amax())
        if not largest <= 8:  # also where it is not a number
            raise ValueError(
                f"the {name} must be in [0, 1] (plus noise), got up to {largest:g}; divide uint8 by 255"
            )


def _size(clip: Tensor) -> str:
    return f"{clip.shape[-2]}×{clip.shape[-1]}"


def _line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
