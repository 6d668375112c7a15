"""UT: a transformer unfolded from an energy (Yang, Huang, Wipf; NeurIPS 2022), over patch sequences.

Tokens Y ∈ R^{T×d} of one place descend two energies in turn, with the same weights at every iteration:

    E_a(Y) = −Σ_{j<i} exp(−½ ‖y_i − y_j‖²_W),  W = W_aᵀ W_a           what attention lowers
    E_f(Y) = ½ tr(Y W_f Yᵀ) + ½ ‖Y − B‖²_F,    Y ≥ 0                   what the feed-forward part lowers

    Z = (1 − α₁) Y + α₁ A Y,    A = softmax_j(y_iᵀ W y_j − ½ ‖y_j‖²_W)
    Y ← relu(Z W_s + α₂ B),     W_s = (1 − α₂) I − ½ α₂ (W_f + W_fᵀ)

B is the encoded noisy patch; at α₂ = 1 this is the published step. **What is guaranteed.** −exp(−z) is
concave in z, so its tangent majorises E_a by a quadratic with the Laplacian D − Γ, Γ the Gaussian kernel
matrix and D its row sums; the step is Y − α₁ D⁻¹ (D − Γ) Y, and as 2D − α₁ (D − Γ) ⪰ D + Γ ⪰ 0 for
α₁ ≤ 1 it never raises the quadratic, hence never E_a. The key weight ½ ‖y_j‖²_W is what makes the rows
those of Γ. The second step is a projected gradient step of length α₂ and never raises E_f if
α₂ λ_max(I + sym W_f) ≤ 2; the parametrisation sym W_f = (2/α₂ − 1) I − Vᵀ V holds this during training.
Not guaranteed: that each leaves the other's energy alone.

Axes: B batch, T frames, C channels, h w places, n pixels of a patch, d width of a token, r width of W_a.
All channels share the weights; the attention weights are common to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from vdenoise.models.tokens import OverlapAdd, PatchGrid, as_sigma
from vdenoise.ops import gaussian_mix


@dataclass(frozen=True)
class UTConfig:
    """Shape of a UT network.

    Args:
        layers: iterations L; 12 in the published code.
        width: d.
        features: r, rows of W_a.
        patch: p, side of a patch.
        stride: s, distance between patches, a divisor of p.
        tied: one set of weights for all iterations, as published; False gives each its own.
        alpha1: α₁ in (0, 1], step of the attention part.
        alpha2: α₂ > 0, step of the feed-forward part.
    """

    layers: int = 12
    width: int = 96
    features: int = 16
    patch: int = 8
    stride: int = 4
    tied: bool = True
    alpha1: float = 1.0
    alpha2: float = 1.0

    def __post_init__(self) -> None:
        PatchGrid(self.patch, self.stride)
        for name in ("layers", "width", "features"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.alpha1 <= 1:
            raise ValueError(
                f"alpha1 must lie in 0 < α₁ ≤ 1, where attention lowers its energy, got {self.alpha1}"
            )
        if not 0 < self.alpha2 < 2:
            raise ValueError(f"alpha2 must lie in 0 < α₂ < 2, got {self.alpha2}")


class Energy(NamedTuple):
    """The parts of the energy of token sequences (N, T, d), each (N,)."""

    attention: Tensor  # −Σ_{j<i} exp(−½ ‖y_i − y_j‖²_W)
    ridge: Tensor  # ½ ‖Y‖²_W, in the published total; the step that holds a row's own weight does not use it
    feedforward: Tensor  # ½ tr(Y W_f Yᵀ) + ½ ‖Y − B‖²_F

    @property
    def total(self) -> Tensor:
        """The published energy, the sum of the parts."""
        return self.attention + self.ridge + self.feedforward


class UTLayer(nn.Module):
    """The weights of an iteration and its two steps."""

    def __init__(self, config: UTConfig) -> None:
        super().__init__()
        d, r = config.width, config.features
        self.alpha1, self.alpha2 = config.alpha1, config.alpha2
        self.metric = nn.Parameter(torch.randn(r, d) * 4 / d**0.5)  # W_a
        # V: W_s = α₂ VᵀV − I starts near I/2, where iterations sum up what attention has averaged, half as
        # much each time, and the tokens end at twice the encoded patch.
        self.factor = nn.Parameter(
            torch.eye(d) * (1.5 / config.alpha2) ** 0.5 + torch.randn(d, d) * 0.1 / d**0.5
        )

    def symmetric_feedforward(self) -> Tensor:
        """sym W_f = (2/α₂ − 1) I − Vᵀ V, (d, d)."""
        eye = torch.eye(self.factor.shape[1], dtype=self.factor.dtype, device=self.factor.device)
        return (2 / self.alpha2 - 1) * eye - self.factor.T @ self.factor

    def attend(self, y: Tensor) -> Tensor:
        """The attention step on Y (B, h, w, T, C, d); channels share one set of weights."""
        z = gaussian_mix(
            rearrange(y @ self.metric.T, "b h w t c r -> (b h w) t (c r)"),
            rearrange(y, "b h w t c d -> (b h w) t (c d)"),
            2.0,
            self.alpha1,
        )
        return z.view(y.shape)

    def project(self, z: Tensor, encoded: Tensor) -> Tensor:
        """The projected gradient step on E_f from Z (…, d), B of the same shape."""
        eye = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
        w_s = (1 - self.alpha2) * eye - self.alpha2 * self.symmetric_feedforward()
        return (z @ w_s + self.alpha2 * encoded).relu()

    def energy(self, y: Tensor, encoded: Tensor) -> Energy:
        """The energy of sequences Y (N, T, d) with B of the same shape."""
        features = y @ self.metric.T
        squared = (features.unsqueeze(-2) - features.unsqueeze(-3)).square().sum(-1)
        kernel = (-0.5 * squared).exp()
        t = y.shape[-2]
        return Energy(
            -0.5 * (kernel.sum((-1, -2)) - t),
            0.5 * features.square().sum((-1, -2)),
            0.5 * ((y @ self.symmetric_feedforward()) * y).sum((-1, -2))
            + 0.5 * (y - encoded).square().sum((-1, -2)),
        )


class UT(nn.Module):
    """The unfolded network. Every iteration's pixel estimate is an output, by one shared linear readout.

    Example:
        >>> model = UT(UTConfig(layers=2, width=16))
        >>> [tuple(x.shape) for x in model.iterates(torch.rand(1, 3, 1, 20, 17), 0.1)]
        [(1, 3, 1, 20, 17), (1, 3, 1, 20, 17)]
    """

    Config = UTConfig

    def __init__(self, config: UTConfig | None = None) -> None:
        super().__init__()
        self.config = config or UTConfig()
        n, d = self.config.patch**2, self.config.width
        self.grid = PatchGrid(self.config.patch, self.config.stride)
        self.encoder = nn.Linear(n, d)
        # Any: indexing a ModuleList says Module, whose methods a type checker can't know.
        self.steps: Any = nn.ModuleList(
            UTLayer(self.config) for _ in range(1 if self.config.tied else self.config.layers)
        )
        self.readout = nn.Linear(d, n)
        self.overlap_add = OverlapAdd(self.grid)
        nn.init.orthogonal_(self.encoder.weight)
        nn.init.zeros_(self.encoder.bias)
        with (
            torch.no_grad()
        ):  # relu keeps half of a code, the iterations double it: the transpose reads it back
            self.readout.weight.copy_(self.encoder.weight.T)
            self.readout.bias.zero_()

    def iterates(self, noisy: Tensor, sigma: float | Tensor) -> list[Tensor]:
        """The pixel estimate after every iteration.

        Args:
            noisy: (B, T, C, H, W), in [0, 1] plus noise.
            sigma: noise deviation; the published layer has no use for it, so only its shape is checked.

        Returns:
            L tensors (B, T, C, H, W).

        Raises:
            ValueError: for frames smaller than a patch, or a sigma of the wrong shape.
        """
        as_sigma(sigma, noisy)
        height, width = noisy.shape[-2:]
        observed = self.grid.to_blocks(noisy)
        patches = self.grid.unfold(observed)
        mean = patches.mean(dim=(3, 5), keepdim=True)
        encoded = self.encoder(patches - mean)
        weight = self.overlap_add.weight(observed)
        y, outputs = encoded.relu(), []
        for index in range(self.config.layers):
            step = self.steps[0 if self.config.tied else index]
            y = step.project(step.attend(y), encoded)
            estimate = self.overlap_add(self.readout(y) + mean) / weight
            outputs.append(self.grid.from_blocks(estimate, height, width))
        return outputs

    def forward(self, noisy: Tensor, sigma: float | Tensor) -> Tensor:
        """The last iteration's estimate, (B, T, C, H, W)."""
        return self.iterates(noisy, sigma)[-1]
