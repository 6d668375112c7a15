"""Frames to a file: H.264 with the source's timing, its sound copied packet by packet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import av.error
import numpy as np

from vdenoise.video.probe import VideoError
from vdenoise.video.reader import Reader

TICKS = 90_000  # of the output's clock per second, MPEG's own
CRF = 16  # visually lossless: the clean picture is not to be spoilt by its own compression


class Writer:
    """Write frames one by one; the file appears under its name when it is whole.

    Args:
        path: the output; its suffix says the container (.mp4, .mkv, .mov, .avi, .webm …).
        like: the reader whose times, rate and sound the output takes over.
        fps: frames per second, where there is no ``like``.
        codec: libav's name of an encoder.
        crf: quality, 0 (best) – 51.
        pix_fmt: pixel format of the file.
        overwrite: replace an existing file.

    Raises:
        VideoError: if the output is the input, exists already, or can't be written.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        like: Reader | None = None,
        fps: Fraction | float | None = None,
        codec: str = "libx264",
        crf: int = CRF,
        pix_fmt: str = "yuv420p",
        overwrite: bool = False,
    ) -> None:
        self.path, self.like = Path(path), like
        self.fps = Fraction(fps).limit_denominator(100_000) if fps else (like.fps if like else Fraction(25))
        self.codec, self.crf, self.pix_fmt = codec, crf, pix_fmt
        self.count = 0
        if like is not None and self.path.exists() and like.path.exists() and self.path.samefile(like.path):
            raise VideoError(f"the output {self.path} is the input; give another name")
        if self.path.exists() and not overwrite:
            raise VideoError(f"{self.path} exists; give another name or --overwrite")
        if not self.path.parent.is_dir():
            raise VideoError(f"the folder {self.path.parent} does not exist; make it first")
        self.temporary = self.path.with_name(f".{self.path.stem}.{os.getpid()}.part{self.path.suffix}")
        try:
            self.container = av.open(str(self.temporary), "w", options=self._options())
        except (av.error.FFmpegError, ValueError) as error:
            self.temporary.unlink(missing_ok=True)
            raise VideoError(
                f"{self.path} can't be written ({error}); use a name that ends in .mp4 or .mkv"
            ) from error
        self.stream: Any = None
        self._audio: Iterator[Any] | None = None
        self._sound_to = float("-inf")

    def _options(self) -> dict[str, str]:
        return {"movflags": "+faststart"} if self.path.suffix.lower() in (".mp4", ".mov", ".m4v") else {}

    def write(self, frame: np.ndarray) -> None:
        """Append a frame, uint8 (H, W, C).

        Raises:
            VideoError: if the frame is of another kind than the first, or the encoder refuses.
        """
        if frame.ndim != 3 or frame.shape[2] not in (1, 3) or frame.dtype != np.uint8:
            raise VideoError(
                f"a frame must be uint8 (H, W, C) with C = 1 or 3, got {frame.dtype} {frame.shape}"
            )
        try:
            if self.stream is None:
                self._start(frame)
            elif (frame.shape[1], frame.shape[0]) != self.size:
                raise VideoError(
                    f"a frame of {frame.shape[1]}×{frame.shape[0]} after {self.size[0]}×{self.size[1]}"
                )
            time = self._time(self.count)
            picture = self._picture(frame)
            picture.pts, picture.time_base = round(time * TICKS), Fraction(1, TICKS)
            self.container.mux(self.stream.encode(picture))
            self._sound(time)
        except av.error.FFmpegError as error:
            raise VideoError(f"{self.path} can't be written ({error.strerror or error})") from error
        self.count += 1

    def _start(self, frame: np.ndarray) -> None:
        self.size = (frame.shape[1], frame.shape[0])
        try:
            stream = self.container.add_stream(self.codec, rate=self.fps)
        except (av.error.FFmpegError, ValueError) as error:
            raise VideoError(
                f"a {self.path.suffix} file does not take {self.codec} ({error}); write .mp4 or .mkv"
            ) from error
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = self.size
        # 4:2:0 stores a colour for every 2×2 pixels; odd sizes need a colour for each.
        odd = self.size[0] % 2 or self.size[1] % 2
        stream.pix_fmt = "yuv444p" if odd and self.pix_fmt == "yuv420p" else self.pix_fmt
        stream.codec_context.time_base = Fraction(1, TICKS)
        stream.options = {"crf": str(self.crf)}
        self.stream = stream
        if self.like is not None and self.like.info is not None and self.like.info.audio:
            self._source = av.open(str(self.like.path))
            tracks = {a.index: self.container.add_stream_from_template(a) for a in self._source.streams.audio}
            self._audio = self._packets(tracks)

    def _packets(self, tracks: dict[int, Any]) -> Iterator[Any]:
        for packet in self._source.demux(*self._source.streams.audio):
            if packet.dts is None:
                continue
            time = float(packet.dts * packet.time_base)
            packet.stream = tracks[packet.stream.index]
            yield time, packet

    def _sound(self, until: float) -> None:
        """Copy the sound up to a time, so that both lie side by side in the file."""
        while self._audio is not None and self._sound_to <= until:
            found = next(self._audio, None)
            if found is None:
                self._audio = None
                break
            self._sound_to, packet = found
            self.container.mux(packet)

    def _time(self, index: int) -> float:
        if self.like is not None and index < len(self.like.times):
            return self.like.times[index]
        return float(index / self.fps)

    def _picture(self, frame: np.ndarray) -> av.VideoFrame:
        if frame.shape[2] == 1:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[..., 0]), format="gray")
        else:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        return picture.reformat(format=self.stream.pix_fmt)

    def close(self) -> None:
        """Finish the file and give it its name; the sound ends with the picture where frames are missing."""
        try:
            if self.stream is None:
                raise VideoError(f"{self.path}: no frame was written; check the input")
            self.container.mux(self.stream.encode(None))
            whole = self.like is None or self.count >= len(self.like)
            self._sound(float("inf") if whole else self._time(self.count))
            self.container.close()
            self.temporary.replace(self.path)
        except av.error.FFmpegError as error:
            self.discard()
            raise VideoError(f"{self.path} can't be written ({error.strerror or error})") from error
        except BaseException:
            self.discard()
            raise
        finally:
            self._close_source()

    def discard(self) -> None:
        """Leave nothing behind."""
        self._close_source()
        try:
            self.container.close()
        except av.error.FFmpegError:
            pass  # what could not be written is thrown away in the next line
        finally:
            self.temporary.unlink(missing_ok=True)

    def _close_source(self) -> None:
        self._audio = None
        if hasattr(self, "_source"):
            self._source.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()
