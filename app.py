"""The app: ``python app.py``, then open the address it prints. The page only; the work is vdenoise's."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vdenoise.models.registry import shipped
from vdenoise.studio.preview import Limits
from vdenoise.studio.sessions import Studio
from vdenoise.web import page, study
from vdenoise.web.benchmark import benchmark_tab
from vdenoise.web.denoise import denoise_tab
from vdenoise.web.endpoints import endpoints
from vdenoise.web.events import stopper

EXAMPLE = Path(__file__).resolve().parent / "data" / "example.mp4"


def build_app(
    models: dict[str, Path] | None = None, limits: Limits | None = None, folder: Path | None = None
) -> Any:
    """The page, ready to launch.

    Args:
        models: checkpoints by the name that is shown; the shipped ones where it is None.
        limits: what is taken in.
        folder: where results are written; a new temporary folder where it is None.
    """
    import gradio as gr

    models = shipped() if models is None else models
    folder = folder or Path(tempfile.mkdtemp(prefix="vdenoise-"))
    studio = Studio(models, limits or Limits(), folder)
    example = EXAMPLE if EXAMPLE.exists() else None
    with gr.Blocks(title="vdenoise", analytics_enabled=False) as app:
        gr.Navbar(visible=False)
        gr.HTML(page.HEADER.format(study=study.ADDRESS))
        if not models:
            gr.Markdown(
                "**No checkpoint is shipped here.** Train one with `vdenoise-train`, or give `--model PATH`."
            )
        with gr.Tab("Denoise"):
            denoise_tab(studio, example)
        with gr.Tab("Benchmark"):
            benchmark_tab(studio, example)
        endpoints(studio)
        app.unload(stopper(studio))
    study.study_page(app)
    return app.queue(max_size=32)


def launch_options(limits: Limits) -> dict[str, Any]:
    """Keyword arguments of Gradio's ``launch`` that do not depend on the command line."""
    import gradio as gr

    # Fonts of the reader's own system: nothing is fetched from anywhere else.
    theme = gr.themes.Default(
        primary_hue="indigo",
        neutral_hue="slate",
        radius_size="lg",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    ).set(
        block_info_text_color="*neutral_600",  # the default is too pale to read
        block_label_text_color="*neutral_700",
        block_title_text_color="*neutral_700",
        body_text_color_subdued="*neutral_600",
        color_accent="*primary_600",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_text_color="white",
    )
    return {
        "max_file_size": int(limits.megabytes * 1e6),
        "allowed_paths": [str(EXAMPLE)],
        "ssr_mode": False,
        "theme": theme,
        "css": page.CSS,
        "head": page.SYNC + page.ACCESS,
        "footer_links": ["api"],
    }


def build_parser() -> argparse.ArgumentParser:
    """The command line of the app."""
    parser = argparse.ArgumentParser(description="vdenoise in the browser, for this machine only by default.")
    add = parser.add_argument
    host = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")
    add(
        "--host",
        default=host,
        help="address to listen on; 0.0.0.0 opens it to the network (default: %(default)s)",
    )
    add("--port", type=int, default=None, help="default: the first free one from 7860")
    add("--share", action="store_true", help="a public address through Gradio's relay")
    add("--auth", metavar="USER:PASSWORD", help="ask for a name and a password")
    add("--model", action="append", default=[], metavar="PATH", help="offer this checkpoint too")
    add(
        "--max-mb", type=float, default=Limits.megabytes, help="size of a file at most (default: %(default)s)"
    )
    add(
        "--max-seconds",
        type=float,
        default=Limits.seconds,
        help="length of a clip at most (default: %(default)s)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = build_parser().parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="vdenoise-"))
    os.environ["GRADIO_TEMP_DIR"] = str(folder)  # uploads and results, and nothing of other apps
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the folder goes, too
    try:
        limits = Limits(megabytes=args.max_mb, seconds=args.max_seconds)
        auth = _auth(args.auth)
        models = {**shipped(), **{Path(path).stem: Path(path) for path in args.model}}
        build_app(models, limits, folder).launch(
            server_name=args.host,
            server_port=args.port,
            share=args.share,
            auth=auth,
            **launch_options(limits),
        )
    except (ValueError, OSError) as error:
        print(f"app.py: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _auth(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise ValueError(f"--auth takes USER:PASSWORD, got {text!r}")
    return user, password


if __name__ == "__main__":
    raise SystemExit(main())
