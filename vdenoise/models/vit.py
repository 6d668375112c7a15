"""ViT: a pre-norm transformer over patch sequences, the baseline without optimisation structure.

    H ← H + MHA(LN(H)),   H ← H + MLP(LN(H)),   patch ← noisy patch + LN(H) R

with one readout R for all layers. Attention runs over the T frames of a place and knows no order of time, as
the other models', so a network trained on one length serves any.

Axes: B batch, T frames, C channels, h w places, n pixels of a patch, d width of a token.
Channels are separate sequences with the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from vdenoise.models.tokens import OverlapAdd, PatchGrid, as_sigma


@dataclass(frozen=True)
class ViTConfig:
    """Shape of a ViT.

    Args:
        layers: L.
        width: d, a multiple of ``heads``.
        heads: attention heads.
        mlp_ratio: width of the hidden layer of the MLP over d.
        patch: p, side of a patch.
        stride: s, distance between patches, a divisor of p.
    """

    layers: int = 6
    width: int = 64
    heads: int = 4
    mlp_ratio: int = 2
    patch: int = 8
    stride: int = 4

    def __post_init__(self) -> None:
        PatchGrid(self.patch, self.stride)
        for name in ("layers", "width", "heads", "mlp_ratio"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width} and {self.heads}")


class ViTLayer(nn.Module):
    """One pre-norm transformer layer on (N, T, d)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        d, hidden = config.width, config.width * config.mlp_ratio
        self.heads = config.heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, d))

    def forward(self, h: Tensor) -> Tensor:
        """The next tokens, (N, T, d)."""
        qkv = rearrange(self.qkv(self.norm_attention(h)), "n t (k g e) -> k n g t e", k=3, g=self.heads)
        mixed = F.scaled_dot_product_attention(*qkv.unbind(0))
        h = h + self.out(rearrange(mixed, "n g t e -> n t (g e)"))
        return h + self.mlp(self.norm_mlp(h))


class ViT(nn.Module):
    """The network. Every layer's pixel estimate is an output, by one shared readout.

    Example:
        >>> model = ViT(ViTConfig(layers=2, width=16))
        >>> [tuple(x.shape) for x in model.iterates(torch.rand(1, 3, 1, 20, 17), 0.1)]
        [(1, 3, 1, 20, 17), (1, 3, 1, 20, 17)]
    """

    Config = ViTConfig

    def __init__(self, config: ViTConfig | None = None) -> None:
        super().__init__()
        self.config = config or ViTConfig()
        n, d = self.config.patch**2, self.config.width
        self.grid = PatchGrid(self.config.patch, self.config.stride)
        self.embed = nn.Linear(n, d)
        self.steps = nn.ModuleList(ViTLayer(self.config) for _ in range(self.config.layers))
        self.norm = nn.LayerNorm(d)
        self.readout = nn.Linear(d, n)
        self.overlap_add = OverlapAdd(self.grid)
        nn.init.normal_(self.readout.weight, std=0.01)  # every layer starts at the noisy input
        nn.init.zeros_(self.readout.bias)

    def iterates(self, noisy: Tensor, sigma: float | Tensor) -> list[Tensor]:
        """The pixel estimate after every layer.

        Args:
            noisy: (B, T, C, H, W), in [0, 1] plus noise.
            sigma: noise deviation; the plain transformer has no use for it, so only its shape is checked.

        Returns:
            L tensors (B, T, C, H, W).

        Raises:
            ValueError: for frames smaller than a patch, or a sigma of the wrong shape.
        """
        as_sigma(sigma, noisy)
        height, width = noisy.shape[-2:]
        observed = self.grid.to_blocks(noisy)
        patches = self.grid.unfold(observed)
        b, rows, cols, _, c, _ = patches.shape
        centred = patches - patches.mean(dim=(3, 5), keepdim=True)
        weight = self.overlap_add.weight(observed)
        tokens = self.embed(rearrange(centred, "b h w t c n -> (b h w c) t n"))
        outputs = []
        for step in self.steps:
            tokens = step(tokens)
            change = rearrange(
                self.readout(self.norm(tokens)), "(b h w c) t n -> b h w t c n", b=b, h=rows, w=cols, c=c
            )
            estimate = self.overlap_add(patches + change) / weight
            outputs.append(self.grid.from_blocks(estimate, height, width))
        return outputs

    def forward(self, noisy: Tensor, sigma: float | Tensor) -> Tensor:
        """The last layer's estimate, (B, T, C, H, W)."""
        return self.iterates(noisy, sigma)[-1]
