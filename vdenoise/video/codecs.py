"""What a clean video can be stored as: encoders, their quality scales and defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import av

from vdenoise.video.probe import VideoError, VideoInfo


@dataclass(frozen=True)
class Codec:
    """An encoder.

    Args:
        encoder: libav's name.
        quality: its best … worst quality number; lower is better. (0, 0) for lossless ones.
        usual: the quality that is taken when none is told: the clean picture is not to be spoilt again.
        options: of the encoder, given the quality.
    """

    encoder: str
    quality: tuple[int, int] = (0, 0)
    usual: int = 0
    options: Callable[[int], dict[str, str]] = lambda crf: {}

    @property
    def lossless(self) -> bool:
        """Decoding gives the same pixels."""
        return self.quality == (0, 0)


# Quality in quantiser steps: 2 is the finest that MPEG-4 and JPEG make good use of.
_SCALE = "qscale"
CODECS = {
    "h264": Codec("libx264", (0, 51), 16, lambda crf: {"crf": str(crf)}),
    "hevc": Codec("libx265", (0, 51), 18, lambda crf: {"crf": str(crf), "x265-params": "log-level=error"}),
    "vp9": Codec("libvpx-vp9", (0, 63), 20, lambda crf: {"crf": str(crf), "b": "0", "row-mt": "1"}),
    "av1": Codec("libsvtav1", (0, 63), 22, lambda crf: {"crf": str(crf)}),
    "mpeg4": Codec("mpeg4", (1, 31), 2, lambda crf: {_SCALE: str(crf)}),
    "mpeg2": Codec("mpeg2video", (1, 31), 2, lambda crf: {_SCALE: str(crf)}),
    "mjpeg": Codec("mjpeg", (1, 31), 2, lambda crf: {_SCALE: str(crf)}),
    "ffv1": Codec("ffv1", options=lambda crf: {"level": "3", "slices": "4", "slicecrc": "1"}),
    "raw": Codec("rawvideo"),
}
ALIASES = {"libx264": "h264", "x264": "h264", "libx265": "hevc", "h265": "hevc", "libvpx-vp9": "vp9",
           "libsvtav1": "av1", "mpeg2video": "mpeg2", "rawvideo": "raw"}  # fmt: skip
# The codec that a suffix stands for, where it is not h264.
BY_SUFFIX = {".webm": "vp9", ".avi": "mpeg4", ".mpg": "mpeg2", ".mpeg": "mpeg2", ".vob": "mpeg2"}


def find(name: str, path: Path, info: VideoInfo | None) -> Codec:
    """The codec by its name; "auto" goes by the output's suffix, and takes hevc for HDR.

    Raises:
        VideoError: for an unknown name, listing those that there are.
    """
    if name == "auto":
        name = BY_SUFFIX.get(path.suffix.lower(), "h264")
        if name == "h264" and info is not None and info.colour.hdr and path.suffix.lower() != ".avi":
            name = "hevc"
    name = ALIASES.get(name, name)
    if name not in CODECS:
        raise VideoError(f"codec must be auto or one of {', '.join(CODECS)}, got {name!r}")
    return CODECS[name]


def pixel_format(codec: Codec, wanted: str, info: VideoInfo | None, gray: bool, deep: bool, odd: bool) -> str:
    """The output's pixel format.

    "auto" is 4:2:0, which everything plays, at the source's bit depth; lossless codecs keep the source's own
    format, and odd sizes take 4:4:4, since 4:2:0 stores a colour for every 2×2 pixels.

    Raises:
        VideoError: for a format that the encoder does not take, listing those that it does.
    """
    encoder = av.Codec(codec.encoder, "w")
    takes = [pixel.name for pixel in encoder.video_formats or []]
    if wanted not in ("auto", "source"):
        if takes and wanted not in takes:
            raise VideoError(f"{codec.encoder} does not take {wanted!r}; it takes {', '.join(takes)}")
        try:
            av.VideoFormat(wanted)
        except ValueError:
            raise VideoError(f"there is no pixel format {wanted!r}; try yuv420p, yuv444p or gray") from None
        return wanted
    own = info.pix_fmt.replace("yuvj", "yuv") if info is not None else ""
    if (codec.lossless or wanted == "source") and own and (not takes or own in takes):
        return own
    if codec.lossless and gray:
        return "gray16le" if deep else "gray"
    if codec.lossless and info is None:
        candidates = ["gbrp16le", "rgb48le", "gbrp", "bgr0", "rgb24"] if deep else ["bgr0", "rgb24", "gbrp"]
    elif odd and codec.encoder not in ("ffv1", "rawvideo", "libvpx-vp9"):
        candidates = ["yuv444p10le", "yuv444p"] if deep else ["yuv444p"]
    elif deep:
        candidates = ["yuv420p10le", "yuv422p10le", "yuv420p"]
    else:
        candidates = ["yuv420p", "yuvj420p"]
    for name in [*candidates, "yuv420p"]:
        if not takes or name in takes:
            return name
    return takes[0]
