"""One video as a data set sees it: a name, and how to open it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vdenoise.video import open_video


@dataclasses.dataclass(frozen=True)
class Source:
    """A video file or a folder of frames, opened only when asked.

    Args:
        name: Short name, unique in its set.
        path: The file, or the folder of images.
        gray: True for luma, False for RGB, None for what the file holds.
        start: Frame at which :meth:`load` begins.
    """

    name: str
    path: Path
    gray: bool | None = None
    start: int = 0

    def open(self) -> AbstractContextManager[Any]:
        """A reader of uint8 frames (H, W, C); a context manager that closes its decoder."""
        return open_video(self.path, gray=self.gray, exact=False, bits=8)

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Frames ``start`` to ``stop`` (fewer where the video ends before) as uint8 (n, H, W, C)."""
        with self.open() as reader:
            return reader.read(start, len(reader) if stop is None else min(stop, len(reader)))

    def load(self, frames: int | None = None) -> torch.Tensor:
        """The first ``frames`` frames from ``start`` on, float32 (T, C, H, W) in [0, 1]."""
        clip = self.read(self.start, None if frames is None else self.start + frames)
        return torch.from_numpy(clip).permute(0, 3, 1, 2).float().div(255)


class FramesReader:
    """Frames that are in memory already, behind the interface of an opened video.

    Args:
        frames: uint8 (n, H, W, C).
        path: Where they came from.
        fps: Frame rate.
    """

    def __init__(self, frames: np.ndarray, path: Path, fps: Fraction = Fraction(10)):
        self.frames, self.path, self.fps = frames, path, fps
        _, self.height, self.width, self.channels = frames.shape

    def __enter__(self) -> FramesReader:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __len__(self) -> int:
        return len(self.frames)

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter(self.frames)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.frames[index]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Frames ``start`` to ``stop``, (n, H, W, C)."""
        return self.frames[start:stop]
