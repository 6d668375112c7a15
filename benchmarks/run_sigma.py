"""Blind noise levels: how far the estimate is from the noise that was put on.

    python benchmarks/run_sigma.py                  # open clips and photographs, train and val
    python benchmarks/run_sigma.py --split test     # the test clips

Two places of every video, native (the middle 320×240) and a third of the size, and every photograph as one
frame. Gaussian noise of one seed per clip, unclipped, or clipped and rounded to 8 bits; grey and colour; 1, 8
and 30 frames; and frame by frame. Errors are relative to the noise put on: whatever noise a clip had before
counts as an error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from sigma_rivals import METHODS
from vdenoise.noise import add_noise, estimate_sigma, estimate_sigma_per_frame
from vdenoise.video import open_video

from common import RESULTS, ROOT, markdown_table, provenance, run, write_json

SIGMAS = (0, 2, 5, 10, 15, 25, 50, 75)  # on the 0–255 scale
LENGTHS = (1, 8, 30)
WIDTH, HEIGHT = 320, 240
OTHERS = ("uniform", "poisson-gaussian", "salt-and-pepper", "speckle", "correlated", "rows", "flicker")


def clips(root: Path, splits: Sequence[str]) -> Iterator[tuple[str, str, np.ndarray]]:
    """Group, name and RGB frames (T, H, W, 3) of everything that is measured."""
    for entry in json.loads((root / "manifest.json").read_text()):
        if entry["split"] not in splits:
            continue
        path = root / entry["file"]
        if entry["kind"] == "image":
            pixels = cv2.cvtColor(np.asarray(cv2.imread(str(path))), cv2.COLOR_BGR2RGB)
            yield "photograph", path.stem, middle(pixels[None])
            continue
        with open_video(path) as reader:
            for part in (0.2, 0.6):
                start = int(len(reader) * part)
                frames = reader.read(start, min(start + max(LENGTHS), len(reader)))
                if frames.shape[3] == 1:
                    frames = frames.repeat(3, axis=3)
                name = f"{path.stem}@{start}"
                yield "native", name, middle(frames)
                third = [
                    cv2.resize(f, None, fx=1 / 3, fy=1 / 3, interpolation=cv2.INTER_AREA) for f in frames
                ]
                yield "third", name, middle(np.stack(third))


def middle(frames: np.ndarray) -> np.ndarray:
    """The middle 320×240, or what there is of it."""
    top, left = (max(0, (n - size) // 2) for n, size in zip(frames.shape[1:3], (HEIGHT, WIDTH), strict=True))
    return np.ascontiguousarray(frames[:, top : top + HEIGHT, left : left + WIDTH])


def as_tensor(frames: np.ndarray, colour: bool) -> Tensor:
    """(T, C, H, W) in [0, 1]; grey as an 8 bit camera has it."""
    if not colour:
        frames = np.stack([cv2.cvtColor(f, cv2.COLOR_RGB2GRAY) for f in frames])[..., None]
    return torch.from_numpy(frames).permute(0, 3, 1, 2).float() / 255


def stored(frames: Tensor) -> Tensor:
    """Clipped and rounded to 8 bits."""
    return (frames.clamp(0, 1) * 255).round() / 255


def seeded(name: str) -> torch.Generator:
    """The noise of a clip."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def measure(group: str, name: str, frames: np.ndarray) -> Iterator[dict[str, Any]]:
    """A row per colour, length, clipping and level: what every method says (0–255 scale), and how fast."""
    for colour in (False, True):
        clean = as_tensor(frames, colour)
        white = torch.randn(clean.shape, generator=seeded(name))
        for length in (n for n in LENGTHS if n <= len(clean)):
            for sigma in SIGMAS:
                noisy = clean[:length] + sigma / 255 * white[:length]
                for clipped in (False, True):
                    given = stored(noisy) if clipped else noisy
                    found, spent = {}, {}
                    for method, estimate in METHODS.items():
                        started = time.perf_counter()
                        found[method] = 255 * estimate(given)
                        spent[method] = 1000 * (time.perf_counter() - started) / length
                    yield {
                        "group": group, "clip": name, "colour": colour, "frames": length, "sigma": sigma,
                        "clipped": clipped, "found": found, "ms_per_frame": spent,
                    }  # fmt: skip


def frame_by_frame(group: str, name: str, frames: np.ndarray) -> Iterator[dict[str, Any]]:
    """Errors of the shipped estimate of each of the first 8 frames, a row per colour, clipping and level."""
    for colour in (False, True):
        clean = as_tensor(frames[:8], colour)
        white = torch.randn(clean.shape, generator=seeded(name))
        for sigma in SIGMAS[1:]:
            noisy = clean + sigma / 255 * white
            for clipped in (False, True):
                found = 255 * estimate_sigma_per_frame(stored(noisy) if clipped else noisy).double()
                errors = 100 * (found / sigma - 1).abs()
                yield {
                    "group": group, "clip": name, "colour": colour, "sigma": sigma, "clipped": clipped,
                    "mean_abs": float(errors.mean()), "within_5": float((errors < 5).double().mean()),
                }  # fmt: skip


def misses(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where the shipped estimate is off by 5% or more at σ ≥ 5, worst first."""
    keys = ("group", "clip", "colour", "frames", "sigma", "clipped")
    off = [
        {**{key: r[key] for key in keys}, "found": round(r["found"]["shipped"], 2)}
        for r in rows
        if r["sigma"] >= 5 and abs(r["found"]["shipped"] / r["sigma"] - 1) >= 0.05
    ]
    return sorted(off, key=lambda r: -abs(r["found"] / r["sigma"] - 1))


def other_noise(name: str, frames: np.ndarray) -> Iterator[dict[str, Any]]:
    """What the shipped estimate says to noise that it does not model: deviation put on, and found."""
    clean = as_tensor(frames[:8], True)
    for sigma in (10, 25):
        for kind in OTHERS:
            noisy = add_noise(clean, kind, level=sigma / 255, generator=seeded(name), clip=True)
            yield other_row(name, kind, sigma, clean, stored(noisy))
        white = stored(add_noise(clean, level=sigma / 255, generator=seeded(name)))
        for step in (2, 5, 10):
            coded = add_noise(white, "h264", level=step / 255, generator=seeded(name))
            yield other_row(name, f"gaussian, then h264 of level {step}", sigma, clean, coded)


def other_row(name: str, kind: str, sigma: int, clean: Tensor, noisy: Tensor) -> dict[str, Any]:
    """The deviation that is left in the frames, and the estimate, on the 0–255 scale."""
    rms = 255 * float((noisy - clean).square().mean().sqrt())
    return {"clip": name, "kind": kind, "sigma": sigma, "rms": rms, "found": 255 * estimate_sigma(noisy)}


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Relative errors in percent by group, colour, clipping, length and σ (for σ = 0 the estimate itself)."""
    cells = defaultdict(list)
    for row in rows:
        cells[row["group"], row["colour"], row["clipped"], row["frames"], row["sigma"]].append(row)
    out = []
    for (group, colour, clipped, length, sigma), members in sorted(cells.items()):
        methods = {}
        for method in METHODS:
            found = np.array([m["found"][method] for m in members])
            errors = found if sigma == 0 else 100 * (found / sigma - 1)
            methods[method] = {
                "median": float(np.median(errors)), "mean_abs": float(np.abs(errors).mean()),
                "max_abs": float(np.abs(errors).max()),
                "within_5": None if sigma == 0 else float((np.abs(errors) < 5).mean()),
            }  # fmt: skip
        out.append(
            {"group": group, "colour": colour, "clipped": clipped, "frames": length, "sigma": sigma,
             "clips": len(members), "methods": methods}
        )  # fmt: skip
    return out


def tables(
    rows: Sequence[dict[str, Any]], frames: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]
) -> str:
    """Markdown: mean error in percent (share of the cases within 5%), and the noise that is not modelled."""
    parts = []
    for title, groups in (("videos", ("native", "third")), ("photographs, one frame", ("photograph",))):
        chosen = [r for r in rows if r["group"] in groups]
        if not chosen:
            continue
        body = []
        for method in METHODS:
            line = [method]
            for sigma in SIGMAS:
                found = np.array([r["found"][method] for r in chosen if r["sigma"] == sigma])
                errors = found if sigma == 0 else 100 * np.abs(found / sigma - 1)
                inside = "" if sigma == 0 else f" ({100 * (errors < 5).mean():.0f}%)"
                line.append(f"{errors.mean():.1f}{inside}")
            spent = np.median([r["ms_per_frame"][method] for r in chosen])
            body.append([*line, f"{spent:.2f}"])
        header = [title, "σ 0: estimate", *(f"σ {s}" for s in SIGMAS[1:]), "ms per frame"]
        parts.append(markdown_table(header, body))
    line = ["shipped, of each of 8 frames"]
    for sigma in SIGMAS[1:]:
        chosen = [r for r in frames if r["sigma"] == sigma]
        mean, inside = (np.mean([r[key] for r in chosen] or [np.nan]) for key in ("mean_abs", "within_5"))
        line.append(f"{mean:.1f} ({100 * inside:.0f}%)")
    if frames:
        parts.append(markdown_table(["videos, frame by frame", *(f"σ {s}" for s in SIGMAS[1:])], [line]))
    kinds = dict.fromkeys((r["kind"], r["sigma"]) for r in others)
    body = []
    for kind, sigma in kinds:
        chosen = [r for r in others if (r["kind"], r["sigma"]) == (kind, sigma)]
        rms, found = (np.median([r[key] for r in chosen]) for key in ("rms", "found"))
        body.append([kind, str(sigma), f"{rms:.1f}", f"{found:.1f}"])
    if body:
        parts.append(
            markdown_table(["other noise, colour, 8 frames", "level", "deviation", "estimate"], body)
        )
    return "\n\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=ROOT / "data" / "open", help="folder of the open clips")
    parser.add_argument("--split", choices=("train+val", "test"), default="train+val")
    parser.add_argument(
        "--out", type=Path, help="the JSON file; default benchmarks/results/sigma[_test].json"
    )
    options = parser.parse_args(arguments)

    def job() -> int:
        if not (options.root / "manifest.json").is_file():
            raise ValueError(f"--root {options.root}: no manifest.json; run python data/fetch_open_clips.py")
        rows: list[dict[str, Any]] = []
        by_frame: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        for group, name, frames in tqdm(clips(options.root, options.split.split("+")), disable=None):
            rows += measure(group, name, frames)
            by_frame += frame_by_frame(group, name, frames) if len(frames) > 1 else ()
            if group == "native":
                others += other_noise(name, frames)
        out = options.out or RESULTS / ("sigma_test.json" if options.split == "test" else "sigma.json")
        write_json(
            out,
            {
                "provenance": provenance("benchmarks/run_sigma.py", arguments, "cpu"),
                "unit": "percent of σ; for σ = 0 grey levels",
                "summary": summarise(rows),
                "frame_by_frame": by_frame,
                "other_noise": others,
                "cases": sum(r["sigma"] >= 5 for r in rows),
                "misses": misses(rows),
            },
        )
        print(tables(rows, by_frame, others))
        return 0

    return run("run_sigma", job)


if __name__ == "__main__":
    raise SystemExit(main())
