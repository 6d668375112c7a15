"""How near is the estimated error of every layer to the true one?

    python benchmarks/run_certificate.py                     # every shipped checkpoint, about half an hour
    python benchmarks/run_certificate.py --models dust_erm --sigmas 25 75

The test clips under seeded noise, so that the truth is known. Gaussian noise, not clipped, σ given and
estimated, for every model; other kinds of noise, clipped and rounded to 8 bits as stored video is, for the
first model; and the step ε of the probes. Writes ``results/certificate.json`` with true and estimated RMSE
of every layer, the band and the cautions; cells that it has already are not measured again.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import vdenoise
from vdenoise.descent.certificate import stein
from vdenoise.descent.observed import Noise
from vdenoise.models.registry import shipped
from vdenoise.noise import add_noise

from common import RESULTS, finite, markdown_table, provenance, read_json, run, write_json
from run_quality import BLOCKS, read_block

SIGMAS = (10.0, 25.0, 50.0, 75.0)
KINDS = (
    "gaussian",
    "uniform",
    "poisson-gaussian",
    "speckle",
    "salt-and-pepper",
    "correlated",
    "rows",
    "h264",
)
STORED_SIGMAS = (10.0, 25.0)
STEPS = (0.005, 0.02, 0.1, 0.3)
READ_SHARE = 0.1  # ρ of vdenoise.noise's Poisson–Gaussian noise


@dataclass(frozen=True)
class Cell:
    """One measurement: a model on a clip under noise."""

    model: str
    clip: str
    kind: str
    sigma: float
    stored: bool
    known: bool

    @property
    def key(self) -> str:
        """Its name in the results."""
        given = "given" if self.known else "estimated"
        return "/".join(
            [
                Path(self.model).stem,
                self.clip,
                self.kind,
                f"{self.sigma:g}",
                "stored" if self.stored else "raw",
                given,
            ]
        )

    @property
    def noise(self) -> Noise:
        """What is put on, in the units of [0, 1]; of the kinds that Stein's estimate knows."""
        level = self.sigma / 255
        if self.kind == "poisson-gaussian":
            return Noise(READ_SHARE**0.5 * level, 2 * (1 - READ_SHARE) * level**2)
        return Noise(level)


def cells(models: Sequence[str], sigmas: Sequence[float], kinds: Sequence[str]) -> Iterator[Cell]:
    """Everything that is measured, the first model's first."""
    for model in models:
        for clip in BLOCKS:
            for sigma in sigmas:
                for known in (True, False):
                    yield Cell(model, clip, "gaussian", sigma, False, known)
        if model == models[0]:
            for clip in BLOCKS:
                for kind in kinds:
                    for sigma in STORED_SIGMAS:
                        # No one can give the level of compression; of the other kinds no user would know it.
                        for known in (True, False) if kind in ("gaussian", "poisson-gaussian") else (False,):
                            yield Cell(model, clip, kind, sigma, True, known)


def measure(cell: Cell, net: Any, clean: Tensor, probes: int, device: str) -> dict[str, Any]:
    """True and estimated RMSE of the input and of every layer, on 0–255."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{cell.clip}{cell.kind}{cell.sigma}".encode()))
    noisy = add_noise(clean, cell.kind, level=cell.sigma / 255, generator=generator, clip=cell.stored)
    if cell.stored:
        noisy = (noisy * 255).round() / 255
    sigma: float | str = 255 * cell.noise.sigma if cell.known else "auto"
    gain = 255 * cell.noise.gain if cell.known else 0.0
    found = vdenoise.certify(net, noisy, sigma, gain=gain, probes=probes, window=len(noisy), device=device)
    told = (found.sigma**2 + found.gain * 255 * float(noisy.mean())) ** 0.5 / 255
    with torch.inference_mode():
        outputs = net.iterates(noisy[None].to(device), told)
    true = [255 * float((x - clean).square().mean().sqrt()) for x in (noisy, *(x[0].cpu() for x in outputs))]
    return {
        "true": true,
        "estimated": list(found.rmse),
        "low": list(found.low),
        "high": [finite(value) for value in found.high],
        "sigma": found.sigma,
        "failures": list(found.failures),
    }


def steps(net: Any, clean: Tensor, sigma: float, device: str, seeds: int = 5) -> dict[str, list[float]]:
    """Mean relative error of the estimated squared error of every layer, in per cent, by the step ε."""
    small = clean[:8, :, :96, :96]
    errors: dict[str, list[list[float]]] = {f"{step:g}": [] for step in STEPS}
    for seed in range(seeds):
        noisy = add_noise(small, level=sigma / 255, generator=torch.Generator().manual_seed(seed))

        def layers(y: Tensor) -> list[Tensor]:
            return [x[0].cpu() for x in net.iterates(y[None].to(device), sigma / 255)]

        with torch.inference_mode():
            true = torch.stack([(x - small).square().mean() for x in (noisy, *layers(noisy))])
        for step in STEPS:
            generator = torch.Generator().manual_seed(1000 + seed)
            risk = stein(layers, noisy, Noise(sigma / 255), generator, step=step).risk
            errors[f"{step:g}"].append((100 * (risk / true - 1)).tolist())
    return {step: torch.tensor(rows).mean(0).tolist() for step, rows in errors.items()}


def worst(entry: dict[str, Any]) -> float:
    """Largest relative error of a layer's RMSE, in per cent; the input, whose error is σ, is left out."""
    pairs = zip(entry["estimated"][1:], entry["true"][1:], strict=True)
    return max(abs(100 * (estimate / true - 1)) for estimate, true in pairs)


def inside(entry: dict[str, Any]) -> bool:
    """The band holds the truth at every layer and at the input."""
    bounds = zip(entry["low"], entry["true"], entry["high"], strict=True)
    return all(low <= true and (high is None or true <= high) for low, true, high in bounds)


def tables(document: dict[str, Any]) -> str:
    """Markdown."""
    found = document["cells"]
    names = list(dict.fromkeys(key.split("/")[0] for key in found))
    sigmas = list(dict.fromkeys(key.split("/")[3] for key in found if "/raw/" in key))
    rows = []
    for model in names:
        for given in ("given", "estimated"):
            row = [f"`{model}`, σ {given}"]
            for sigma in sigmas:
                entries = [found.get(f"{model}/{clip}/gaussian/{sigma}/raw/{given}") for clip in BLOCKS]
                row.append(" / ".join(f"{worst(e):.1f}" if e else "–" for e in entries))
            rows.append(row)
    header = ["worst layer, % of its RMSE: " + " / ".join(BLOCKS), *(f"σ {sigma}" for sigma in sigmas)]
    parts = [markdown_table(header, rows)]
    stored = [(key.split("/"), entry) for key, entry in found.items() if "/stored/" in key]
    rows = []
    for (model, clip, kind, sigma, _, given), e in stored:
        top = "none" if e["high"][-1] is None else f"{e['high'][-1]:.2f}"
        rows.append(
            [
                f"{kind} {sigma}, {clip}, {model}, σ {given}",
                f"{e['true'][-1]:.2f}",
                f"{e['estimated'][-1]:.2f}",
                f"{e['low'][-1]:.2f} – {top}",
                "yes" if inside(e) else "no",
                "; ".join(text.split(":")[0].split(";")[0] for text in e["failures"]) or "–",
            ]
        )
    header = ["stored clip", "true RMSE, last layer", "estimated", "95% band", "truth inside", "cautions"]
    return "\n\n".join([*parts, markdown_table(header, rows)] if rows else parts)


def summary(found: dict[str, Any]) -> str:
    """Shares over all cells."""
    lines = []
    for given, goal in (("given", 3.0), ("estimated", 10.0)):
        raw = [e for key, e in found.items() if key.endswith(f"/raw/{given}")]
        if raw:
            layers = [
                abs(100 * (a / b - 1))
                for e in raw
                for a, b in zip(e["estimated"][1:], e["true"][1:], strict=True)
            ]
            near = sum(error <= goal for error in layers)
            held = sum(inside(e) for e in raw)
            lines.append(
                f"σ {given}: {near} of {len(layers)} layers within {goal:g}%;"
                f" every layer inside the band in {held} of {len(raw)} cells"
            )
    return "\n".join(lines)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="run_certificate.py", description="True against estimated error of every layer."
    )
    add = parser.add_argument
    add("--models", nargs="+", help="names or paths (default: all shipped)")
    add("--sigmas", nargs="+", type=float, default=list(SIGMAS), help="noise on the 0–255 scale")
    add("--kinds", nargs="*", default=list(KINDS), help="of noise on stored clips, for the first model")
    add("--frames", type=int, default=20, help="of the test block, at most 30 (default: 20)")
    add("--probes", type=int, default=2, help="K (default: 2)")
    add("--root", help="where the open clips lie (default: data/open)")
    add("--device", default="cpu", help="(default: cpu)")
    add("--quiet", action="store_true", help="no progress bar")
    add("--out", type=Path, default=RESULTS / "certificate.json")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 0 done, 2 bad input, 130 interrupted."""
    args = build_parser().parse_args(argv)
    return run("run_certificate", lambda: job(args, list(argv or [])), "what was measured is kept")


def job(args: argparse.Namespace, argv: list[str]) -> int:
    """Measure what is missing, write after every cell, print."""
    if args.frames < 2 or min(args.sigmas) <= 0:
        raise ValueError(
            f"--frames must be at least 2 and --sigmas above 0, got {args.frames}, {args.sigmas}"
        )
    models = args.models or list(shipped())
    settings = {"frames": args.frames, "probes": args.probes}
    known = read_json(args.out) if args.out.is_file() else {}
    document = {
        **provenance("benchmarks/run_certificate.py", argv, args.device),
        **settings,
        "cells": known.get("cells", {}) if settings.items() <= known.items() else {},
    }
    clips = {
        clip: torch.from_numpy(read_block(args.root, clip, place)[: args.frames]).float()[:, None] / 255
        for clip, place in BLOCKS.items()
    }
    todo = [c for c in cells(models, args.sigmas, args.kinds) if c.key not in document["cells"]]
    nets: dict[str, Any] = {}
    for cell in tqdm(todo, unit="cell", disable=args.quiet, dynamic_ncols=True):
        if cell.model not in nets:
            nets = {cell.model: vdenoise.load(cell.model, args.device)}
        entry = measure(cell, nets[cell.model], clips[cell.clip], args.probes, args.device)
        document["cells"][cell.key] = entry
        write_json(args.out, document)
    document["steps"] = {
        f"{models[0]}/{clip}/{args.sigmas[0]:g}": steps(
            vdenoise.load(models[0], args.device), clips[clip], args.sigmas[0], args.device
        )
        for clip in BLOCKS
    }
    write_json(args.out, document)
    print(tables(document), summary(document["cells"]), sep="\n\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
