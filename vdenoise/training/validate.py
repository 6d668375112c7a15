"""Scores of a model on held-out clips while it trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vdenoise.noise import add_noise

FRAMES, SIDE, CLIPS = 8, 128, 6  # a few seconds of work on one core


class Validation:
    """RMSE of every layer (0–255 scale) on fixed crops of the validation clips under fixed noise.

    Args:
        clips: evaluation clips, each with ``name`` and ``load(frames) -> (T, C, H, W)`` in [0, 1].
        sigma: level of the noise on the 0–255 scale, unclipped.
        noise: its kind, a key of ``vdenoise.noise.NOISES``.
    """

    def __init__(self, clips: Sequence[Any], sigma: float, noise: str = "gaussian") -> None:
        self.sigma = sigma / 255
        generator = torch.Generator().manual_seed(0)
        self.pairs = []
        for clip in clips[:CLIPS]:
            frames = clip.load(FRAMES).mean(dim=1, keepdim=True)
            h, w = frames.shape[-2:]
            top, left = max(0, (h - SIDE) // 2), max(0, (w - SIDE) // 2)
            clean = frames[None, ..., top : top + SIDE, left : left + SIDE]
            self.pairs.append((add_noise(clean, noise, level=self.sigma, generator=generator), clean))

    @torch.no_grad()
    def __call__(self, model: Any) -> dict[str, Any]:
        """Pooled RMSE of the noisy clips and of every layer, and the deviation they are under."""
        errors = [
            torch.stack([(x - clean).square().mean() for x in (noisy, *model.iterates(noisy, self.sigma))])
            for noisy, clean in self.pairs
        ]
        rmse = torch.stack(errors).mean(0).sqrt() * 255
        return {"val_sigma": self.sigma * 255, "val_rmse": rmse.tolist()}
