"""What kind of noise a clip has, from the clip alone: coarse or fine, drawn anew in every frame or not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SIDE = 8  # of a block, in pixels
PAIRS = 8  # of neighbouring frames that are looked at


@dataclass(frozen=True)
class Character:
    """How the changes from frame to frame differ from those that white noise makes.

    Args:
        excess: energy at low over that at high frequencies, in still places; 1 for white noise.
        still: share of the blocks that do not change at all, as compression leaves them.
    """

    excess: float
    still: float


@torch.no_grad()
def noise_character(frames: Tensor) -> Character:
    r"""Look at the changes from frame to frame in 8×8 blocks, by the cosine transform.

    White noise has the same energy at every frequency. One half of the low ones (index sum 1–4) ranks the
    blocks, the other is measured, over the tenth that changes least: under white noise a choice without bias.
    High are index sums of 9 and more.

    Args:
        frames: (T, C, H, W) in [0, 1], plus noise. One frame, or one below 8×8, says nothing: (1, 0).
    """
    if len(frames) < 2 or min(frames.shape[-2:]) < SIDE:
        return Character(1.0, 0.0)
    change = (frames[1:] - frames[:-1])[:: max(1, len(frames) // PAIRS)]
    blocks = change.unfold(-2, SIDE, SIDE).unfold(-2, SIDE, SIDE).reshape(-1, SIDE**2)
    moves = (blocks != 0).any(1)
    still = 1 - float(moves.float().mean())
    low, high = (blocks[moves] @ basis.to(blocks) for basis in _cosines())
    least = low[:, ::2].square().sum(1).argsort()[: max(1, len(low) // 10)]
    if not len(least):
        return Character(1.0, still)
    excess = low[least][:, 1::2].square().mean() / high[least].square().mean().clamp(min=1e-12)
    return Character(float(excess), still)


def _cosines() -> tuple[Tensor, Tensor]:
    """Orthonormal cosines of a block, low and high (64, ·)."""
    k = torch.arange(float(SIDE))
    waves = torch.cos(math.pi * k[:, None] * (2 * k + 1) / (2 * SIDE)) * (2 / SIDE) ** 0.5
    waves[0] /= 2**0.5
    images = torch.einsum("uy,vx->yxuv", waves, waves).reshape(SIDE**2, SIDE**2)
    order = (k[:, None] + k).flatten()
    return images[:, (order >= 1) & (order <= 4)], images[:, order >= 9]
