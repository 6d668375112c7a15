"""DUST, reconstructed: sparse coding of patch sequences, unfolded into a transformer over time.

Frames are sparse in a learned dictionary and correlated over the whole sequence (De Weerdt, Eldar,
Deligiannis; ICASSP 2023, IEEE TSP 72, 2024; of which only the abstracts were available). One layer is one
proximal-gradient step on the codes Z of a patch followed through T frames:

    U = Z − (Ŷ − Y) A                         gradient step on the data term, Ŷ the overlap-added estimate
    M = softmax(−‖f_i − f_j‖² / h) U          attention over the T frames, f = Z W / (σ + ε)
    Z = S_τ(g ⊙ M + (1 − g) ⊙ U)              soft threshold, proximal step of the ℓ1 norm

and every layer decodes Z D to pixels by weighted overlap-add.

Axes: B batch, T frames, C channels, H W pixels, h w places, n pixels of a patch, m codes, r features.
All channels share the dictionary; the attention weights are common to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from vdenoise.models.tokens import OverlapAdd, PatchGrid, as_sigma
from vdenoise.ops import gaussian_mix

PLACES = 48  # of a piece at inference: its codes fit in the cache, and Python's overhead stays small
FEATURE_FLOOR = 0.02  # ε: keeps the features finite on a clean clip; about 5 grey levels


@dataclass(frozen=True)
class DUSTConfig:
    """Shape of a DUST network.

    Args:
        layers: L, unfolded steps.
        codes: m, atoms of the dictionary.
        features: r, width of the attention's features.
        patch: p, side of a patch.
        stride: s, distance between patches, a divisor of p; s = p is the paper's plain patches.
        noise_adaptive: thresholds grow with σ and shrink with what attention has averaged away, and the
            bandwidth is in units of σ (ours, after CDLNet). False is the plain layer: τ and h are constants.
    """

    layers: int = 6
    codes: int = 128
    features: int = 16
    patch: int = 8
    stride: int = 4
    noise_adaptive: bool = True

    def __post_init__(self) -> None:
        PatchGrid(self.patch, self.stride)
        for name in ("layers", "codes", "features"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class DUSTLayer(nn.Module):
    """One unfolded step with its own dictionary D, analysis A, features W, gate g and thresholds τ."""

    def __init__(self, config: DUSTConfig, first: bool) -> None:
        super().__init__()
        n, m, r = config.patch**2, config.codes, config.features
        atoms = torch.nn.functional.normalize(torch.randn(n, m), dim=0) * 0.4
        self.noise_adaptive = config.noise_adaptive
        self.analysis = nn.Parameter(atoms)  # A (n, m)
        self.dictionary = nn.Parameter(atoms.T.clone())  # D (m, n): starts as Aᵀ, free to part
        # The first layer has no codes yet: its features come from the noisy patch itself.
        scale = 0.3 / r**0.5 / (1.0 if config.noise_adaptive else 0.1)
        self.to_features = nn.Parameter(torch.randn(n if first else m, r) * scale)  # W
        self.log_bandwidth = nn.Parameter(torch.zeros(()))  # h = exp(·)
        self.gate = nn.Parameter(torch.full((m,), 2.0))  # g = sigmoid(·)
        self.threshold = nn.Parameter(torch.full((m,), 0.002 if config.noise_adaptive else 0.015))  # τ₀
        if config.noise_adaptive:
            self.threshold_per_noise = nn.Parameter(torch.full((m,), 0.15))  # τ₁

    def forward(self, codes: Tensor | None, residual: Tensor, sigma: Tensor) -> Tensor:
        """One step.

        Args:
            codes: Z (B, h, w, T, C, m), or None before the first step (Z = 0).
            residual: Ŷ − Y (B, h, w, T, C, n).
            sigma: (B, 1, 1, 1, 1, 1).

        Returns:
            The next codes (B, h, w, T, C, m).
        """
        step = residual @ self.analysis
        u = -step if codes is None else codes - step
        f = (residual if codes is None else codes) @ self.to_features
        if self.noise_adaptive:
            f = f / (sigma + FEATURE_FLOOR)
        z = gaussian_mix(
            rearrange(f, "b h w t c r -> (b h w) t (c r)"),
            rearrange(u, "b h w t c m -> (b h w) t (c m)"),
            self.log_bandwidth.exp(),
            self.gate.sigmoid(),
            self.threshold.abs(),
            self.threshold_per_noise.abs() if self.noise_adaptive else None,
            sigma.view(-1) if self.noise_adaptive else None,
        )
        return z.view(u.shape)


class DUST(nn.Module):
    """The unfolded network. Every layer's pixel estimate is an output.

    Example:
        >>> model = DUST(DUSTConfig(layers=2, codes=16))
        >>> [tuple(x.shape) for x in model.iterates(torch.rand(1, 3, 1, 20, 17), 0.1)]
        [(1, 3, 1, 20, 17), (1, 3, 1, 20, 17)]
    """

    Config = DUSTConfig

    def __init__(self, config: DUSTConfig | None = None) -> None:
        super().__init__()
        self.config = config or DUSTConfig()
        self.grid = PatchGrid(self.config.patch, self.config.stride)
        # Any: iterating a ModuleList says Module, whose attributes a type checker can't know.
        layers = (DUSTLayer(self.config, first=i == 0) for i in range(self.config.layers))
        self.steps: Any = nn.ModuleList(layers)
        self.overlap_add = OverlapAdd(self.grid)

    def iterates(self, noisy: Tensor, sigma: float | Tensor) -> list[Tensor]:
        """The pixel estimate after every layer.

        Args:
            noisy: (B, T, C, H, W), in [0, 1] plus noise.
            sigma: noise deviation in the same units, a number or one per clip (B,).

        Returns:
            L tensors (B, T, C, H, W).

        Raises:
            ValueError: for frames smaller than a patch, or a sigma of the wrong shape.
        """
        level = as_sigma(sigma, noisy)
        height, width = noisy.shape[-2:]
        observed = self.grid.to_blocks(noisy)
        # Training and graphics cards see the grid whole; a processor goes through it in pieces for its cache.
        in_pieces = noisy.is_cpu and not torch.is_grad_enabled()
        pieces = self.grid.pieces(observed, PLACES if in_pieces else None)
        means = [self.grid.unfold(observed[blocks]).mean(dim=(3, 5), keepdim=True) for _, blocks in pieces]
        codes: list[Tensor | None] = [None] * len(pieces)
        weight = self.overlap_add.weight(observed)
        difference, outputs = -observed, []
        for index, step in enumerate(self.steps):
            parts = []
            for i, (_, blocks) in enumerate(pieces):
                residual = self.grid.unfold(difference[blocks])
                z: Tensor = step(codes[i], residual + means[i] if index == 0 else residual, level)
                codes[i] = z
                parts.append(self.overlap_add(z @ step.dictionary + means[i]))
            estimate = self.grid.join(parts, pieces, observed) / weight
            difference = estimate - observed
            outputs.append(self.grid.from_blocks(estimate, height, width))
        return outputs

    def forward(self, noisy: Tensor, sigma: float | Tensor) -> Tensor:
        """The last layer's estimate, (B, T, C, H, W)."""
        return self.iterates(noisy, sigma)[-1]
