"""Cells of ``run_rmse.py`` to a table, CSV and a picture of the curves."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import finite, markdown_table, rounded, summary, write_atomic, write_json

POOLED = (
    "RMSE on the 0–255 scale: root of the mean squared error over every pixel and frame of a clip (all clips "
    "for a data set), estimates neither clipped nor rounded. PSNR: mean over the frames. Both are mean ± "
    "deviation over the seeds of the noise. Descent is counted in blocks of 64×64 pixels over a window."
)


def aggregate(
    cells: Sequence[dict[str, Any]], models: Sequence[str], sigmas: Sequence[float], data: str
) -> list[dict[str, Any]]:
    """One table for each clip, and one pooled over all of them where there are several.

    Args:
        cells: what ``run_rmse.cells`` yields.
        models: rows in their order.
        sigmas: columns in their order, 0–255 scale.
        data: name of the pooled table.
    """
    clips = list(dict.fromkeys(cell["clip"] for cell in cells))
    groups = [(clip, [clip]) for clip in clips] + ([(data, clips)] if len(clips) > 1 else [])
    tables = []
    for name, members in groups:
        rows = []
        for model in models:
            row = []
            for sigma in sigmas:
                chosen = [c for c in cells if c["model"] == model and c["clip"] in members]
                row.append(pool([c for c in chosen if c["sigma"] == round(sigma, 6)]))
            rows.append({"model": model, "cells": row})
        tables.append({"name": name, "clips": members, "rows": rows})
    return tables


def pool(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Cells of one model and noise level: pooled over the clips of a seed, then summarised over the seeds."""
    rmse, psnr, descending = [], [], []
    for seed in sorted({cell["seed"] for cell in cells}):
        same = [cell for cell in cells if cell["seed"] == seed]
        values, frames = (sum(cell[key] for cell in same) for key in ("values", "frames"))
        layers = range(len(same[0]["mse"]))
        rmse.append([math.sqrt(sum(c["mse"][i] * c["values"] for c in same) / values) for i in layers])
        psnr.append([sum(_infinite(c["psnr"][i]) * c["frames"] for c in same) / frames for i in layers])
        if same[0]["descending"] is not None:
            descending.append(sum(c["descending"] for c in same) / sum(c["blocks"] for c in same))
    spent = [1000 * cell["seconds"] / cell["frames"] for cell in cells if cell["seconds"] is not None]
    told = [cell["sigma_given"] for cell in cells if cell["sigma_given"] is not None]
    return {
        "rmse": summary([layers[-1] for layers in rmse]),
        "psnr": summary([layers[-1] for layers in psnr]),
        "layers": by_layer(rmse),
        "layers_psnr": by_layer(psnr),
        "descending": summary(descending) if descending else None,
        "ms_per_frame": summary(spent) if spent else None,
        "sigma_given": summary(told) if told else None,
    }


def by_layer(seeds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Mean and deviation of every layer over the seeds, and the values: a list of layers for each seed."""
    layers = [summary(values) for values in zip(*seeds, strict=True)]
    return {
        "mean": [layer["mean"] for layer in layers],
        "std": [layer["std"] for layer in layers],
        "values": [[finite(value) for value in seed] for seed in seeds],
    }


def _infinite(value: float | None) -> float:
    return math.inf if value is None else value


def markdown(document: dict[str, Any]) -> str:
    """Everything that the benchmark prints: per table RMSE and PSNR, descent, every layer, time."""
    parts = [document["pooled"]]
    tables = document["tables"]
    kind = document["settings"].get("noise", "gaussian")  # results of before there were others lack it
    under = "" if kind == "gaussian" else f" under {kind} noise"
    # A data set of many clips is read as one; every clip is in the JSON.
    for table in tables if len(tables) <= 4 else tables[-1:]:
        parts += [f"### {table['name']}: RMSE (PSNR, dB){under}", curve_table(document, table)]
        parts += ["Every layer at the noise that a model was trained at:", layer_table(document, table)]
        parts += ["Share of blocks that descend at every layer:", descent_table(document, table)]
    return "\n\n".join(parts) + "\n"


def heads(document: dict[str, Any]) -> list[str]:
    """Names of the columns."""
    letter = "γ" if document["axis"] == "gamma" else "σ"
    return [f"{letter} {value:g}" for value in document["values"]]


def curve_table(document: dict[str, Any], table: dict[str, Any], psnr: bool = True) -> str:
    """RMSE of the last layer over the noise, PSNR beside it."""
    rows = []
    for row in table["rows"]:
        texts = []
        for cell in row["cells"]:
            decibel = cell["psnr"]["mean"]
            beside = f" ({'∞' if decibel is None else f'{decibel:.1f}'})" if psnr else ""
            texts.append(plus_minus(cell["rmse"]) + beside)
        rows.append([label(document, row["model"]), *texts])
    return markdown_table(["", *heads(document)], rows)


def layer_table(document: dict[str, Any], table: dict[str, Any]) -> str:
    """RMSE of the input and of every layer in the column nearest to a model's training noise."""
    rows = []
    for row in table["rows"]:
        model = document["models"][row["model"]]
        if model["kind"] is None:
            continue
        index = trained_column(document, model)
        cell = row["cells"][index]
        means = cell["layers"]["mean"]
        falls = all(after < before for before, after in pairwise(means))
        rows.append(
            [
                label(document, row["model"]),
                heads(document)[index],
                " → ".join(f"{value:.2f}" for value in means),
                "yes" if falls else "no",
                f"{100 * cell['descending']['mean']:.0f}%",
                f"{cell['ms_per_frame']['median']:.1f}",
            ]
        )
    return markdown_table(["", "noise", "input → layers", "falls", "blocks that fall", "ms per frame"], rows)


def descent_table(document: dict[str, Any], table: dict[str, Any]) -> str:
    """Share of the blocks that descend at every layer, over the noise."""
    rows = [
        [
            label(document, row["model"]),
            *(f"{100 * cell['descending']['mean']:.0f}%" for cell in row["cells"]),
        ]
        for row in table["rows"]
        if document["models"][row["model"]]["kind"] is not None
    ]
    return markdown_table(["", *heads(document)], rows)


def trained_column(document: dict[str, Any], model: dict[str, Any]) -> int:
    """The column nearest to the middle of a model's training noise; to σ 25 where its card has none."""
    low, high = model.get("sigma", (25, 25))
    distances = [abs(sigma - (low + high) / 2) for sigma in document["sigmas"]]
    return distances.index(min(distances))


def label(document: dict[str, Any], name: str) -> str:
    """A row's name: the checkpoint's, and whether layer descent was on where the name does not say it."""
    constrained = document["models"][name]["constrained"]
    if constrained is None or family(name)[1]:
        return name
    return f"{name} ({'constrained' if constrained else 'unconstrained'})"


def plus_minus(value: dict[str, Any]) -> str:
    """Mean ± deviation; the mean alone where there is one seed or no deviation to speak of."""
    if value["std"] is None:
        return f"{value['mean']:.2f}"
    return f"{value['mean']:.2f} ± {value['std']:.2f}"


def write_report(document: dict[str, Any], out: Path) -> list[Path]:
    """Write OUT.json, OUT.csv and OUT.png; their paths."""
    paths = [out.with_name(out.name + suffix) for suffix in (".json", ".csv", ".png")]
    write_json(paths[0], document)
    write_atomic(paths[1], lambda path: write_csv(document, path))
    write_atomic(paths[2], lambda path: draw(document, path))
    return paths


def write_csv(document: dict[str, Any], path: Path) -> None:
    """One line for every table, model, noise level and layer (0 is the noisy input)."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = ["table", "model", "kind", "constrained", document["axis"], "sigma", "layer"]
        writer.writerow(
            [*names, "rmse_mean", "rmse_std", "psnr_mean", "psnr_std", "descending", "ms_per_frame"]
        )
        for table in document["tables"]:
            for row in table["rows"]:
                model = document["models"][row["model"]]
                for value, sigma, cell in zip(
                    document["values"], document["sigmas"], row["cells"], strict=True
                ):
                    share = None if cell["descending"] is None else cell["descending"]["mean"]
                    spent = None if cell["ms_per_frame"] is None else cell["ms_per_frame"]["median"]
                    columns = [cell[key][of] for key in ("layers", "layers_psnr") for of in ("mean", "std")]
                    for layer, numbers in enumerate(zip(*columns, strict=True)):
                        start = [table["name"], row["model"], model["kind"], model["constrained"]]
                        writer.writerow(rounded([*start, value, sigma, layer, *numbers, share, spent]))


def draw(document: dict[str, Any], path: Path) -> None:
    """RMSE over the noise, a panel per table: constrained solid, unconstrained dashed in the same colour."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    tables = document["tables"] if len(document["tables"]) <= 4 else document["tables"][-1:]
    figure = Figure(figsize=(1.5 + 5.2 * len(tables), 4.6), layout="constrained")
    panels = figure.subplots(1, len(tables), squeeze=False)[0]
    colours = {
        name: f"C{i}"
        for i, name in enumerate(dict.fromkeys(family(n) for n in document["models"] if n != "noisy"))
    }
    for axes, table in zip(panels, tables, strict=True):
        for row in table["rows"]:
            model = document["models"][row["model"]]
            noisy = model["kind"] is None
            means = [cell["rmse"]["mean"] for cell in row["cells"]]
            bars = [cell["rmse"]["std"] or 0 for cell in row["cells"]]
            axes.errorbar(
                document["values"],
                means,
                yerr=bars,
                label=label(document, row["model"]),
                color="0.6" if noisy else colours[family(row["model"])],
                linestyle=":" if noisy else "--" if model["constrained"] is False else "-",
                marker="" if noisy else "o",
                markersize=3.5,
                linewidth=1.6,
                capsize=2,
            )
        axes.set_title(table["name"])
        axes.set_xlabel(
            "γ (noise deviation / σₓ)" if document["axis"] == "gamma" else "noise deviation σ (0–255)"
        )
        axes.set_ylabel("RMSE of the last layer (0–255)")
        axes.set_yscale("log")
        axes.set_ylim(*limits(table))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=8, handlelength=3.2)
    figure.savefig(path, dpi=110)


def limits(table: dict[str, Any]) -> tuple[float, float]:
    """The range of the models' curves with some air; the noisy line may leave the panel."""
    rows = [row for row in table["rows"] if row["model"] != "noisy"]
    means = [cell["rmse"]["mean"] for row in rows for cell in row["cells"]]
    return 0.8 * max(min(means), 1e-3), 1.2 * max(*means, 1e-2)


def family(name: str) -> tuple[str, bool]:
    """Checkpoints that differ in the constraint alone share a colour: their names end in it."""
    stem = re.sub(r"_(constrained|unconstrained|erm)$", "", name)
    return stem, stem != name
