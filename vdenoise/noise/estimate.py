"""How noisy a clip is, from the clip alone.

Axes: T frames, C channels, H W pixels, N blocks, l h low and high spatial frequencies of a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import torch
from torch import Tensor

SIDE = 8  # of a block, in pixels
PAIRS = 8  # pairs of neighbouring frames that are looked at
PIXELS = 1 << 21  # per set of first frames: of large frames fewer pairs are looked at
BLOCKS = 4096  # per clip; of a single frame within a clip a quarter
BINS = 1024  # of the mean of a block, for what clipping does
STRIDE = 4  # least distance of two blocks
FIRST, LAST = 0.03, 0.3  # smallest and largest share of the blocks that is averaged
LEAST = 96  # blocks that are averaged at least
GROWTH = 1.5  # from one share to the next
DOUBT = 1.5  # standard errors by which a larger share may differ
FLAT = 2 / 255  # a border line with less range than this is a bar, not picture
DEAD = 1e-5  # range of a line without any noise: 0.003 grey levels
CHROMA = 0.4  # with less noise in colour differences than this share, the noise was stored in 4:2:0
# R − B and R − 2G + B: natural pictures have hardly any fine texture there.
OPPONENT = ((1.0, 0.0, -1.0), (1.0, -2.0, 1.0))


@dataclass(frozen=True)
class _Blocks:
    """N blocks: pixels (N, C, p), low (N, C, l), high (N, C, h), partner (N, C, h), mean (N, C).

    The noise variance is the mean of high · partner: the same values, where a block is measured by itself.
    """

    pixels: Tensor
    low: Tensor
    high: Tensor
    partner: Tensor
    mean: Tensor


@torch.no_grad()
def estimate_sigma(frames: Tensor) -> float:
    r"""Deviation of white noise in a clip.

    Neighbouring frames a, b are cut into 8×8 blocks at the same places, and their sums (a + b) / √2 and
    differences (a − b) / √2 transformed by the cosine transform. White noise has variance σ² in every
    coefficient; a picture lives in the low ones, moving pictures also in those of the difference. So blocks
    are ranked by their low frequencies (index sum 1 … 4), and σ² is the mean square of the high ones (index
    sum ≥ 9) over the flattest:

    .. math:: \hat\sigma^2 = \frac{1}{|F|\,h} \sum_{n \in F} \sum_{u + v \ge 9} D_{n,uv}^2

    Rank and measurement are independent under white noise, so the choice has no bias. F grows from the
    flattest 3% to 30% while the mean agrees with those before within their standard errors (Lepski's rule):
    flat clips are averaged over much, textured ones over little, and every pair counts alike. The idea is
    that of Ponomarenko et al. (2003), as analysed by Colom and Buades (IPOL 2013), here over time. Colour:
    the mean variance of R − B and R − 2G + B, which carry little texture, unless these have less than 0.4
    of the noise of R, G and B themselves, as video stored in 4:2:0 has.

    Stored frames are clipped, which takes noise from dark and bright places. Where nothing lies outside
    [0, 1], σ solves mean square = mean of v_σ(m), the variance of a clipped Gaussian whose mean after
    clipping is the block's mean m.

    Left out: uniform bars around the picture, pairs of equal frames, and blocks in which a line has one
    value, unless they are the majority. The model is white noise of one level: noise that compression or
    resizing has smoothed is underestimated, and of noise that depends on brightness the level of the flattest
    places is found.

    Args:
        frames: (T, C, H, W) in [0, 1], plus noise; at most 8 pairs of neighbouring frames are looked at.

    Returns:
        σ̂ ≥ 0 in the units of ``frames``; 0 for constant clips, and for frames of fewer than 2×2 pixels.

    Raises:
        ValueError: for other shapes, dtypes or ranges, or values that are not finite.
    """
    _check_shape(frames)
    t, _, height, width = frames.shape
    count = max(2, min(PAIRS, PIXELS // (height * width)))
    at = torch.linspace(0, max(0, t - 2), min(count, max(1, t - 1))).round().long()
    first, second = frames[at], frames[(at + 1).clamp(max=t - 1)]
    _check_range(first)
    _check_range(second)
    moved = (first != second).flatten(1).any(1)
    if not moved.any():
        return _measure(_spectra(_trim(first), BLOCKS), _is_clipped(first), len(first))
    both = _trim(torch.stack([first[moved], second[moved]]))
    a, b = _spectra(both[0], BLOCKS), _spectra(both[1], BLOCKS)
    mean = (a.mean + b.mean) / 2
    total, change = _combine(a, b, 1, mean), _combine(a, b, -1, mean)
    return _measure(_joined(len(both[0]), total, change), _is_clipped(both), len(both[0]))


@torch.no_grad()
def estimate_sigma_per_frame(frames: Tensor) -> Tensor:
    r"""Deviation of white noise in every frame, which may vary over the clip.

    As :func:`estimate_sigma`, with two kinds of blocks: those of the frame itself, and those of its
    difference from each neighbour, measured by the product with the frame, to which the neighbour's own
    noise does not contribute:

    .. math:: E\,(x_t - x_{t \pm 1})\, x_t = \sigma_t^2 \quad \text{where nothing moves}

    Args:
        frames: (T, C, H, W) in [0, 1], plus noise.

    Returns:
        σ̂ (T,) in the units of ``frames``, on their device.

    Raises:
        ValueError: as :func:`estimate_sigma`.
    """
    _check_shape(frames)
    _check_range(frames)
    frames, clipped = _trim(frames), _is_clipped(frames)
    spectra = [_spectra(frame[None], BLOCKS // 4) for frame in frames]
    levels = []
    for t, own in enumerate(spectra):
        kinds = [own]
        for near in (t - 1, t + 1):
            if 0 <= near < len(frames) and not torch.equal(frames[near], frames[t]):
                change = _combine(own, spectra[near], -1, own.mean)
                kinds.append(replace(change, high=change.high * 2**0.5, partner=own.high))
        levels.append(_measure(_joined(1, *kinds), clipped, 1))
    return torch.tensor(levels, device=frames.device)


def _check_shape(frames: Tensor) -> None:
    if frames.ndim != 4 or not frames.numel() or not frames.is_floating_point():
        raise ValueError(
            f"frames must be float (T, C, H, W), none of them 0, got {frames.dtype} {tuple(frames.shape)}; "
            "divide uint8 by 255 first"
        )


def _check_range(frames: Tensor) -> None:
    largest = float(frames.abs().amax())
    if not largest <= 8:  # also where it is not a number
        raise ValueError(
            f"frames must be finite and in [0, 1] (plus noise), got up to {largest:g}; "
            "divide the 0–255 scale by 255"
        )


def _is_clipped(frames: Tensor) -> bool:
    return bool(frames.amin() >= 0 and frames.amax() <= 1)


def _trim(frames: Tensor) -> Tensor:
    """Cut uniform bars (letter box, pillar box, a missing channel's border) off frames (…, H, W)."""
    for axis in (-2, -1):
        others = [i for i in range(frames.ndim) if i != frames.ndim + axis]
        busy = (frames.amax(others) - frames.amin(others) > FLAT).nonzero()
        if len(busy):
            start, stop = int(busy[0]), int(busy[-1]) + 1
            frames = frames.narrow(axis, start, stop - start)
    return frames


def _spectra(frames: Tensor, blocks: int) -> _Blocks:
    """Cosine transforms of blocks on a regular grid over frames (n, C, H, W)."""
    n, channels, height, width = frames.shape
    side = min(SIDE, height, width)
    low, high = (x.to(frames.device) for x in _basis(side))
    stride = max(STRIDE, math.ceil(math.sqrt(n * height * width / blocks)))
    cut = frames.float().unfold(2, side, stride).unfold(3, side, stride)  # (n, C, y, x, side, side), a view
    flat = cut.permute(0, 2, 3, 1, 4, 5).reshape(-1, channels, side * side)
    values = flat @ high
    return _Blocks(flat, flat @ low, values, values, flat.mean(-1))


@lru_cache(maxsize=SIDE)
def _basis(side: int) -> tuple[Tensor, Tensor]:
    """Orthonormal cosine transform of side×side pixels: low (side², l) and high frequencies (side², h)."""
    k = torch.arange(side, dtype=torch.float64)
    waves = torch.cos(math.pi * k[:, None] * (2 * k + 1) / (2 * side)) * math.sqrt(2 / side)
    waves[0] /= math.sqrt(2)
    images = torch.einsum("uy,vx->yxuv", waves, waves).reshape(side**2, side, side)
    order = k[:, None] + k
    # A 2×2 block has a single high frequency, the diagonal difference.
    is_high = order > side if side > 2 else order == 2
    return images[:, (order > 0) & (order <= side // 2)].float(), images[:, is_high].float()


def _combine(a: _Blocks, b: _Blocks, sign: int, mean: Tensor) -> _Blocks:
    pixels, low, high = (
        (x + sign * y) / 2**0.5 for x, y in ((a.pixels, b.pixels), (a.low, b.low), (a.high, b.high))
    )
    return _Blocks(pixels, low, high, high, mean)


def _joined(times: int, *kinds: _Blocks) -> _Blocks:
    """Several kinds of blocks of the same times, sorted by time."""

    def join(name: str) -> Tensor:
        parts = [getattr(kind, name) for kind in kinds]
        return torch.cat([x.view(times, len(x) // times, *x.shape[1:]) for x in parts], 1).flatten(0, 1)

    return _Blocks(*(join(field.name) for field in fields(_Blocks)))


def _measure(blocks: _Blocks, clipped: bool, times: int) -> float:
    """σ from the spectra of blocks, sorted by time, equally many of each."""
    if not blocks.high.shape[-1]:
        return 0.0
    dead = _dead(blocks.pixels)
    alive = ~dead if dead.float().mean() < 0.5 else torch.ones_like(dead)
    channels = blocks.mean.shape[1]
    by_channel = _over_planes(blocks, alive, torch.eye(channels), clipped, times)
    if channels != 3:
        return by_channel
    opponent = torch.tensor(OPPONENT)
    opponent /= opponent.norm(dim=1, keepdim=True)
    by_colour = _over_planes(blocks, alive, opponent, clipped, times)
    return min(by_channel, by_colour) if by_colour >= CHROMA * by_channel else by_channel


def _dead(pixels: Tensor) -> Tensor:
    """Blocks in which some row or column of every channel has one value (N,): no noise, or not everywhere."""
    side = math.isqrt(pixels.shape[-1])
    square = pixels.unflatten(-1, (side, side))
    lines = torch.cat([square.amax(axis) - square.amin(axis) for axis in (-1, -2)], -1)
    return (lines.amax(1) < DEAD).any(-1)


def _over_planes(blocks: _Blocks, alive: Tensor, planes: Tensor, clipped: bool, times: int) -> float:
    """Root of the mean variance over weighted sums of the channels, the rows of ``planes`` (K, C)."""
    n, values = int(alive.sum()), blocks.high.shape[-1]
    first = min(n, max(LEAST, int(FIRST * n)))
    last = max(first, int(LAST * n))
    bins = (blocks.mean * (BINS - 1)).round().long().clamp(0, BINS - 1) if clipped else None
    variances = []
    for weights in planes.to(blocks.mean.device):
        energy = torch.einsum("c,ncl->nl", weights, blocks.low).square().sum(1)
        ranked = _by_rank(energy, times)
        flattest = ranked[alive[ranked]][:last]
        high = torch.einsum("c,nch->nh", weights, blocks.high[flattest])
        partner = torch.einsum("c,nch->nh", weights, blocks.partner[flattest])
        found = _Found((high * partner).mean(1), None if bins is None else bins[flattest], weights.square())
        variances.append(_flattest(found, first, values) ** 2)
    return math.sqrt(sum(variances) / len(variances))


def _by_rank(energy: Tensor, times: int) -> Tensor:
    """Indices of the blocks: the flattest of every time, then the second of every time, and so on.

    Otherwise the times with the least noise would speak for all.
    """
    order = energy.view(times, -1).argsort(1)
    return (order + torch.arange(times, device=order.device)[:, None] * order.shape[1]).T.flatten()


@dataclass(frozen=True)
class _Found:
    """What the flattest blocks say, the flattest first.

    Args:
        variance: of the noise in each (N,).
        bins: of the channels' means (N, C), see :func:`_clipped_share`; None where nothing was clipped.
        weights: squares of the channels' weights (C,).
    """

    variance: Tensor
    bins: Tensor | None
    weights: Tensor


def _flattest(found: _Found, size: int, values: int) -> float:
    """σ over as many blocks as agree, at least the first ``size``; each has ``values`` coefficients."""
    fits, last = size, len(found.variance)
    sigma = _solve(found, size)
    if sigma == 0:
        return 0.0
    unclipped = found.variance
    if found.bins is not None:
        levels, table = _clipped_share()
        nearest = table[(levels.log() - math.log(sigma)).abs().argmin()].to(unclipped.device)
        kept = nearest[found.bins] @ found.weights
        unclipped = unclipped / kept.clamp(min=0.02)
    sums = unclipped.double().cumsum(0).tolist()
    low, high = -math.inf, math.inf
    while True:
        level = sums[size - 1] / size
        doubt = DOUBT * abs(level) * math.sqrt(2 / (values * size))
        low, high = max(low, level - doubt), min(high, level + doubt)
        if low > high:
            break
        fits = size
        if size == last:
            break
        size = min(last, int(GROWTH * size) + 1)
    return _solve(found, fits)


def _solve(found: _Found, size: int) -> float:
    """σ before clipping, whose variance after it is the mean of the first ``size`` that were found."""
    target = float(found.variance[:size].mean())
    if target <= 0:
        return 0.0
    if found.bins is None:
        return math.sqrt(target)
    shares = torch.zeros(BINS, device=found.weights.device)
    shares.index_add_(0, found.bins[:size].flatten(), found.weights.expand(size, -1).flatten() / size)
    levels, table = _clipped_share()
    kept = (table @ shares.cpu()).clamp(min=1e-6).double()
    # The logarithm of the clipped variance rises with that of σ; linear in between.
    reached, logs = (kept * levels**2).log(), levels.log()
    right = int((reached < math.log(target)).sum().clamp(1, len(logs) - 1))
    left = right - 1
    share = (math.log(target) - reached[left]) / (reached[right] - reached[left])
    return math.exp(min(float(logs[left] + share * (logs[right] - logs[left])), float(logs[-1])))


@lru_cache(maxsize=1)
def _clipped_share() -> tuple[Tensor, Tensor]:
    r"""Variance of clip(μ + σn, 0, 1) by its mean m, over σ².

    It is known by μ, here from −2σ to 1 + 2σ. μ outside [0, 1] is no colour, but means of few pixels stray
    there, and without it their variance would be biased.

    Returns:
        the values of σ, 8% apart (S,), and the shares (S, ``BINS``) at equidistant m in 0–1.
    """
    levels = torch.logspace(-11, 0, 97, base=2, dtype=torch.float64)
    sigma = levels[:, None]
    mu = -2 * sigma + (1 + 4 * sigma) * torch.linspace(0, 1, BINS, dtype=torch.float64)
    a, b = -mu / sigma, (1 - mu) / sigma
    mass_a, mass_b = torch.special.ndtr(a), torch.special.ndtr(b)
    density_a, density_b = (torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi) for z in (a, b))
    inside = mass_b - mass_a
    mean = mu * inside + sigma * (density_a - density_b) + 1 - mass_b
    square = (mu**2 + sigma**2) * inside + sigma**2 * (a * density_a - b * density_b)
    square += 2 * mu * sigma * (density_a - density_b) + 1 - mass_b
    share = (square - mean**2).clamp(min=0) / sigma**2
    wanted = torch.linspace(0, 1, BINS, dtype=torch.float64).expand(len(levels), -1).contiguous()
    right = torch.searchsorted(mean, wanted).clamp(1, BINS - 1)
    m0, m1, v0, v1 = (x.gather(1, i) for x in (mean, share) for i in (right - 1, right))
    known = torch.lerp(v0, v1, ((wanted - m0) / (m1 - m0).clamp(min=1e-12)).clamp(0, 1))
    return levels, known.float()
