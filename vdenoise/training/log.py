"""A run's log: a progress bar for the person, one JSON line per segment for everything else."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from vdenoise.descent import StepReport


class RunLog:
    """Averages the steps of a segment and appends them to a file as one line.

    Args:
        path: the log; lines are appended.
        steps: length of the run.
        done: steps that an earlier call has done.
        progress: show a bar.
    """

    def __init__(self, path: Path, steps: int, done: int, progress: bool) -> None:
        self.path = path
        self.bar = tqdm(total=steps, initial=done, disable=not progress, unit="step", dynamic_ncols=True)
        self.losses: list[Tensor] = []
        self.norms: list[float] = []
        self.last: StepReport | None = None

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()

    def step(self, report: StepReport) -> None:
        """Take note of one step."""
        self.losses.append(report.losses)
        self.norms.append(float(report.grad_norm))
        self.last = report
        self.bar.update()

    def segment(self, **extra: Any) -> None:
        """Write the line of a segment: mean losses f_0 … f_L, the multipliers at its end, and ``extra``."""
        if self.last is None:
            return
        line = {
            **extra,
            "losses": torch.stack(self.losses).mean(0).tolist(),
            "slacks": self.last.slacks.tolist(),
            "multipliers": self.last.multipliers.tolist(),
            "grad_norm": sum(self.norms) / len(self.norms),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_rounded(line)) + "\n")
        self.bar.set_postfix_str(f"last layer {line['losses'][-1]:.4f}, λ max {max(line['multipliers']):.3f}")
        self.losses, self.norms = [], []


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return round(value, 6) if isinstance(value, float) else value
