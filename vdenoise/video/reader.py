"""Frames of a file in order, with bounded memory, by whichever decoder is right for it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import av.error
import cv2
import numpy as np

from vdenoise.clip import Clip
from vdenoise.video.probe import VideoError, VideoInfo, choose, open_container, probe

BATCH = 8  # frames per call into Decord
IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
FOLDER_FPS = Fraction(25)  # a folder of images has no frame rate of its own
logger = logging.getLogger(__name__)


def open_video(path: str | Path, *, backend: str = "auto", gray: bool | None = None) -> Reader:
    """Open a video file or a folder of images.

    Args:
        path: the file or folder.
        backend: "auto", "decord" or "pyav".
        gray: True reads luma only, False RGB; None follows the source.

    Returns:
        A reader; use it in a ``with`` statement.

    Raises:
        VideoError: if it can't be read; the message says what to do.
    """
    path = Path(path)
    return _Folder(path, gray) if path.is_dir() else _File(path, backend, gray)


class Reader:
    """A sequence of frames (H, W, C) uint8, C = 1 for grey and 3 for RGB.

    ``for frame in reader`` decodes in order and holds a few frames at a time. ``reader[i]`` gives the same
    pixels: it decodes on from where it stands, or again from the first frame, since seeking is not exact in
    every container.

    Attributes:
        path: what is read.
        width, height, channels: of a frame.
        fps: nominal frames per second.
        times: presentation time of every frame in seconds.
        backend: "decord", "pyav" or "opencv".
        reason: why this backend.
    """

    path: Path
    width: int
    height: int
    channels: int
    fps: Fraction
    times: tuple[float, ...]
    backend: str
    reason: str
    info: VideoInfo | None = None

    def __init__(self) -> None:
        self._walk: Iterator[np.ndarray] | None = None
        self._next, self._last = 0, np.empty(0, np.uint8)

    def frames(self) -> Iterator[np.ndarray]:
        """Decode from the first frame on."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[np.ndarray]:
        return self.frames()

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, index: int) -> np.ndarray:
        i = index + len(self) if index < 0 else index
        if not 0 <= i < len(self):
            raise IndexError(f"frame {index} of {self.path}: it has {len(self)} frames")
        if self._walk is None or i < self._next - 1:
            self._walk, self._next = self.frames(), 0
        while self._next <= i:
            frame = next(self._walk, None)
            if frame is None:
                raise VideoError(
                    f"{self.path} ends after {self._next} frames where {len(self)} were announced"
                )
            self._last, self._next = frame, self._next + 1
        return self._last

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Frames start … stop−1 as one array (n, H, W, C)."""
        return np.stack([self[i] for i in range(*slice(start, stop).indices(len(self)))])

    def clip(self, start: int = 0, stop: int | None = None) -> Clip:
        """Frames start … stop−1 with their times."""
        begin, end, _ = slice(start, stop).indices(len(self))
        return Clip(self.read(begin, end), self.fps, self.times[begin:end])

    def close(self) -> None:
        """Let go of the decoder."""
        self._walk = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _File(Reader):
    def __init__(self, path: Path, backend: str, gray: bool | None) -> None:
        super().__init__()
        info = self.info = probe(path)
        luma = info.gray if gray is None else gray
        self.path, self.width, self.height = path, info.width, info.height
        self.fps, self.times, self.channels = info.fps, info.times, 1 if luma else 3
        self.backend, self.reason = choose(info, luma, backend)
        logger.info("reading %s by %s: %s", path.name, self.backend, self.reason)

    def frames(self) -> Iterator[np.ndarray]:
        return self._by_decord() if self.backend == "decord" else self._by_pyav()

    def _by_decord(self) -> Iterator[np.ndarray]:
        import decord

        try:
            source: Any = decord.VideoReader(str(self.path), num_threads=1)
            for start in range(0, len(self), BATCH):
                batch = source.get_batch(list(range(start, min(start + BATCH, len(self))))).asnumpy()
                for frame in batch:
                    yield self._luma(frame) if self.channels == 1 else frame
        except (decord.DECORDError, RuntimeError, IndexError) as error:
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
            raise VideoError(f"Decord can't read {self.path} ({reason}); try --backend pyav") from error

    def _luma(self, frame: np.ndarray) -> np.ndarray:
        return cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)[..., None]

    def _by_pyav(self) -> Iterator[np.ndarray]:
        with open_container(self.path) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            try:
                for frame in container.decode(stream):
                    if self.channels == 1:
                        yield frame.to_ndarray(format="gray")[..., None]
                    else:
                        yield frame.to_ndarray(format="rgb24")
            except av.error.FFmpegError as error:
                raise VideoError(
                    f"{self.path} is damaged ({error.strerror}); repair or re-encode it"
                ) from error


class _Folder(Reader):
    def __init__(self, path: Path, gray: bool | None) -> None:
        super().__init__()
        self.files = sorted((f for f in path.iterdir() if _is_image(f)), key=_natural)
        if not self.files:
            raise VideoError(
                f"{path} holds no image ({', '.join(IMAGES)}); give a video file or a folder of frames"
            )
        first = self._decode(self.files[0], cv2.IMREAD_UNCHANGED)
        luma = first.ndim == 2 if gray is None else gray
        self.path, self.fps, self.channels = path, FOLDER_FPS, 1 if luma else 3
        self.height, self.width = first.shape[:2]
        self.times = tuple(float(i / self.fps) for i in range(len(self.files)))
        self.backend, self.reason = "opencv", "a folder of images"

    def frames(self) -> Iterator[np.ndarray]:
        for file in self.files:
            if self.channels == 1:
                frame = self._decode(file, cv2.IMREAD_GRAYSCALE)[..., None]
            else:
                frame = cv2.cvtColor(self._decode(file, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
            if frame.shape[:2] != (self.height, self.width):
                raise VideoError(
                    f"{file} has {frame.shape[1]}×{frame.shape[0]} pixels where the first image has"
                    f" {self.width}×{self.height}; make all alike"
                )
            yield frame

    def _decode(self, file: Path, flags: int) -> np.ndarray:
        image = cv2.imdecode(np.fromfile(file, np.uint8), flags) if file.stat().st_size else None
        if image is None:
            raise VideoError(f"{file} is not an image that can be read; replace or remove it")
        return image


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in IMAGES and not file.name.startswith(".")


def _natural(file: Path) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", file.name)]
