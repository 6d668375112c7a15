"""Kornia's video augmentation on the samples of a stream, under the stream's own seed."""

from __future__ import annotations

from typing import Any

import torch
from numpy.random import Generator


class KorniaVideo:
    """Random changes of light and view by kornia, the same for every frame of a sample.

    kornia draws from torch's global generator, so each call runs under a seed taken from the stream's own
    generator and leaves the global one as it was.

    Args:
        share: Share of the samples that are changed; the others pass through as they are.
        light: Largest relative change of brightness and contrast; 0 leaves the light alone.
        degrees: Largest rotation; 0 turns nothing.
        scale: Range of the zoom; None zooms nothing.
        stages: Your own kornia augmentations instead, such as ``(kornia.augmentation.RandomGamma(),)``.
    """

    def __init__(
        self,
        share: float = 1.0,
        light: float = 0.1,
        degrees: float = 5.0,
        scale: tuple[float, float] | None = (1.0, 1.2),
        stages: tuple[Any, ...] | None = None,
    ):
        if not 0 <= share <= 1:
            raise ValueError(f"share={share}: expected a share in [0, 1]")
        if not 0 <= light < 1:
            raise ValueError(f"light={light}: expected a relative change in [0, 1)")
        self.share, self.light, self.degrees, self.scale, self.stages = share, light, degrees, scale, stages
        self._pipeline: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pipeline": None}  # built again in the worker

    def __call__(self, sample: torch.Tensor, rng: Generator) -> torch.Tensor:
        """Change one sample, or leave it: uint8 (T, C, S, S) to the same."""
        if rng.random() >= self.share:
            return sample
        if self._pipeline is None:
            self._pipeline = self._build()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**63 - 1)))
            changed = self._pipeline(sample[None].float() / 255)[0]
        return changed.mul(255).round().clamp(0, 255).to(torch.uint8)

    def _build(self) -> Any:
        from kornia import augmentation as K

        stages = list(self.stages or ())
        if self.stages is None:
            if self.light:
                limits = (1 - self.light, 1 + self.light)
                stages += [K.RandomBrightness(limits, p=1.0), K.RandomContrast(limits, p=1.0)]
            if self.degrees or self.scale:
                stages.append(
                    K.RandomAffine(self.degrees, scale=self.scale, padding_mode="reflection", p=1.0)
                )
        return K.VideoSequential(*stages, data_format="BTCHW", same_on_frame=True)
