"""The measurement behind ``run_rmse.py``: one clip, one model, one noise level, one seed.

Axes: T frames, C channels, H W pixels, L layers.
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vdenoise.noise import add_noise, estimate_sigma

from common import finite, wait


@dataclass(frozen=True)
class Settings:
    """What a cell depends on beside the clip, the model, the noise and the seed.

    Args:
        blind: give the model the estimated σ instead of the true one.
        clipped: clip the noisy frames to [0, 1].
        block: side in pixels of the blocks of a window in which descent is counted.
        noise: its kind, a key of ``vdenoise.noise.NOISES``.
    """

    blind: bool = False
    clipped: bool = False
    block: int = 64
    noise: str = "gaussian"


@dataclass(frozen=True)
class Clip:
    """Windows of a test clip, uint8 (T, H, W, C) each, and a digest of what is in them."""

    name: str
    windows: list[np.ndarray] = field(repr=False)
    digest: str


def load_clip(source: Any, windows: int, length: int, crop: int) -> Clip:
    """Windows of a clip, evenly spread, cut from the middle of the frame.

    Args:
        source: what ``evaluation_clips`` gives.
        windows: how many, fewer where the clip is shorter; 0 takes the whole clip.
        length: frames of a window.
        crop: side of the crop in pixels; 0 takes whole frames.
    """
    digest = hashlib.sha256()
    found = []
    with source.open() as reader:
        for start, stop in spans(len(reader), windows, length):
            frames = reader.read(start, stop)
            height, width = frames.shape[1:3]
            if crop:
                top, left = max(0, (height - crop) // 2), max(0, (width - crop) // 2)
                frames = frames[:, top : top + crop, left : left + crop]
            frames = np.ascontiguousarray(frames)
            digest.update(repr(frames.shape).encode() + frames.tobytes())
            found.append(frames)
    return Clip(source.name, found, digest.hexdigest()[:16])


def spans(total: int, windows: int, length: int) -> list[tuple[int, int]]:
    """Start and end of ``windows`` windows that do not overlap, evenly spread over ``total`` frames."""
    if windows == 0:
        return [(start, min(start + length, total)) for start in range(0, total, length)]
    if total <= length:
        return [(0, total)]
    count = min(windows, total // length)
    starts = np.linspace(0, total - length, count) if count > 1 else [(total - length) // 2]
    return [(int(start), int(start) + length) for start in starts]


@torch.inference_mode()
def measure(net: Any, clip: Clip, sigma: float, seed: int, settings: Settings, device: str) -> dict[str, Any]:
    """One cell: the error of the input and of every layer at one noise level under one seed.

    The noise depends on the clip and the seed alone: all models see the same, and all levels a multiple of
    it. No estimate is clipped or rounded, so that the noisy input has the error of the noise itself.

    Args:
        net: a model, or None to measure the input alone.
        clip: the clean windows.
        sigma: level of the noise on the 0–255 scale, the deviation where it is Gaussian.
        seed: seed of the noise.
        settings: see :class:`Settings`.
        device: where the model lies.

    Returns:
        mse: L + 1 mean squared errors on the 0–255 scale, over all samples of all windows, the input first;
        psnr: their PSNR in dB, the mean over frames, None where infinite;
        values, frames: how many samples (pixels times channels) and frames there are;
        descending, blocks: how many blocks descend at every layer, of how many (see :func:`falling_blocks`);
        sigma_given: the mean of what the model was told, 0–255 scale;
        seconds: spent in the model.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + zlib.crc32(clip.name.encode()))
    errors: list[Tensor] = []
    told: list[float] = []
    values, descending, blocks, seconds = 0, 0, 0, 0.0
    for frames in clip.windows:
        clean = torch.from_numpy(frames).permute(0, 3, 1, 2).float().div(255)
        noisy = add_noise(
            clean, settings.noise, level=sigma / 255, generator=generator, clip=settings.clipped
        )
        outputs = [noisy]
        if net is not None:
            level = estimate_sigma(noisy) if settings.blind else sigma / 255
            told.append(level * 255)
            estimates, spent = timed_iterates(net, noisy, level, device)
            outputs += estimates
            seconds += spent
        squared = [(x - clean).mul_(255).square_() for x in outputs]
        errors.append(
            torch.stack([x.mean(dim=(1, 2, 3), dtype=torch.float64) for x in squared])
        )  # (L + 1, T)
        values += clean.numel()
        falls, count = falling_blocks(squared, settings.block)
        descending, blocks = descending + falls, blocks + count
    per_frame = torch.cat(errors, dim=1)  # the frames of a clip are all of one size
    psnr = (10 * torch.log10(255**2 / per_frame)).mean(dim=1)
    return {
        "mse": per_frame.mean(dim=1).tolist(),
        "psnr": [finite(value) for value in psnr.tolist()],
        "values": values,
        "frames": per_frame.shape[1],
        "descending": None if net is None else descending,
        "blocks": blocks,
        "sigma_given": None if net is None else sum(told) / len(told),
        "seconds": None if net is None else seconds,
    }


def timed_iterates(net: Any, noisy: Tensor, level: float, device: str) -> tuple[list[Tensor], float]:
    """The estimate after every layer (T, C, H, W) on the CPU, and the seconds in the model itself."""
    given = noisy[None].to(device)
    wait(device)
    started = time.perf_counter()
    estimates = net.iterates(given, level)
    wait(device)
    spent = time.perf_counter() - started
    return [x[0].float().cpu() for x in estimates], spent


def falling_blocks(squared: Sequence[Tensor], side: int) -> tuple[int, int]:
    """Count the blocks of a window in which every layer has less error than the one before.

    A block is side×side pixels, all frames of the window together: about what a training clip is.

    Args:
        squared: squared errors of the input and of every layer, (T, C, H, W) each.
        side: in pixels; the whole frame where that is smaller. The rest at the border is not counted.

    Returns:
        (descending blocks, blocks).
    """
    height, width = squared[0].shape[-2:]
    kernel = (min(side, height), min(side, width))
    losses = torch.stack([F.avg_pool2d(x.mean(dim=(0, 1))[None, None], kernel).flatten() for x in squared])
    return int((losses[1:] < losses[:-1]).all(dim=0).sum()), losses.shape[1]


class CellStore:
    """Finished cells, one JSON line each, so that a stopped run goes on.

    Args:
        path: the file; a last line that was cut off is dropped.
        fresh: forget what is there.
    """

    def __init__(self, path: Path, fresh: bool = False) -> None:
        self.path, self.cells = path, dict[str, dict[str, Any]]()
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh or not path.exists():
            path.write_bytes(b"")
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with path.open("r+b") as file:
                file.truncate(whole)
        for number, line in enumerate(content[:whole].decode().splitlines(), 1):
            try:
                entry = json.loads(line)
                self.cells[_canonical(entry["key"])] = entry["cell"]
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}, line {number} is not a finished cell; start over with --fresh"
                ) from error

    def get(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The cell of a key, None where it has not been computed."""
        return self.cells.get(_canonical(key))

    def put(self, key: dict[str, Any], cell: dict[str, Any]) -> None:
        """Keep a cell."""
        self.cells[_canonical(key)] = cell
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "cell": cell}, allow_nan=False) + "\n")


def _canonical(key: dict[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
