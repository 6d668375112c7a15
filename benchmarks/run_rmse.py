"""RMSE over γ: every model with and without layer descent, and the noisy input itself.

    python benchmarks/run_rmse.py --quick      # shipped checkpoints, open test clips; under two minutes
    python benchmarks/run_rmse.py              # the same on 30 whole frames of every clip under 3 seeds
    python benchmarks/run_rmse.py --data avenue --root data/avenue --models runs/avenue.pt

The noise has deviation γ σ_x on the 0–255 scale and is not clipped, as in the paper; σ_x is the deviation of
the data set's training pixels. Writes OUT.json, OUT.csv and OUT.png, and as it goes OUT.cells.jsonl: a line
for each finished (clip, model, noise, seed), which is not computed again when a stopped run goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from vdenoise.datasets import DATASETS
from vdenoise.datasets.base import as_gray
from vdenoise.models import load
from vdenoise.models.registry import name_of, shipped
from vdenoise.noise import NOISES

from common import RESULTS, commit, pick_device, provenance, run
from rmse_cells import CellStore, Clip, Settings, load_clip, measure
from rmse_report import POOLED, aggregate, markdown, write_report

GAMMAS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.25, 0.5, 0.75, 1.0, 1.5)  # of the paper's test figures
FULL = {"windows": 2, "window": 15, "crop": 0, "seeds": 3}
QUICK = {"windows": 1, "window": 8, "crop": 128, "seeds": 2}


@dataclass(frozen=True)
class Entry:
    """A row of the table: a checkpoint, or the noisy input where ``net`` is None."""

    name: str
    net: Any = field(repr=False)
    digest: str

    def describe(self) -> dict[str, Any]:
        """What the report says of it."""
        if self.net is None:
            return {"kind": None, "constrained": None}
        card = self.net.card
        config = card.get("config", {})
        return {
            "kind": name_of(self.net),
            "constrained": config.get("constrained"),
            "gamma": config.get("gamma"),
            "layers": self.net.config.layers,
            "weights": sum(p.numel() for p in self.net.parameters()),
            "sha256": self.digest,
            **{key: card[key] for key in ("data", "sigma", "sigma_x", "minutes", "command") if key in card},
        }


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="run_rmse.py", description="RMSE of every model over the noise level."
    )
    add = parser.add_argument
    add("--models", nargs="+", metavar="NAME|PATH", help="checkpoints (default: all that are shipped)")
    add("--data", default="open", choices=list(DATASETS), help="the data set (default: open)")
    add("--root", help="where it lies (default: data/NAME)")
    add("--clips", nargs="+", metavar="NAME", help="only these test clips")
    add("--color", action="store_true", help="RGB instead of luma")
    add(
        "--sigma-grid",
        nargs="+",
        type=float,
        metavar="S",
        help="noise on the 0–255 scale in place of the ten γ",
    )
    add("--sigma-x", type=float, help="σ_x on the 0–255 scale (default: the data set's)")
    add(
        "--sigma", choices=["true", "auto"], default="true", help="the σ that models are told (default: true)"
    )
    add("--noise", default="gaussian", choices=list(NOISES), help="its kind (default: gaussian)")
    add("--clipped", action="store_true", help="clip the noisy frames, as stored video is")
    add("--windows", type=int, help="windows per clip, evenly spread; 0: the whole clip (default: 2)")
    add("--window", type=int, help="frames that a model sees at once (default: 15)")
    add("--crop", type=int, help="side of a crop from the middle; 0: whole frames (default: 0)")
    add("--seeds", type=int, help="seeds of the noise (default: 3)")
    add("--quick", action="store_true", help="a crop, fewer frames and seeds; under two minutes on two cores")
    add("--device", default="auto", help="auto (default), cpu, cuda …")
    add("--out", type=Path, help="files to write, without suffix (default: benchmarks/results/rmse-DATA)")
    add("--fresh", action="store_true", help="compute every cell anew")
    add("--quiet", action="store_true", help="no progress bar")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 0 done, 2 bad input, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = build_parser().parse_args(arguments)
    for name, value in (QUICK if args.quick else FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.out is None:
        kind = "" if args.noise == "gaussian" else f"-{args.noise}"
        args.out = RESULTS / f"rmse-{args.data}{kind}{'-quick' if args.quick else ''}"
    return run(
        "run_rmse", lambda: benchmark(args, arguments), "the same command goes on with the missing cells"
    )


def benchmark(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Compute what is missing, print the tables, write the files."""
    check(args)
    device = pick_device(args.device)
    entries = [Entry("noisy", None, ""), *open_models(args.models, device)]
    sources = chosen(DATASETS[args.data].evaluation_clips(args.root, "test"), args.clips)
    sigma_x = None if args.sigma_grid else data_deviation(args, entries)
    axis = args.sigma_grid or list(GAMMAS)
    sigmas = [value * (sigma_x or 1) for value in axis]
    settings = Settings(args.sigma == "auto", args.clipped, noise=args.noise)
    store = CellStore(args.out.with_name(f"{args.out.name}.cells.jsonl"), args.fresh)
    found: list[dict[str, Any]] = []
    total = len(sources) * len(entries) * len(sigmas) * args.seeds
    with tqdm(total=total, unit="cell", disable=args.quiet, dynamic_ncols=True) as bar:
        for source in sources:
            clip = load_clip(as_gray(source, not args.color), args.windows, args.window, args.crop)
            for entry in entries:
                bar.set_postfix_str(f"{clip.name}, {entry.name}")
                for cell in cells(clip, entry, sigmas, args.seeds, settings, device, store):
                    found.append(cell)
                    bar.update()
    kept = ("data", "color", "windows", "window", "crop", "seeds")
    document = {
        **provenance("benchmarks/run_rmse.py", argv, device),
        "commits": sorted({cell["commit"] for cell in found}),
        "settings": {**asdict(settings), **{key: getattr(args, key) for key in kept}},
        "pooled": POOLED,
        "axis": "sigma" if args.sigma_grid else "gamma",
        "values": axis,
        "sigmas": sigmas,
        "sigma_x": sigma_x,
        "models": {entry.name: entry.describe() for entry in entries},
        "tables": aggregate(found, [entry.name for entry in entries], sigmas, args.data),
    }
    print(markdown(document))
    for path in write_report(document, args.out):
        print(f"wrote {path}", file=sys.stderr)
    return 0


def check(args: argparse.Namespace) -> None:
    """Refuse numbers that make no sense.

    Raises:
        ValueError: naming the flag.
    """
    for flag, least in (("windows", 0), ("window", 1), ("crop", 0), ("seeds", 1)):
        if getattr(args, flag) < least:
            raise ValueError(f"--{flag} must be at least {least}, got {getattr(args, flag)}")
    for sigma in args.sigma_grid or []:
        if not 0 <= sigma <= 255:
            raise ValueError(f"--sigma-grid takes deviations in 0–255, got {sigma:g}")
    if args.sigma_x is not None and not 0 < args.sigma_x <= 255:
        raise ValueError(f"--sigma-x must lie in 0 < σ_x ≤ 255, got {args.sigma_x:g}")
    if args.sigma_x is not None and args.sigma_grid:
        raise ValueError("--sigma-x scales the ten γ and has no use beside --sigma-grid; give one of them")


def open_models(names: Sequence[str] | None, device: str) -> list[Entry]:
    """The checkpoints by name or path; all that are shipped where none is named.

    Raises:
        ValueError: if there is none, or two have one name.
    """
    by_name = shipped()
    names = list(by_name) if names is None else names
    if not names:
        raise ValueError(
            "no checkpoint is shipped with this copy; train one with vdenoise-train, give --models PATH"
        )
    found: dict[str, Entry] = {}
    for name in names:
        net = load(name, device)
        path = by_name.get(name, Path(name))
        if path.stem in {*found, "noisy"}:
            raise ValueError(f"--models must all differ in name, got {path.stem!r} twice; rename a file")
        found[path.stem] = Entry(path.stem, net, hashlib.sha256(path.read_bytes()).hexdigest()[:16])
    return list(found.values())


def chosen(sources: Sequence[Any], names: Sequence[str] | None) -> list[Any]:
    """The clips by name; all of them where none is named.

    Raises:
        ValueError: for a name that is not there.
    """
    unknown = set(names or ()) - {source.name for source in sources}
    if unknown:
        there = ", ".join(source.name for source in sources)
        raise ValueError(f"--clips: no test clip {', '.join(sorted(unknown))}; there are {there}")
    return [source for source in sources if names is None or source.name in names]


def data_deviation(args: argparse.Namespace, entries: Sequence[Entry]) -> float:
    """σ_x: what the user says, else what the models trained on this data set carry, else measured.

    Raises:
        ValueError: if it can't be measured for want of training videos.
    """
    if args.sigma_x is not None:
        return float(args.sigma_x)
    cards = [entry.net.card for entry in entries if entry.net is not None]
    known = {card["sigma_x"] for card in cards if card.get("data") == args.data and "sigma_x" in card}
    if len(known) == 1:
        return float(known.pop())
    try:
        return DATASETS[args.data].sigma_x(args.root)
    except (ValueError, OSError) as error:
        raise ValueError(f"σ_x can't be measured ({error}); give it with --sigma-x") from error


def cells(
    clip: Clip,
    entry: Entry,
    sigmas: Sequence[float],
    seeds: int,
    settings: Settings,
    device: str,
    store: CellStore,
) -> Iterator[dict[str, Any]]:
    """Every cell of a clip and a model, computed or remembered."""
    warm, here = entry.net is None, commit()
    for seed in range(seeds):
        for sigma in sigmas:
            key = {
                "clip": clip.name,
                "frames": clip.digest,
                "model": entry.name,
                "weights": entry.digest,
                "sigma": round(sigma, 6),
                "seed": seed,
                **asdict(settings),
                "device": device,
                "threads": torch.get_num_threads(),
            }
            cell = store.get(key)
            if cell is None:
                if not warm:  # the first call pays for memory and kernels; its time is not the model's
                    measure(entry.net, Clip(clip.name, clip.windows[:1], ""), sigma, seed, settings, device)
                    warm = True
                cell = {"commit": here, **measure(entry.net, clip, sigma, seed, settings, device)}
                store.put(key, cell)
            yield {**key, **cell}


if __name__ == "__main__":
    raise SystemExit(main())
