"""Folders of frame images, read with a stated policy for corrupt files.

A frame's index is its position among the sorted image files, never the number in its name: some copies of a
set count from 0, some from 1, and a number may be missing.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from vdenoise.datasets.once import Once
from vdenoise.datasets.sources import Source

log = logging.getLogger(__name__)
log.addFilter(Once())

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp"}
# What becomes of a frame that can't be decoded.
CORRUPT = {
    "skip": "the video is as if the frame had never been there",
    "bridge": "the mean of the nearest good frames before and after stands in for it",
    "raise": "reading it is an error",
}


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which ``2`` comes before ``10``."""
    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part
    ]


def image_files(folder: Path, suffixes: set[str] | None = None) -> list[Path]:
    """The image files of a folder in natural order; hidden files (``._001.tif``) and other kinds left out."""
    kinds = suffixes or IMAGE_SUFFIXES
    found = [p for p in folder.iterdir() if p.suffix.lower() in kinds and not p.name.startswith(".")]
    return sorted((p for p in found if p.is_file()), key=lambda p: natural_key(p.name))


def decode_image(path: Path, gray: bool | None) -> np.ndarray | None:
    """A frame as uint8 (H, W, C), or None where the file is corrupt.

    A JPEG without its end marker counts as corrupt: the decoder would fill the missing part with grey.

    Args:
        path: The image file.
        gray: True for luma, False for RGB, None for what the file holds.
    """
    data = path.read_bytes()
    if data[:2] == b"\xff\xd8" and b"\xff\xd9" not in data[-64:]:
        return None
    level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # the caller reports
    flags = {True: cv2.IMREAD_GRAYSCALE, False: cv2.IMREAD_COLOR, None: cv2.IMREAD_ANYCOLOR}[gray]
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if data else None
    except cv2.error:  # some kinds of damage end in an OpenCV assertion instead of an empty result
        return None
    finally:
        cv2.utils.logging.setLogLevel(level)
    if image is None or image.dtype != np.uint8:
        return None
    return image[..., None] if image.ndim == 2 else np.ascontiguousarray(image[..., ::-1])


@lru_cache(maxsize=4096)
def corrupt_frames(folder: Path, count: int) -> tuple[int, ...]:
    """Positions of the files of a folder that can't be decoded or are of another size than most.

    Decodes every file once per process (``count`` renews the result when files come or go) and reports each
    corrupt file once, through logging, also where several loader workers meet it.
    """
    files = image_files(folder)
    sizes = [None if (x := decode_image(f, None)) is None else x.shape[:2] for f in files]
    good = [s for s in sizes if s is not None]
    usual = max(set(good), key=good.count) if good else None
    bad = tuple(i for i, s in enumerate(sizes) if s != usual or s is None)
    for i in bad:
        what = "can't be decoded" if sizes[i] is None else f"is {sizes[i]} where the others are {usual}"
        log.warning("%s: corrupt frame, %s", files[i], what)
    return bad


@dataclasses.dataclass(frozen=True)
class FrameFolder(Source):
    """A video stored as a folder of images.

    Args:
        fps: Frame rate to assume; images carry none.
        corrupt: A key of ``CORRUPT``.
    """

    fps: Fraction = Fraction(25)
    corrupt: str = "skip"

    def __post_init__(self) -> None:
        if self.corrupt not in CORRUPT:
            raise ValueError(f"corrupt={self.corrupt!r}: expected one of {', '.join(CORRUPT)}")

    def open(self) -> AbstractContextManager[Any]:
        """A reader of the folder's frames."""
        return FolderReader(self)


class FolderReader:
    """The opened :class:`FrameFolder`, behind the interface of an opened video; holds one frame at a time.

    Raises:
        ValueError: No readable frame.
    """

    def __init__(self, source: FrameFolder):
        self.source, self.path, self.fps = source, source.path, source.fps
        self.files = image_files(source.path)
        self._bad: frozenset[int] = frozenset()
        if source.corrupt != "raise":
            self._bad = frozenset(corrupt_frames(source.path, len(self.files)))
        if source.corrupt == "skip":
            self.files = [f for i, f in enumerate(self.files) if i not in self._bad]
            self._bad = frozenset()
        good = next((i for i in range(len(self.files)) if i not in self._bad), None)
        if good is None:
            raise ValueError(f"{source.path}: no readable frame in this folder; unpack the set again")
        self.height, self.width, self.channels = self._decode(good).shape

    def __enter__(self) -> FolderReader:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self.files)))

    def __getitem__(self, index: int) -> np.ndarray:
        index = range(len(self.files))[index]
        if index not in self._bad:
            return self._decode(index)
        before = next((i for i in range(index - 1, -1, -1) if i not in self._bad), None)
        after = next((i for i in range(index + 1, len(self.files)) if i not in self._bad), None)
        near = [self._decode(i) for i in (before, after) if i is not None]
        return np.rint(np.mean(near, axis=0)).astype(np.uint8)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Frames ``start`` to ``stop``, uint8 (n, H, W, C)."""
        return np.stack([self[i] for i in range(start, stop)])

    def _decode(self, index: int) -> np.ndarray:
        image = decode_image(self.files[index], self.source.gray)
        if image is None:
            raise ValueError(
                f"{self.files[index]}: corrupt frame; unpack it again, or choose corrupt='skip' or 'bridge'"
            )
        return image
