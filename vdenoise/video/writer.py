"""Frames to a file: the source's timing, sound, colours and orientation around them."""

from __future__ import annotations

import logging
import os
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import av.error
import numpy as np

from vdenoise.video import codecs
from vdenoise.video.colour import FULL, LIMITED, Colour, to_frame
from vdenoise.video.images import IMAGES, FolderWriter
from vdenoise.video.probe import VideoError, VideoInfo
from vdenoise.video.reader import Reader
from vdenoise.video.tracks import Tracks

MP4 = ("mp4", "mov", "ipod")
TURNS = (*MP4, "matroska", "webm")  # containers that can ask the player to turn the picture
EVEN = ("avi", "mpeg", "vob")  # have one frame rate and no time per frame
RATE = 60_000  # ticks per second where an encoder takes no finer clock
logger = logging.getLogger(__name__)


def create(path: str | Path, *, like: Reader | None = None, **options: Any) -> Writer | FolderWriter:
    """A writer for a name: a folder of images for ``frames/`` or ``frames/*.tif``, else a video."""
    name = Path(path)
    folder = name.is_dir() or not name.suffix or str(path).endswith(("/", os.sep))
    if folder or name.suffix.lower() in IMAGES:
        return FolderWriter(name, like=like, overwrite=options.get("overwrite", False))
    return Writer(name, like=like, **options)


class Writer:
    """Write frames one by one; the file appears under its name when it is whole.

    Args:
        path: the output; its suffix says the container (.mp4, .mkv, .mov, .avi, .webm …).
        like: the reader that the frames come from: times, rate, colours, rotation, pixel shape, bit depth,
            sound, subtitles, chapters and title are taken over.
        fps: frames per second, where there is no ``like``.
        codec: "auto", or a name in ``codecs.CODECS``; ffv1 is lossless.
        crf: quality, lower is better; None takes the codec's usual.
        pix_fmt: "auto", "source", or libav's name.
        sound: "keep", "browser" (encoded anew unless browsers play it) or "none".
        overwrite: replace an existing file.

    Raises:
        VideoError: if the output is the input, exists already, or can't be written as asked.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        like: Reader | None = None,
        fps: Fraction | float | None = None,
        codec: str = "auto",
        crf: int | None = None,
        pix_fmt: str = "auto",
        sound: str = "keep",
        overwrite: bool = False,
    ) -> None:
        self.path, self.like = Path(path), like
        self.info: VideoInfo | None = like.info if like is not None else None
        self.fps = Fraction(fps).limit_denominator(100_000) if fps else (like.fps if like else Fraction(25))
        self.pix_fmt, self.sound, self.count = pix_fmt, sound, 0
        self.codec = codecs.find(codec, self.path, self.info)
        low, high = self.codec.quality
        self.crf = self.codec.usual if crf is None else crf
        if crf is not None and not low <= crf <= high:
            scale = "is lossless and takes no crf" if self.codec.lossless else f"takes a crf of {low}–{high}"
            raise VideoError(f"{self.codec.encoder} {scale}, got {crf}")
        if like is not None and self.path.exists() and like.path.exists() and self.path.samefile(like.path):
            raise VideoError(f"the output {self.path} is the input; give another name")
        if self.path.is_dir():
            raise VideoError(f"{self.path} is a folder; give the name of a file")
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
        self.tracks: Tracks | None = None
        self._durations: dict[int, int] = {}

    def _options(self) -> dict[str, str]:
        return {"movflags": "+faststart"} if self.path.suffix.lower() in (".mp4", ".mov", ".m4v") else {}

    def write(self, frame: np.ndarray) -> None:
        """Append a frame, uint8 or uint16 (H, W, C).

        Raises:
            VideoError: if the frame is of another kind than the first, or the encoder refuses.
        """
        if frame.ndim != 3 or frame.shape[2] not in (1, 3) or frame.dtype not in (np.uint8, np.uint16):
            raise VideoError(
                f"a frame must be uint8 or uint16 (H, W, C) with C = 1 or 3, got {frame.dtype} {frame.shape}"
            )
        if self.stream is not None and frame.shape[:2] != self.shape:
            raise VideoError(
                f"a frame of {frame.shape[1]}×{frame.shape[0]} after {self.shape[1]}×{self.shape[0]}"
            )
        try:
            if self.stream is None:
                self._start(frame)
            image = np.rot90(frame, -self.turns) if self.turns else frame
            picture = to_frame(image, self.stream.pix_fmt, self.colour)
            picture.pts, picture.time_base = self._stamp(self.count), self.base
            self._durations[picture.pts] = self._stamp(self.count + 1) - picture.pts
            self._mux(self.stream.encode(picture))
            if self.tracks is not None:
                self.tracks.copy(until=self._time(self.count))
        except (av.error.FFmpegError, OSError) as error:
            raise self._failed(error) from error
        self.count += 1

    def _failed(self, error: Exception) -> VideoError:
        return VideoError(f"{self.path} can't be written ({getattr(error, 'strerror', None) or error})")

    def _start(self, frame: np.ndarray) -> None:
        """Open the encoder, now that the first frame tells size, channels and depth."""
        info, muxer = self.info, self.container.format.name
        self.shape = frame.shape[:2]
        self.turns = 0  # by how many quarters the picture is stored turned back from upright
        if info is not None and info.rotation and info.rotation % 90 == 0 and muxer in TURNS:
            self.turns = info.rotation // 90
        height, width = self.shape[::-1] if self.turns % 2 else self.shape
        try:
            stream: Any = self.container.add_stream(self.codec.encoder, rate=self.fps)
        except (av.error.FFmpegError, ValueError) as error:
            raise VideoError(
                f"a {self.path.suffix} file does not take {self.codec.encoder} ({error}); write .mkv"
            ) from error
        self.stream = stream
        stream.width, stream.height = width, height
        deep, odd = frame.dtype == np.uint16, bool(width % 2 or height % 2)
        stream.pix_fmt = codecs.pixel_format(self.codec, self.pix_fmt, info, frame.shape[2] == 1, deep, odd)
        self._tag(stream)
        self.base = self._clock()
        stream.codec_context.time_base = self.base
        options = {} if self.codec.lossless and not self.codec.options(0) else self.codec.options(self.crf)
        if scale := options.pop("qscale", None):
            stream.codec_context.flags |= 2  # AV_CODEC_FLAG_QSCALE
            stream.codec_context.global_quality = int(scale) * 118  # FF_QP2LAMBDA
        if muxer == "avi":
            options["bf"] = "0"  # its players take frames in the order stored
        options |= self._master(options)
        stream.options = options
        if self.turns:
            stream.set_display_rotation((info.rotation + 180) % 360 - 180 if info else 0)
        self._clocks(info)
        if info is not None:
            self.container.metadata.update(_described(info))
            self.tracks = Tracks(info, self.container, self.origin, self.sound)
            if hasattr(self.container, "set_chapters"):
                self.container.set_chapters(self.tracks.source.chapters())

    def _tag(self, stream: Any) -> None:
        """Colours and pixel shape as they were; formats without a choice of range have their own."""
        colour = self.info.colour if self.info is not None else Colour()
        kind = av.VideoFormat(stream.pix_fmt)
        if kind.name.startswith("yuvj") or self.codec.encoder == "mjpeg":
            colour = colour.tagged(range=FULL)
        elif self._full_by_nature() and not kind.is_rgb and len(kind.components) > 1:
            colour = colour.tagged(range=LIMITED)
        self.colour = colour
        context = stream.codec_context
        context.color_range, context.color_primaries = colour.range, colour.primaries
        context.color_trc = colour.transfer
        if not kind.is_rgb:
            context.colorspace = colour.matrix if colour.matrix else 2
        if self.info is not None and self.info.aspect != 1:
            context.sample_aspect_ratio = self.info.aspect

    def _full_by_nature(self) -> bool:
        """The source is grey or RGB, whose range says nothing of the YUV that is written."""
        return self.info is not None and (self.info.gray or av.VideoFormat(self.info.pix_fmt).is_rgb)

    def _master(self, options: dict[str, str]) -> dict[str, str]:
        """The HDR master's display and light, for the encoders that write them."""
        info = self.info
        if info is None or not (info.mastering or info.light):
            return {}
        if self.codec.encoder == "libx265":
            words = ["hdr10=1", f"master-display={info.mastering}", f"max-cll={info.light}"]
            return {"x265-params": ":".join([options["x265-params"], *(w for w in words if w[-1] != "=")])}
        if self.codec.encoder == "libx264":
            words = [f"mastering-display={info.mastering}", f"cll={info.light}"]
            return {"x264-params": ":".join(w for w in words if w[-1] != "=")}
        return {}

    def _clock(self) -> Fraction:
        """The unit of the output's times: the source's own where the container keeps a time per frame."""
        info, frame = self.info, 1 / self.fps
        self.even = info is None
        if info is not None and self.container.format.name in EVEN:
            if not info.steady:
                raise VideoError(
                    f"a {self.path.suffix} file has one frame rate and this source's varies;"
                    " write .mp4 or .mkv"
                )
            self.even = True
        if self.even:
            return frame
        assert self.like is not None
        coarse = self.codec.encoder in ("mpeg4", "mpeg2video") and self.like.base.denominator > 65_535
        return Fraction(1, RATE) if coarse else self.like.base

    def _clocks(self, info: VideoInfo | None) -> None:
        """Streams of MPEG begin anywhere; other containers begin where the source does."""
        streams = info is not None and info.container in ("mpegts", "mpeg")
        self.origin = info.start if info is not None and (streams or self.even) else Fraction(0)

    def _time(self, index: int) -> float:
        """When a frame is shown, in the source's time."""
        return float(self._stamp(index) * self.base + self.origin)

    def _stamp(self, index: int) -> int:
        """When a frame is shown, in the output's clock; beyond the last, when that one ends."""
        if self.even or self.like is None:
            return index
        stamps = self.like.stamps
        last = len(stamps) - 1
        stamp: Fraction | int = stamps[min(index, last)]
        if index > last:
            tail = self.info.tail if self.info is not None else 0
            stamp += (index - last) * (tail or 1 / (self.fps * self.like.base))
        return round(Fraction(stamp) * self.like.base / self.base - self.origin / self.base)

    def _mux(self, packets: list[Any]) -> None:
        for packet in packets:
            if packet.pts in self._durations:
                packet.duration = self._durations.pop(packet.pts)
            self.container.mux(packet)

    def close(self) -> None:
        """Finish the file and give it its name; the sound ends with the picture where frames are missing."""
        try:
            if self.stream is None:
                raise VideoError(f"{self.path}: no frame was written; check the input")
            self._mux(self.stream.encode(None))
            if self.tracks is not None:
                assert self.like is not None
                whole = self.count >= len(self.like)
                self.tracks.copy(until=float("inf") if whole else self._time(self.count))
            self.container.close()
            self.temporary.replace(self.path)
        except (av.error.FFmpegError, OSError) as error:
            self.discard()
            raise self._failed(error) from error
        except BaseException:
            self.discard()
            raise
        finally:
            if self.tracks is not None:
                self.tracks.close()

    def discard(self) -> None:
        """Leave nothing behind."""
        if self.tracks is not None:
            self.tracks.close()
        try:
            self.container.close()
        except (av.error.FFmpegError, OSError):
            pass  # what could not be written is thrown away in the next line
        finally:
            self.temporary.unlink(missing_ok=True)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def _described(info: VideoInfo) -> dict[str, str]:
    """Title, comment and the like; what the muxer says of itself is its own."""
    with av.open(str(info.path), options={"protocol_whitelist": "file"}, metadata_errors="replace") as source:
        own = ("encoder", "major_brand", "minor_version", "compatible_brands", "duration", "software")
        return {k: v for k, v in source.metadata.items() if k.lower() not in own}
