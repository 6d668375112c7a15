"""What a file holds, and who reads it: Decord where it is right, PyAV where Decord was measured wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import av.error

# Demuxers that read the file they are given and nothing else. Playlists (hls, concat, dash) name other files.
CONTAINERS = {
    "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "avi", "mpegts", "mpeg", "mpegvideo", "flv", "ogg", "asf",
    "mxf", "yuv4mpegpipe", "gif", "nut", "m4v", "h264", "hevc", "ivf", "rm", "dv",
}  # fmt: skip


class VideoError(ValueError):
    """A file that can't be read or written as asked: what was wrong, what is expected, what to do."""


@dataclass(frozen=True)
class VideoInfo:
    """What the first video stream of a file is.

    Args:
        path: the file.
        container: libav's name of the demuxer.
        codec: libav's name of the codec.
        width: of a frame, in pixels.
        height: of a frame, in pixels.
        fps: average frames per second.
        pix_fmt: libav's name of the pixel format.
        bits: per component.
        gray: the source has luma only.
        reordered: frames are stored in another order than shown (B-frames).
        rotation: degrees by which players turn the picture.
        edited: an edit list hides packets from the viewer.
        times: presentation time of every frame that is shown, in seconds, sorted.
        audio: number of audio streams.
    """

    path: Path
    container: str
    codec: str
    width: int
    height: int
    fps: Fraction
    pix_fmt: str
    bits: int
    gray: bool
    reordered: bool
    rotation: int
    edited: bool
    times: tuple[float, ...]
    audio: int


def open_container(path: Path) -> av.container.InputContainer:
    """Open a file for reading, and only that file.

    Raises:
        VideoError: if it is not there, empty, or no video of a known kind.
    """
    if not path.exists():
        raise VideoError(f"{path} does not exist; check the spelling")
    if not path.is_file():
        raise VideoError(f"{path} is not a file; give a video file or a folder of images")
    if path.stat().st_size == 0:
        raise VideoError(f"{path} is empty (0 bytes); copy or record it again")
    try:
        container = av.open(str(path), options={"protocol_whitelist": "file"})
    except (av.error.FFmpegError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise VideoError(f"{path} can't be opened as video ({reason}); check it in a player") from error
    if container.format.name not in CONTAINERS:
        name = container.format.name
        container.close()
        raise VideoError(f"{path} is of the kind {name!r}, which is not read here; convert it to mp4 or mkv")
    return container


def probe(path: str | Path) -> VideoInfo:
    """Read a file's headers and packet times, without decoding.

    Raises:
        VideoError: if there is no video in it that can be read.
    """
    path = Path(path)
    with open_container(path) as container:
        if not container.streams.video:
            raise VideoError(f"{path} has no video stream; give a file with a picture")
        stream = container.streams.video[0]
        context = stream.codec_context
        if context is None or not context.width or context.format is None:
            raise VideoError(f"{path}: the video stream can't be decoded here; convert it to H.264 in mp4")
        fps = stream.average_rate or stream.guessed_rate or Fraction(25)
        pixel = context.format
        shown, hidden = [], 0
        for packet in container.demux(stream):
            if packet.size == 0:
                continue
            if packet.is_discard:
                hidden += 1
            else:
                shown.append(packet.pts if packet.pts is not None else packet.dts)
        if not shown:
            raise VideoError(f"{path} has a video stream without a frame; record it again")
        return VideoInfo(
            path=path,
            container=container.format.name,
            codec=context.name,
            width=context.width,
            height=context.height,
            fps=Fraction(fps),
            pix_fmt=pixel.name,
            bits=max(component.bits for component in pixel.components),
            gray=len(pixel.components) == 1 and not pixel.has_palette,
            reordered=bool(context.has_b_frames),
            rotation=_rotation(stream),
            edited=hidden > 0,
            times=_seconds(shown, stream.time_base or 1 / fps, fps),
            audio=len(container.streams.audio),
        )


def _seconds(stamps: list[int | None], base: Fraction, fps: Fraction) -> tuple[float, ...]:
    known = [stamp for stamp in stamps if stamp is not None]
    if len(known) < len(stamps) or len(set(known)) < len(
        known
    ):  # AVI and raw streams may lack or repeat them
        return tuple(float(i / fps) for i in range(len(stamps)))
    return tuple(float(stamp * base) for stamp in sorted(known))


def _rotation(stream: av.VideoStream) -> int:
    turn = stream.metadata.get("rotate", "0")
    return int(float(turn)) % 360


# Decord 0.6.0 was measured wrong where one of these holds; in sequence from frame 0 it is exact elsewhere.
DECORD_FAULTS: list[tuple[Callable[[VideoInfo], bool], str]] = [
    (
        lambda i: i.container in ("mpeg", "mpegts"),
        "Decord loses frames of MPEG program and transport streams",
    ),
    (lambda i: i.edited, "Decord does not follow edit lists"),
    (lambda i: i.bits > 8, "Decord is off by some levels beyond 8 bits"),
    (lambda i: i.gray, "Decord gives grey sources as colour"),
    (lambda i: i.width < 96, "Decord gives four channels at some small widths"),
    (lambda i: i.codec.startswith("msmpeg4"), "Decord converts MS-MPEG4 to other colours, by up to 2 levels"),
    (lambda i: i.rotation != 0, "rotation is kept as a tag, frames as stored"),
]


def choose(info: VideoInfo, gray: bool, wanted: str) -> tuple[str, str]:
    """The backend for a file and the reason.

    Args:
        info: what the file is.
        gray: luma is asked for.
        wanted: "auto", "decord" or "pyav".

    Raises:
        VideoError: for an unknown backend, or Decord where it is not installed.
    """
    installed = importlib.util.find_spec("decord") is not None
    if wanted == "pyav":
        return "pyav", "asked for"
    if wanted == "decord":
        if not installed:
            raise VideoError(
                "backend 'decord' is not installed here (it has no wheel for this platform); use 'pyav'"
            )
        return "decord", "asked for"
    if wanted != "auto":
        raise VideoError(f"backend must be auto, decord or pyav, got {wanted!r}")
    if not installed:
        return "pyav", "Decord is not installed"
    if gray:
        return "pyav", "luma is read as stored"
    for holds, reason in DECORD_FAULTS:
        if holds(info):
            return "pyav", reason
    return "decord", f"exact in sequence on {info.container.split(',')[0]}"
