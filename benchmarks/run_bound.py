"""What the published bound promises for every layer, beside what was measured.

    python benchmarks/run_bound.py                        # the shipped models that were trained with descent
    python benchmarks/run_bound.py --models vit_constrained --stronger 1.2 2

Fresh samples of each checkpoint's training stream, as ``run_descent.py`` takes them, and the same with
stronger noise for the shift of the distribution; multipliers and α from its card. Prints a table per model,
writes ``results/bound.json`` and draws ``results/bound.png``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from vdenoise.descent import Bound, LayerDescent, descent_bound
from vdenoise.models import load
from vdenoise.models.registry import shipped

from common import RESULTS, provenance, run, write_atomic, write_json
from run_descent import expected_losses


def measure(model: Any, root: str | None, clips: int, stronger: Sequence[float], quiet: bool) -> list[Any]:
    """One entry for the training distribution, and one for each factor of the noise."""
    config = model.card["config"]
    constraint = LayerDescent(
        model.config.layers,
        alpha=config["alpha"],
        skip_first=config["skip_first"],
        detach_previous=config["detach_previous"],
    )
    multipliers = torch.tensor(model.card["multipliers"], dtype=torch.float64)
    entries: list[Any] = []
    own: Tensor | None = None
    for factor in (1.0, *stronger):
        with tqdm(total=clips, unit="clip", disable=quiet, dynamic_ncols=True) as progress:
            losses = expected_losses(model, root, clips, progress, factor)
        own = losses if own is None else own
        found = descent_bound(constraint, own, multipliers, shifted=None if factor == 1 else losses)
        entries.append(entry(found, losses, factor))
    return entries


def entry(found: Bound, losses: Tensor, factor: float) -> dict[str, Any]:
    """What was measured and what is promised, as plain numbers."""
    return {
        "noise": factor,
        "measured": losses.mean(0).tolist(),
        "certified": found.sequence.tolist(),
        "tight": found.tight.tolist(),
        "slacks": found.slacks.tolist(),
        "zeta": found.excess.tolist(),
        "shift": found.shift.tolist(),
        "price": found.price.tolist(),
        "limit": found.limit,
        "failures": list(found.failures),
    }


def draw(document: dict[str, Any], path: Path) -> None:
    """A panel per model: measured solid, certified dashed, a colour for every strength of the noise."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    models = document["models"]
    figure = Figure(figsize=(3.6 * len(models), 3.2), layout="constrained")
    for axes, (name, entries) in zip(
        figure.subplots(1, len(models), squeeze=False)[0], models.items(), strict=True
    ):
        for i, e in enumerate(entries):
            layers = range(len(e["measured"]))
            label = f"noise × {e['noise']:g}"
            axes.plot(layers, e["measured"], "o-", color=f"C{i}", markersize=3, label=label)
            axes.plot(layers, e["certified"], "--", color=f"C{i}")
            axes.plot(layers, e["tight"], ":", color=f"C{i}")
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("layer (0: noisy input)", fontsize=8)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
    lines = axes.get_legend_handles_labels()
    title = "solid measured, dashed bound, dotted tight"
    figure.legend(*lines, loc="outside lower center", ncols=len(lines[0]), fontsize=7, title=title)
    figure.savefig(path, dpi=110)


def table(name: str, entries: Sequence[dict[str, Any]]) -> str:
    """Plain text: a line of measured and one of certified losses, and the cautions."""
    lines = [name]
    for e in entries:
        lines.append(f"  noise × {e['noise']:g}")
        for what in ("measured", "tight", "certified"):
            lines.append(f"    {what:9} " + " ".join(f"{value:8.4f}" for value in e[what]))
        lines.append(f"    limit {e['limit']:.3f}")
        lines += [f"    caution: {text}" for text in e["failures"]]
    return "\n".join(lines)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="run_bound.py", description="The published bound, layer by layer.")
    add = parser.add_argument
    add("--models", nargs="+", help="names or paths (default: the shipped ones with layer descent)")
    add("--root", help="where the training data lies (default: the data set's usual place)")
    add("--clips", type=int, default=200, help="samples per distribution (default: 200)")
    add(
        "--stronger",
        type=float,
        nargs="*",
        default=[1.25, 2.0],
        help="factors of noise (default: 1.25 2)",
    )
    add("--quiet", action="store_true", help="no progress bar")
    add("--out", type=Path, default=RESULTS / "bound.json", help="the picture lies beside it")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 0 done, 2 bad input, 130 interrupted."""
    args = build_parser().parse_args(argv)
    return run("run_bound", lambda: job(args, list(argv or [])))


def job(args: argparse.Namespace, argv: list[str]) -> int:
    """Measure, write, draw, print."""
    if args.clips < 2 or min(args.stronger, default=1) <= 0:
        raise ValueError(f"--clips must be at least 2, --stronger above 0, got {args.clips}, {args.stronger}")
    names = args.models or [n for n in shipped() if load(n).card["config"]["constrained"]]
    models = {}
    for name in names:
        model = load(name)
        if not model.card["config"]["constrained"]:
            raise ValueError(f"--models {name} was trained without the constraint; give one that was")
        models[Path(name).stem] = measure(model, args.root, args.clips, args.stronger, args.quiet)
    document = {
        **provenance("benchmarks/run_bound.py", argv, "cpu"),
        "clips": args.clips,
        "models": models,
    }
    write_json(args.out, document)
    write_atomic(args.out.with_suffix(".png"), lambda path: draw(document, path))
    print("\n".join(table(name, entries) for name, entries in models.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
