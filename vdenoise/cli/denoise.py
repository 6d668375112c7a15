"""``vdenoise noisy.mp4 clean.mp4``: a noisy file in, a clean one out, with its sound and timing."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

import vdenoise
from vdenoise.adapt import adapt_to_file
from vdenoise.models.registry import shipped
from vdenoise.restore import PRESETS, chosen
from vdenoise.tiling import WINDOW
from vdenoise.video import CODECS, SOUND, create

logger = logging.getLogger(__name__)


def build_parser() -> argparse.ArgumentParser:
    """The command line of ``vdenoise``."""
    parser = argparse.ArgumentParser(
        prog="vdenoise", description="Clean a noisy video; sound, timing and colours stay as they are."
    )
    parser.add_argument("input", help="a video file, or a folder of images")
    parser.add_argument(
        "output",
        help="the clean video, or a folder for images: frames, frames/*.png, frames/*.tif, frames/*.jpg",
    )
    parser.add_argument(
        "--preset",
        default="best",
        choices=list(PRESETS),
        help="; ".join(f"{name}: {preset.about}" for name, preset in PRESETS.items()) + " (default: best)",
    )
    parser.add_argument(
        "--model",
        help=f"a checkpoint's path, or one of: {', '.join(shipped())} (default: the preset's)",
    )
    parser.add_argument(
        "--sigma", type=_sigma, default="auto", help="noise deviation on the 0–255 scale, or auto (default)"
    )
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda, cuda:1 …")
    parser.add_argument(
        "--window", type=int, default=WINDOW, help=f"frames the network sees at once (default: {WINDOW})"
    )
    parser.add_argument(
        "--backend",
        default="auto",
        choices=["auto", "decord", "pyav"],
        help="what decodes the input (default: auto)",
    )
    parser.add_argument(
        "--codec",
        default="auto",
        choices=["auto", *CODECS],
        help="of the output; ffv1 is lossless (default: by the name's ending, h264 for mp4 and mkv)",
    )
    parser.add_argument(
        "--crf", type=int, default=None, help="quality of the output, lower is better (default: the codec's)"
    )
    parser.add_argument(
        "--pix-fmt",
        default="auto",
        metavar="NAME",
        help="pixel format: source, yuv420p, yuv444p … (default: 4:2:0 at the input's bit depth)",
    )
    parser.add_argument(
        "--sound",
        default="keep",
        choices=SOUND,
        help="keep copies every track bit by bit where the container takes it (default), browser encodes what"
        " browsers don't play, none leaves it out",
    )
    parser.add_argument(
        "--adapt",
        type=float,
        nargs="?",
        const=120.0,
        metavar="SECONDS",
        help="first fit the network to the clip itself, for at most this long (without a number: 120)",
    )
    parser.add_argument("--save-adapted", metavar="PATH", help="write the fitted network, with --adapt")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--version", action="version", version=f"vdenoise {vdenoise.__version__}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 0 done, 2 bad input, 130 interrupted."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(format="vdenoise: %(message)s", level=logging.WARNING if args.quiet else logging.INFO)
    try:
        clean_file(args)
    except (ValueError, OSError) as error:
        print(f"vdenoise: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("vdenoise: stopped; no output was written", file=sys.stderr)
        return 130
    return 0


def clean_file(args: argparse.Namespace) -> None:
    """Read, clean and write, frame by frame."""
    if args.save_adapted and args.adapt is None:
        raise ValueError(f"--save-adapted {args.save_adapted} needs --adapt; give both")
    model, follow = chosen(args.preset, args.model)
    model = vdenoise.load(model)
    with (
        vdenoise.open(args.input, backend=args.backend) as reader,
        create(
            args.output,
            like=reader,
            codec=args.codec,
            crf=args.crf,
            pix_fmt=args.pix_fmt,
            sound=args.sound,
            overwrite=args.overwrite,
        ) as writer,
    ):
        if args.adapt is not None:  # after the names were checked: it takes its time
            model = adapted(args, model)
        with tqdm(total=len(reader), unit="frame", disable=args.quiet, dynamic_ncols=True) as bar:
            for frame in vdenoise.denoise_stream(
                reader, model, args.sigma, args.device, follow=follow, window=args.window
            ):
                writer.write(frame)
                bar.update()


def adapted(args: argparse.Namespace, model: Any) -> Any:
    """The model after it was fitted to the input itself."""
    done = adapt_to_file(
        args.input,
        model,
        args.sigma,
        seconds=args.adapt,
        save_to=args.save_adapted,
        device=args.device,
        progress=not args.quiet,
    )
    logger.info("estimated RMSE %.2f → %.2f, %s", done.before, done.after, done.reason)
    return done.model


def _sigma(text: str) -> float | str:
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"takes a number on the 0–255 scale or auto, got {text!r}") from None


if __name__ == "__main__":
    raise SystemExit(main())
