"""Folders of images as videos: frames in the order of their names, 8 or 16 bits."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import cv2
import numpy as np

from vdenoise.video.probe import VideoError
from vdenoise.video.reader import Reader

IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
DEEP = (".png", ".tif", ".tiff")  # hold 16 bits
FOLDER_FPS = Fraction(25)  # a folder of images has no frame rate of its own
NAME = "{:06d}"
QUALITY = 95  # of JPEG, of 100


class FolderReader(Reader):
    """The images of a folder in natural order (2 before 10); hidden files are passed over."""

    def __init__(self, path: Path, gray: bool | None = None, deep: bool | None = None) -> None:
        super().__init__()
        self.files = sorted((f for f in path.iterdir() if _is_image(f)), key=_natural)
        if not self.files:
            raise VideoError(
                f"{path} holds no image ({', '.join(IMAGES)}); give a video file or a folder of frames"
            )
        first = self._decode(self.files[0])
        luma = first.ndim == 2 if gray is None else gray
        self.path, self.fps, self.channels = path, FOLDER_FPS, 1 if luma else 3
        self.height, self.width = first.shape[:2]
        self.dtype = np.dtype(np.uint16 if (first.dtype == np.uint16 if deep is None else deep) else np.uint8)
        self.stamps, self.base = list(range(len(self.files))), 1 / self.fps
        self.backend, self.reason = "opencv", "a folder of images"

    def frames(self) -> Iterator[np.ndarray]:
        """Decode image by image."""
        for file in self.files:
            image = self._decode(file)
            if image.shape[:2] != (self.height, self.width):
                raise VideoError(
                    f"{file} has {image.shape[1]}×{image.shape[0]} pixels where the first image has"
                    f" {self.width}×{self.height}; make all alike"
                )
            yield self._as_asked(image)

    def _as_asked(self, image: np.ndarray) -> np.ndarray:
        if image.dtype != self.dtype:
            wide = self.dtype == np.uint16
            image = image.astype(np.uint16) * 257 if wide else np.rint(image / 257).astype(np.uint8)
        if self.channels == 1:
            return (image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_BGR2GRAY))[..., None]
        return cv2.cvtColor(image, cv2.COLOR_GRAY2RGB if image.ndim == 2 else cv2.COLOR_BGR2RGB)

    def _decode(self, file: Path) -> np.ndarray:
        # Unchanged keeps transparency, to be refused; the others turn photographs upright by their tag.
        lossless = file.suffix.lower() in (*DEEP, ".bmp")
        flags = cv2.IMREAD_UNCHANGED if lossless else cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR
        try:
            image = cv2.imdecode(np.fromfile(file, np.uint8), flags) if file.stat().st_size else None
        except cv2.error:  # some kinds of damage end in an OpenCV assertion instead of an empty result
            image = None
        if image is None or image.dtype not in (np.uint8, np.uint16):
            raise VideoError(f"{file} is not an image that can be read; replace or remove it")
        if image.ndim == 3 and image.shape[2] == 4:
            if (image[..., 3] < (255 if image.dtype == np.uint8 else 65535)).any():
                raise VideoError(
                    f"{file} has transparent pixels, which would be lost; lay it over a background first"
                )
            image = image[..., :3]
        return image


class FolderWriter:
    """Write frames as images; the folder appears under its name when it is whole.

    Args:
        path: the folder, or the folder and a suffix as ``frames/*.tif``; png where none is told.
        like: the reader that the frames come from. Where it is a folder, its names are kept.
        overwrite: replace an existing folder, with all that is in it, if it holds images alone.

    Raises:
        VideoError: if the output is the input, exists already, or can't be written.
    """

    def __init__(self, path: str | Path, *, like: Reader | None = None, overwrite: bool = False) -> None:
        path = Path(path)
        pattern = path.suffix.lower() in IMAGES
        self.suffix = path.suffix.lower() if pattern else ".png"
        self.path = path.parent if pattern else path
        names = [file.stem for file in like.files] if isinstance(like, FolderReader) else []
        self.names = names if len(set(names)) == len(names) else []
        self.count = 0
        if like is not None and self.path.exists() and like.path.exists() and self.path.samefile(like.path):
            raise VideoError(f"the output {self.path} is the input; give another name")
        if self.path.exists() and not self.path.is_dir():
            raise VideoError(f"{self.path} is a file; give the name of a folder")
        if self.path.is_dir() and (there := list(self.path.iterdir())):
            if not overwrite:
                raise VideoError(f"{self.path} is not empty; give another name or --overwrite")
            if not all(_is_image(file) for file in there):
                raise VideoError(f"{self.path} holds more than images and is not replaced; give another name")
        if not self.path.absolute().parent.is_dir():
            raise VideoError(f"the folder {self.path.parent} does not exist; make it first")
        self.temporary = self.path.absolute().with_name(f".{self.path.absolute().name}.{os.getpid()}.part")
        self.temporary.mkdir()

    def write(self, frame: np.ndarray) -> None:
        """Append a frame, uint8 or uint16 (H, W, C); 16 bits become 8 where the format holds no more."""
        if frame.ndim != 3 or frame.shape[2] not in (1, 3) or frame.dtype not in (np.uint8, np.uint16):
            raise VideoError(
                f"a frame must be uint8 or uint16 (H, W, C) with C = 1 or 3, got {frame.dtype} {frame.shape}"
            )
        if frame.dtype == np.uint16 and self.suffix not in DEEP:
            frame = np.rint(frame / 257).astype(np.uint8)
        image = frame[..., 0] if frame.shape[2] == 1 else cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)
        name = self.names[self.count] if self.count < len(self.names) else NAME.format(self.count + 1)
        options = [cv2.IMWRITE_JPEG_QUALITY, QUALITY] if self.suffix in (".jpg", ".jpeg") else []
        _, data = cv2.imencode(self.suffix, image, options)
        try:
            (self.temporary / f"{name}{self.suffix}").write_bytes(data.tobytes())
        except OSError as error:
            raise VideoError(f"{self.path} can't be written ({error.strerror or error})") from error
        self.count += 1

    def close(self) -> None:
        """Give the folder its name."""
        if not self.count:
            self.discard()
            raise VideoError(f"{self.path}: no frame was written; check the input")
        if self.path.exists():
            shutil.rmtree(self.path)
        self.temporary.replace(self.path)

    def discard(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.temporary, ignore_errors=True)

    def __enter__(self) -> FolderWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in IMAGES and not file.name.startswith(".")


def _natural(file: Path) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", file.name)]
