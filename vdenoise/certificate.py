"""How good a restoration is when nobody has the clean clip: the error of every layer, estimated.

Axes: T frames, C channels, H W pixels, L layers (0 is the noisy input). σ, gain and errors are on 0–255.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vdenoise.descent.certificate import Noise, Stein, stein
from vdenoise.noise import estimate_sigma, noise_character
from vdenoise.restore import resolve, to_tensor
from vdenoise.tiling import TILE, WINDOW, halo

CLIPPED = 0.002  # share of values at 0 or 255 from which on clipping is worth a word
CORRELATED = 0.1  # correlation of the noise of neighbours, beyond what the network's error can explain
REFINED = 0.05  # of the noise's variance: a layer with less error than this helps to tell σ
ERRORS = (0.003, 0.01)  # least relative error of σ: refined, and by the clip alone (measured on open clips)
TEXTURE = 0.1  # grey levels that fine texture may add to the clip's own σ
OUTLIERS = 0.001  # share of values too far off for Gaussian noise
STRONGER = 1.25  # the clip's own estimate of σ over the one given, beyond which that one is wrong
EXCESS = 2.0  # of noise at low over high frequencies, in still places: white noise has 1
FAINT = 0.75  # σ on 0–255 below which noise is no more than what compression may have left
DRAWN = 1.03  # a clip's own noise over its expected size, at most, where neighbours share it
STILL = 0.02  # share of blocks without any change from frame to frame, as compression leaves them


@dataclass(frozen=True)
class Certificate:
    """Estimated errors of the noisy input and of every layer, with what they rest on.

    Args:
        rmse: RMSE (L + 1,) on the 0–255 scale, of the input first.
        low, high: about 95% bounds of them; ``high`` is infinite where nothing can be said.
        sigma: deviation of the noise that was assumed, at black; given or estimated.
        gain: of its Poisson part, g in the variance g x + σ².
        known: σ was given, not estimated.
        clipped: share of the values at the ends of the range.
        correlation: of the noise of neighbours along width, height and time, as far as it is sure.
        failures: what contradicts the assumptions, a sentence each; empty where nothing was found.
    """

    rmse: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    sigma: float
    gain: float
    known: bool
    clipped: float
    correlation: tuple[float, float, float]
    failures: tuple[str, ...]

    @property
    def best(self) -> int:
        """The layer of least estimated error; 0 is the noisy input."""
        return min(range(len(self.rmse)), key=self.rmse.__getitem__)

    @property
    def descends(self) -> bool:
        """Every layer lowers the estimated error."""
        return all(after < before for before, after in pairwise(self.rmse))

    @property
    def valid(self) -> bool:
        """Nothing was found that contradicts the assumptions."""
        return not self.failures

    def __str__(self) -> str:
        level = f"σ {self.sigma:.2f} ({'given' if self.known else 'estimated'})"
        if self.gain:
            level += f", gain {self.gain:.3g}"
        lines = [f"Estimated RMSE on 0–255, 95% band; {level}:"]
        for layer, (value, low, high) in enumerate(zip(self.rmse, self.low, self.high, strict=True)):
            name = "input" if layer == 0 else f"layer {layer}"
            top = "no upper bound" if math.isinf(high) else f"{high:.2f}"
            mark = "  ← least" if layer == self.best else ""
            lines.append(f"  {name:8} {value:6.2f}  ({low:.2f} – {top}){mark}")
        assumed = "Assumes independent noise of the stated level, drawn anew in every frame."
        return "\n".join([*lines, *(f"Caution: {text}" for text in self.failures), assumed])


def certify(
    model: Any,
    noisy: np.ndarray | Tensor,
    sigma: float | str = "auto",
    *,
    gain: float = 0.0,
    probes: int = 2,
    seed: int = 0,
    window: int = WINDOW,
    device: str = "auto",
) -> Certificate:
    r"""Estimate the error of every layer from the noisy clip alone.

    Stein's unbiased risk estimate with a Monte-Carlo divergence (:func:`vdenoise.descent.certificate.stein`):

    .. math:: \widehat{\mathrm{MSE}}_l = \tfrac1N \big[ \lVert y - \Phi_l \rVert^2 - \textstyle\sum v_i
              + 2 \sum v_i\, \partial_i \Phi_{l,i} \big], \qquad v = g x + \sigma^2

    It costs 1 + ``probes`` runs of the network. Nothing outside [0, 1] means clipped noise, which is
    corrected for. An estimated σ is made better by what the layers leave of it, where their error is small.

    What it can't know is in the result: ``failures`` names clipping, noise that neighbours share, noise that
    stays from frame to frame, as compression makes it, impulses, a level that varies with brightness or is
    higher than given, and a risk that contradicts itself. The band then comes from the triangle inequality,

    .. math:: \big| \lVert \Phi - y \rVert - \lVert n \rVert \big| \le \lVert \Phi - x \rVert
              \le \lVert \Phi - y \rVert + \lVert n \rVert

    with the size of n as given, or at most half the energy of what changes from frame to frame. Noise that
    stays and whose size was not given has no upper bound.

    Args:
        model: a shipped checkpoint's name, a checkpoint's path, or a model.
        noisy: numpy (T, H, W) or (T, H, W, C), or torch (T, C, H, W), as :func:`vdenoise.denoise` takes them.
        sigma: deviation of the noise, 0–255, or "auto". With ``gain`` it is the part that black has.
        gain: g ≥ 0 of Poisson noise on the 0–255 scale: variance g x + σ². The network is told the root of
            the mean variance.
        probes: K ≥ 1; more of them narrow the band a little.
        seed: of the probes.
        window: frames the network sees at once.
        device: as in :func:`vdenoise.denoise`.

    Returns:
        The certificate.

    Raises:
        ValueError: as :func:`vdenoise.denoise`; for a gain with ``sigma="auto"``, or no probe.

    Example:
        >>> import numpy as np, vdenoise
        >>> noise = np.random.default_rng(0).normal(0, 25, (8, 64, 64))
        >>> noisy = np.clip(128 + noise, 0, 255).astype(np.uint8)
        >>> certificate = vdenoise.certify("dust", noisy)
        >>> len(certificate.rmse), certificate.valid
        (7, True)
    """
    clip, _ = to_tensor(noisy)
    net, device = resolve(model, device)
    clipped = bool(clip.amin() >= 0 and clip.amax() <= 1)
    noise = Noise(_level(clip, sigma, gain), gain / 255, clipped)
    told = math.sqrt(max(0.0, noise.gain * float(clip.mean()) + noise.sigma**2))
    generator = torch.Generator().manual_seed(seed)
    total: Stein | None = None
    for part, inside in _parts(clip, window, halo(net)):
        found = stein(
            lambda y: [x[0] for x in net.iterates(y[None].to(device), told)],
            part.to(device),
            noise,
            generator,
            probes=probes,
            inside=inside,
            axes=(-1, -2, 0),
            high_pass=_high_pass,
        )
        total = found if total is None else total + found
    assert total is not None
    error = 0.0
    if sigma == "auto":
        total, ratio, error = _refine(total)
        noise = noise.stronger(ratio)
    return _conclude(clip, total, noise, known=sigma != "auto", error=error)


def _level(clip: Tensor, sigma: float | str, gain: float) -> float:
    """σ in the units of the clip."""
    if not 0 <= gain < math.inf:
        raise ValueError(f"gain must be at least 0, on the 0–255 scale, got {gain}")
    if isinstance(sigma, str):
        if sigma != "auto":
            raise ValueError(f'sigma must be a number on the 0–255 scale or "auto", got {sigma!r}')
        if gain:
            raise ValueError(
                'sigma="auto" is for noise of one level; give the sigma that black has with gain'
            )
        return estimate_sigma(clip)
    if not 0 <= sigma <= 255:
        raise ValueError(f"sigma must lie in 0–255, got {sigma}")
    return sigma / 255


def _parts(clip: Tensor, window: int, margin: tuple[int, int]) -> Any:
    """Windows and tiles that cover a clip once: (T, C, h, w) with its halo, and the part that counts."""
    if window < 1:
        raise ValueError(f"window must be at least 1 frame, got {window}")
    reach, step = margin
    height, width = clip.shape[-2:]
    tile = max(step, TILE // step * step)
    if height <= TILE + 2 * reach and width <= TILE + 2 * reach:
        tile = max(height, width)
    pieces = -(-len(clip) // window)  # of even length: a last window of one frame would see no other
    for frames in clip.tensor_split(pieces):
        for top in range(0, height, tile):
            for left in range(0, width, tile):
                y, x = max(0, top - reach), max(0, left - reach)
                rows = slice(top - y, min(top + tile, height) - y)
                cols = slice(left - x, min(left + tile, width) - x)
                part = frames[..., y : top + tile + reach, x : left + tile + reach]
                yield part, (slice(None), slice(None), rows, cols)


def _high_pass(x: Tensor) -> Tensor:
    """(1, −2, 1) along width and height, of unit gain for white noise."""
    x = (x[..., 2:] - 2 * x[..., 1:-1] + x[..., :-2]) / 6**0.5
    return (x[..., 2:, :] - 2 * x[..., 1:-1, :] + x[..., :-2, :]) / 6**0.5


def _refine(found: Stein) -> tuple[Stein, float, float]:
    """An estimated σ by what the best layer leaves of the noise: the new sums, the factor, σ's error.

    The clip alone tends to tell too little, the layer too much, as its own error is in it: the mean of both.
    """
    layer = 1 + int(found.risk[1:].argmin())
    level = float(found.noise[0] / found.values)
    ratio = found.noise_ratio(layer)
    alone = ERRORS[1] + TEXTURE / 255 / max(level, 1e-12) ** 0.5
    if not (level > 0 and 0.95 < ratio < 1.05):  # further off it is not white, or the layer is poor
        return found, 1.0, alone
    better = found.rescaled(ratio**0.5)
    if float(better.risk[layer]) < REFINED * level:
        return better, ratio**0.5, ERRORS[0] + abs(math.log(ratio)) / 2
    return found, 1.0, alone + abs(math.log(ratio)) / 2


def _conclude(clip: Tensor, found: Stein, noise: Noise, *, known: bool, error: float) -> Certificate:
    """The certificate out of the sums: what fails, and the band that is left then."""
    layer = 1 + int(found.risk[1:].argmin())
    low, high = found.band(error)
    at_ends = float(((clip <= 0) | (clip >= 1)).float().mean()) if noise.clipped else 0.0
    correlation = found.correlation(layer).nan_to_num()
    look = noise_character(clip)
    failures = []
    if at_ends > CLIPPED:
        failures.append(
            f"{100 * at_ends:.1f}% of the values are clipped; corrected approximately, and the band is wider"
        )
    near, over_time = _largest(correlation[:2]), float(correlation[2])
    own = 255 * estimate_sigma(clip) if known and not noise.gain else 0.0
    stronger = own > STRONGER * 255 * noise.sigma + 1
    shared = True
    if stronger:
        failures.append(f"the clip looks noisier, σ {own:.1f}, than it is said to be")
    elif abs(near) > CORRELATED:
        failures.append(f"neighbouring pixels share noise (correlation {near:.2f} or more)")
    elif look.excess > EXCESS:
        failures.append(
            "the noise is coarse, stronger at low than at high frequencies by a factor of"
            f" {min(look.excess, 99):.1f} or more"
        )
    elif float(found.far / found.values) > OUTLIERS:
        share = 100 * float(found.far / found.values)
        failures.append(f"{share:.1f}% of the values are far off, as impulses are or a layer that fails")
    elif found.uneven():
        failures.append("the noise's level varies with brightness, other than it is said to")
    elif noise.sigma > 0 and bool((high <= 0).any()):
        failures.append(
            "a layer's estimate is below 0, so the noise is not of the level that it is said to have"
        )
    else:
        shared = False
    if shared:
        failures[-1] += ": Stein's estimate does not hold; the band is the triangle inequality's"
    stays = True
    if abs(over_time) > CORRELATED:
        failures.append(f"noise stays from frame to frame (correlation {over_time:.2f} or more)")
    elif look.still > STILL:
        failures.append(f"{100 * look.still:.0f}% of the blocks do not change between frames, as compressed")
    elif not known and 255 * noise.sigma < FAINT:
        failures.append(f"the noise that varies is faint (σ {255 * noise.sigma:.2f})")
    else:
        stays = False
    if stays and not known:
        failures[-1] += ": errors that compression made can't be told from the picture; no upper bound"
    elif stays:
        failures[-1] += ": Stein's estimate does not hold; the band is the triangle inequality's"
    estimate = found.risk.clamp(min=0).sqrt()
    low, high = low.sqrt(), high.sqrt()
    if shared or stays:
        low, high = _triangle(clip, found, known and not stronger)
    if stays and not known:
        low, high = torch.zeros_like(low), torch.full_like(high, math.inf)
    return Certificate(
        rmse=_scaled(estimate.clamp(low, high)),
        low=_scaled(low),
        high=_scaled(high),
        sigma=255 * noise.sigma,
        gain=255 * noise.gain,
        known=known,
        clipped=at_ends,
        correlation=(float(correlation[0]), float(correlation[1]), over_time),
        failures=tuple(failures),
    )


def _triangle(clip: Tensor, found: Stein, known: bool) -> tuple[Tensor, Tensor]:
    """Bounds of the RMSE that hold whatever neighbours share, if noise is drawn anew in every frame."""
    distance = (found.residual / found.values).sqrt()
    if known:
        size = (found.noise[0] / found.values).clamp(min=0).sqrt()
        least = (found.noise[2] / found.values).clamp(min=0).sqrt()  # clipped
        low, high = (
            (distance - size * DRAWN).clamp(min=0).maximum(least / DRAWN - distance),
            distance + size * DRAWN,
        )
        return low, high
    if len(clip) < 2:
        return torch.zeros_like(distance), torch.full_like(distance, math.inf)
    # Half the mean square of frame differences is the noise's, and more where something moves.
    most = (clip[1:] - clip[:-1]).square().mean().double().sqrt() / 2**0.5
    return (distance - most).clamp(min=0), distance + most * DRAWN


def _largest(values: Tensor) -> float:
    return float(values[values.abs().argmax()])


def _scaled(values: Tensor) -> tuple[float, ...]:
    return tuple(255 * value for value in values.tolist())
