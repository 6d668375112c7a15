"""How fast clips are loaded, and whether loading ever keeps a training step waiting.

    python benchmarks/run_speed.py --loader
    python benchmarks/run_speed.py --loader --data avenue --root data/avenue --workers 2

The training step is that of the shipped ``dust`` configuration. Prints a table and writes
``results/loader.json``: clips per second of the stream alone, of the stream with the step, of a plain OpenCV
loop over the same videos in the same run, and the share of the time that the step waits for a batch. The open
set is held in memory once decoded; ``--data folder`` decodes at every visit.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vdenoise.datasets import DATASETS
from vdenoise.datasets.measure import loader_speed, opencv_speed
from vdenoise.descent import LayerDescent, Multipliers, PrimalDual
from vdenoise.models import build
from vdenoise.training import TrainConfig
from vdenoise.training.loop import LUMA, add_training_noise, layer_losses, training_stream

from common import RESULTS, markdown_table, provenance, run, summary, write_json


class Step:
    """One primal-dual step of the default configuration on a uint8 batch (B, T, 3, S, S)."""

    def __init__(self, config: TrainConfig) -> None:
        torch.manual_seed(0)
        self.config, self.generator = config, torch.Generator().manual_seed(0)
        self.model = build(config.model)
        constraint = LayerDescent(self.model.config.layers, config.alpha)
        self.primal_dual = PrimalDual(
            constraint,
            Multipliers(constraint, lr=config.dual_lr),
            torch.optim.Adam(self.model.parameters(), lr=config.lr),
            clip_norm=config.clip_norm,
        )

    def __call__(self, batch: torch.Tensor) -> None:
        """Luma, noise, every layer decoded, one step."""
        clean = torch.einsum("c,btchw->bthw", torch.tensor(LUMA), batch.float() / 255).unsqueeze(2)
        noisy, level = add_training_noise(
            clean, self.config.sigma, self.config.clipped, self.generator, self.config.noise
        )
        outputs = self.model.iterates(noisy, level)
        high = self.config.sigma[1] / 255
        self.primal_dual.step(layer_losses(outputs, noisy, clean, level, high, self.config.noise_exponent))


def measure(
    data: str, root: str | None, workers: Sequence[int], repeats: int, batches: int
) -> dict[str, Any]:
    """Every way of loading, interleaved, ``repeats`` times."""
    config = TrainConfig(data=data, root=root)
    videos = DATASETS[data].videos(DATASETS[data].place(root), "train")
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(repeats):
        plain = opencv_speed([v.path for v in videos], frames=config.frames, crop=config.crop)
        found.setdefault("plain OpenCV loop", []).append({"clips_per_second": plain})
        for count in workers:
            for name, step in (("stream alone", None), ("stream and training step", Step(config))):
                speed = loader_speed(
                    training_stream(config), batch=config.batch, workers=count, step=step, batches=batches
                )
                found.setdefault(f"{name}, {count} workers", []).append(speed)
    return {name: _summaries(runs) for name, runs in found.items()}


def _summaries(runs: list[dict[str, Any]]) -> dict[str, Any]:
    keys = [key for key in runs[0] if key not in ("workers", "batch")]
    return {key: summary([one[key] for one in runs]) for key in keys}


def loader_table(document: dict[str, Any]) -> str:
    """Markdown: medians over the repeats."""
    rows = []
    for name, entry in document["loading"].items():
        step = "training step" in name
        rows.append(
            [
                name,
                f"{entry['clips_per_second']['median']:.0f}",
                f"{entry['step_ms']['median']:.0f}" if step else "",
                f"{entry['wait_ms']['median']:.1f}" if "wait_ms" in entry else "",
                f"{100 * entry['wait']['median']:.1f}%" if step else "",
                f"{entry['first_batch_s']['median']:.1f}" if "first_batch_s" in entry else "",
            ]
        )
    header = [
        "",
        "clips per second",
        "step, ms",
        "wait per batch, ms",
        "share of time waiting",
        "first batch, s",
    ]
    return markdown_table(header, rows)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="run_speed.py", description="Speed of loading.")
    parser.add_argument("--loader", action="store_true", required=True, help="measure the loading of clips")
    parser.add_argument("--data", default="open", choices=list(DATASETS))
    parser.add_argument("--root", help="where the data lies (default: the data set's usual place)")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[0, 1, 2], help="loader processes (default: 0 1 2)"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, default=40, help="batches timed per run (default: 40)")
    parser.add_argument("--threads", type=int, default=1, help="of the training step (default: 1)")
    parser.add_argument("--out", type=Path, default=RESULTS / "loader.json")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 0 done, 2 bad input, 130 interrupted."""
    args = build_parser().parse_args(argv)
    return run("run_speed", lambda: job(args, list(argv or [])))


def job(args: argparse.Namespace, argv: list[str]) -> int:
    """Measure, print, write."""
    torch.set_num_threads(args.threads)
    document = {
        **provenance("benchmarks/run_speed.py", argv, "cpu"),
        "data": args.data,
        "load_average": os.getloadavg()[0],  # what else ran on the machine, and the measurement itself
        "loading": measure(args.data, args.root, args.workers, args.repeats, args.batches),
    }
    write_json(args.out, document)
    print(loader_table(document))
    return 0


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
