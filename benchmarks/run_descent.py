"""Does the loss go down layer after layer, in expectation, on the distribution a model was trained on?

    python benchmarks/run_descent.py                      # every shipped checkpoint
    python benchmarks/run_descent.py --models dust_erm    # some, by name or path

Fresh samples of each checkpoint's own training stream (other seeds than the training's), its own noise, its
own loss. Prints one row per checkpoint and writes ``results/descent.json``: the mean loss of the input and of
every layer with its standard error, and the share of single clips that descend at every layer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from vdenoise.datasets import loader
from vdenoise.models import load
from vdenoise.models.registry import shipped
from vdenoise.training import TrainConfig
from vdenoise.training.loop import add_training_noise, batches, layer_losses, training_stream

from common import RESULTS, markdown_table, provenance, read_json, run, write_json

SEED = 1_000_003  # away from the seeds that trainings use


def expected_losses(
    model: Any, root: str | None, clips: int, progress: tqdm, stronger: float = 1.0
) -> Tensor:
    """f_0 … f_L of single clips of the model's training distribution, (clips, L + 1).

    Args:
        model: a checkpoint, with its card.
        root: where the data lies.
        clips: how many.
        progress: updated by one for every clip.
        stronger: factor of the noise; the loss stays in units of the trained noise.
    """
    card = model.card
    sigma = tuple(card["sigma"])
    # Cards without the field are of runs that had no augmentation.
    asked = {"augment": 0.0, **card["config"], "sigma": tuple(card["config"]["sigma"]), "root": root}
    config = TrainConfig(**{**asked, "seed": SEED})
    samples = loader(training_stream(config), config.batch)
    generator = torch.Generator().manual_seed(SEED)
    found: list[Tensor] = []
    with torch.inference_mode():
        for clean in islice(batches(samples, config, generator), clips):
            shifted = (stronger * sigma[0], stronger * sigma[1])
            noisy, level = add_training_noise(clean, shifted, config.clipped, generator, config.noise)
            outputs = model.iterates(noisy, level)
            for i in range(len(clean)):
                one = slice(i, i + 1)
                found.append(
                    layer_losses(
                        [x[one] for x in outputs],
                        noisy[one],
                        clean[one],
                        level[one] / stronger,
                        sigma[1] / 255,
                        config.noise_exponent,
                    )
                )
            progress.update(min(len(clean), clips - progress.n))
            if len(found) >= clips:
                break
    return torch.stack(found[:clips]).double()


def measure(names: Sequence[str], root: str | None, clips: int) -> dict[str, Any]:
    """One entry per model."""
    entries = {}
    for name in names:
        model = load(name)
        with tqdm(total=clips, desc=name, unit="clip", dynamic_ncols=True) as progress:
            losses = expected_losses(model, root, clips, progress)
        mean = losses.mean(0)
        entries[Path(name).stem] = {
            "constrained": model.card["config"]["constrained"],
            "alpha": model.card["config"]["alpha"],
            "losses": mean.tolist(),
            "standard_error": (losses.std(0) / clips**0.5).tolist(),
            "descends": bool((mean[1:] < mean[:-1]).all()),
            "share_of_clips": float((losses[:, 1:] < losses[:, :-1]).all(1).double().mean()),
        }
    return entries


def descent_table(document: dict[str, Any]) -> str:
    """Markdown: the loss left after every layer, in per cent of the input's."""
    rows = []
    for name, entry in document["models"].items():
        first = entry["losses"][0]
        left = " → ".join(f"{100 * loss / first:.3g}" for loss in entry["losses"][1:])
        rows.append(
            [
                f"`{name}`",
                "on" if entry["constrained"] else "off",
                left,
                "yes" if entry["descends"] else "no",
                f"{100 * entry['share_of_clips']:.0f}%",
            ]
        )
    header = [
        "checkpoint",
        "layer descent",
        "loss left after each layer, % of the input's",
        "falls",
        "clips falling",
    ]
    return markdown_table(header, rows)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="run_descent.py", description="Loss after every layer, in expectation."
    )
    parser.add_argument("--models", nargs="+", help="names or paths (default: all shipped)")
    parser.add_argument("--root", help="where the training data lies (default: the data set's usual place)")
    parser.add_argument("--clips", type=int, default=400, help="samples per model (default: 400)")
    parser.add_argument("--out", type=Path, default=RESULTS / "descent.json")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 0 done, 2 bad input, 130 interrupted."""
    args = build_parser().parse_args(argv)
    return run("run_descent", lambda: job(args, list(argv or [])))


def job(args: argparse.Namespace, argv: list[str]) -> int:
    """Measure, print, write; models measured before and not asked for now keep their entries."""
    if args.clips < 2:
        raise ValueError(f"--clips must be at least 2, got {args.clips}")
    known = read_json(args.out)["models"] if args.out.is_file() and args.models else {}
    entries = {**known, **measure(args.models or list(shipped()), args.root, args.clips)}
    document = {
        **provenance("benchmarks/run_descent.py", argv, "cpu"),
        "clips": args.clips,
        "models": dict(sorted(entries.items())),
    }
    write_json(args.out, document)
    print(descent_table(document))
    return 0


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
