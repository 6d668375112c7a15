r"""The risk of every layer without the truth: Stein's estimate with a Monte-Carlo divergence.

Axes: L layers (0 is the noisy input itself), N values of the input, K probes, A axes along which neighbours
are compared. Knows nothing of video.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from vdenoise.descent.observed import Noise, clipping

STEP = 0.02  # ε: of a probe, in deviations of the noise
FLOOR = 2e-4  # least size of a probe, in units of [0, 1]: below it float32 rounding shows
FAINT = 0.003  # a deviation below which noise is too faint to judge values by
BAND = 1.96  # deviations of a 95% band
# Share of the correction for clipping that may be wrong: constant, and with the best layer's share of error.
TRUST = (0.05, 3.0)
LEVELS = 8  # parts of [0, 1] by which the risk is looked at
FAR = 5.0  # deviations: Gaussian noise goes as far once in two million
UNEVEN = 0.3  # of the noise's variance
SLOPE = 1.01  # factor of the noise for the slope of that correction

Layers = Callable[[Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class Stein:
    r"""Sums over values from which the risk follows; those of the parts of one input add up. float64.

    Args:
        values: N.
        probes: K.
        noise: Σ v, Σ v², and Σ v as clipping leaves it (3,).
        residual: Σ (y − Φ_l)² (L + 1,).
        weighted: Σ v (y − Φ_l)² (L + 1,).
        divergence: Σ_i v_i ∂_i Φ_l,i (L + 1,), mean over the probes.
        spread: ‖V^½ J V^½‖² (L + 1,), which is at least tr(V J V J).
        correction: what clipping adds to the sum of squared errors over its plain estimate (L + 1,).
        correction_slope: its change with log σ (L + 1,).
        lagged: Σ of products of neighbours' errors along every axis (A, L + 1), if the noise is independent.
        pairs: number of neighbours (A,).
        sharp: of the filtered residual, Σ squares, Σ (P b)(P J b), and the number of values (3, L + 1).
        by_level: of the layer of least plain risk, where its estimate lies in one of equal parts of [0, 1]:
            squared error estimated, Σ v, and the number of values (3, LEVELS).
        far: values that lie beyond FAR deviations of the noise from that layer's estimate.
    """

    values: Tensor
    probes: Tensor
    noise: Tensor
    residual: Tensor
    weighted: Tensor
    divergence: Tensor
    spread: Tensor
    correction: Tensor
    correction_slope: Tensor
    lagged: Tensor
    pairs: Tensor
    sharp: Tensor
    by_level: Tensor
    far: Tensor

    def __add__(self, other: Stein) -> Stein:
        """The sums over both parts."""
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Stein(**{**sums, "probes": self.probes})

    @property
    def risk(self) -> Tensor:
        r"""Estimated mean squared error of the input and of every layer (L + 1,); may fall below 0.

        .. math:: \hat R_l = \frac1N \Big[ \lVert y - \Phi_l \rVert^2 - \sum_i v_i
                  + 2 \sum_i v_i\, \partial_i \Phi_{l,i} + \text{what clipping adds} \Big]
        """
        return (self.residual - self.noise[0] + 2 * self.divergence + self.correction) / self.values

    @property
    def deviation(self) -> Tensor:
        r"""Deviation of the estimate from the squared error of this very input (L + 1,).

        Two parts: the noise's own, by the unbiased estimate of the squared error of Stein's ("SURE for SURE",
        Bellec and Zhang, Annals of Statistics 49, 2021; here for a diagonal V), and the probes'.

        .. math:: E (N \hat R - N R)^2 = 4 \sum_i v_i (y_i - \Phi_i)^2 - 2 \sum_i v_i^2
                  + 4\, \mathrm{tr}(V J V J), \qquad
                  \mathrm{Var} \le \tfrac8K \lVert V^{1/2} J V^{1/2} \rVert_F^2

        The trace is replaced by the squared Frobenius norm, which the probes give for nothing and which is
        never smaller; for a symmetric J, as good denoisers nearly have, they are equal. The noise's part is
        about √(2 N) σ² at best: an error of RMSE r is known to a share of (σ/r)² / √(2 N) only.
        """
        noise = 4 * self.weighted - 2 * self.noise[1] + 4 * self.spread
        probes = 8 * self.spread / self.probes
        probes[0] = 0  # the input's divergence is known
        return (noise.clamp(min=0) + probes).sqrt() / self.values

    @property
    def sensitivity(self) -> Tensor:
        r"""Change of the risk with the logarithm of the noise's deviation (L + 1,), Φ held.

        .. math:: \frac{\partial \hat R_l}{\partial \log \sigma}
                  = \frac2N \big[ 2\, \mathrm{tr}(V J_l) - \sum_i v_i \big] + \text{that of clipping}
        """
        return (2 * (2 * self.divergence - self.noise[0]) + self.correction_slope) / self.values

    def band(self, sigma_error: float = 0.0) -> tuple[Tensor, Tensor]:
        """About 95% bounds of the mean squared error (L + 1,), if the noise is what it is said to be.

        Args:
            sigma_error: relative error that σ may have; 0 where it is known.
        """
        width = BAND * self.deviation + sigma_error * self.sensitivity.abs()
        left = (self.risk + width).amin().clamp(min=0) * self.values / self.noise[0].clamp(min=1e-12)
        doubt = (TRUST[0] + TRUST[1] * left).clamp(max=1)
        width = width + doubt * (self.correction / self.values).abs()
        return (self.risk - width).clamp(min=0), (self.risk + width).clamp(min=0)

    def correlation(self, layer: int) -> Tensor:
        r"""Correlation of neighbouring values of the noise along every axis (A,), as far as it is sure.

        Let c be the mean of :math:`(y-\Phi)_i (y-\Phi)_j + v (\partial_i \Phi_j + \partial_j \Phi_i)` over
        neighbours. Independent noise gives c = E r_i r_j, r = Φ − x, whose size is at most R. The rest can't
        be the network's error, so it is the noise's covariance:

        .. math:: \mathrm{sign}(c)\, \frac{[\,|c| - \hat R\,]_+}{\bar v}

        Args:
            layer: l ≥ 1, best one of small risk.
        """
        c = self.lagged[:, layer] / self.pairs
        risk = self.band()[1][layer]
        level = (self.noise[0] / self.values).clamp(min=1e-12)
        return c.sign() * (c.abs() - risk).clamp(min=0) / level

    def noise_ratio(self, layer: int) -> float:
        r"""The noise's true deviation over the stated one, from what a high pass P leaves of it (ours).

        .. math:: \rho^2 = \frac{\lVert P (y - \Phi) \rVert^2}{\bar v\, (M - 2\, \mathrm{tr}\, P J P^\top)}

        for M filtered values. The layer's own error passes P too, so ρ is too large by up to R / (2 v): use
        a layer whose risk is a few per cent of the noise's variance.

        Args:
            layer: l ≥ 1.
        """
        squares, slope, count = self.sharp[:, layer]
        expected = self.noise[2] / self.values * (count - 2 * slope)
        return float((squares / expected.clamp(min=1e-30)).sqrt())

    def uneven(self) -> bool:
        """The risk says that the noise's level varies with brightness.

        Where the level is one, the error of a good layer is a small share of the noise at every brightness.
        Looked at is every eighth of the range that holds 5% of the values; 0.3 of the noise's variance
        more than three times the least is too much.
        """
        errors, noise, count = self.by_level
        risk = (errors / noise.clamp(min=1e-12))[count > 0.05 * self.values]
        return bool(len(risk) > 1 and risk.max() > 3 * risk.min().clamp(min=0) + UNEVEN)

    def rescaled(self, ratio: float) -> Stein:
        """The same for noise of ``ratio`` times the deviation; what clipping adds to first order in it."""
        square = ratio**2
        return replace(
            self,
            noise=self.noise * self.noise.new_tensor([square, square**2, square]),
            weighted=self.weighted * square,
            divergence=self.divergence * square,
            spread=self.spread * square**2,
            correction=self.correction + math.log(ratio) * self.correction_slope,
            correction_slope=self.correction_slope * square,
        )


@torch.no_grad()
def stein(
    layers: Layers,
    noisy: Tensor,
    noise: Noise,
    generator: torch.Generator,
    *,
    probes: int = 2,
    step: float = STEP,
    inside: tuple[slice, ...] = (slice(None),),
    axes: tuple[int, ...] = (),
    high_pass: Callable[[Tensor], Tensor] | None = None,
) -> Stein:
    r"""Evaluate a layered denoiser at the noisy input and beside it.

    For y = x + n with independent Gaussian n of variance v (Stein 1981; Monte-Carlo divergence: Ramani, Blu
    and Unser, IEEE TIP 2008):

    .. math:: E \lVert \Phi - x \rVert^2 = E \Big[ \lVert \Phi - y \rVert^2 - \sum_i v_i
              + 2 \sum_i v_i\, \partial_i \Phi_i \Big], \qquad
              \sum_i v_i \partial_i \Phi_i \approx b^\top V\, \frac{\Phi(y + \epsilon b) - \Phi(y)}{\epsilon}

    b has random signs: like a Gaussian it has no odd moments, so that the curvature of Φ cancels on average,
    and the estimate varies less. A difference over a finite step, not a derivative: soft thresholds have
    kinks, which it smooths, and of a jump (a hard threshold), of which a derivative sees nothing, it finds
    what it adds on average.

    Poisson–Gaussian noise: v = g y + σ² in the same formula is, to first order in g ∂Φ, the unbiased estimate
    of Le Montagner, Angelini and Olivo-Marin (IEEE TIP 2014).

    Clipped noise (ours): y has mean m(x) and variance v(x) of the clipped Gaussian. With β = m − x,

    .. math:: E \lVert \Phi - x \rVert^2 \approx E \Big[ \lVert \Phi - y \rVert^2
              + \sum_i 2 v_i\, \partial_i \Phi_i - v_i + 2 \beta_i (\Phi_i - m_i) + \beta_i^2 \Big]

    (exact for linear Φ). x is not known; it is read from the layer of least plain risk: among all values
    whose estimate is alike, the mean of y is m(x), which is inverted.

    Args:
        layers: noisy input to its L estimates, of the input's shape; deterministic. A noise level that it is
            told must not vary with its argument.
        noisy: y, any shape, in [0, 1] plus noise.
        noise: what y is said to hold.
        generator: of the probes; its device is where they are drawn.
        probes: K ≥ 1; every one costs an evaluation.
        step: ε in deviations of the noise. Small steps drown in rounding, large ones smooth the network.
        inside: the part of y over which sums are taken; the rest is there for the network's sake.
        axes: axes of y along which neighbours are compared.
        high_pass: a linear filter of unit gain for white noise, for :meth:`Stein.noise_ratio`.

    Returns:
        The sums, on the processor.

    Raises:
        ValueError: for no probe, or a step that is not positive.
    """
    if probes < 1:
        raise ValueError(f"probes must be at least 1, got {probes}")
    if not step > 0:
        raise ValueError(f"step must be above 0, in deviations of the noise, got {step}")
    mean = max(0.0, float(noise.variance(noisy).mean()))
    epsilon = max(step * mean**0.5, FLOOR)
    whole = [x.clone() for x in layers(noisy)]
    y, found = noisy[inside], [x[inside] for x in whole]
    v = noise.variance(y)
    left = [(y - x) for x in found]
    count = len(found) + 1
    diagonal = [torch.zeros_like(y) for _ in found]  # ∂_i Φ_i, mean over the probes
    spread, lagged, sharp = (torch.zeros(n, count, dtype=torch.float64) for n in (1, len(axes), 3))
    for _ in range(probes):
        bits = torch.randint(0, 2, noisy.shape, generator=generator, device=generator.device)
        b = (2 * bits - 1).to(noisy)
        moved = layers(noisy + epsilon * b)
        b = b[inside]
        for layer, (there, here) in enumerate(zip(moved, found, strict=True)):
            slope = (there[inside] - here) / epsilon
            diagonal[layer] += b * slope / probes
            spread[0, layer + 1] += mean * _sum(v.abs() * slope.square()) / probes
            for row, axis in enumerate(axes):
                (b1, b2), (s1, s2), (v1, _) = (_neighbours(z, axis) for z in (b, slope, v))
                lagged[row, layer + 1] += _sum(v1 * (b1 * s2 + b2 * s1)) / probes
            if high_pass is not None:
                sharp[1, layer + 1] += _sum(high_pass(b) * high_pass(slope)) / probes
    for layer, residual in enumerate(left):
        for row, axis in enumerate(axes):
            r1, r2 = _neighbours(residual, axis)
            lagged[row, layer + 1] += _sum(r1 * r2)
        if high_pass is not None:
            filtered = high_pass(residual)
            sharp[0, layer + 1], sharp[2, layer + 1] = _sum(filtered.square()), filtered.numel()

    plain = [_sum(r.square() + 2 * v * d - v) for r, d in zip(left, diagonal, strict=True)]
    least = plain.index(min(plain))
    best, d, after = found[least], diagonal[least], v
    errors = left[least].square() + 2 * v * d - v
    correction = correction_slope = torch.zeros(count, dtype=torch.float64)
    if noise.clipped:
        correction, after, added = clipping(y, found, diagonal, best, noise)
        stronger, _, _ = clipping(y, found, diagonal, best, noise.stronger(SLOPE))
        correction_slope = (stronger - correction) / math.log(SLOPE)
        errors = errors + added[least]
    spread[0, 0] = _sum(v.square())
    return Stein(
        values=_vector(y.numel()),
        probes=_vector(probes),
        noise=_vector([_sum(v), _sum(v.square()), _sum(after)]),
        residual=_vector([0.0, *(_sum(r.square()) for r in left)]),
        weighted=_vector([0.0, *(_sum(v * r.square()) for r in left)]),
        divergence=_vector([_sum(v), *(_sum(v * d) for d in diagonal)]),
        spread=spread[0],
        correction=correction,
        correction_slope=correction_slope,
        lagged=lagged,
        pairs=_vector([_neighbours(y, axis)[0].numel() for axis in axes]),
        sharp=sharp,
        by_level=_by_level(best, errors, after),
        far=_vector(float((left[least].abs() > FAR * max(mean**0.5, FAINT)).sum())),
    )


def _by_level(estimate: Tensor, errors: Tensor, variance: Tensor) -> Tensor:
    bins = (estimate.clamp(0, 1) * (LEVELS - 1e-3)).long().flatten()
    weights = (errors, variance, torch.ones_like(errors))
    rows = [torch.bincount(bins, w.flatten().double(), LEVELS) for w in weights]
    return torch.stack(rows).cpu()


def _neighbours(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    size = max(0, x.shape[axis] - 1)
    return x.narrow(axis, 0, size), x.narrow(axis, x.shape[axis] - size, size)


def _sum(x: Tensor) -> float:
    return float(x.sum(dtype=torch.float64))


def _vector(values: float | Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
