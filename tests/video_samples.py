"""Small videos of every kind, made by PyAV alone, and what they hold by the standard's own formula."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

WEIGHTS = {1: (0.2126, 0.0722), 9: (0.2627, 0.0593)}  # Kr, Kb by the matrix's number; else BT.601
BT601 = (0.299, 0.114)


def picture(t: int, size: tuple[int, int] = (128, 96)) -> np.ndarray:
    """A frame that no other is like: a ramp, and a block whose place and grey tell t."""
    w, h = size
    frame = np.zeros((h, w, 3), np.uint8)
    frame[..., 0] = np.linspace(40, 200, w).astype(np.uint8)
    frame[..., 1] = np.linspace(60, 180, h).astype(np.uint8)[:, None]
    frame[..., 2] = 110
    frame[8:40, (5 * t) % (w - 40) : (5 * t) % (w - 40) + 32, :2] = 60 + 9 * t % 130
    return frame


def make(
    path: Path,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    frames: int = 14,
    size: tuple[int, int] = (128, 96),
    options: dict[str, str] | None = None,
    pts: list[int] | None = None,
    sound: bool = False,
    *,
    fps: int = 12,
    color: dict[str, int] | None = None,
    rotation: int = 0,
    aspect: Fraction | None = None,
    source: Any = picture,
    container: str | None = None,
) -> Path:
    """A small file; ``pts`` are in 1/600 s, ``color`` sets colour tags of the encoder."""
    with av.open(str(path), "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=fps)
        stream.width, stream.height = size
        stream.pix_fmt = pix_fmt
        stream.options = options or {}
        for name, value in (color or {}).items():
            setattr(stream.codec_context, name, value)
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        if rotation:
            stream.set_display_rotation(rotation)
        if pts is not None:
            stream.codec_context.time_base = Fraction(1, 600)
        audio: Any = output.add_stream("aac", rate=16000) if sound else None
        for t in range(frames):
            frame = av.VideoFrame.from_ndarray(source(t, size), format="rgb24").reformat(format=pix_fmt)
            for name, value in (color or {}).items():
                setattr(frame, name, value)
            if pts is not None:
                frame.pts, frame.time_base = pts[t], Fraction(1, 600)
            else:
                frame.pts, frame.time_base = t, Fraction(1, fps)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if audio is not None:
            tone = (np.sin(np.arange(16000 * frames // fps) / 5) * 8000).astype(np.int16)[None]
            block = av.AudioFrame.from_ndarray(tone, format="s16", layout="mono")
            block.sample_rate, block.pts, block.time_base = 16000, 0, Fraction(1, 16000)
            output.mux(audio.encode(block))
            output.mux(audio.encode(None))
    return path


def decode(path: Path, gray: bool = False, tolerant: bool = False) -> np.ndarray:
    """The independent sequential decode: float (T, H, W, C) on 0–255, by formula, clipped."""
    return np.stack([shown(frame, gray) for frame in frames_of(path, tolerant)])


def frames_of(path: Path, tolerant: bool = False) -> list[av.VideoFrame]:
    """Decoded frames, one thread, as stored."""
    found: list[av.VideoFrame] = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        if not tolerant:
            return list(container.decode(stream))
        for packet in container.demux(stream):
            try:
                found += stream.decode(packet)
            except av.error.FFmpegError:
                continue
    return found


def planes(frame: av.VideoFrame) -> list[np.ndarray]:
    """The stored samples of a planar frame."""
    found = []
    for plane in frame.planes:
        deep = frame.format.components[0].bits > 8
        data = np.frombuffer(bytes(plane), np.uint16 if deep else np.uint8)
        found.append(data.reshape(plane.height, -1)[:, : plane.width].astype(np.float64))
    return found


def shown(frame: av.VideoFrame, gray: bool = False) -> np.ndarray:
    """A frame's RGB, or its luma, (H, W, C) on 0–255, by BT.601, 709 or 2020."""
    kind = frame.format
    if kind.is_rgb:
        data = planes(frame) if kind.is_planar else frame.to_ndarray(format="rgb24")
        scale = (1 << kind.components[0].bits) - 1
        rgb = np.stack([data[2], data[0], data[1]], -1) / scale * 255 if kind.is_planar else data * 1.0
        return rgb if not gray else (rgb @ np.array([0.299, 0.587, 0.114]))[..., None]
    stored = planes(frame)
    bits = kind.components[0].bits
    peak, unit = (1 << bits) - 1, 1 << (bits - 8)
    full = frame.color_range == 2 or kind.name.startswith("yuvj")
    if len(stored) == 1:
        luma = stored[0] / peak * 255
        return (luma if gray else np.repeat(luma[..., None], 3, -1)).reshape(frame.height, frame.width, -1)
    luma = stored[0] / peak * 255 if full else (stored[0] / unit - 16) * 255 / 219
    if gray:
        return np.clip(luma, 0, 255)[..., None]
    h, w = stored[0].shape
    chroma = []
    for plane in stored[1:]:
        spread = plane  # a stored sample stands for all the pixels around it
        if plane.shape[1] < w:
            spread = spread[:, np.arange(w) // 2]
        if plane.shape[0] < h:
            spread = spread[np.arange(h) // 2]
        centre = spread - (1 << (bits - 1))
        chroma.append(centre / peak * 255 if full else centre / unit * 255 / 224)
    kr, kb = WEIGHTS.get(int(frame.colorspace), BT601)
    r = luma + 2 * (1 - kr) * chroma[1]
    b = luma + 2 * (1 - kb) * chroma[0]
    g = (luma - kr * r - kb * b) / (1 - kr - kb)
    return np.clip(np.stack([r, g, b], -1), 0, 255)
