"""What fitting a network to the noisy clip itself gains, by its own estimate and by the truth.

    python benchmarks/run_adapt.py                        # about an hour on one core
    python benchmarks/run_adapt.py --models ut_erm --steps 60 --clips carphone_pristine

The test clips under noise that the models were not trained on, neither clipped nor rounded; Poisson–Gaussian
noise with its gain given, all else estimated. Writes ``results/adapt.json``: RMSE of the last layer before
and after on the whole block, the estimates on the held-out part, steps and seconds.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import vdenoise
from vdenoise.adapt import adapt
from vdenoise.noise import add_noise, estimate_sigma

from common import RESULTS, markdown_table, provenance, run, write_json
from run_quality import BLOCKS, read_block

NOISES = (("gaussian", 40.0), ("poisson-gaussian", 40.0), ("correlated", 25.0))
READ_SHARE = 0.1  # ρ of vdenoise.noise's Poisson–Gaussian noise
SIDE = 144  # of the part of the block that is used


def measure(net: Any, clean: Tensor, kind: str, sigma: float, steps: int, seconds: float) -> dict[str, Any]:
    """One adaptation."""
    level = sigma / 255
    noisy = add_noise(clean, kind, level=level, generator=torch.Generator().manual_seed(0))
    if kind == "poisson-gaussian":
        black, gain = READ_SHARE**0.5 * sigma, 255 * 2 * (1 - READ_SHARE) * level**2
        done = adapt(net, noisy, black, gain=gain, steps=steps, seconds=seconds)
        told = math.sqrt(READ_SHARE * level**2 + gain / 255 * float(noisy.mean()))
    else:
        done = adapt(net, noisy, steps=steps, seconds=seconds)
        told = estimate_sigma(noisy)

    def rmse(model: Any) -> float:
        with torch.inference_mode():
            return 255 * float((model(noisy[None], told)[0] - clean).square().mean().sqrt())

    return {
        "true": [rmse(net), rmse(done.model)],
        "estimated_held_out": [done.before, done.after],
        "steps": done.steps,
        "seconds": done.seconds,
        "reason": done.reason,
    }


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="run_adapt.py", description="Fitting to the noisy clip itself.")
    add = parser.add_argument
    add("--models", nargs="+", default=["dust", "dust_erm", "ut_erm", "vit_erm"], help="names or paths")
    add("--clips", nargs="+", choices=list(BLOCKS), default=list(BLOCKS))
    add("--frames", type=int, default=15, help="of the test block (default: 15)")
    add("--steps", type=int, default=300, help="at most (default: 300)")
    add("--seconds", type=float, default=600, help="at most, each (default: 600)")
    add("--root", help="where the open clips lie (default: data/open)")
    add("--quiet", action="store_true", help="no progress bar")
    add("--out", type=Path, default=RESULTS / "adapt.json")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 0 done, 2 bad input, 130 interrupted."""
    args = build_parser().parse_args(argv)
    return run("run_adapt", lambda: job(args, list(argv or [])), "what was measured is kept")


def job(args: argparse.Namespace, argv: list[str]) -> int:
    """Measure, write after every cell, print."""
    if args.frames < 2 or args.steps < 1:
        raise ValueError(f"--frames must be at least 2, --steps 1, got {args.frames}, {args.steps}")
    document = {**provenance("benchmarks/run_adapt.py", argv, "cpu"), "cells": {}}
    rows = []
    work = [(m, c, k, s) for m in args.models for c in args.clips for k, s in NOISES]
    for model, clip, kind, sigma in tqdm(work, unit="cell", disable=args.quiet, dynamic_ncols=True):
        block = read_block(args.root, clip, BLOCKS[clip])[: args.frames, :SIDE, :SIDE]
        clean = torch.from_numpy(block).float()[:, None] / 255
        found = measure(vdenoise.load(model), clean, kind, sigma, args.steps, args.seconds)
        document["cells"][f"{Path(model).stem}/{clip}/{kind}/{sigma:g}"] = found
        write_json(args.out, document)
        before, after = found["true"]
        gain = 20 * math.log10(before / after)
        rows.append(
            [
                f"`{Path(model).stem}`, {clip}, {kind} {sigma:g}",
                f"{before:.2f} → {after:.2f} ({gain:+.2f} dB)",
                " → ".join(f"{value:.2f}" for value in found["estimated_held_out"]),
                f"{found['steps']} in {found['seconds']:.0f} s",
                found["reason"].split(":")[0] if found["steps"] else found["reason"].split(":")[1].strip(),
            ]
        )
    print(markdown_table(["", "true RMSE", "estimated, held out", "steps", "ended"], rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
