"""Frames as overlapping patches and back: the linear maps that every model shares.

A patch of p×p pixels at one place, followed through T frames, is one short sequence. Patches lie s pixels
apart, s a divisor of p, so a frame cut into s×s *blocks* holds everything: a patch is k×k neighbouring
blocks, k = p / s. Working on blocks makes overlap-add k² shifted additions instead of a scatter.

Axes: B batch, T frames, C channels, H W pixels, h w places, n = p² pixels of a patch (ordered block by
block), s² pixels of a block. Colour frames are turned to one luma and two chroma axes by a rotation, under
which white noise stays white with the same σ. Blocks are (B, h+k−1, w+k−1, T, C, s²), patches
(B, h, w, T, C, n).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

# Rows: luma (R+G+B)/√3, chroma (R−B)/√2 and (R−2G+B)/√6. Orthonormal.
OPPONENT = (
    (3**-0.5, 3**-0.5, 3**-0.5),
    (2**-0.5, 0.0, -(2**-0.5)),
    (6**-0.5, -2 * 6**-0.5, 6**-0.5),
)


Region = tuple[slice, slice, slice]


@dataclass(frozen=True)
class PatchGrid:
    """How frames are cut into patches.

    Args:
        patch: side p of a patch in pixels.
        stride: distance s between neighbouring patches; a divisor of p. s = p gives plain patches.

    Raises:
        ValueError: if the stride does not divide the patch.
    """

    patch: int = 8
    stride: int = 4

    def __post_init__(self) -> None:
        if self.patch < 1 or self.stride < 1 or self.patch % self.stride:
            raise ValueError(
                f"stride must be a divisor of patch, got patch {self.patch} and stride {self.stride};"
                f" for a patch of 8 pixels use 1, 2, 4 or 8"
            )

    @property
    def overlap(self) -> int:
        """k: a patch is k×k blocks, and a pixel lies in k² patches."""
        return self.patch // self.stride

    @property
    def pixels(self) -> int:
        """n: pixels of a patch in one channel."""
        return self.patch**2

    def padding(self, size: int) -> tuple[int, int]:
        """Pixels to add before and after ``size`` so that every pixel lies in k² patches of whole blocks."""
        before = self.patch - self.stride
        return before, before + (-size) % self.stride

    def to_blocks(self, frames: Tensor) -> Tensor:
        """Cut frames (B, T, C, H, W) into blocks (B, h+k−1, w+k−1, T, C, s²), mirrored at the border.

        Three channels are taken as RGB and rotated by ``OPPONENT``.

        Raises:
            ValueError: if a frame is smaller than one patch.
        """
        b, t, _, height, width = frames.shape
        if min(height, width) < self.patch:
            raise ValueError(
                f"frames must be at least one patch of {self.patch}×{self.patch}, got {height}×{width};"
                " pad the video or use a model with smaller patches"
            )
        top, bottom = self.padding(height)
        left, right = self.padding(width)
        if frames.shape[2] == 3:
            frames = torch.einsum("ij,btjhw->btihw", frames.new_tensor(OPPONENT), frames)
        flat = F.pad(
            rearrange(frames, "b t c h w -> (b t) c h w"), (left, right, top, bottom), mode="reflect"
        )
        s = self.stride
        return rearrange(flat, "(b t) c (h s1) (w s2) -> b h w t c (s1 s2)", b=b, t=t, s1=s, s2=s)

    def from_blocks(self, blocks: Tensor, height: int, width: int) -> Tensor:
        """Put blocks back together and cut the padding off: the inverse of :meth:`to_blocks`."""
        s, before = self.stride, self.patch - self.stride
        frames = rearrange(blocks, "b h w t c (s1 s2) -> b t c (h s1) (w s2)", s1=s, s2=s)
        frames = frames[..., before : before + height, before : before + width]
        if frames.shape[2] == 3:
            frames = torch.einsum("ij,btihw->btjhw", frames.new_tensor(OPPONENT), frames)
        return frames

    def pieces(self, blocks: Tensor, places: int | None) -> list[tuple[Region, Region]]:
        """Cut a grid into rectangles of about ``places`` places; None leaves it whole.

        Returns:
            For each: the region of its places and, one block wider per overlap, the region of its blocks.
        """
        k = self.overlap
        h, w = (size - k + 1 for size in blocks.shape[1:3])
        side = max(h, w) if places is None else max(1, round(places**0.5))
        found = []
        for i in range(0, h, side):
            for j in range(0, w, side):
                rows, cols = min(side, h - i), min(side, w - j)
                found.append(
                    (
                        (slice(None), slice(i, i + rows), slice(j, j + cols)),
                        (slice(None), slice(i, i + rows + k - 1), slice(j, j + cols + k - 1)),
                    )
                )
        return found

    def join(self, parts: list[Tensor], pieces: list[tuple[Region, Region]], like: Tensor) -> Tensor:
        """Add up the blocks of all pieces into those of the whole grid, shaped as ``like``."""
        if len(parts) == 1:
            return parts[0]
        whole = torch.zeros_like(like)
        for part, (_, region) in zip(parts, pieces, strict=True):
            whole[region] += part
        return whole

    def unfold(self, blocks: Tensor) -> Tensor:
        """Gather patches (B, h, w, T, C, n) from blocks: each block is copied into its k² patches."""
        k = self.overlap
        h, w = blocks.shape[1] - k + 1, blocks.shape[2] - k + 1
        return torch.cat([blocks[:, i : i + h, j : j + w] for i in range(k) for j in range(k)], dim=-1)

    def fold(self, patches: Tensor) -> Tensor:
        """Add patches (B, h, w, T, C, n) up into blocks: the adjoint of :meth:`unfold`."""
        k = self.overlap
        parts = patches.chunk(k * k, dim=-1)
        # k² padded copies added up: no scatter and no write in place, so it differentiates and compiles.
        total: Tensor | None = None
        for i in range(k):
            for j in range(k):
                room = (0, 0, 0, 0, 0, 0, j, k - 1 - j, i, k - 1 - i)
                part = F.pad(parts[i * k + j], room)
                total = part if total is None else total + part
        assert total is not None
        return total


class OverlapAdd(torch.nn.Module):
    r"""Weighted overlap-add: every pixel is the weighted mean of the k² patches that hold it.

    .. math:: \hat x = \frac{\mathrm{fold}(v \odot P)}{\mathrm{fold}(v)}, \qquad v = \exp(\omega)

    The window ω (n,) is learned, starting at 0 (a plain mean). ``forward`` gives the numerator, ``weight``
    the denominator, so that a grid can be added up piece by piece and divided once.
    """

    def __init__(self, grid: PatchGrid) -> None:
        super().__init__()
        self.grid = grid
        self.log_window = torch.nn.Parameter(torch.zeros(grid.pixels))

    def forward(self, patches: Tensor) -> Tensor:
        """The numerator: patches (B, h, w, T, C, n) to blocks (B, h+k−1, w+k−1, T, C, s²)."""
        return self.grid.fold(patches * self.log_window.exp())

    def weight(self, blocks: Tensor) -> Tensor:
        """The denominator for the whole grid of ``blocks``: (1, h+k−1, w+k−1, 1, 1, s²)."""
        rows, cols = (size - self.grid.overlap + 1 for size in blocks.shape[1:3])
        return self.grid.fold(self.log_window.exp().expand(1, rows, cols, 1, 1, -1))


def as_sigma(sigma: float | Tensor, frames: Tensor) -> Tensor:
    """Noise level of each clip of a batch, ready to broadcast against tokens: (B, 1, 1, 1, 1, 1).

    Args:
        sigma: a number, or a tensor with one value per clip (B,), in the units of ``frames``.
        frames: (B, T, C, H, W).

    Raises:
        ValueError: if the shapes do not fit, or ``frames`` has not five axes.
    """
    if frames.ndim != 5:
        raise ValueError(
            f"frames must have shape (B, T, C, H, W), got {tuple(frames.shape)}; add axes with frames[None]"
        )
    level = torch.as_tensor(sigma, dtype=frames.dtype, device=frames.device)
    if level.ndim > 1 or (level.ndim == 1 and len(level) not in (1, len(frames))):
        raise ValueError(
            f"sigma must be a number or one value per clip ({len(frames)},), got shape {tuple(level.shape)}"
        )
    return level.expand(len(frames)).reshape(-1, 1, 1, 1, 1, 1)
