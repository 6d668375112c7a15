"""Containers × codecs × pixel formats: the frames of an independent decode, or one clear error."""

from __future__ import annotations

from collections.abc import Iterator

import av
import numpy as np
import pytest

import vdenoise
from vdenoise.video import probe

from video_samples import decode, make

CONTAINERS = {"avi": "avi", "mp4": "mp4", "mkv": "matroska", "webm": "webm", "mpg": "mpeg", "ts": "mpegts"}
STREAMS = {"mpg": {"mpeg4", "h264", "hevc"}, "ts": {"mpeg4", "h264", "hevc"}}  # what MPEG streams carry
OPEN_GOP = "open-gop=1:keyint=5:min-keyint=2:scenecut=0"
CODECS = {
    "mpeg4": ("mpeg4", {"g": "5"}),
    "mpeg4-b": ("mpeg4", {"g": "6", "bf": "2"}),
    "h264-b": ("libx264", {"bf": "2", "preset": "veryfast"}),
    "h264-open": ("libx264", {"bf": "3", "preset": "veryfast", "x264-params": OPEN_GOP}),
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": "log-level=none:pools=none:frame-threads=1"}),
    "vp9": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8"}),
    "mjpeg": ("mjpeg", {}),
    "ffv1": ("ffv1", {"level": "3"}),
    "raw": ("rawvideo", {}),
}
EVEN, ODD = (128, 96), (127, 95)
FORMATS = {
    "420": ("yuv420p", EVEN, {}),
    "odd": ("yuv420p", ODD, {}),
    "gray": ("gray", EVEN, {}),
    "444": ("yuv444p", EVEN, {}),
    "odd444": ("yuv444p", ODD, {}),
    "10bit": ("yuv420p10le", EVEN, {}),
    "full": ("yuv420p", EVEN, {"color_range": 2}),
    "709": ("yuv420p", EVEN, {"color_range": 1, "colorspace": 1}),
}


def cells() -> Iterator[object]:
    """All that encoder and container take."""
    for suffix, muxer in CONTAINERS.items():
        carried = STREAMS.get(suffix) or (av.format.ContainerFormat(muxer, "w") and None)
        for name, (encoder, options) in CODECS.items():
            codec = av.Codec(encoder, "w")
            if not _carries(suffix, codec.canonical_name, carried):
                continue
            takes = {pixel.name for pixel in codec.video_formats or []}
            for label, (pix_fmt, size, colour) in FORMATS.items():
                full = "yuvj" + pix_fmt[3:]
                stored = full if encoder == "mjpeg" and full in takes else pix_fmt
                if (takes and stored not in takes) or (
                    size == ODD and encoder == "libx264" and "420" in stored
                ):
                    continue
                if size == ODD and encoder == "libx265" and "420" in stored:
                    continue
                if suffix == "mkv" and name == "raw" and label in ("444", "odd444", "10bit"):
                    continue  # Matroska has no name for them
                case = (f"a.{suffix}", encoder, stored, size, options, colour)
                yield pytest.param(*case, id=f"{suffix}-{name}-{label}")


_SUPPORTED: dict[str, set[str]] = {}


def _carries(suffix: str, codec: str, streams: set[str] | None) -> bool:
    if suffix in STREAMS:
        return codec in STREAMS[suffix]
    if suffix not in _SUPPORTED:
        import tempfile

        with tempfile.TemporaryDirectory() as folder, av.open(f"{folder}/a.{suffix}", "w") as container:
            _SUPPORTED[suffix] = set(container.supported_codecs)
    return codec in _SUPPORTED[suffix]


@pytest.mark.parametrize(("name", "encoder", "pix_fmt", "size", "options", "colour"), list(cells()))
def test_frames_are_those_of_an_independent_decode(tmp_path, name, encoder, pix_fmt, size, options, colour):
    path = make(tmp_path / name, encoder, pix_fmt, 13, size, options, color=colour)
    info = probe(path)
    expected = decode(path, gray=info.gray)
    with vdenoise.open(path) as reader:
        assert len(reader) == len(expected) == 13
        got = np.stack(list(reader))
        scale = 255 / np.iinfo(got.dtype).max
        assert (got.dtype == np.uint16) == (info.bits > 8)
        assert got.shape == expected.shape
        off = np.abs(got * scale - expected)
        assert off.max() < 1
        for i in (7, 2, -1, 0, 11):
            np.testing.assert_array_equal(reader[i], got[i])
    fast = np.stack(list(vdenoise.open(path, exact=False, bits=8)))
    # Decord, where it reads: the same frames in the same order, each nearer to its own than to any other.
    far = np.abs(fast[:, None].astype(np.float32) - expected[None].astype(np.float32)).mean((2, 3, 4))
    assert (far.argmin(1) == np.arange(13)).all()
    assert np.abs(fast - expected).mean() < 1.6
