"""Does it pay to leave the network at the layer of least estimated risk?

    python benchmarks/run_exit.py                        # the shipped comparison models, ten minutes
    python benchmarks/run_exit.py --models dust --gammas 0.25 1

On the test clips under Gaussian noise of deviation γ σ_x, clipped and rounded to 8 bits or neither: RMSE
of the last layer, of the one that ``vdenoise.denoise(…, layers="auto")`` leaves at and of the best, and the
time of both runs, which take turns. Writes ``results/exit.json``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import vdenoise
from vdenoise.models.registry import shipped
from vdenoise.noise import add_noise
from vdenoise.restore import least_risk

from common import RESULTS, markdown_table, pick_device, provenance, run, wait, write_json
from run_quality import BLOCKS, read_block

GAMMAS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
SIGMA_X = 79.67  # deviation of the training pixels of the shipped checkpoints, 0–255


def measure(net: Any, clean: Tensor, sigma: float, stored: bool, device: str, repeats: int) -> dict[str, Any]:
    """RMSE by layer, the layer left at, and milliseconds per frame of the whole and of the shortened run."""
    generator = torch.Generator().manual_seed(round(sigma))
    noisy = add_noise(clean, level=sigma / 255, generator=generator, clip=stored)
    noisy = (noisy * 255).round() / 255 if stored else noisy
    with torch.inference_mode():
        outputs = [x[0].cpu() for x in net.iterates(noisy[None].to(device), sigma / 255)]
    errors = [255 * float((x - clean).square().mean().sqrt()) for x in (noisy, *outputs)]
    times: dict[str, list[float]] = {"whole": [], "auto": []}
    for _ in range(repeats):
        for name, layers in (("whole", None), ("auto", "auto")):
            started = time.perf_counter()
            vdenoise.denoise(noisy, net, sigma, device, layers=layers)
            wait(device)
            times[name].append(1000 * (time.perf_counter() - started) / len(noisy))
    return {
        "rmse": errors,
        "left_at": least_risk(net, noisy, sigma / 255, device),
        "ms_per_frame": {name: statistics.median(values) for name, values in times.items()},
    }


def table(cells: Sequence[dict[str, Any]], gammas: Sequence[float]) -> str:
    """Markdown, a row per model and kind of clip: last → left (best), and the time."""
    rows = []
    for key in dict.fromkeys((c["model"], c["clip"], c["stored"]) for c in cells):
        mine = {c["gamma"]: c for c in cells if (c["model"], c["clip"], c["stored"]) == key}
        row = [f"`{key[0]}`, {key[1]}, {'stored' if key[2] else 'raw'}"]
        for gamma in gammas:
            c = mine[gamma]
            left, ms = c["rmse"][c["left_at"]], c["ms_per_frame"]
            row.append(
                f"{c['rmse'][-1]:.2f} → {left:.2f} ({min(c['rmse']):.2f}), {ms['auto'] / ms['whole']:.2f}×"
            )
        rows.append(row)
    return markdown_table(["RMSE: last → left at (best), time", *(f"γ {gamma:g}" for gamma in gammas)], rows)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="run_exit.py", description="Early exit by the estimated risk.")
    add = parser.add_argument
    add("--models", nargs="+", help="names or paths (default: all shipped)")
    add("--gammas", nargs="+", type=float, default=list(GAMMAS), help="noise, in units of σ_x")
    add("--frames", type=int, default=10, help="of the test block (default: 10)")
    add("--repeats", type=int, default=3, help="of the timing (default: 3)")
    add("--root", help="where the open clips lie (default: data/open)")
    add("--device", default="cpu", help="(default: cpu)")
    add("--quiet", action="store_true", help="no progress bar")
    add("--out", type=Path, default=RESULTS / "exit.json")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 0 done, 2 bad input, 130 interrupted."""
    args = build_parser().parse_args(argv)
    return run("run_exit", lambda: job(args, list(argv or [])))


def job(args: argparse.Namespace, argv: list[str]) -> int:
    """Measure, write, print."""
    if args.frames < 2 or args.repeats < 1 or min(args.gammas) < 0:
        raise ValueError(
            f"--frames must be at least 2, --repeats 1, --gammas 0, got {args.frames}, {args.repeats},"
            f" {args.gammas}"
        )
    device = pick_device(args.device)
    cells = []
    models = args.models or list(shipped())
    clips = {
        clip: torch.from_numpy(read_block(args.root, clip, place)[: args.frames]).float()[:, None] / 255
        for clip, place in BLOCKS.items()
    }
    work = [(m, c, s, g) for m in models for c in clips for s in (False, True) for g in args.gammas]
    net, loaded = None, ""
    for model, clip, stored, gamma in tqdm(work, unit="cell", disable=args.quiet, dynamic_ncols=True):
        if model != loaded:
            net, loaded = vdenoise.load(model, device), model
        found = measure(net, clips[clip], gamma * SIGMA_X, stored, device, args.repeats)
        cells.append({"model": Path(model).stem, "clip": clip, "stored": stored, "gamma": gamma, **found})
    document = {
        **provenance("benchmarks/run_exit.py", argv, device),
        "frames": args.frames,
        "cells": cells,
    }
    write_json(args.out, document)
    print(table(cells, args.gammas))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
