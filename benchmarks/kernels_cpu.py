"""The operation on a processor: in pieces that fit its cache, against eager PyTorch on all sequences at once.

Inputs are what a layer of the shipped model gives it on a noisy scene that moves: features far apart make
weights too small for a normal number, on which a processor is slow, so random features would mislead.
Milliseconds are of the process's own time on one thread, so that what else runs does not count.

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
import torch.nn.functional as F
from torch import Tensor

from vdenoise.models import dust, load
from vdenoise.ops.mix import gaussian_mix, mix_formula

from common import markdown_table, summary

CLIPS = {"grey 320×240, 30 frames": (30, 1, 240, 320), "colour 160×120, 30 frames": (30, 3, 120, 160)}
SIGMA = 25 / 255


def noisy_scene(frames: int, channels: int, height: int, width: int) -> Tensor:
    """A smooth background and a bright square that crosses it, with noise: (1, T, C, H, W)."""
    generator = torch.Generator().manual_seed(0)
    rough = torch.rand(1, channels, height // 8, width // 8, generator=generator)
    still = F.interpolate(rough, (height, width), mode="bicubic", align_corners=False).clamp(0, 1)
    clip = still.repeat(frames, 1, 1, 1)
    for t in range(frames):
        clip[t, :, height // 4 : height // 2, 2 * t : 2 * t + width // 4] = 0.9
    return (clip + SIGMA * torch.randn(clip.shape, generator=generator)).unsqueeze(0)


def given_to_the_mix(noisy: Tensor) -> tuple[Any, ...]:
    """What the shipped model's third layer gives gaussian_mix, all places at once."""
    given: list[tuple[Any, ...]] = []

    def record(*inputs: Any) -> Tensor:
        given.append(inputs)
        return gaussian_mix(*inputs)

    with mock.patch.multiple(dust, gaussian_mix=record, PLACES=10**9), torch.inference_mode():
        load("dust")(noisy, SIGMA)
    return given[2]


def measure(repeats: int, compiled: bool) -> dict[str, Any]:
    """Milliseconds of every way, interleaved, and eager's time over each way's in the same round.

    Raises:
        ValueError: where pieces and whole differ.
    """
    found: dict[str, Any] = {}
    for name, size in CLIPS.items():
        noisy = noisy_scene(*size)
        inputs = given_to_the_mix(noisy)
        ways: dict[str, Callable[[], Tensor]] = {
            "eager": partial(mix_formula, *inputs),
            "pieces": partial(gaussian_mix, *inputs),
        }
        if compiled:
            ways["inductor"] = partial(torch.compile(mix_formula), *inputs)
        found[f"mix, {name}"] = rounds(ways, repeats, exactly=True)
        found[f"whole model, {name}"] = rounds(shipped_model(noisy), repeats, exactly=False)
    return found


def shipped_model(noisy: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The shipped network on its whole grid at once, and as it runs."""
    model = load("dust")

    def network() -> Tensor:
        result: Tensor = model(noisy, SIGMA)
        return result

    def whole_grid() -> Tensor:
        with mock.patch.object(dust, "PLACES", 10**9), mock.patch("vdenoise.ops.mix.CACHED", 10**12):
            return network()

    return {"eager": whole_grid, "pieces": network}


def rounds(ways: dict[str, Callable[[], Tensor]], repeats: int, exactly: bool) -> dict[str, Any]:
    """Time every way once per round.

    ``exactly`` asks that pieces are the whole bit by bit; else by a fortieth of a grey level: a network's
    pieces add patches up in another order, and both are as far from float64 as from one another.
    """
    times: dict[str, list[float]] = {way: [] for way in ways}
    with torch.inference_mode():
        results = {way: run() for way, run in ways.items()}
        difference = float((results["eager"] - results["pieces"]).abs().max())
        if difference > (0 if exactly else 1e-4):
            raise ValueError(f"pieces differ from the whole by {difference:.2g}; no speed of a wrong result")
        for _ in range(repeats):
            for way, run in ways.items():
                start = time.process_time()
                run()
                times[way].append(1e3 * (time.process_time() - start))
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
