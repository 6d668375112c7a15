"""Fill the tables of the README from what the benchmarks wrote and from the checkpoints' cards.

    python benchmarks/readme_table.py            # rewrite the sections <!-- table:NAME --> … <!-- /table -->
    python benchmarks/readme_table.py --check    # exit code 1 where the README says something else

A section whose numbers have not been measured yet is empty, and anything in it is a disagreement.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vdenoise.models.registry import load, name_of

from common import RESULTS, ROOT, markdown_table, read_json, run, write_text
from rmse_report import curve_table, layer_table
from run_descent import descent_table
from run_quality import POOLED as QUALITY_POOLED
from run_quality import quality_table

SECTION = re.compile(r"(<!-- table:([\w-]+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)


def quality(results: Path, checkpoints: Path) -> str:
    """PSNR and time beside other denoisers; empty where not measured."""
    path = results / "quality.json"
    if not path.is_file():
        return ""
    document = read_json(path)
    text = (
        "`vtest.avi` frames 100–129, top left 320×240, and `carphone_pristine.mp4` frames 0–29, grey; "
        f"Gaussian noise, clipped and rounded to uint8. {QUALITY_POOLED} "
        "OpenCV's strength is tuned on the clean frames, in its favour."
    )
    return f"{text}\n\n{quality_table(document)}\n\n{source(document)}\n"


def rmse(results: Path, checkpoints: Path) -> str:
    """RMSE over γ on the open test clips; empty where not measured."""
    path = results / "rmse-open.json"
    if not path.is_file():
        return ""
    document = read_json(path)
    table = document["tables"][-1]
    text = (
        f"RMSE (0–255) of the last layer over γ, noise of deviation γ σ_x with σ_x = "
        f"{document['sigma_x']:.1f}, not clipped; open test clips ({', '.join(table['clips'])}) "
        f"pooled, mean ± deviation over "
        f"{document['settings']['seeds']} seeds:"
    )
    layers = "RMSE after every layer, in the column nearest to the noise that the model was trained at:"
    return (
        "\n\n".join(
            [
                text,
                curve_table(document, table, psnr=False),
                layers,
                layer_table(document, table),
                source(document),
            ]
        )
        + "\n"
    )


def descent(results: Path, checkpoints: Path) -> str:
    """Loss after every layer on the training distribution; empty where not measured."""
    path = results / "descent.json"
    if not path.is_file():
        return ""
    document = read_json(path)
    text = (
        f"Expected loss after every layer on each model's own training distribution, over "
        f"{document['clips']} fresh samples, and the share of single clips for which it falls at every layer:"
    )
    return f"{text}\n\n{descent_table(document)}\n\n{source(document)}\n"


def checkpoints(results: Path, checkpoints: Path) -> str:
    """What is shipped: size, training, and the validation at its end."""
    rows, commands = [], []
    for path in sorted(checkpoints.glob("*.pt")):
        net = load(path)
        card = net.card
        low, high = card["sigma"]
        noise = f"σ {low:.1f}" if low == high else f"σ {low:g}–{high:g}"
        validation = card["validation"]
        layers = " → ".join(f"{value:.1f}" for value in validation["val_rmse"])
        rows.append(
            [
                f"`{path.stem}`",
                name_of(net),
                "on" if card["config"]["constrained"] else "off",
                f"{sum(p.numel() for p in net.parameters()) / 1000:.0f}k",
                f"{card['data']}, {noise}",
                f"{card['minutes']:.0f}",
                layers,
            ]
        )
        commands.append(command(card))
    if not rows:
        return ""
    header = [
        "checkpoint",
        "model",
        "layer descent",
        "weights",
        "trained on",
        "minutes",
        "validation RMSE, input → layers",
    ]
    block = "\n".join(f"    {command}" for command in commands)
    text = (
        "Validation is on clips held out from training and from the other tables. Trained by, in this order:"
    )
    return f"{markdown_table(header, rows)}\n\n{text}\n\n{block}\n"


def cards(results: Path, checkpoints: Path) -> str:
    """The model card of every checkpoint, in words."""
    parts = []
    for path in sorted(checkpoints.glob("*.pt")):
        net = load(path)
        card, config = net.card, net.card["config"]
        low, high = card["sigma"]
        kind = config.get("noise", "gaussian").capitalize()
        noise = f"one level, σ {low:.2f}" if low == high else f"σ uniform in {low:g}–{high:g}"
        descent = (
            f"layer descent with α {config['alpha']:g}, dual rate {config['dual_lr']:g}"
            + (", gradient stopped through f_{l−1}" if config["detach_previous"] else "")
            if config["constrained"]
            else "empirical risk of the last layer, no constraint"
        )
        layers = ", ".join(f"{value:.2f}" for value in card["validation"]["val_rmse"])
        weights, size = sum(p.numel() for p in net.parameters()), path.stat().st_size / 1024
        options = ", ".join(f"{k} {v}" for k, v in asdict(net.config).items())
        parts.append(
            "\n".join(
                [
                    f"## `{path.name}`",
                    "",
                    f"- Model: {name_of(net)} ({options}), {weights:,} weights, {size:.0f} KiB",
                    f"- Data: `{card['data']}` (see `data/README.md`), σ_x {card['sigma_x']:.2f}",
                    f"- Noise: {kind}, {noise}; {100 * config['clipped']:.0f}% of the clips clipped",
                    f"- Objective: {descent}; seed {config['seed']}",
                    f"- Command: `{command(card)}`",
                    f"- Took {card['steps']:,} steps, {card['minutes']:.0f} min, {card['threads']} core",
                    f"- Validation at σ {card['validation']['val_sigma']:.1f}, RMSE of the input and every "
                    f"layer: {layers}",
                    "",
                ]
            )
        )
    return "\n" + "\n".join(parts)


def command(card: dict[str, Any]) -> str:
    """What trains the like today; cards without the field are of runs before there was augmentation."""
    return card["command"] + ("" if "augment" in card["config"] else " --augment 0")


def source(document: dict[str, Any]) -> str:
    """The line under a table that says where it comes from."""
    threads = document["threads"]
    return (
        f"`{document['command']}` at commit {document['commit']}, PyTorch {document['versions']['torch']}, "
        f"{document['device']}, {threads} thread{'s' if threads > 1 else ''}."
    )


TABLES: dict[str, Callable[[Path, Path], str]] = {
    "quality": quality,
    "rmse": rmse,
    "checkpoints": checkpoints,
    "descent": descent,
    "cards": cards,
}


def fill(text: str, results: Path, folder: Path) -> str:
    """The README with every section as it should be.

    Raises:
        ValueError: for a section that no table is known for, or if there is none at all.
    """
    names = [match[2] for match in SECTION.finditer(text)]
    unknown = set(names) - set(TABLES)
    if unknown or not names:
        expected = ", ".join(f"<!-- table:{name} -->" for name in TABLES)
        raise ValueError(
            f"sections must be among {expected}, got {', '.join(names) or 'none'}; correct the README"
        )
    return SECTION.sub(lambda match: match[1] + TABLES[match[2]](results, folder) + match[4], text)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="readme_table.py", description="Fill the README's tables.")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit code 1 where the README differs"
    )
    files = [ROOT / "README.md", ROOT / "checkpoints" / "README.md"]
    parser.add_argument("--readme", type=Path, nargs="+", default=files, help="files with tables to fill")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--checkpoints", type=Path, default=ROOT / "checkpoints")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 0 done or alike, 1 the README differs, 2 bad input."""
    args = build_parser().parse_args(argv)
    return run(
        "readme_table",
        lambda: max(update(path, args.results, args.checkpoints, args.check) for path in args.readme),
    )


def update(readme: Path, results: Path, folder: Path, check: bool) -> int:
    """Write or compare."""
    text = readme.read_text(encoding="utf-8")
    filled = fill(text, results, folder)
    if filled == text:
        return 0
    if check:
        theirs, ours = ({m[2]: m[3] for m in SECTION.finditer(t)} for t in (text, filled))
        wrong = [name for name in ours if ours[name] != theirs[name]]
        print(
            f"{readme.name}: {', '.join(wrong)} not as measured; run python benchmarks/readme_table.py",
            file=sys.stderr,
        )
        return 1
    write_text(readme, filled)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
