"""What a file holds, and who reads it: Decord where it is right, PyAV where Decord was measured wrong."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
from av.sidedata.sidedata import Type as SideDataType

from vdenoise.video.colour import Colour

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
        width: of a frame as it is stored, in pixels.
        height: likewise.
        fps: average frames per second.
        pix_fmt: libav's name of the pixel format.
        bits: per component.
        gray: the source has luma only.
        alpha: some pixel of the first frame is transparent.
        colour: range, matrix, primaries and transfer.
        mastering: an HDR master's display, as x265 writes it, or "".
        light: an HDR master's greatest and average light, "max,average", or "".
        aspect: width of a pixel over its height.
        interlaced: a frame holds two half pictures, taken one after the other.
        reordered: frames are stored in another order than shown (B-frames).
        rotation: degrees counterclockwise by which players turn the stored picture, 0–359.
        edited: an edit list hides packets from the viewer.
        stamps: presentation time of every frame that is shown, in units of ``base``, rising.
        base: the unit of ``stamps`` in seconds.
        tail: how long the last frame is shown, in units of ``base``; 0 where the file does not tell.
        promised: frames to be shown that the header announces, 0 where it does not.
        torn: some packet is incomplete.
        start: where the file's time begins, in seconds.
        audio: number of audio streams.
        subtitles: number of subtitle streams.
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
    alpha: bool
    colour: Colour
    mastering: str
    light: str
    aspect: Fraction
    interlaced: bool
    reordered: bool
    rotation: int
    edited: bool
    stamps: tuple[int, ...]
    base: Fraction
    tail: int
    promised: int
    torn: bool
    start: Fraction
    audio: int
    subtitles: int

    @property
    def times(self) -> tuple[float, ...]:
        """Presentation time of every frame in seconds."""
        return tuple(float(stamp * self.base) for stamp in self.stamps)

    @property
    def steady(self) -> bool:
        """All frames are as far apart as ``fps`` says, to half a frame."""
        first, step = self.stamps[0], 1 / (self.fps * self.base)
        return all(abs(stamp - first - i * step) < step / 2 for i, stamp in enumerate(self.stamps))


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
        container = av.open(str(path), options={"protocol_whitelist": "file"}, metadata_errors="replace")
    except (av.error.FFmpegError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise VideoError(f"{path} can't be opened as video ({reason}); check it in a player") from error
    if container.format.name not in CONTAINERS:
        name = container.format.name
        container.close()
        raise VideoError(f"{path} is of the kind {name!r}, which is not read here; convert it to mp4 or mkv")
    return container


def probe(path: str | Path) -> VideoInfo:
    """Read a file's headers, its first frame and the times of its packets.

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
        fps = Fraction(stream.average_rate or stream.guessed_rate or Fraction(25))
        tail: tuple[int, int] = (-1, 0)  # of the frame that is shown last: its time and duration
        pts, dts, hidden, torn = list[int | None](), list[int | None](), 0, False
        try:
            for packet in container.demux(stream):
                if packet.size == 0:
                    continue
                torn = torn or packet.is_corrupt
                if packet.is_discard:
                    hidden += 1
                else:
                    if packet.pts is not None:
                        tail = max(tail, (packet.pts, packet.duration or 0))
                    pts.append(packet.pts)
                    dts.append(packet.dts)
        except av.error.FFmpegError:
            torn = True  # what lies before is read
        if not pts:
            raise VideoError(f"{path} has a video stream without a frame; record it again")
        stamps, base = _stamps(pts, dts, stream.time_base, fps)
        first = _first_frame(path)
        pixel = first.format
        return VideoInfo(
            path=path,
            container=container.format.name,
            codec=context.name,
            width=first.width,
            height=first.height,
            fps=fps,
            pix_fmt=pixel.name,
            bits=max(component.bits for component in pixel.components),
            gray=len(pixel.components) == 1 and not pixel.has_palette,
            alpha=stream.metadata.get("alpha_mode") == "1" or transparent(first),
            colour=Colour.of(first),
            mastering=_mastering(first),
            light=_light(first),
            aspect=Fraction(stream.sample_aspect_ratio or 1) or Fraction(1),
            interlaced=first.interlaced_frame,
            reordered=bool(context.has_b_frames),
            rotation=int(first.rotation) % 360,
            edited=hidden > 0,
            stamps=stamps,
            base=base,
            tail=tail[1] if base == stream.time_base else 0,
            promised=max(0, stream.frames - hidden),
            torn=torn,
            start=Fraction(container.start_time or 0, av.time_base),
            audio=len(container.streams.audio),
            subtitles=len(container.streams.subtitles),
        )


def _stamps(
    pts: list[int | None], dts: list[int | None], base: Fraction | None, fps: Fraction
) -> tuple[tuple[int, ...], Fraction]:
    """Times of the frames that are shown, in order: the packets' own, or even ones where they have none.

    AVI gives decoding times alone; sorted, they are the times of the frames in the order shown.
    """
    if base is not None:
        for given in (pts, dts):
            known = [stamp for stamp in given if stamp is not None]
            if len(known) == len(given) and len(set(known)) == len(known):
                return tuple(sorted(known)), base
    return tuple(range(len(pts))), 1 / fps


def _first_frame(path: Path) -> av.VideoFrame:
    with open_container(path) as container:
        for frame in tolerant(container, []):
            return frame
    raise VideoError(f"{path}: no frame of it can be decoded; convert it to H.264 in mp4")


def tolerant(container: av.container.InputContainer, damage: list[str]) -> Any:
    """Frames of the first video stream; what can't be decoded is left out and told in ``damage``."""
    stream = container.streams.video[0]
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
        except av.error.FFmpegError as error:
            damage.append(error.strerror or str(error))
            packet = None
        try:
            # None flushes the decoder, as the empty packet at the end of a whole file does.
            yield from stream.decode(packet)
        except av.error.EOFError:
            return
        except av.error.FFmpegError as error:
            damage.append(error.strerror or str(error))
        if packet is None or packet.size == 0:
            return


def transparent(frame: av.VideoFrame) -> bool:
    """Some pixel lets through what is behind it."""
    if not any(component.is_alpha for component in frame.format.components):
        return False
    return bool((frame.to_ndarray(format="rgba")[..., 3] < 255).any())


def _mastering(frame: av.VideoFrame) -> str:
    """AVMasteringDisplayMetadata in x265's words: G(x,y)B(x,y)R(x,y)WP(x,y)L(max,min)."""
    data = _side_data(frame, "MASTERING_DISPLAY_METADATA")
    if len(data) < 88:
        return ""
    numbers = struct.unpack_from("<20i2i", data)
    if not (numbers[20] and numbers[21]):
        return ""
    values = [Fraction(a, b or 1) for a, b in zip(numbers[:20:2], numbers[1:20:2], strict=True)]
    rx, ry, gx, gy, bx, by, wx, wy = (round(v * 50_000) for v in values[:8])
    low, high = (round(v * 10_000) for v in values[8:])
    return f"G({gx},{gy})B({bx},{by})R({rx},{ry})WP({wx},{wy})L({high},{low})"


def _light(frame: av.VideoFrame) -> str:
    data = _side_data(frame, "CONTENT_LIGHT_LEVEL")
    return "{},{}".format(*struct.unpack_from("<2I", data)) if len(data) >= 8 else ""


def _side_data(frame: av.VideoFrame, kind: str) -> bytes:
    for item in frame.side_data:
        if item.type is SideDataType[kind]:  # type: ignore[attr-defined]
            return bytes(item)  # type: ignore[arg-type]
    return b""


# Decord 0.6.0 was measured wrong where one of these holds; in sequence from frame 0 it is right elsewhere.
DECORD_FAULTS: list[tuple[Callable[[VideoInfo], bool], str]] = [
    (
        lambda i: i.container in ("mpeg", "mpegts"),
        "Decord loses frames of MPEG program and transport streams",
    ),
    (lambda i: i.edited, "Decord does not follow edit lists"),
    (
        lambda i: i.promised > len(i.stamps),
        "Decord may hang where a header promises too many frames",
    ),
    (lambda i: i.torn, "Decord repeats frames in the place of damaged ones"),
    (lambda i: i.bits > 8, "Decord gives 8 bits"),
    (lambda i: i.gray, "Decord gives grey sources as colour"),
    (lambda i: i.width < 96, "Decord gives four channels at some small widths"),
    (lambda i: i.codec.startswith("msmpeg4"), "Decord converts MS-MPEG4 to other colours, by up to 2 levels"),
    (lambda i: i.rotation != 0, "Decord does not turn the picture"),
]


def choose(info: VideoInfo, gray: bool, exact: bool, wanted: str) -> tuple[str, str]:
    """The backend for a file and the reason.

    Args:
        info: what the file is.
        gray: luma is asked for.
        exact: colours are to be those of the standard's formula, rounded once.
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
    if exact:
        return "pyav", "Decord rounds colours down, by 1 level on average and up to 3"
    return "decord", f"right in sequence on {info.container.split(',')[0]}"
