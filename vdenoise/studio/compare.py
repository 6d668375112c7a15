"""RMSE over γ on one clean clip for several models: the app's small sister of ``benchmarks/run_rmse.py``.

Axes: T frames, H W pixels, C channels.
"""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vdenoise import metrics
from vdenoise.noise import add_noise
from vdenoise.studio.preview import Limits, admit, middle_of, to_tensor

GAMMAS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.25, 0.5, 0.75, 1.0, 1.5)  # the published grid
FRAMES = 10  # of the clip, from its middle
SIZE = (192, 256)  # height and width of the part that is measured: minutes, not hours, on a laptop
NOISY = "noisy input"


@dataclass(frozen=True)
class Cell:
    """One measurement.

    Args:
        model: its name, or ``NOISY`` for the input itself.
        gamma: γ.
        sigma: γ·σₓ, deviation of the noise on the 0–255 scale; the models are told it.
        rmse: on the 0–255 scale, pooled over the clip.
        psnr: in dB, from the same pooled error; inf where there is none.
    """

    model: str
    gamma: float
    sigma: float
    rmse: float
    psnr: float


def rmse_over_gamma(
    path: str | Path,
    models: Mapping[str, Callable[[], Any]],
    gammas: Sequence[float] = GAMMAS,
    *,
    sigma_x: float,
    kind: str = "gaussian",
    seed: int = 0,
    limits: Limits | None = None,
) -> Iterator[Cell]:
    """Measure, γ by γ; all models see the same noise, which is neither clipped nor rounded.

    Args:
        path: a clean clip; the middle of its middle frames is used.
        models: by name, a function that gives the model, so that it is loaded when its turn comes.
        gammas: levels, each at least 0.
        sigma_x: what γ is a share of, on the 0–255 scale.
        kind: of noise, a key of ``vdenoise.noise.NOISES``.
        seed: of the noise.
        limits: what is taken in.

    Yields:
        The input's cell and one per model, for every γ in turn.

    Raises:
        ValueError: for a negative γ, an unknown kind of noise, or a file that can't be read.
    """
    if not gammas or min(gammas) < 0:
        raise ValueError(f"gammas must be at least one number ≥ 0, got {list(gammas)}")
    clean = to_tensor(middle_frames(path, limits))
    for gamma in gammas:
        sigma = gamma * sigma_x
        generator = torch.Generator().manual_seed(seed * 1_000_003 + zlib.crc32(kind.encode()))
        noisy = add_noise(clean, kind, level=sigma / 255, generator=generator)
        yield Cell(NOISY, gamma, sigma, metrics.rmse(noisy, clean), metrics.psnr(noisy, clean))
        for name, model in models.items():
            net = model()
            with torch.inference_mode():
                estimate = net(noisy[None], sigma / 255)[0]
            yield Cell(name, gamma, sigma, metrics.rmse(estimate, clean), metrics.psnr(estimate, clean))


def middle_frames(path: str | Path, limits: Limits | None = None) -> np.ndarray:
    """The part of a clip that is measured, uint8 (T, H, W, C)."""
    with admit(path, limits) as reader:
        count = min(FRAMES, len(reader))
        start = (len(reader) - count) // 2
        frames = reader.read(start, start + count)
    top, left, height, width = middle_of(frames.shape[1], frames.shape[2], SIZE)
    return np.ascontiguousarray(frames[:, top : top + height, left : left + width])


def family(model: str) -> tuple[str, bool]:
    """("dust", True) of "dust_erm": the architecture, and whether it was trained without the constraint."""
    stem, _, kind = re.fullmatch(r"(.*?)(_(constrained|unconstrained|erm))?", model).groups("")  # type: ignore[union-attr]
    return stem, kind in ("unconstrained", "erm")


def to_csv(cells: Sequence[Cell]) -> str:
    """One line per measurement."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "gamma", "sigma", "rmse", "psnr"])
    for cell in cells:
        writer.writerow([cell.model, cell.gamma, f"{cell.sigma:.4f}", f"{cell.rmse:.4f}", f"{cell.psnr:.4f}"])
    return text.getvalue()


def to_png(cells: Sequence[Cell], path: Path, title: str) -> None:
    """The curves as a picture: constrained solid, unconstrained dashed in the same colour."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.4), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="γ", ylabel="RMSE (0–255)")
    stems: list[str] = []
    for name in dict.fromkeys(cell.model for cell in cells):
        stem, dashed = family(name)
        if stem not in stems:
            stems.append(stem)
        points = [(cell.gamma, cell.rmse) for cell in cells if cell.model == name]
        style = ":" if name == NOISY else "--" if dashed else "-"
        colour = "0.5" if name == NOISY else f"C{stems.index(stem)}"
        axes.plot(*zip(*points, strict=True), style, marker=".", color=colour, label=name)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
