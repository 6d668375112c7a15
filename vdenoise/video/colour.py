r"""Between a decoder's planes and RGB: the right matrix, the right range, rounded once.

.. math:: R' = Y' + 2(1-K_r)\,P_r,\quad B' = Y' + 2(1-K_b)\,P_b,\quad G' = (Y' - K_r R' - K_b B')/(1-K_r-K_b)

with K_r, K_b of BT.601 (0.299, 0.114), BT.709 (0.2126, 0.0722) or BT.2020 (0.2627, 0.0593), after the limited
range (luma 16–235, chroma 16–240, times 2^(bits−8)) is stretched to the full one. Source: ITU-T H.273.

libswscale's default conversion, which Decord uses, truncates: RGB comes out 1.1 levels too dark on average,
and up to 3. Beyond 8 bits its full range is off by 3 levels of 1,023. Hence our own, which is the formula.

A stored chroma sample stands for 2×2 pixels: it is copied to all four on the way in, and their mean goes
back. So way and back give the same planes, whatever the codec says of where a sample lies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import av
import cv2
import numpy as np
from av.video.reformatter import ColorRange, Interpolation

# Formats that interleave their planes, and the planar ones that hold the same.
_PLANAR = {
    "nv12": "yuv420p", "nv21": "yuv420p", "nv16": "yuv422p", "nv24": "yuv444p", "p010le": "yuv420p10le",
    "p210le": "yuv422p10le", "p016le": "yuv420p16le", "yuyv422": "yuv422p", "uyvy422": "yuv422p",
    "yvyu422": "yuv422p", "uyyvyy411": "yuv411p",
}  # fmt: skip

UNSPECIFIED = 2  # of matrix, primaries and transfer, in the numbers of ITU-T H.273
LIMITED, FULL = int(ColorRange.MPEG), int(ColorRange.JPEG)
HDR = {16: "PQ", 18: "HLG"}  # transfer characteristics with more than a screen's range
# K_r and K_b by H.273's number of the matrix.
_BT601, _BT709, _BT2020 = (0.299, 0.114), (0.2126, 0.0722), (0.2627, 0.0593)
_WEIGHTS = {
    1: _BT709, 4: (0.3, 0.11), 5: _BT601, 6: _BT601, 7: (0.212, 0.087), 9: _BT2020, 10: _BT2020,
}  # fmt: skip
HD = 720  # lines from which players take an untagged video for BT.709


@dataclass(frozen=True)
class Colour:
    """A video's colour tags, in the numbers of ITU-T H.273.

    Args:
        range: 1 limited, 2 full, 0 not told.
        matrix: 1 BT.709, 5 and 6 BT.601, 9 BT.2020, 2 not told …
        primaries: likewise.
        transfer: likewise; 16 is PQ, 18 HLG.
    """

    range: int = 0
    matrix: int = UNSPECIFIED
    primaries: int = UNSPECIFIED
    transfer: int = UNSPECIFIED

    @property
    def hdr(self) -> bool:
        """The transfer curve is that of high dynamic range."""
        return self.transfer in HDR

    @classmethod
    def of(cls, frame: av.VideoFrame) -> Colour:
        """The tags of a decoded frame; formats that begin with yuvj are of full range."""
        full = FULL if frame.format.name.startswith("yuvj") else int(frame.color_range)
        return cls(full, int(frame.colorspace), int(frame.color_primaries), int(frame.color_trc))

    def formula(self, height: int) -> tuple[tuple[float, float], int]:
        """((K_r, K_b), range) to convert by; what is not told is taken as players take it."""
        guess = _BT709 if height >= HD else _BT601
        return _WEIGHTS.get(self.matrix, guess), self.range or LIMITED

    def tagged(self, range: int) -> Colour:
        """The same with another range."""
        return replace(self, range=range)


def to_array(frame: av.VideoFrame, colour: Colour, gray: bool, deep: bool) -> np.ndarray:
    """A decoded frame as (H, W, C), C = 1 (luma, stretched to the full range) or 3 (RGB).

    Grey formats hold what is shown, whatever their tag says: libav's own players take them so.

    Args:
        frame: from a decoder.
        colour: its tags.
        gray: luma only.
        deep: uint16 (full scale 65535) instead of uint8.
    """
    peak = 65_535 if deep else 255
    if not _is_yuv(frame.format):
        name = ("gray16le" if deep else "gray") if gray else ("rgb48le" if deep else "rgb24")
        shown = frame.reformat(format=name, src_color_range=FULL, dst_color_range=FULL, threads=1)
        return shown.to_ndarray()[..., None] if gray else shown.to_ndarray()
    weights, span = colour.formula(frame.height)
    frame = _planar(frame)
    bits = frame.format.components[0].bits
    luma, *chroma = _samples(frame)
    if gray:
        return np.take(_levels(bits, span, deep), luma)[..., None]
    stored = cv2.merge([luma, *(_spread(plane, luma.shape, frame.format) for plane in chroma)])
    if deep and bits <= 8:
        stored = stored.astype(np.uint16)
    image: np.ndarray = cv2.transform(stored, _to_rgb(weights, span, bits, peak))
    return image if deep or bits <= 8 else np.minimum(image, 255).astype(np.uint8)


def to_frame(image: np.ndarray, pix_fmt: str, colour: Colour) -> av.VideoFrame:
    """An image (H, W, C), uint8 or uint16, as a frame of a pixel format; the inverse of :func:`to_array`."""
    kind = av.VideoFormat(pix_fmt)
    if _is_yuv(kind):
        planar = av.VideoFormat(_PLANAR.get(pix_fmt, pix_fmt))
        frame = _yuv(image, planar, *colour.formula(image.shape[0]))
        if planar.name != pix_fmt:
            frame = frame.reformat(format=pix_fmt, threads=1)
        frame.colorspace, frame.color_range = colour.matrix, colour.range
    else:
        gray, deep = image.shape[2] == 1, image.dtype == np.uint16
        name = ("gray16le" if deep else "gray") if gray else ("rgb48le" if deep else "rgb24")
        packed = np.ascontiguousarray(image[..., 0] if gray else image)
        frame = av.VideoFrame.from_ndarray(packed, format=name)
        frame = frame.reformat(format=pix_fmt, src_color_range=FULL, dst_color_range=FULL, threads=1)
    frame.color_primaries, frame.color_trc = colour.primaries, colour.transfer
    return frame


def _yuv(image: np.ndarray, kind: av.VideoFormat, weights: tuple[float, float], span: int) -> av.VideoFrame:
    height, width, channels = image.shape
    bits = kind.components[0].bits
    size = kind.chroma_height(height), kind.chroma_width(width)
    if bits > 8 and image.dtype == np.uint8:
        image = image.astype(np.uint16) * 257
    dtype = np.uint8 if bits <= 8 else np.uint16
    if channels == 1:
        luma = np.take(_stored(bits, span, image.dtype == np.uint16), image[..., 0])
        chroma = [np.full(size, 1 << (bits - 1), dtype)] * 2
    else:
        matrix = _to_rgb(weights, span, bits, int(np.iinfo(image.dtype).max))
        inverse = np.linalg.inv(np.vstack([matrix, (0, 0, 0, 1)]))[:3]
        stored = cv2.transform(np.ascontiguousarray(image), inverse)
        stored = np.minimum(stored, (1 << bits) - 1).astype(dtype, copy=False)
        luma, *chroma = cv2.split(stored)
        chroma = [_gather(plane, size, kind) for plane in chroma]
    frame = av.VideoFrame(width, height, kind.name)
    for room, samples in zip(_samples(frame), [luma, *chroma], strict=True):
        room[:] = samples
    return frame


def _to_rgb(weights: tuple[float, float], span: int, bits: int, peak: int) -> np.ndarray:
    """The affine map (3, 4) from stored Y, Cb, Cr to R, G, B on 0 … peak."""
    kr, kb = weights
    kg = 1 - kr - kb
    low, height, chroma = _scale(bits, span)
    linear = np.array(
        [
            [1, 0, 2 * (1 - kr)],
            [1, -2 * (1 - kb) * kb / kg, -2 * (1 - kr) * kr / kg],
            [1, 2 * (1 - kb), 0],
        ]
    ) * (peak / np.array([height, chroma, chroma]))
    centre = np.array([low, 1 << (bits - 1), 1 << (bits - 1)])
    return np.hstack([linear, -linear @ centre[:, None]])


def _is_yuv(kind: av.VideoFormat) -> bool:
    return not (kind.is_rgb or kind.has_palette or kind.is_bayer or len(kind.components) < 3)


def _planar(frame: av.VideoFrame) -> av.VideoFrame:
    name = frame.format.name
    plain = _PLANAR.get(name, name.replace("yuva", "yuv")).removesuffix("be")
    if frame.format.is_big_endian and name.endswith("be"):
        plain += "le"
    exact = Interpolation.POINT | Interpolation.ACCURATE_RND
    return frame if plain == name else frame.reformat(format=plain, interpolation=exact, threads=1)


def _samples(frame: av.VideoFrame) -> list[np.ndarray]:
    """The planes of a frame as arrays."""
    dtype = np.uint8 if frame.format.components[0].bits <= 8 else np.uint16
    return [
        np.frombuffer(memoryview(plane), dtype).reshape(plane.height, -1)[:, : plane.width]
        for plane in frame.planes
    ]


def _spread(plane: np.ndarray, shape: tuple[int, ...], kind: av.VideoFormat) -> np.ndarray:
    """Copy every chroma sample to all the pixels it stands for."""
    rows, columns = _shares(kind)
    if columns > 1:
        plane = np.repeat(plane, columns, 1)
    if rows > 1:
        plane = np.repeat(plane, rows, 0)
    return plane[: shape[0], : shape[1]]


def _gather(plane: np.ndarray, size: tuple[int, int], kind: av.VideoFormat) -> np.ndarray:
    """The rounded mean of the pixels that each chroma sample stands for; the border is repeated."""
    rows, columns = _shares(kind)
    if rows == columns == 1:
        return plane
    height, width = plane.shape
    missing = size[0] * rows - height, size[1] * columns - width
    if any(missing):
        plane = np.pad(plane, ((0, missing[0]), (0, missing[1])), mode="edge")
    return cv2.resize(plane, size[::-1], interpolation=cv2.INTER_AREA)


def _shares(kind: av.VideoFormat) -> tuple[int, int]:
    """(rows, columns) of pixels that share a chroma sample."""
    return 64 // kind.chroma_height(64), 64 // kind.chroma_width(64)


@lru_cache(maxsize=16)
def _levels(bits: int, span: int, deep: bool) -> np.ndarray:
    """Luma as stored to luma from 0 to the full scale, as a table."""
    low, height, _ = _scale(bits, span)
    values = np.clip((np.arange(1 << bits) - low) / height, 0, 1) * (65_535 if deep else 255)
    return np.rint(values).astype(np.uint16 if deep else np.uint8)


@lru_cache(maxsize=16)
def _stored(bits: int, span: int, deep: bool) -> np.ndarray:
    """The inverse of :func:`_levels`."""
    low, height, _ = _scale(bits, span)
    values = np.rint(low + np.linspace(0, 1, 65_536 if deep else 256) * height)
    return values.astype(np.uint8 if bits <= 8 else np.uint16)


def _scale(bits: int, span: int) -> tuple[int, int, int]:
    """Black; white over black; the span of chroma."""
    unit, peak = 1 << (bits - 8), (1 << bits) - 1
    return (0, peak, peak) if span == FULL else (16 * unit, 219 * unit, 224 * unit)
