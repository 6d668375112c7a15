"""A clip: frames and their timing, which checks its own shapes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Clip:
    """Frames that are in memory, with their timing.

    Args:
        frames: uint8 or uint16 (T, H, W, C), C = 1 (grey) or 3 (RGB).
        fps: nominal frames per second.
        times: presentation time of every frame in seconds, not falling; empty means evenly by ``fps``.

    Raises:
        ValueError: if the parts do not fit together; the message says what was given and what is expected.
    """

    frames: np.ndarray
    fps: Fraction = Fraction(25)
    times: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.frames.ndim != 4 or self.frames.shape[-1] not in (1, 3):
            raise ValueError(f"frames must have shape (T, H, W, C) with C = 1 or 3, got {self.frames.shape}")
        if self.frames.dtype not in (np.uint8, np.uint16):
            raise ValueError(
                f"frames must be uint8 or uint16, got {self.frames.dtype}; scale and convert them first"
            )
        if self.fps <= 0:
            raise ValueError(f"fps must be above 0, got {self.fps}")
        if not self.times:
            object.__setattr__(self, "times", tuple(float(i / self.fps) for i in range(len(self.frames))))
        if len(self.times) != len(self.frames):
            raise ValueError(
                f"times must hold one entry per frame ({len(self.frames)}), got {len(self.times)}"
            )
        if any(b < a for a, b in zip(self.times, self.times[1:], strict=False)):
            raise ValueError("times must not fall from one frame to the next; sort the frames by time")

    def __len__(self) -> int:
        return len(self.frames)

    def tensor(self) -> Tensor:
        """The frames as float32 (T, C, H, W) in [0, 1]."""
        peak = np.iinfo(self.frames.dtype).max
        array = np.ascontiguousarray(self.frames.transpose(0, 3, 1, 2)).astype(np.float32)
        return torch.from_numpy(array) / peak
