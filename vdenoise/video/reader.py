"""Frames of a file in order, with bounded memory, by whichever decoder is right for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import cv2
import numpy as np

from vdenoise.clip import Clip
from vdenoise.video.colour import HDR, to_array
from vdenoise.video.probe import (
    VideoError,
    VideoInfo,
    choose,
    open_container,
    probe,
    tolerant,
    transparent,
)  # fmt: skip
from vdenoise.video.watchdog import in_time

logger = logging.getLogger(__name__)


class Reader:
    """A sequence of frames (H, W, C), C = 1 for grey and 3 for RGB, upright as a player shows them.

    ``for frame in reader`` decodes in order and holds a few frames at a time. ``reader[i]`` gives the same
    pixels: it decodes on from where it stands, or again from the first frame, since seeking is not exact in
    every container.

    Attributes:
        path: what is read.
        width, height, channels: of a frame.
        dtype: uint8, or uint16 (full scale 65535) for sources of more than 8 bits.
        fps: nominal frames per second.
        stamps: presentation time of every frame in units of ``base``. Frames that turn out to be undecodable
            are taken out of it as they are met, and told in the log.
        base: the unit of ``stamps`` in seconds.
        backend: "decord", "pyav" or "opencv".
        reason: why this backend.
        info: what the file is; None for a folder of images.
    """

    path: Path
    width: int
    height: int
    channels: int
    dtype: np.dtype[Any] = np.dtype(np.uint8)
    fps: Fraction
    stamps: list[int]
    base: Fraction
    backend: str
    reason: str
    info: VideoInfo | None = None

    def __init__(self) -> None:
        self._walk: Iterator[np.ndarray] | None = None
        self._next, self._last = 0, np.empty(0, np.uint8)

    def frames(self) -> Iterator[np.ndarray]:
        """Decode from the first frame on."""
        raise NotImplementedError

    @property
    def times(self) -> tuple[float, ...]:
        """Presentation time of every frame in seconds."""
        return tuple(float(stamp * self.base) for stamp in self.stamps)

    def __iter__(self) -> Iterator[np.ndarray]:
        return self.frames()

    def __len__(self) -> int:
        return len(self.stamps)

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
                    f"{self.path} ends after {self._next} frames where {i + 1} were announced;"
                    " its end is damaged"
                )
            self._last, self._next = frame, self._next + 1
        return self._last

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Frames start … stop−1 as one array (n, H, W, C)."""
        return np.stack([self[i] for i in range(*slice(start, stop).indices(len(self)))])

    def clip(self, start: int = 0, stop: int | None = None) -> Clip:
        """Frames start … stop−1 with their times."""
        begin, end, _ = slice(start, stop).indices(len(self))
        frames = self.read(begin, end)
        return Clip(frames, self.fps, self.times[begin:end])

    def close(self) -> None:
        """Let go of the decoder."""
        walk, self._walk = self._walk, None
        if walk is not None:
            walk.close()  # type: ignore[attr-defined]

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class FileReader(Reader):
    """A video file."""

    info: VideoInfo

    def __init__(self, path: Path, backend: str, gray: bool | None, exact: bool, deep: bool | None) -> None:
        super().__init__()
        info = self.info = probe(path)
        if info.alpha:
            raise VideoError(
                f"{path} has transparent pixels ({info.pix_fmt}), which would be lost; lay it over a"
                " background first"
            )
        luma = info.gray if gray is None else gray
        self.path, self.width, self.height = path, info.width, info.height
        self.turns = round(info.rotation / 90) % 4  # counterclockwise
        if self.turns % 2:
            self.width, self.height = info.height, info.width
        self.fps, self.base, self.channels = info.fps, info.base, 1 if luma else 3
        self.stamps = list(info.stamps)
        deep = info.bits > 8 if deep is None else deep
        self.backend, self.reason = choose(info, luma, exact or deep, backend)
        self.forced = backend != "auto"
        self.dtype = np.dtype(np.uint16 if deep and self.backend == "pyav" else np.uint8)
        logger.info("reading %s by %s: %s", path.name, self.backend, self.reason)
        for word in self._remarks(info):
            logger.warning("%s: %s", path.name, word)

    def _remarks(self, info: VideoInfo) -> Iterator[str]:
        if info.interlaced:
            yield (
                "it is interlaced: each frame holds two half pictures, and moving edges have combs;"
                " deinterlace it first for the best result"
            )
        if info.promised > len(info.stamps):
            yield f"its header promises {info.promised} frames, {len(info.stamps)} are there"
        if info.rotation % 90:
            yield f"it asks to be turned by {info.rotation}°, which is left to the player"
        if info.colour.hdr and self.dtype == np.uint8:
            yield f"it is HDR ({HDR[info.colour.transfer]}) and read at 8 bits"

    def frames(self) -> Iterator[np.ndarray]:
        """Decode from the first frame on, in a thread that is not waited for without end."""
        source = self._by_decord if self.backend == "decord" else self._by_pyav
        return in_time(source, self.path.name)

    def _by_decord(self) -> Iterator[np.ndarray]:
        import decord

        done = 0
        try:
            source: Any = decord.VideoReader(str(self.path), num_threads=1)
            # Frame by frame: after get_batch its prefetch holds hundreds of megabytes.
            for _ in range(len(self)):
                frame = source.next().asnumpy()
                yield self._luma(frame) if self.channels == 1 else frame
                done += 1
        except (decord.DECORDError, RuntimeError, IndexError, StopIteration) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].split("] ")[-1][:120]
            if self.forced:
                raise VideoError(f"Decord can't read {self.path} ({reason}); try --backend pyav") from error
            logger.warning("%s: Decord gives up (%s); PyAV goes on", self.path.name, reason)
            yield from islice(self._by_pyav(), done, None)

    def _luma(self, frame: np.ndarray) -> np.ndarray:
        return cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)[..., None]

    def _by_pyav(self) -> Iterator[np.ndarray]:
        """Decode with all threads; where something is damaged, go on with one, which loses no good frame."""
        damage: list[str] = []
        if not self.info.torn:
            done = 0
            for frame in self._decoded("AUTO", damage):
                if damage:
                    break
                yield frame
                done += 1
            if not damage:
                return self._finish(done, damage)
            self.stamps[:] = self.info.stamps
        else:
            done = 0
        damage.clear()
        total = 0
        for frame in self._decoded("NONE", damage):
            total += 1
            if total > done:
                yield frame
        return self._finish(total, damage)

    def _decoded(self, threads: str, damage: list[str]) -> Iterator[np.ndarray]:
        gray, deep = self.channels == 1, self.dtype == np.uint16
        with open_container(self.path) as container:
            container.streams.video[0].thread_type = threads
            for index, frame in enumerate(tolerant(container, damage)):
                if (frame.width, frame.height) != (self.info.width, self.info.height):
                    raise VideoError(
                        f"{self.path} changes its size from {self.info.width}×{self.info.height} to"
                        f" {frame.width}×{frame.height} at frame {index}; cut it there"
                    )
                if transparent(frame):
                    raise VideoError(
                        f"{self.path} has transparent pixels at frame {index}, which would be lost;"
                        " lay it over a background first"
                    )
                self._account(index, frame.pts)
                if frame.is_corrupt:
                    damage.append("a frame with faults")
                image = to_array(frame, self.info.colour, gray, deep)
                yield np.ascontiguousarray(np.rot90(image, self.turns)) if self.turns else image

    def _finish(self, done: int, damage: list[str]) -> None:
        if not done:
            raise VideoError(f"{self.path}: no frame of it can be decoded; convert it to H.264 in mp4")
        self._missing(done, len(self.stamps))
        if damage:
            logger.warning(
                "%s is damaged (%s, %d times); %d frames came out",
                self.path.name,
                damage[0],
                len(damage),
                done,
            )

    def _account(self, index: int, pts: int | None) -> None:
        """Bring ``stamps`` in line with the frame that came out as number ``index``."""
        stamps = self.stamps
        if index >= len(stamps):
            step = max(1, round(1 / (self.fps * self.base)))
            stamps.append(pts if pts is not None and pts > stamps[-1] else stamps[-1] + step)
        elif pts is None or pts == stamps[index] or self.info.container == "avi":
            pass  # AVI names frames by their place, which damage shifts
        elif pts > stamps[index] and pts in stamps:
            self._missing(index, stamps.index(pts))
        elif index and pts < stamps[index] and pts in self.info.stamps:
            # It came late, after damage: shown in between, so that what follows stays at its time.
            stamps.insert(index, (stamps[index - 1] + stamps[index]) // 2)

    def _missing(self, start: int, stop: int) -> None:
        if start < stop:
            logger.warning(
                "%s: %d frames at %.3f s can't be decoded and are left out",
                *(self.path.name, stop - start, self.stamps[start] * self.base),
            )
            del self.stamps[start:stop]
