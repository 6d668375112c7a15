"""Other estimators of the noise level, to measure the shipped one against; frames (T, C, H, W) in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vdenoise.noise import estimate_sigma

MAD = 0.6745  # median of |x| of a standard normal x
FRAMES = 8  # that any of them looks at
HAAR = (0.5**0.5, -(0.5**0.5))
# The high-pass filter of Daubechies' wavelet with two vanishing moments.
DB2 = tuple(x / (4 * 2**0.5) for x in (1 - 3**0.5, -(3 - 3**0.5), 3 + 3**0.5, -(1 + 3**0.5)))


def sampled(frames: Tensor) -> Tensor:
    """At most ``FRAMES`` neighbouring frames from the middle."""
    start = max(0, (len(frames) - FRAMES) // 2)
    return frames[start : start + FRAMES]


def wavelet_mad(frames: Tensor, taps: tuple[float, ...] = HAAR) -> float:
    """Median |HH| / 0.6745 of the diagonal band (Donoho and Johnstone, Biometrika 1994)."""
    band = torch.outer(torch.tensor(taps), torch.tensor(taps))
    flat = sampled(frames).reshape(-1, 1, *frames.shape[-2:])
    return float(F.conv2d(flat, band[None, None], stride=2).abs().median()) / MAD


def db2_mad(frames: Tensor) -> float:
    """The same with a smoother wavelet."""
    return wavelet_mad(frames, DB2)


def temporal_mad(frames: Tensor) -> float:
    """Median |x_t − x_(t−1)| / (0.6745 √2) of the stiller half of the pixels, by their blurred difference."""
    if len(frames) == 1:
        return wavelet_mad(frames)
    difference = sampled(frames).diff(dim=0) / 2**0.5
    moved = F.avg_pool2d(difference, 9, 1, 4, count_include_pad=False).abs()
    still = moved <= moved.median()
    return float(difference[still].abs().median()) / MAD


def haar_mads(frames: Tensor) -> float:
    """The smaller of the Haar MADs of the frames and of their differences; each errs upwards only."""
    if len(frames) == 1:
        return wavelet_mad(frames)
    return min(wavelet_mad(frames), wavelet_mad(sampled(frames).diff(dim=0) / 2**0.5))


def patch_pca(frames: Tensor, side: int = 8) -> float:
    """Mean of those smallest eigenvalues of the patches' covariance whose mean is their median.

    Chen, Zhu, Heng: An efficient statistical method for image noise level estimation, ICCV 2015.
    """
    flat = sampled(frames)[: FRAMES // 2].reshape(-1, 1, *frames.shape[-2:])
    patches = F.unfold(flat, side, stride=3).transpose(1, 2).reshape(-1, side**2).double()
    patches = patches - patches.mean(0)
    values = torch.linalg.eigvalsh(patches.T @ patches / len(patches)).flip(0)
    for start in range(len(values)):
        rest = values[start:]
        if rest.mean() <= rest.median():
            break
    return math.sqrt(max(0.0, float(rest.mean())))


METHODS: dict[str, Callable[[Tensor], float]] = {
    "shipped": estimate_sigma,
    "wavelet MAD, Haar": wavelet_mad,
    "wavelet MAD, db2": db2_mad,
    "temporal MAD, still pixels": temporal_mad,
    "smaller of Haar MADs": haar_mads,
    "PCA of patches": patch_pca,
}
