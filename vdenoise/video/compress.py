"""Frames through the H.264 encoder and back, in memory: compression as a degradation."""

from __future__ import annotations

import math
from fractions import Fraction

import av
import numpy as np


def quantiser(sigma: float) -> int:
    r"""Index q whose step Q = 0.625 · 2^(q/6) rounds coefficients with deviation Q / √12 = σ.

    Args:
        sigma: on the 0–255 scale, > 0.

    Returns:
        q, 1 … 51. 0 is left out: there x264 switches to lossless coding.
    """
    return min(51, max(1, round(6 * math.log2(sigma * 12**0.5 / 0.625))))


def compress(frames: np.ndarray, index: int) -> np.ndarray:
    """What is left of a clip after H.264 at a constant quantiser index.

    Colour goes through 4:2:0, grey through luma alone. One thread: the same bytes on every machine.

    Args:
        frames: uint8 (T, H, W, C), C = 1 or 3 (RGB).
        index: 1 (fine) – 51 (coarse).

    Returns:
        uint8 frames of the same shape.
    """
    count, height, width, channels = frames.shape
    # 4:2:0 wants even sides; the border is repeated and cut off again.
    padded = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    stored = "gray" if channels == 1 else "yuv420p"
    encoder = av.CodecContext.create("libx264", "w")
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.width, encoder.height, encoder.pix_fmt = padded.shape[2], padded.shape[1], stored
    encoder.time_base, encoder.framerate = Fraction(1, 25), Fraction(25)
    encoder.thread_count = 1
    encoder.options = {"qp": str(index)}
    decoder = av.CodecContext.create("h264", "r")
    assert isinstance(decoder, av.VideoCodecContext)
    decoder.thread_count = 1
    decoded: list[np.ndarray] = []
    for number in range(count + 1):
        picture = None
        if number < count:
            picture = _picture(padded[number], stored)
            picture.pts = number
        for packet in encoder.encode(picture):
            decoded += [_pixels(shown, channels) for shown in decoder.decode(packet)]
    decoded += [_pixels(shown, channels) for shown in decoder.decode(None)]
    assert len(decoded) == count
    return np.stack(decoded).reshape(padded.shape)[:, :height, :width]


def _picture(image: np.ndarray, stored: str) -> av.VideoFrame:
    if image.shape[2] == 1:
        return av.VideoFrame.from_ndarray(np.ascontiguousarray(image[..., 0]), format="gray")
    return av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24").reformat(format=stored)


def _pixels(picture: av.VideoFrame, channels: int) -> np.ndarray:
    if channels == 3:
        return picture.to_ndarray(format="rgb24")
    # A conversion from grey to grey would stretch limited to full range; the plane itself is what went in.
    plane = picture.planes[0]
    lines = np.frombuffer(bytes(plane), np.uint8).reshape(-1, plane.line_size)
    return lines[: picture.height, : picture.width]
