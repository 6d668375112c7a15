"""A look at a video file, and one second of it cleaned, before all of it is: what the app shows first.

Axes: T frames, C channels, H W pixels, L layers. Everything here is on the user's scale, 0–255.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vdenoise import metrics
from vdenoise.certificate import Certificate, certify
from vdenoise.noise import NOISES, add_noise, estimate_sigma
from vdenoise.restore import layer_estimates
from vdenoise.video import Reader, VideoError, open_video

FRAMES = 30  # of a preview at most: one window of the network
REGION = (
    360,
    480,
)  # height and width of a preview at most: its layers must fit in memory and its second in seconds
CERTIFIED = (192, 256)  # height and width of the part that the estimated error is of
SEED = 0  # of the noise that is added, so that a preview and the whole file see the same kind of clip


@dataclass(frozen=True)
class Limits:
    """What is taken in.

    Args:
        megabytes: size of a file.
        seconds: length of a clip.
        pixels: of a frame.
    """

    megabytes: float = 500
    seconds: float = 900
    pixels: int = 3840 * 2160

    def __post_init__(self) -> None:
        for name in ("megabytes", "seconds", "pixels"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


@dataclass(frozen=True)
class Noise:
    """Noise that is put on a clean clip first, so that the truth is known.

    Args:
        level: σ on the 0–255 scale for most kinds; each kind in ``vdenoise.noise`` says what it is.
        kind: a key of ``vdenoise.noise.NOISES``.
        seed: the same seed gives the same noise.
    """

    level: float
    kind: str = "gaussian"
    seed: int = SEED

    def __post_init__(self) -> None:
        if self.kind not in NOISES:
            raise ValueError(f"kind of noise must be one of {', '.join(NOISES)}, got {self.kind!r}")
        if not 0 <= self.level <= 255:
            raise ValueError(f"level of the noise must lie in 0–255, got {self.level}")

    def generator(self) -> torch.Generator:
        """A fresh source of this noise."""
        return torch.Generator().manual_seed(self.seed)

    def put_on(self, frames: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Spoil uint8 frames (T, H, W, C), clipped and rounded as stored video is."""
        noisy = add_noise(
            to_tensor(frames), self.kind, level=self.level / 255, generator=generator, clip=True
        )
        return np.ascontiguousarray((noisy * 255).round().byte().permute(0, 2, 3, 1).numpy())


@dataclass(frozen=True)
class Facts:
    """What a person wants to know of a file before anything is done with it.

    Args:
        name: of the file, without its folder.
        frames, width, height, channels: of the clip.
        fps: nominal frames per second.
        seconds: length.
        sound: it has an audio track.
        codec: libav's name.
        sigma: estimated noise on the 0–255 scale, from the first second.
        first: the first frame, uint8 (H, W, C).
    """

    name: str
    frames: int
    width: int
    height: int
    channels: int
    fps: float
    seconds: float
    sound: bool
    codec: str
    sigma: float
    first: np.ndarray


@dataclass(frozen=True)
class Preview:
    """One second of a clip, before and after.

    Args:
        before: uint8 (T, H, W, C), what the network was given.
        after: the same shape, what it made of it.
        clean: the truth where it is known, else None.
        sigma: the noise level that it went by, on the 0–255 scale.
        curve: RMSE of the input and of every layer (L + 1 values); estimated where the truth is unknown.
        certificate: what the estimate rests on; None where the truth is known.
        start: index of the first frame.
        region: (top, left, height, width) of the part of the frame that is shown.
    """

    before: np.ndarray
    after: np.ndarray
    clean: np.ndarray | None
    sigma: float
    curve: tuple[float, ...]
    certificate: Certificate | None
    start: int
    region: tuple[int, int, int, int]

    @property
    def middle(self) -> int:
        """The frame to show of it."""
        return len(self.before) // 2


def look(path: str | Path, limits: Limits | None = None) -> Facts:
    """First frame, size, length, sound and estimated noise of a file.

    Raises:
        VideoError: if it is no video that can be read, or beyond the limits.
    """
    with admit(path, limits) as reader:
        frames = reader.read(0, min(FRAMES, len(reader)))
        return Facts(
            name=reader.path.name,
            frames=len(reader),
            width=reader.width,
            height=reader.height,
            channels=reader.channels,
            fps=float(reader.fps),
            seconds=duration(reader),
            sound=bool(reader.info and reader.info.audio),
            codec=reader.info.codec if reader.info else "images",
            sigma=255 * estimate_sigma(to_tensor(frames)),
            first=frames[0],
        )


def admit(path: str | Path, limits: Limits | None = None) -> Reader:
    """Open a file if it is within the limits.

    Raises:
        VideoError: if it is not, or can't be read.
    """
    path, limits = Path(path), limits or Limits()
    if not path.is_file():
        raise VideoError(f"{path} is not a file; give a video file")
    size = path.stat().st_size / 1e6
    if size > limits.megabytes:
        raise VideoError(
            f"{path} has {size:.0f} MB; at most {limits.megabytes:.0f} MB are taken, cut it shorter"
        )
    reader = open_video(path, bits=8)
    if reader.width * reader.height > limits.pixels:
        raise VideoError(
            f"{path} has {reader.width}×{reader.height} pixels; at most {limits.pixels / 1e6:.1f} million are"
            " taken, scale it down"
        )
    if duration(reader) > limits.seconds:
        raise VideoError(
            f"{path} lasts {duration(reader):.0f} s; at most {limits.seconds:.0f} s are taken, cut it shorter"
        )
    return reader


def duration(reader: Reader) -> float:
    """Seconds from the first frame to the end of the last."""
    return reader.times[-1] - reader.times[0] + float(1 / reader.fps)


def preview(
    path: str | Path,
    model: Any,
    *,
    sigma: float | str = "auto",
    noise: Noise | None = None,
    at: float = 0.0,
    limits: Limits | None = None,
    device: str = "auto",
) -> Preview:
    """Clean one second of a file.

    Args:
        path: the video.
        model: a model, a shipped name or a path.
        sigma: on the 0–255 scale, or "auto" to estimate it from the second itself.
        noise: what to put on first; the file then counts as the truth.
        at: where the second begins, in seconds; cut down to the last second of the clip.
        limits: what is taken in.
        device: as in ``vdenoise.denoise``.

    Raises:
        VideoError: if the file can't be read, or is beyond the limits.
        ValueError: for a sigma out of range.
    """
    with admit(path, limits) as reader:
        start, stop = _second(reader, at)
        frames = reader.read(start, stop)
    region = middle_of(*frames.shape[1:3])
    top, left, height, width = region
    frames = np.ascontiguousarray(frames[:, top : top + height, left : left + width])
    clean = None if noise is None else frames
    before = frames if noise is None else noise.put_on(frames, noise.generator())
    if sigma == "auto":
        level = 255 * estimate_sigma(to_tensor(before))
    elif isinstance(sigma, str) or not 0 <= sigma <= 255:
        raise ValueError(f'sigma must lie in 0–255 or be "auto", got {sigma!r}')
    else:
        level = float(sigma)
    layers = layer_estimates(before, model, level, device)
    after = np.clip(np.rint(layers[-1]), 0, 255).astype(np.uint8)
    if clean is not None:
        return Preview(before, after, clean, level, errors(clean, before, layers), None, start, region)
    told = certify(model, _part(before), sigma if sigma == "auto" else level, probes=1, device=device)
    return Preview(before, after, None, level, told.rmse, told, start, region)


def _part(frames: np.ndarray) -> np.ndarray:
    """The middle of a preview, enough to tell the error by: the estimate runs the network twice more."""
    top, left, height, width = middle_of(frames.shape[1], frames.shape[2], CERTIFIED)
    return np.ascontiguousarray(frames[:, top : top + height, left : left + width])


def _second(reader: Reader, at: float) -> tuple[int, int]:
    """First frame and end of the second that begins at ``at``."""
    count = min(len(reader), FRAMES, max(1, round(reader.fps)))
    first = sum(1 for time in reader.times if time - reader.times[0] < at)
    start = max(0, min(first, len(reader) - count))
    return start, start + count


def middle_of(height: int, width: int, size: tuple[int, int] = REGION) -> tuple[int, int, int, int]:
    """(top, left, height, width) of the middle of a frame, at most ``size`` (height, width) large."""
    h, w = min(height, size[0]), min(width, size[1])
    return (height - h) // 2, (width - w) // 2, h, w


def errors(clean: np.ndarray, before: np.ndarray, layers: list[np.ndarray]) -> tuple[float, ...]:
    r"""True error: :math:`\mathrm{RMSE}(\Phi_l, x)` for l = 0 (the noisy input) … L, 0–255."""
    truth = clean.astype(np.float32)
    return tuple(_rms(estimate - truth) for estimate in [before.astype(np.float32), *layers])


def removed(before: np.ndarray, after: np.ndarray, gain: float = 4.0) -> np.ndarray:
    """What was taken away, ``gain`` times as strong around mid-grey: at best noise without structure."""
    difference = before.astype(np.float32) - after.astype(np.float32)
    return np.clip(np.rint(127.5 + gain * difference), 0, 255).astype(np.uint8)


def scores(estimate: np.ndarray, clean: np.ndarray) -> tuple[float, float]:
    """(RMSE on 0–255, PSNR in dB), pooled over uint8 frames (T, H, W, C)."""
    a, b = to_tensor(estimate), to_tensor(clean)
    return metrics.rmse(a, b), metrics.psnr(a, b)


def to_tensor(frames: np.ndarray) -> Tensor:
    """uint8 (T, H, W, C) to float (T, C, H, W) in [0, 1]."""
    return torch.from_numpy(np.ascontiguousarray(frames.transpose(0, 3, 1, 2))).float() / 255


def _rms(difference: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(difference, dtype=np.float64))))
