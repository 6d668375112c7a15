"""Noise put on clean clips: (…, T, C, H, W) in [0, 1], every draw from an explicit generator.

Every kind takes one ``level`` in the units of the frames: the deviation σ that it gives a mid-grey pixel (for
H.264 that of the rounding of a coefficient), so that one slider or one grid serves them all.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Level = float | Tensor
Degradation = Callable[[Tensor, Level, torch.Generator], Tensor]


def gamma_level(gamma: float, sigma_x: float) -> float:
    r"""The published scale of the noise: :math:`\sigma = \gamma \sigma_x / 255`.

    Args:
        gamma: γ ≥ 0.
        sigma_x: deviation of the training pixels on the 0–255 scale.

    Returns:
        ``level`` for :func:`add_noise`.
    """
    return gamma * sigma_x / 255


def gaussian(clean: Tensor, level: Level, generator: torch.Generator) -> Tensor:
    r"""White noise: :math:`\tilde x = x + \sigma n,\ n \sim N(0, 1)`."""
    return clean + _level(level, clean) * _normal(clean.shape, clean, generator)


def uniform(clean: Tensor, level: Level, generator: torch.Generator) -> Tensor:
    r"""White uniform noise: :math:`\tilde x = x + \sqrt 3\, \sigma (2 u - 1),\ u \sim U(0, 1)`."""
    return clean + 3**0.5 * _level(level, clean) * (2 * _uniform(clean, generator) - 1)


def poisson_gaussian(
    clean: Tensor, level: Level, generator: torch.Generator, *, read_share: float = 0.1
) -> Tensor:
    r"""Shot noise of a sensor with gain g, and read noise (Foi et al., IEEE TIP 2008).

    .. math:: \tilde x = g\,k + \sqrt{\rho}\, \sigma n, \quad k \sim \mathrm{Poisson}(x / g), \quad
              g = 2 (1 - \rho) \sigma^2, \quad \mathrm{var} = g x + \rho \sigma^2

    Args:
        clean: frames in [0, 1]; what is below 0 gives no photons.
        level: σ, reached at x = ½.
        generator: source of all randomness.
        read_share: ρ, the part of σ² that is read noise, 0–1.
    """
    sigma = _level(level, clean)
    gain = 2 * (1 - read_share) * sigma**2
    rate = clean.clamp(min=0) / torch.as_tensor(gain).clamp(
        min=1e-9
    )  # level 0: so many photons that none is missed
    photons = torch.poisson(rate.to(generator.device, torch.float32), generator=generator).to(clean)
    read = read_share**0.5 * sigma * _normal(clean.shape, clean, generator)
    return torch.where(torch.as_tensor(gain > 0, device=clean.device), photons * gain, clean) + read


def salt_and_pepper(clean: Tensor, level: Level, generator: torch.Generator) -> Tensor:
    r"""Black or white, each with probability p / 2 per value, :math:`p = \min(1, 4 \sigma^2)`.

    A mid-grey value that turns black or white is off by ½; hence p from σ, and σ = √p / 2.
    """
    half = (2 * _level(level, clean) ** 2).clamp(max=0.5)
    u = _uniform(clean, generator)
    return torch.where(u < half, 0.0, torch.where(u >= 1 - half, 1.0, clean))


def speckle(clean: Tensor, level: Level, generator: torch.Generator) -> Tensor:
    r"""Multiplicative noise: :math:`\tilde x = x (1 + 2 \sigma n)`."""
    return clean * (1 + 2 * _level(level, clean) * _normal(clean.shape, clean, generator))


def correlated(clean: Tensor, level: Level, generator: torch.Generator) -> Tensor:
    r"""Noise that neighbours share, as a demosaicked or resized picture has it.

    .. math:: \tilde x = x + \sigma\, \frac{k * n}{\lVert k \rVert_2}, \qquad
              k = (1, 2, 1)^\top (1, 2, 1) \text{ per frame and channel, cyclic}
    """
    noise = _normal(clean.shape, clean, generator)
    for axis in (-2, -1):
        noise = (2 * noise + noise.roll(1, axis) + noise.roll(-1, axis)) / 6**0.5
    return clean + _level(level, clean) * noise


def rows(clean: Tensor, level: Level, generator: torch.Generator) -> Tensor:
    r"""One offset per row, frame and channel, as a read-out makes: :math:`\tilde x = x + \sigma n_{tch}`."""
    return clean + _level(level, clean) * _normal((*clean.shape[:-1], 1), clean, generator)


def flicker(clean: Tensor, level: Level, generator: torch.Generator) -> Tensor:
    r"""One gain per frame, as of mains light or worn film: :math:`\tilde x_t = x_t (1 + 2 \sigma n_t)`."""
    return clean * (1 + 2 * _level(level, clean) * _normal((*clean.shape[:-3], 1, 1, 1), clean, generator))


def h264(clean: Tensor, level: Level, generator: torch.Generator) -> Tensor:
    r"""H.264 at a constant quantiser, 4:2:0 for colour, through the encoder and back.

    A step Q rounds the coefficients of the prediction error with a deviation of Q / √12, and Q doubles with
    every 6 units of the quantiser index (ITU-T H.264, 8.5.9):

    .. math:: Q = 0.625 \cdot 2^{q / 6}, \qquad
              q = \mathrm{round}\, 6 \log_2 \frac{255 \sqrt{12}\, \sigma}{0.625} \text{ within } 1 \dots 51

    σ = 5, 10, 25 on the 0–255 scale give q = 29, 35, 43. The error of the picture is smaller, since most
    coefficients are near 0 already. Nothing is drawn from the generator: the encoder is deterministic.

    Args:
        clean: (…, T, C, H, W) with C = 1 or 3; cut to [0, 1] and rounded to 8 bits first.
        level: σ; 0 leaves the frames as they are.
        generator: not used.

    Raises:
        ValueError: for another number of channels.
    """
    from vdenoise.video.compress import compress, quantiser

    channels = clean.shape[-3]
    if channels not in (1, 3):
        raise ValueError(
            f"h264 noise needs 1 or 3 channels, got {channels}; compress the channels one by one"
        )
    clips = clean.reshape(-1, *clean.shape[-4:])
    levels = _level(level, clean).to(clean.device).expand(*clean.shape[:-4], 1, 1, 1, 1).reshape(-1)
    out = []
    for clip, sigma in zip(clips, levels.tolist(), strict=True):
        if sigma > 0:
            frames = (clip.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
            lossy = torch.from_numpy(compress(frames, quantiser(255 * sigma)))
            clip = lossy.permute(0, 3, 1, 2).to(clean) / 255
        out.append(clip)
    return torch.stack(out).reshape(clean.shape)


NOISES: dict[str, Degradation] = {
    "gaussian": gaussian,
    "uniform": uniform,
    "poisson-gaussian": poisson_gaussian,
    "salt-and-pepper": salt_and_pepper,
    "speckle": speckle,
    "correlated": correlated,
    "rows": rows,
    "flicker": flicker,
    "h264": h264,
}


def add_noise(
    clean: Tensor, kind: str = "gaussian", *, level: Level, generator: torch.Generator, clip: bool = False
) -> Tensor:
    """Degrade clean frames; the same generator state gives the same bytes, on every device.

    Args:
        clean: (…, T, C, H, W) in [0, 1].
        kind: a key of ``NOISES``; each has its formula.
        level: strength σ ≥ 0 in the units of ``clean``; one number, or a tensor with one for every clip of a
            batch, its shape the first axes of ``clean``. See :func:`gamma_level` for the published γ.
        generator: source of all randomness; its device is where the noise is drawn.
        clip: cut to [0, 1] afterwards, as stored video is.

    Returns:
        The noisy frames, same shape, dtype and device.

    Raises:
        ValueError: for an unknown kind, a negative level, or frames that are not floats of at least 4 axes.
    """
    if kind not in NOISES:
        raise ValueError(f"kind={kind!r}: noise must be one of {', '.join(NOISES)}")
    if clean.ndim < 4 or not clean.is_floating_point():
        raise ValueError(
            f"clean must be float (…, T, C, H, W) in [0, 1], got {clean.dtype} {tuple(clean.shape)}; "
            "divide uint8 by 255 first"
        )
    if not bool((torch.as_tensor(level) >= 0).all()):
        raise ValueError(f"level={level}: the noise's strength must be at least 0")
    noisy = NOISES[kind](clean, level, generator)
    return noisy.clamp(0, 1) if clip else noisy


def _level(level: Level, clean: Tensor) -> Tensor:
    """One σ for all, or (B,) for clips (B, T, C, H, W), ready to be multiplied with them."""
    sigma = torch.as_tensor(level, dtype=clean.dtype, device=clean.device)
    return sigma.reshape(*sigma.shape, *[1] * (clean.ndim - sigma.ndim)) if sigma.ndim else sigma


def _normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    # Drawn as float32 where the generator is, so that neither dtype nor device changes the noise.
    return torch.randn(shape, generator=generator, device=generator.device).to(like)


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(like.shape, generator=generator, device=generator.device).to(like)
