r"""The risk of every layer without the truth: Stein's estimate with a Monte-Carlo divergence.

Axes: L layers (0 is the noisy input itself), N values of the input, A axes along which neighbours are
compared. Knows nothing of video.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

STEP = 0.02  # ε: of a probe, in deviations of the noise
FLOOR = 2e-4  # least of a probe, in units of [0, 1]: below it float32 rounding shows
BAND = 1.96  # deviations of a 95% band
TRUST = 0.15  # share of the correction for clipping that may be wrong (measured, see benchmarks/NOTES.md)
BINS = 64  # of an estimate, over which the mean of the input is taken

Layers = Callable[[Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class Noise:
    r"""What is put on the truth x: :math:`y = x + n`, independent values, :math:`v = g x + \sigma^2`.

    Args:
        sigma: σ ≥ 0, deviation of the part that does not depend on x.
        gain: g ≥ 0 of Poisson noise, :math:`g\,\mathrm{Poisson}(x / g)`; 0 is Gaussian noise.
        clipped: y was cut to [0, 1].
    """

    sigma: float
    gain: float = 0.0
    clipped: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.sigma < math.inf and 0 <= self.gain < math.inf):
            raise ValueError(f"sigma and gain must be at least 0, got {self.sigma} and {self.gain}")

    def deviation(self, x: Tensor) -> Tensor:
        """√v at x."""
        return (self.gain * x.clamp(min=0) + self.sigma**2).sqrt()

    def clipped_moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""Mean and variance of :math:`\mathrm{clip}(x + n, 0, 1)`, n Gaussian of this deviation at x."""
        s = self.deviation(x).clamp(min=1e-6)
        a, b = -x / s, (1 - x) / s
        below, above = torch.special.ndtr(a), torch.special.ndtr(-b)
        inner = 1 - below - above
        pa, pb = _density(a), _density(b)
        mean = x * inner + s * (pa - pb) + above
        square = x * x * inner + 2 * x * s * (pa - pb) + s * s * (inner + a * pa - b * pb) + above
        return mean, (square - mean * mean).clamp(min=0)


@dataclass(frozen=True)
class Stein:
    r"""Sums over values from which the risk follows; those of parts of one input add up.

    Args:
        values: N.
        probes: K.
        noise: Σ v and Σ v² (2,), with the moments that clipping leaves.
        residual: Σ (y − Φ_l)² (L + 1,).
        weighted: Σ v (y − Φ_l)² (L + 1,).
        divergence: Σ_i v_i ∂_i Φ_l,i (L + 1,), mean over the probes.
        spread: ‖V^½ J V^½‖² (L + 1,), at least tr(V J V J).
        correction: what clipping adds to the sum of squared errors over its plain estimate (L + 1,).
        lagged: Σ r_i r_j over neighbours along every axis (A, L + 1), r_l = Φ_l − x, if noise is independent.
        pairs: number of neighbours (A,).
    """

    values: Tensor
    probes: Tensor
    noise: Tensor
    residual: Tensor
    weighted: Tensor
    divergence: Tensor
    spread: Tensor
    correction: Tensor
    lagged: Tensor
    pairs: Tensor

    def __add__(self, other: Stein) -> Stein:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Stein(**{**sums, "probes": self.probes})

    @property
    def risk(self) -> Tensor:
        r"""Estimated mean squared error of the input and of every layer (L + 1,); may fall below 0.

        .. math:: \hat R_l = \frac1N \Big[ \lVert y - \Phi_l \rVert^2 - \sum_i v_i
                  + 2 \sum_i v_i\, \partial_i \Phi_{l,i} \Big] + \text{what clipping adds}
        """
        return self._plain + self.correction / self.values

    @property
    def _plain(self) -> Tensor:
        return (self.residual - self.noise[0] + 2 * self.divergence) / self.values

    @property
    def deviation(self) -> Tensor:
        r"""Deviation of the estimate from the squared error of this very input (L + 1,).

        Two parts: the noise's own, by the unbiased estimate of the squared error of Stein's ("SURE for SURE",
        Bellec and Zhang, Annals of Statistics 49, 2021), here for a diagonal V, and the probes'.

        .. math:: E (N \hat R - N R)^2 = 4 \sum_i v_i (y_i - \Phi_i)^2 - 2 \sum_i v_i^2
                  + 4\, \mathrm{tr}(V J V J), \qquad
                  \mathrm{Var} \le \tfrac8K \lVert V^{1/2} J V^{1/2} \rVert_F^2

        The trace is replaced by the squared Frobenius norm, which the probes give for nothing and which is
        never smaller; for a symmetric J, as good denoisers nearly have, they are equal.
        """
        noise = 4 * self.weighted - 2 * self.noise[1] + 4 * self.spread
        # Where the estimate below is small by chance the input's own share, 2 Σ v², is not.
        probes = 8 * self.spread / self.probes
        probes[0] = 0  # the input's divergence is known
        return (noise.clamp(min=0) + probes).sqrt() / self.values

    @property
    def sensitivity(self) -> Tensor:
        r"""Change of the risk with the logarithm of the noise's deviation (L + 1,), Φ held.

        .. math:: \frac{\partial \hat R_l}{\partial \log \sigma}
                  = \frac2N \big[ 2\, \mathrm{tr}(V J_l) - \sum_i v_i \big]
        """
        return 2 * (2 * self.divergence - self.noise[0]) / self.values

    def band(self, sigma_error: float = 0.0) -> tuple[Tensor, Tensor]:
        """About 95% bounds of the mean squared error (L + 1,) as long as the noise is what it is said to be.

        Args:
            sigma_error: relative error that σ may have; 0 where it is known.
        """
        width = BAND * self.deviation + sigma_error * self.sensitivity.abs()
        width = width + TRUST * (self.correction / self.values).abs()
        return (self.risk - width).clamp(min=0), (self.risk + width).clamp(min=0)

    def correlation(self, layer: int) -> Tensor:
        r"""Correlation of neighbouring values of the noise along every axis (A,), as far as it is sure.

        With c the mean of :math:`(y-\Phi)_i (y-\Phi)_j + v (\partial_i \Phi_j + \partial_j \Phi_i)` over
        neighbours, independent noise gives c = E r_i r_j, and that is at most R in size. The rest can't be
        the network's error: it is the noise's covariance.

        .. math:: \mathrm{sign}(c)\, \frac{[\,|c| - \hat R\,]_+}{\bar v}

        Args:
            layer: l, best one of small risk.
        """
        c = self.lagged[:, layer] / self.pairs
        risk = self.band()[1][layer]
        level = (self.noise[0] / self.values).clamp(min=1e-12)
        return c.sign() * (c.abs() - risk).clamp(min=0) / level


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
) -> Stein:
    r"""Evaluate a layered denoiser at the noisy input and beside it.

    For y = x + n with independent Gaussian n of variance v (Stein 1981; Monte-Carlo divergence: Ramani, Blu
    and Unser, IEEE TIP 2008):

    .. math:: E \lVert \Phi - x \rVert^2 = E \big[ \lVert \Phi - y \rVert^2 - \sum_i v_i
              + 2 \sum_i v_i\, \partial_i \Phi_i \big], \qquad
              \sum_i v_i \partial_i \Phi_i \approx b^\top V\, \frac{\Phi(y + \epsilon b) - \Phi(y)}{\epsilon}

    b has random signs: like a Gaussian it has no odd moments, so that the curvature of Φ cancels on average,
    and the estimate varies less. A difference over a finite step, not a derivative: soft thresholds have
    kinks, which it smooths, and of a jump (a hard threshold), of which a derivative sees nothing, it finds
    what it adds on average.

    Poisson–Gaussian noise: v = g y + σ² in the same formula is, to first order in g ∂Φ, the unbiased estimate
    of Le Montagner, Angelini and Olivo-Marin (IEEE TIP 2014). v is then negative where y is far below 0, and
    must not be cut off.

    Clipped noise (ours): y has mean m(x) and variance v(x) of the clipped Gaussian. With β = m − x,

    .. math:: E \lVert \Phi - x \rVert^2 \approx E \Big[ \lVert \Phi - y \rVert^2
              + \sum_i 2 v_i\, \partial_i \Phi_i - v_i + 2 \beta_i (\Phi_i - m_i) + \beta_i^2 \Big]

    (exact for linear Φ). x is not known; it is read from the layer of least plain risk: among all values whose
    estimate is alike, the mean of y is m(x), which is inverted.

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

    Returns:
        The sums.

    Raises:
        ValueError: for no probe, or a step that is not positive.
    """
    if probes < 1:
        raise ValueError(f"probes must be at least 1, got {probes}")
    if not step > 0:
        raise ValueError(f"step must be above 0, in deviations of the noise, got {step}")
    mean = max(0.0, noise.gain * float(noisy.mean()) + noise.sigma**2)
    epsilon = max(step * mean**0.5, FLOOR)
    at = [x.clone() for x in layers(noisy)]
    y = noisy[inside]
    found = [x[inside] for x in at]
    slopes: list[list[tuple[Tensor, Tensor]]] = []  # of every probe and layer: b and J b
    for _ in range(probes):
        bits = torch.randint(0, 2, noisy.shape, generator=generator, device=generator.device)
        b = (2 * bits - 1).to(noisy)
        moved = layers(noisy + epsilon * b)
        slopes.append([(b[inside], (m[inside] - x) / epsilon) for m, x in zip(moved, found, strict=True)])
    diagonal = [sum(b * s for b, s in of) / probes for of in zip(*slopes, strict=True)]
    square = [sum(s * s for _, s in of) / probes for of in zip(*slopes, strict=True)]

    v = (noise.gain * y + noise.sigma**2).expand(y.shape)
    plain = [(y - x).square() - v + 2 * v * d for x, d in zip(found, diagonal, strict=True)]
    correction = [0.0] * (len(found) + 1)
    if noise.clipped:
        best = min(range(len(found)), key=lambda layer: _sum(plain[layer]))
        x = _unclip(y, found[best], noise)
        m, after = noise.clipped_moments(x)
        beta = m - x
        change = after - v
        correction = [
            _sum((after + beta.square()) - v),
            *(
                _sum(2 * change * d - change + 2 * beta * (f - m) + beta.square())
                for f, d in zip(found, diagonal, strict=True)
            ),
        ]
    residuals = [torch.zeros_like(y), *(y - x for x in found)]
    total, total_squared = _sum(v), _sum(v.square())
    lagged, pairs = [], []
    for axis in axes:
        size = y.shape[axis] - 1
        left, right = (
            (lambda z, a=axis, n=size: z.narrow(a, 0, n)),
            (lambda z, a=axis, n=size: z.narrow(a, 1, n)),
        )
        w = left(v)
        row = [0.0]
        for layer, r in enumerate(residuals[1:]):
            cross = sum(left(b) * right(s) + right(b) * left(s) for b, s in (of[layer] for of in slopes))
            row.append(_sum(left(r) * right(r) + w * cross / probes))
        lagged.append(row)
        pairs.append(left(y).numel())
    as_tensor = lambda x: torch.tensor(x, dtype=torch.float64)  # noqa: E731
    return Stein(
        values=as_tensor(y.numel()),
        probes=as_tensor(probes),
        noise=as_tensor([total, total_squared]),
        residual=as_tensor([_sum(r.square()) for r in residuals]),
        weighted=as_tensor([_sum(v * r.square()) for r in residuals]),
        divergence=as_tensor([total, *(_sum(v * d) for d in diagonal)]),
        spread=as_tensor([total_squared, *(mean * _sum(v.abs() * s) for s in square)]),
        correction=as_tensor(correction),
        lagged=as_tensor(lagged).reshape(len(axes), len(residuals)),
        pairs=as_tensor(pairs),
    )


def _unclip(y: Tensor, estimate: Tensor, noise: Noise) -> Tensor:
    """x in [0, 1] whose mean after clipping is that of y where the estimate is alike; y's shape."""
    bins = (estimate.clamp(0, 1) * (BINS - 1)).round().long().flatten()
    count = torch.bincount(bins, minlength=BINS)
    mean_y = torch.bincount(bins, y.flatten().double(), BINS) / count.clamp(min=1)
    centre = torch.bincount(bins, estimate.flatten().double(), BINS) / count.clamp(min=1)
    grid = torch.linspace(0, 1, 1025, dtype=torch.float64, device=y.device)
    reached = noise.clipped_moments(grid)[0].contiguous()
    true = grid[torch.searchsorted(reached, mean_y).clamp(max=len(grid) - 1)]
    # Within a bin the estimate itself tells values apart.
    return (estimate + (true - centre)[bins].view(y.shape).to(y)).clamp(0, 1)


def _density(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _sum(x: Tensor) -> float:
    return float(x.sum(dtype=torch.float64))
