"""Draw docs/result.png: a noisy crop, what the model makes of it, the truth, and the error after every layer.

python benchmarks/picture.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import vdenoise
from vdenoise.models import load
from vdenoise.restore import layer_estimates

from common import ROOT, pick_device, run, write_atomic
from run_quality import BLOCKS, noisy_block, psnr, read_block

LIMIT = 500_000  # bytes: the README is read on slow lines too


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="picture.py", description="Draw the README's picture from a real result."
    )
    add = parser.add_argument
    add("--model", default="dust", help="cleans the crop (default: dust)")
    add("--constrained", default="dust_constrained", help="first curve (default: dust_constrained)")
    add("--unconstrained", default="dust_erm", help="second curve (default: dust_erm)")
    add("--sigma", type=float, default=25, help="noise on the 0–255 scale (default: 25)")
    add("--curve-sigma", type=float, help="noise of the curves (default: what --constrained was trained at)")
    add("--clip", choices=list(BLOCKS), default="vtest", help="(default: vtest)")
    add("--frame", type=int, default=15, help="frame of the block that is shown (default: 15)")
    add("--crop", type=int, nargs=4, default=[40, 120, 150, 200], metavar=("TOP", "LEFT", "HEIGHT", "WIDTH"))
    add("--root", help="where the open clips lie (default: data/open)")
    add("--device", default="auto", help="auto (default), cpu, cuda …")
    add("--out", type=Path, default=ROOT / "docs" / "result.png", help="(default: docs/result.png)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code: 0 done, 2 bad input."""
    args = build_parser().parse_args(argv)
    return run("picture", lambda: picture(args))


def picture(args: argparse.Namespace) -> int:
    """Clean the block, measure every layer, draw."""
    for flag, sigma in (("sigma", args.sigma), ("curve-sigma", args.curve_sigma)):
        if sigma is not None and not 0 < sigma <= 255:
            raise ValueError(f"--{flag} must lie in 0 < σ ≤ 255, got {sigma:g}")
    device = pick_device(args.device)
    clean = read_block(args.root, args.clip, BLOCKS[args.clip])
    top, left, height, width = args.crop
    if not (0 <= args.frame < len(clean) and min(args.crop) >= 0 and height and width):
        raise ValueError(
            f"--frame must lie in 0–{len(clean) - 1}, --crop inside the frame, got {args.frame}, {args.crop}"
        )
    if top + height > clean.shape[1] or left + width > clean.shape[2]:
        raise ValueError(f"--crop must lie inside {clean.shape[2]}×{clean.shape[1]} pixels, got {args.crop}")
    noisy = noisy_block(clean, args.sigma)
    restored = vdenoise.denoise(noisy, load(args.model, device), args.sigma, device)
    constrained, unconstrained = load(args.constrained, device), load(args.unconstrained, device)
    level = args.curve_sigma or sum(constrained.card["sigma"]) / 2
    curves = {
        "layer descent": layer_rmse(clean, constrained, level, device),
        "without": layer_rmse(clean, unconstrained, level, device),
    }
    for name, curve in curves.items():
        print(f"{name}: {' → '.join(f'{value:.2f}' for value in curve)}")
    show = (args.frame, slice(top, top + height), slice(left, left + width))
    crops = {
        f"noisy, {psnr(noisy, clean):.1f} dB": noisy[show],
        f"cleaned, {psnr(restored, clean):.1f} dB": restored[show],
        "truth": clean[show],
    }
    write_atomic(args.out, lambda path: draw(crops, curves, level, path))
    print(f"wrote {args.out}", file=sys.stderr)
    return 0


def layer_rmse(clean: np.ndarray, net: Any, sigma: float, device: str) -> list[float]:
    """RMSE (0–255) of the noisy block and of every layer, clean (T, H, W) uint8."""
    noisy = noisy_block(clean, sigma)
    estimates = layer_estimates(noisy[..., None], net, sigma, device)
    frames = [noisy.astype(np.float64), *(x[..., 0].astype(np.float64) for x in estimates)]
    return [float(np.sqrt(np.mean((x - clean) ** 2))) for x in frames]


def draw(crops: dict[str, np.ndarray], curves: dict[str, list[float]], level: float, path: Path) -> None:
    """Three crops and the curves in one row.

    Raises:
        ValueError: if the file comes out above ``LIMIT``.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
    from PIL import Image

    height, width = next(iter(crops.values())).shape
    side = 2.9
    figure = Figure(figsize=(3 * side + 3.4, side * height / width + 0.45), layout="constrained")
    *panels, right = figure.subplots(1, len(crops) + 1, width_ratios=[side] * len(crops) + [3.2])
    for axes, (title, crop) in zip(panels, crops.items(), strict=True):
        axes.imshow(crop, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set_title(title, fontsize=10)
        axes.set_axis_off()
    for (name, curve), style in zip(curves.items(), ("-", "--"), strict=True):
        right.plot(range(len(curve)), curve, "o" + style, color="C0", markersize=4, label=name)
    right.set_title(f"error after every layer, σ {level:.0f}", fontsize=10)
    right.set_xlabel("layer (0: noisy input)", fontsize=9)
    right.set_ylabel("RMSE (0–255)", fontsize=9)
    right.set_ylim(bottom=0)
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.tick_params(labelsize=8)
    right.grid(alpha=0.3)
    right.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    with Image.open(path) as drawn:  # a palette halves the file; the picture is grey but for one colour
        drawn.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    if path.stat().st_size > LIMIT:
        raise ValueError(
            f"the picture has {path.stat().st_size:,} bytes, more than {LIMIT:,}; show a smaller --crop"
        )


if __name__ == "__main__":
    raise SystemExit(main())
