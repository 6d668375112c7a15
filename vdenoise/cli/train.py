"""``vdenoise-train``: train a denoiser. Read on in ``training/loop.py``, then ``descent/primal_dual.py``."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from vdenoise.datasets import DATASETS
from vdenoise.datasets.frames import CORRUPT
from vdenoise.models import MODELS
from vdenoise.noise import NOISES
from vdenoise.training.config import TrainConfig


def build_parser() -> argparse.ArgumentParser:
    """One flag for each field of :class:`TrainConfig`, its help taken from the docstring."""
    parser = argparse.ArgumentParser(
        prog="vdenoise-train",
        description="Train a video denoiser under the layer-descent constraint."
        " A run that was stopped goes on by the same command.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    helps = _field_docs()
    choices = {
        "model": list(MODELS),
        "data": list(DATASETS),
        "corrupt": list(CORRUPT),
        "noise": list(NOISES),
        "cadence": ["batch", "epoch"],
    }
    for field in fields(TrainConfig):
        flag = "--" + field.name.replace("_", "-")
        default: Any = field.default if field.default is not MISSING else None
        options: dict[str, Any] = {"default": default, "help": helps[field.name].replace("%", "%%")}
        if field.name == "options":
            parser.add_argument(
                "--option",
                dest="options",
                action="append",
                default=[],
                metavar="NAME=VALUE",
                help=options["help"],
            )
        elif field.name == "sigma":
            parser.add_argument(flag, nargs=2, type=float, metavar=("LOW", "HIGH"), **options)
        elif isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        else:
            kind = {"minutes": float, "gamma": float, "resilience": float}.get(field.name) or (
                type(default) if default is not None else str
            )
            parser.add_argument(flag, type=kind, choices=choices.get(field.name), **options)
    parser.add_argument(
        "--check", action="store_true", help="verify the copy of the data set under --root and stop"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 0 done, 2 bad input, 130 interrupted (the state is kept)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = vars(build_parser().parse_args(arguments))
    check = args.pop("check")
    try:
        args["options"] = dict(_option(text) for text in args["options"])
        args["sigma"] = tuple(args["sigma"])
        config = TrainConfig(**args)
        if check:
            print(DATASETS[config.data].treating(config.corrupt).check(config.root))
            return 0
        from vdenoise.training.loop import train

        path = train(config, command=shlex.join(["vdenoise-train", *arguments]))
    except ValueError as error:
        print(f"vdenoise-train: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "vdenoise-train: stopped; the same command goes on from the last saved segment", file=sys.stderr
        )
        return 130
    print(path)
    return 0


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--option takes NAME=VALUE, got {text!r}; for example --option layers=8")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _field_docs() -> dict[str, str]:
    """The ``Args`` of TrainConfig's docstring by field, so that help and documentation are one text."""
    text = (TrainConfig.__doc__ or "").split("Args:")[1]
    found = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", text, flags=re.MULTILINE)
    return {name: " ".join(doc.split()) for name, doc in found}


if __name__ == "__main__":
    raise SystemExit(main())
