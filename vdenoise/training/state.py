"""What a run needs to go on: weights, their average, moments, multipliers, the step and the time spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vdenoise.files import whole
from vdenoise.training.config import TrainConfig

# Fields that may differ when a run goes on: they say how long and where, not what is learned.
FREE = {"steps", "minutes", "threads", "workers", "out", "root"}


def save_state(path: Path, config: TrainConfig, parts: Mapping[str, Any], step: int, elapsed: float) -> None:
    """Write the state of a run, whole or not at all.

    Args:
        path: where to.
        config: the run's; compared when it goes on.
        parts: named objects with ``state_dict``.
        step: optimiser steps done.
        elapsed: seconds spent.
    """
    content = {
        "config": asdict(config),
        "step": step,
        "elapsed": elapsed,
        **{name: part.state_dict() for name, part in parts.items()},
    }
    with whole(path) as temporary:
        torch.save(content, temporary)


def load_state(path: Path, config: TrainConfig, parts: Mapping[str, Any]) -> tuple[int, float]:
    """Bring the parts of a run back to where it was saved.

    Args:
        path: a file of :func:`save_state`; if there is none, the run is a new one.
        config: must ask for the same training as the saved one, but for ``FREE``.
        parts: named objects with ``load_state_dict``.

    Returns:
        (step, elapsed seconds); (0, 0.0) for a new run.

    Raises:
        ValueError: if the saved run was another one.
    """
    if not path.exists():
        return 0, 0.0
    content = torch.load(path, map_location="cpu", weights_only=True)
    saved, asked = content["config"], asdict(config)
    changed = [f"{k}: {saved.get(k)} → {v}" for k, v in asked.items() if k not in FREE and saved.get(k) != v]
    if changed:
        raise ValueError(
            f"{path} holds a run with other settings ({'; '.join(changed)});"
            " give the saved settings to go on, another --out, or delete the file to start anew"
        )
    for name, part in parts.items():
        part.load_state_dict(content[name])
    return int(content["step"]), float(content["elapsed"])
