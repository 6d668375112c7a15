"""The operation on a processor: in pieces that fit its cache, against eager PyTorch on all sequences at once.

The pieces are what vdenoise.ops.gaussian_mix does without gradients, and what DUST does with its whole
layers. Compilation by inductor can be measured beside it where there is a C++ compiler; the package does not
use it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from vdenoise.models import dust, load
from vdenoise.ops.mix import gaussian_mix, mix_formula

from common import markdown_table, summary

# The shipped model's: places of a grid at stride 4, frames, features, values, codes.
SHAPES = {
    "grey 320×240, 30 frames": (61 * 81, 30, 16, 128, 128),
    "colour 160×120, 30 frames": (31 * 41, 30, 48, 384, 128),
    "grey 320×240, 7 frames": (61 * 81, 7, 16, 128, 128),
}


def sequences(
    shape: tuple[int, int, int, int, int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Inputs of gaussian_mix."""
    n, t, r, m, codes = shape
    generator = torch.Generator().manual_seed(0)
    f, u = (torch.randn(n, t, width, generator=generator) for width in (r, m))
    gate, tau0, tau1 = torch.rand(3, codes, generator=generator)
    return f, u * 0.1, torch.ones(()), gate, tau0 * 0.01, tau1, torch.tensor([0.1])


def measure(repeats: int, compiled: bool) -> dict[str, Any]:
    """Milliseconds of every way, interleaved, and eager's time over each way's in the same round.

    Raises:
        ValueError: where pieces and whole differ.
    """
    found: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        inputs = sequences(shape)
        ways: dict[str, Callable[[], Tensor]] = {
            "eager": partial(mix_formula, *inputs),
            "pieces": partial(gaussian_mix, *inputs),
        }
        if compiled:
            ways["inductor"] = partial(torch.compile(mix_formula), *inputs)
        found[f"mix, {name}"] = _rounds(ways, repeats, exactly=True)
    for name, both in shipped_model().items():
        found[name] = _rounds(both, repeats, exactly=False)
    return found


def shipped_model() -> dict[str, dict[str, Callable[[], Tensor]]]:
    """The shipped network as it runs, and on its whole grid at once."""
    model = load("dust")
    noisy = torch.rand(1, 30, 1, 240, 320, generator=torch.Generator().manual_seed(0))

    def network() -> Tensor:
        result: Tensor = model(noisy, 0.1)
        return result

    def whole_grid() -> Tensor:
        with mock.patch.object(dust, "PLACES", 10**9), mock.patch("vdenoise.ops.mix.CACHED", 10**12):
            return network()

    return {"shipped model, grey 320×240, 30 frames": {"eager": whole_grid, "pieces": network}}


def _rounds(ways: dict[str, Callable[[], Tensor]], repeats: int, exactly: bool) -> dict[str, Any]:
    times: dict[str, list[float]] = {way: [] for way in ways}
    with torch.inference_mode():
        results = {way: run() for way, run in ways.items()}
        difference = float((results["eager"] - results["pieces"]).abs().max())
        if difference > (0 if exactly else 1e-5):
            raise ValueError(f"pieces differ from the whole by {difference:.2g}; no speed of a wrong result")
        for _ in range(repeats):
            for way, run in ways.items():
                start = time.perf_counter()
                run()
                times[way].append(1e3 * (time.perf_counter() - start))
    ratios = {
        way: summary([e / x for e, x in zip(times["eager"], times[way], strict=True)])
        for way in ways
        if way != "eager"
    }
    ms = {way: summary(values) for way, values in times.items()}
    return {"ms": ms, "times_faster": ratios, "largest_difference": difference}


def has_compiler() -> bool:
    """Whether inductor can build code for the processor."""
    return shutil.which("g++") is not None or shutil.which("clang++") is not None


def table(document: dict[str, Any]) -> str:
    """Markdown: medians."""
    rows = []
    for name, entry in document["cpu"].items():
        ratios = {way: f"{x['median']:.2f}" for way, x in entry["times_faster"].items()}
        ms = {way: f"{x['median']:.0f}" for way, x in entry["ms"].items()}
        rows.append([name, ms["eager"], ms["pieces"], ratios["pieces"], ratios.get("inductor", "")])
    header = ["", "eager, ms", "pieces, ms", "times faster", "inductor, times faster"]
    return markdown_table(header, rows)
