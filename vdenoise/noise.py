"""Noise put on, seeded, and its level estimated blindly.

Frames are (…, T, C, H, W) in [0, 1], σ in the same units.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAD = 0.6745  # median of |x| of a standard normal x
SATURATED = 3 / 255  # this near to black or white, clipping has eaten part of the noise
SAMPLES = 12  # frames of a long clip that are looked at


def gaussian(clean: Tensor, level: float, generator: torch.Generator) -> Tensor:
    r"""White noise: :math:`\tilde x = x + \sigma n,\ n \sim N(0, 1)`; ``level`` is σ."""
    return clean + level * _normal(clean, generator)


def uniform(clean: Tensor, level: float, generator: torch.Generator) -> Tensor:
    r"""White uniform noise of deviation σ: :math:`\tilde x = x + \sqrt3 \sigma (2u - 1),\ u \sim U(0, 1)`."""
    u = torch.rand(clean.shape, generator=generator, dtype=clean.dtype)
    return clean + 3**0.5 * level * (2 * u - 1)


def poisson_gaussian(clean: Tensor, level: float, generator: torch.Generator) -> Tensor:
    r"""Shot and read noise: variance :math:`\sigma^2 (0.1 + 1.8 x)`, σ² at mid-grey.

    The gain is 1.8 σ²: photons are Poisson with mean x / gain, read noise is Gaussian with variance 0.1 σ².
    """
    gain = 1.8 * level**2
    if gain == 0:
        return clean.clone()
    photons = torch.poisson(clean.clamp(min=0) / gain, generator=generator) * gain
    return photons + 0.1**0.5 * level * _normal(clean, generator)


def salt_and_pepper(clean: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """Black or white, each with probability ``level`` / 2 per value."""
    u = torch.rand(clean.shape, generator=generator, dtype=clean.dtype)
    return torch.where(u < level / 2, 0.0, torch.where(u > 1 - level / 2, 1.0, clean))


def speckle(clean: Tensor, level: float, generator: torch.Generator) -> Tensor:
    r"""Multiplicative noise :math:`\tilde x = x (1 + 2 \sigma n)`: σ is its deviation at mid-grey."""
    return clean * (1 + 2 * level * _normal(clean, generator))


def correlated(clean: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """White noise blurred by 3×3 binomial weights and brought back to deviation σ."""
    taps = torch.tensor([1.0, 2.0, 1.0], dtype=clean.dtype)
    kernel = torch.outer(taps, taps)
    kernel = (kernel / kernel.norm()).view(1, 1, 3, 3)
    noise = _normal(clean, generator)
    flat = torch.nn.functional.pad(noise.reshape(-1, 1, *clean.shape[-2:]), (1, 1, 1, 1), mode="circular")
    return clean + level * torch.nn.functional.conv2d(flat, kernel).view(clean.shape)


def rows(clean: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """One offset of deviation σ per row, frame and channel, as from a faulty read-out."""
    shape = (*clean.shape[:-1], 1)
    return clean + level * torch.randn(shape, generator=generator, dtype=clean.dtype)


def flicker(clean: Tensor, level: float, generator: torch.Generator) -> Tensor:
    """One gain 1 + 2σn per frame, as from mains light or worn film."""
    shape = (*clean.shape[:-3], 1, 1, 1)
    return clean * (1 + 2 * level * torch.randn(shape, generator=generator, dtype=clean.dtype))


NOISES = {
    "gaussian": gaussian,
    "uniform": uniform,
    "poisson-gaussian": poisson_gaussian,
    "salt-and-pepper": salt_and_pepper,
    "speckle": speckle,
    "correlated": correlated,
    "rows": rows,
    "flicker": flicker,
}


def add_noise(
    clean: Tensor, kind: str = "gaussian", *, level: float, generator: torch.Generator, clip: bool = False
) -> Tensor:
    """Degrade clean frames; the same generator state gives the same bytes.

    Args:
        clean: (…, T, C, H, W) in [0, 1].
        kind: a key of ``NOISES``; each says what ``level`` is.
        level: strength ≥ 0 (γσ_x / 255 for the published γ).
        generator: source of all randomness.
        clip: cut to [0, 1] afterwards, as stored video is.

    Returns:
        The noisy frames, same shape.

    Raises:
        ValueError: for an unknown kind or a negative level.
    """
    if kind not in NOISES:
        raise ValueError(f"kind of noise must be one of {', '.join(NOISES)}, got {kind!r}")
    if not level >= 0:
        raise ValueError(f"level of the noise must be at least 0, got {level}")
    noisy = NOISES[kind](clean, level, generator)
    return noisy.clamp(0, 1) if clip else noisy


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype)


def estimate_sigma(frames: Tensor) -> float:
    r"""Deviation of white noise, from the frames alone.

    Two estimates, which err upwards, the first by texture, the second by motion; the smaller counts:

    .. math:: \hat\sigma_{space} = \frac{\mathrm{median} |HH|}{0.6745}, \qquad
              \hat\sigma_{time} = \frac{\mathrm{median} |HH_t - HH_{t-1}|}{0.6745 \sqrt 2}

    HH is the diagonal band of the orthonormal Haar transform (Donoho and Johnstone, Biometrika 1994). Blocks
    near black or white, where clipping eats noise, are left out while enough others remain. Where the median
    is 0 (a synthetic or strongly compressed clip) so is the estimate.

    Args:
        frames: (T, C, H, W) in [0, 1]; of long clips some pairs of neighbouring frames are looked at.

    Returns:
        σ̂ ≥ 0 in the units of ``frames``.

    Raises:
        ValueError: for another number of axes.
    """
    if frames.ndim != 4:
        raise ValueError(f"frames must have shape (T, C, H, W), got {tuple(frames.shape)}")
    t = len(frames)
    starts = torch.linspace(0, max(0, t - 2), min(max(1, t - 1), SAMPLES // 2)).round().long()
    hh, level = _haar(frames[starts])
    usable = (level > SATURATED) & (level < 1 - SATURATED)
    space = _deviation(hh, usable)
    if t == 1 or not hh.numel():
        return space
    later, _ = _haar(frames[starts + 1])
    return min(space, _deviation((later - hh) / 2**0.5, usable))


def _haar(frames: Tensor) -> tuple[Tensor, Tensor]:
    """Diagonal band and mean of every 2×2 block."""
    h, w = frames.shape[-2] // 2 * 2, frames.shape[-1] // 2 * 2
    a, b = frames[..., 0:h:2, 0:w:2], frames[..., 0:h:2, 1:w:2]
    c, d = frames[..., 1:h:2, 0:w:2], frames[..., 1:h:2, 1:w:2]
    return (a - b - c + d) / 2, (a + b + c + d) / 4


def _deviation(hh: Tensor, usable: Tensor) -> float:
    values = hh[usable] if usable.sum() >= max(64, 0.05 * usable.numel()) else hh.flatten()
    return float(values.abs().median()) / MAD if values.numel() else 0.0
