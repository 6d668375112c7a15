"""PSNR and time of DUST beside other denoisers, on blocks that are fixed once and for all.

    python benchmarks/run_quality.py                  # DUST beside OpenCV's fastNlMeansDenoisingMulti
    python benchmarks/run_quality.py --bm3d --bm4d    # and those (pip install -e '.[bench]'); many minutes

A block is grey, uint8; ``numpy.random.default_rng(0).normal(0, σ, block.shape)`` is added to the whole of it,
clipped and rounded to uint8. PSNR is pooled over the block after the result is rounded to uint8. The methods
take turns in one run, so that all see the same machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from tqdm import tqdm

import vdenoise
from vdenoise.datasets import DATASETS
from vdenoise.datasets.base import as_gray
from vdenoise.models import load

from common import RESULTS, finite, markdown_table, pick_device, provenance, run, summary, write_json

TEMPORAL, TEMPLATE, SEARCH = 5, 7, 21  # OpenCV's windows: frames, pixels of a patch, pixels of the search
RIVAL = "NlMeansMulti"
POOLED = (
    "PSNR in dB, pooled over all frames and pixels of the block, result rounded to uint8. "
    "Time: median over the repeats, methods taking turns in one run."
)
Method = Callable[[np.ndarray, float], np.ndarray]


@dataclass(frozen=True)
class Place:
    """Where in a clip a block lies: frames [start, start + frames), the top left height×width (None: all)."""

    start: int
    frames: int
    height: int | None
    width: int | None


BLOCKS = {"vtest": Place(100, 30, 240, 320), "carphone_pristine": Place(0, 30, None, None)}


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="run_quality.py", description="PSNR and time beside other denoisers."
    )
    add = parser.add_argument
    add("--model", default="dust", help="a checkpoint's name or path (default: dust)")
    add("--root", help="where the open clips lie (default: data/open)")
    add("--clips", nargs="+", choices=list(BLOCKS), default=list(BLOCKS), help="(default: all)")
    add(
        "--sigmas",
        nargs="+",
        type=float,
        default=[10, 25, 50],
        help="noise on the 0–255 scale (default: 10 25 50)",
    )
    add("--repeats", type=int, default=3, help="timed runs of each method (default: 3)")
    add("--bm3d", action="store_true", help="BM3D frame by frame, timed once")
    add("--bm4d", action="store_true", help="BM4D on volumes of 10 frames, timed once")
    add("--device", default="auto", help="of the model: auto (default), cpu, cuda …")
    add(
        "--out",
        type=Path,
        default=RESULTS / "quality.json",
        help="(default: benchmarks/results/quality.json)",
    )
    add("--quiet", action="store_true", help="no progress bar")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 0 done, 2 bad input, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = build_parser().parse_args(arguments)
    return run("run_quality", lambda: benchmark(args, arguments))


def benchmark(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Measure, print the table, write the JSON."""
    if args.repeats < 1:
        raise ValueError(f"--repeats must be at least 1, got {args.repeats}")
    if bad := [sigma for sigma in args.sigmas if not 0 < sigma <= 255]:
        raise ValueError(f"--sigmas must lie in 0 < σ ≤ 255, got {bad[0]:g}")
    device = pick_device(args.device)
    net = load(args.model, device)
    name = Path(args.model).stem
    slow = slow_methods(args.bm3d, args.bm4d)
    blocks = []
    with tqdm(
        total=len(args.clips) * len(args.sigmas), unit="block", disable=args.quiet, dynamic_ncols=True
    ) as bar:
        for clip in args.clips:
            clean = read_block(args.root, clip, BLOCKS[clip])
            for sigma in args.sigmas:
                bar.set_postfix_str(f"{clip}, σ {sigma:g}")
                methods: dict[str, Method] = {
                    f"{name}, σ given": partial(_denoise, net, device),
                    f"{name}, σ estimated": partial(_denoise_blind, net, device),
                }
                rows = compare(clean, sigma, methods, slow, args.repeats)
                place = {"start": BLOCKS[clip].start, "shape": list(clean.shape)}
                blocks.append({"clip": clip, **place, "sigma": sigma, "rows": rows})
                bar.update()
    document = {
        **provenance("benchmarks/run_quality.py", argv, device),
        "opencv_threads": cv2.getNumThreads(),
        "pooled": POOLED,
        "repeats": args.repeats,
        "model": {"name": name, "weights": sum(p.numel() for p in net.parameters()), "card": net.card},
        "blocks": blocks,
    }
    print(quality_table(document))
    print(f"\n{POOLED}")
    write_json(args.out, document)
    print(f"wrote {args.out}", file=sys.stderr)
    return 0


def read_block(root: str | None, clip: str, place: Place) -> np.ndarray:
    """The clean block, grey uint8 (T, H, W).

    Raises:
        ValueError: if the clip is not there or is smaller than the block.
    """
    sources = {source.name: source for source in DATASETS["open"].evaluation_clips(root, "test")}
    if clip not in sources:
        raise ValueError(f"no test clip {clip!r} among the open clips; run python data/fetch_open_clips.py")
    block = as_gray(sources[clip], True).read(place.start, place.start + place.frames)
    block = block[:, : place.height, : place.width, 0]
    expected = (place.frames, place.height or block.shape[1], place.width or block.shape[2])
    if block.shape != expected:
        raise ValueError(
            f"{clip}: the block must have shape {expected}, got {block.shape}; fetch the clip again"
        )
    return np.ascontiguousarray(block)


def noisy_block(clean: np.ndarray, sigma: float) -> np.ndarray:
    """The block under seed 0's noise, clipped and rounded to uint8; one draw for the whole of it."""
    noise = np.random.default_rng(0).normal(0, sigma, clean.shape)
    return np.clip(np.rint(clean + noise), 0, 255).astype(np.uint8)


def psnr(estimate: np.ndarray, clean: np.ndarray) -> float:
    """PSNR in dB pooled over the block, infinite where the two are equal."""
    mse = np.mean((estimate.astype(np.float64) - clean) ** 2)
    return float(10 * np.log10(255**2 / mse)) if mse else float("inf")


def compare(
    clean: np.ndarray, sigma: float, methods: dict[str, Method], slow: dict[str, Method], repeats: int
) -> list[dict[str, Any]]:
    """All methods on one block at one noise level.

    Args:
        clean: (T, H, W) uint8.
        sigma: noise deviation on the 0–255 scale.
        methods: name to function of the noisy block and σ; run by turns with OpenCV's NlMeansMulti.
        slow: further ones that are run once.
        repeats: turns.

    Returns:
        For each method: name, PSNR, milliseconds per frame, and its time as a share of NlMeansMulti's.
    """
    noisy = noisy_block(clean, sigma)
    strength = tune_nl_means(noisy, clean, sigma)
    turns: dict[str, Method] = {**methods, RIVAL: lambda frames, _: nl_means_multi(frames, strength)}
    for method in methods.values():
        method(noisy[: max(TEMPORAL, len(noisy) // 6)], sigma)  # the first call pays for memory and kernels
    results: dict[str, np.ndarray] = {}
    times: dict[str, list[float]] = {name: [] for name in (*turns, *slow)}
    for _ in range(repeats):
        for name, method in turns.items():
            results[name], spent = _timed(method, noisy, sigma)
            times[name].append(spent)
    for name, method in slow.items():
        results[name], spent = _timed(method, noisy, sigma)
        times[name].append(spent)
    rows: list[dict[str, Any]] = [{"method": "noisy", "psnr": finite(psnr(noisy, clean))}]
    rival = times[RIVAL]
    for name, result in results.items():
        shares = [t / r for t, r in zip(times[name], rival, strict=False)]
        row = {"method": name, "psnr": finite(psnr(result, clean)), "ms_per_frame": summary(times[name])}
        rows.append({**row, "share_of_nl_means": summary(shares)})
        if name == RIVAL:
            rows[-1]["strength"] = strength
    return rows


def _timed(method: Method, noisy: np.ndarray, sigma: float) -> tuple[np.ndarray, float]:
    """The result, and milliseconds per frame."""
    started = time.perf_counter()
    result = method(noisy, sigma)
    return result, 1000 * (time.perf_counter() - started) / len(noisy)


def _denoise(net: torch.nn.Module, device: str, noisy: np.ndarray, sigma: float) -> np.ndarray:
    return vdenoise.denoise(noisy, net, sigma, device)


def _denoise_blind(net: torch.nn.Module, device: str, noisy: np.ndarray, sigma: float) -> np.ndarray:
    return vdenoise.denoise(noisy, net, "auto", device)


def nl_means_multi(noisy: np.ndarray, strength: float, only: Sequence[int] | None = None) -> np.ndarray:
    """OpenCV's fastNlMeansDenoisingMulti over a window of 5 frames, mirrored at both ends of the block.

    Args:
        noisy: (T, H, W) uint8, T at least 3.
        strength: h.
        only: indices of the frames to clean; None cleans all.
    """
    reach = TEMPORAL // 2
    frames = list(np.pad(noisy, ((reach, reach), (0, 0), (0, 0)), mode="reflect"))
    wanted = range(len(noisy)) if only is None else only
    return np.stack(
        [
            cv2.fastNlMeansDenoisingMulti(frames, i + reach, TEMPORAL, None, strength, TEMPLATE, SEARCH)
            for i in wanted
        ]
    )


def tune_nl_means(noisy: np.ndarray, clean: np.ndarray, sigma: float) -> float:
    """The strength h with the best PSNR against the clean frames: an oracle in OpenCV's favour.

    Every sixth frame is looked at; h climbs from 0.9 σ in steps of 0.2 σ, then of 0.05 σ.
    """
    only = range(len(noisy) % 6 // 2, len(noisy), 6)
    seen: dict[int, float] = {}

    def score(step: int) -> float:
        if step not in seen:
            seen[step] = psnr(nl_means_multi(noisy, 0.05 * step * sigma, only), clean[list(only)])
        return seen[step]

    best = 18
    for jump in (4, 1):
        while (
            better := max((best, best - jump, best + jump), key=lambda s: score(s) if s > 0 else -1.0)
        ) != best:
            best = better
    return 0.05 * best * sigma


def slow_methods(bm3d: bool, bm4d: bool) -> dict[str, Method]:
    """BM3D and BM4D where asked for.

    Raises:
        ValueError: if the package is not installed.
    """
    found: dict[str, Method] = {}
    try:
        if bm3d:
            import bm3d as bm3d_package

            found["BM3D per frame"] = lambda noisy, sigma: _uint8(
                np.stack([bm3d_package.bm3d(frame / 255, sigma / 255) for frame in noisy])
            )
        if bm4d:
            import bm4d as bm4d_package

            found["BM4D, 10 frames"] = lambda noisy, sigma: _uint8(
                np.concatenate(
                    [
                        np.moveaxis(
                            bm4d_package.bm4d(np.moveaxis(noisy[i : i + 10] / 255, 0, 2), sigma / 255), 2, 0
                        )
                        for i in range(0, len(noisy), 10)
                    ]
                )
            )
    except ImportError as error:
        raise ValueError(f"{error}; install it with pip install -e '.[bench]'") from error
    return found


def _uint8(frames: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(frames * 255), 0, 255).astype(np.uint8)


def decibel(value: float | None) -> str:
    """A PSNR for people; None is that of a block without error."""
    return "∞" if value is None else f"{value:.2f}"


def quality_table(document: dict[str, Any]) -> str:
    """PSNR of every method on every block; its time on the first clip, and as a share of NlMeansMulti's."""
    blocks = document["blocks"]
    header = ["PSNR, dB", *(f"{block['clip'].split('_')[0]} σ {block['sigma']:g}" for block in blocks)]
    height, width = blocks[0]["shape"][1:]
    rows = []
    for i, first in enumerate(blocks[0]["rows"]):
        texts = [decibel(block["rows"][i]["psnr"]) for block in blocks]
        spent = first.get("ms_per_frame")
        if spent is None:
            rows.append([first["method"], *texts, "", ""])
            continue
        middle = [b["rows"][i] for b in blocks if b["clip"] == blocks[0]["clip"]]
        middle = sorted(middle, key=lambda row: row["ms_per_frame"]["median"])
        typical = middle[len(middle) // 2]
        low, high = min(typical["ms_per_frame"]["values"]), max(typical["ms_per_frame"]["values"])
        text = f"{typical['ms_per_frame']['median']:.0f}" + (f" ({low:.0f}–{high:.0f})" if high > low else "")
        rows.append([first["method"], *texts, text, f"{typical['share_of_nl_means']['median']:.2f}"])
    return markdown_table([*header, f"ms per {width}×{height} frame", f"× {RIVAL}"], rows)


if __name__ == "__main__":
    raise SystemExit(main())
