"""The app: ``python app.py``, then open the address it prints. The page only; the work is vdenoise's."""

import argparse
import functools
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import vdenoise
from vdenoise import page
from vdenoise.filejob import Outcome, clean_file
from vdenoise.models.registry import shipped
from vdenoise.preview import Limits, Noise, look, preview, removed

EXAMPLE = Path(__file__).resolve().parent / "examples" / "pedestrians.mp4"
AS_IT_IS, ADD_NOISE = "Clean it as it is", "Add noise first"
AUTO, BY_HAND = "Automatic", "By hand"
SIGMA, GAMMA = "σ (0–255)", "γ"
STILL = 1.0  # seconds between two pictures of a running job
TROUBLE = (
    ValueError,
    OSError,
    MemoryError,
    RuntimeError,
)  # what is told in one line; RuntimeError is torch's


class Settings(NamedTuple):
    """The page's controls, in their order."""

    video: str | None
    model: str
    mode: str
    unit: str
    sigma: float
    gamma: float
    strength: str
    by_hand: float

    @property
    def told(self) -> float | str:
        """The σ that the network is told."""
        return "auto" if self.strength == AUTO else self.by_hand


@dataclass
class Studio:
    """What the page does, for whoever calls: no component in here.

    Args:
        models: checkpoints by the name that is shown.
        limits: what is taken in.
        folder: where results are written.
    """

    models: dict[str, Path]
    limits: Limits
    folder: Path
    stops: dict[str, threading.Event] = field(default_factory=dict)  # of running jobs, by who started them

    def __post_init__(self) -> None:
        self.load = functools.lru_cache(maxsize=8)(self._load)

    def _load(self, name: str) -> Any:
        if name not in self.models:
            raise ValueError(f"model must be one of {', '.join(self.models)}, got {name!r}")
        return vdenoise.load(self.models[name])

    def noise(self, settings: Settings) -> Noise | None:
        """What is put on the clip first."""
        if settings.mode != ADD_NOISE:
            return None
        if settings.unit == SIGMA:
            return Noise(settings.sigma)
        return Noise(settings.gamma * sigma_x(self.load(settings.model)))

    def preview(self, settings: Settings, at: float) -> Any:
        """One second, cleaned."""
        return preview(
            _given(settings.video),
            self.load(settings.model),
            sigma=settings.told,
            noise=self.noise(settings),
            at=at,
            limits=self.limits,
        )

    def run(self, settings: Settings, session: str) -> Iterator[Any]:
        """The whole file; ``stop(session)`` ends it with what is done."""
        stop = self.stops[session] = threading.Event()
        try:
            yield from clean_file(
                _given(settings.video),
                tempfile.mkdtemp(dir=self.folder),
                self.load(settings.model),
                sigma=settings.told,
                noise=self.noise(settings),
                limits=self.limits,
                stop=stop,
            )
        finally:
            self.stops.pop(session, None)

    def stop(self, session: str) -> None:
        """Ask the job of one session to end; others go on."""
        if event := self.stops.get(session):
            event.set()


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

    studio = Studio(
        shipped() if models is None else models,
        limits or Limits(),
        folder or Path(tempfile.mkdtemp(prefix="vdenoise-")),
    )
    with gr.Blocks(title="vdenoise", analytics_enabled=False, delete_cache=(600, 3600)) as app:
        gr.HTML(page.HEADER)
        if not studio.models:
            gr.Markdown(
                "**This copy ships no checkpoint.** Train one with `vdenoise-train`, or use `--model PATH`."
            )
        denoise_tab(gr, studio)
        app.unload(_stopper(gr, studio))
    return app.queue(max_size=32)


def denoise_tab(gr: Any, studio: Studio) -> None:
    """Video in, preview, settings, job, videos, download."""
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            video = gr.Video(label="Noisy video", sources=["upload", "webcam"], height=270, elem_id="source")
            example = gr.Button(
                "Use the example clip", size="sm", visible=EXAMPLE.exists(), elem_id="example"
            )
            facts = gr.HTML(elem_id="facts")
        with gr.Column(scale=7, min_width=320):
            slider = gr.ImageSlider(
                label="Before | after", elem_id="slider", max_height=400, buttons=["fullscreen"]
            )
            found = gr.HTML(elem_id="found")
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            controls, changes = settings_controls(gr, studio)
            settings = [video, *controls]
            at = gr.Slider(
                0, 1, value=0, step=1, interactive=False, label="Preview from second",
                info="Where the second that you see begins.",
            )  # fmt: skip
            with gr.Row():
                start = gr.Button("Denoise", variant="primary", interactive=False, elem_id="start")
                stop = gr.Button("Stop and keep what is done", variant="stop", visible=False, elem_id="stop")
            status = gr.HTML(elem_id="status")
        with gr.Column(scale=7, min_width=320, visible=False) as insight, gr.Row():
            curve = gr.HTML(elem_id="curve", min_height=250)
            difference = gr.Image(
                label="What was removed (×4)", min_width=260, buttons=["fullscreen"], elem_id="difference"
            )
    with gr.Column(visible=False) as results:
        with gr.Row():
            before = gr.Video(label="Before", interactive=False, elem_id="before", min_width=280, buttons=[])
            after = gr.Video(label="After", interactive=False, elem_id="after", min_width=280, buttons=[])
        download = gr.DownloadButton("Download the clean video", variant="primary", elem_id="download")

    def show_file(path: str | None) -> Any:
        if path is None:
            return "", None, gr.skip(), gr.update(interactive=False)
        facts = look(path, studio.limits)
        latest = max(0.0, facts.seconds - 1)
        return (
            page.facts_html(facts),
            (_rgb(facts.first),) * 2,
            gr.update(maximum=max(1, math.ceil(latest)), value=0, interactive=latest > 0),
            gr.update(interactive=bool(studio.models)),
        )

    def show_preview(*values: Any) -> Any:
        *controls, second = values
        chosen = Settings(*controls)
        if chosen.video is None:
            return None, "", "", None, gr.update(visible=False)
        shown = studio.preview(chosen, second)
        pair = _rgb(shown.before[shown.middle]), _rgb(shown.after[shown.middle])
        return pair, page.preview_html(shown), page.curve_html(shown), removed(*pair), gr.update(visible=True)

    def run(
        video: str | None, model: str, mode: str, unit: str, sigma: float, gamma: float, strength: str,
        by_hand: float, request: gr.Request,
    ) -> Iterator[Any]:  # fmt: skip
        last = -STILL
        chosen = Settings(video, model, mode, unit, sigma, gamma, strength, by_hand)
        for step in studio.run(chosen, request.session_hash or ""):
            if isinstance(step, Outcome):
                yield {
                    status: page.outcome_html(step), before: str(step.before), after: str(step.clean),
                    download: str(step.clean), results: gr.update(visible=True),
                }  # fmt: skip
            elif step.seconds - last >= STILL or not step.done:
                last = step.seconds
                busy = {start: gr.update(visible=False), stop: gr.update(visible=True)}
                pair = {} if step.after is None else {slider: (_rgb(step.before), _rgb(step.after))}
                yield {status: page.progress_html(step), **busy, **pair}

    def idle() -> Any:
        return gr.update(visible=True), gr.update(visible=False)

    work: dict[str, Any] = {"concurrency_id": "network", "concurrency_limit": 1, "api_visibility": "private"}
    seen = [slider, found, curve, difference, insight]
    example.click(lambda: (str(EXAMPLE), ADD_NOISE), None, [video, settings[2]], api_visibility="private")
    opened = video.change(
        plainly(gr, show_file),
        video,
        [facts, slider, at, start],
        api_visibility="private",
        show_progress_on=[facts],
    )
    show = plainly(gr, show_preview)
    opened.success(show, [*settings, at], seen, show_progress_on=[slider], **work)
    gr.on(
        [*changes, at.release],
        show,
        [*settings, at],
        seen,
        show_progress_on=[slider],
        trigger_mode="always_last",
        **work,
    )
    outputs = [status, slider, before, after, download, results, start, stop]
    ended = start.click(plainly(gr, run), settings, outputs, show_progress_on=[status], **work)
    ended.then(idle, None, [start, stop], queue=False, show_progress="hidden", api_visibility="private")
    stop.click(_stopper(gr, studio), None, None, queue=False, api_visibility="private")


def settings_controls(gr: Any, studio: Studio) -> tuple[list[Any], list[Any]]:
    """Noise, strength and model, in the order of ``Settings``, and the events that outdate a preview."""
    mode = gr.Radio(
        [AS_IT_IS, ADD_NOISE], value=AS_IT_IS, label="Noise", elem_id="mode",
        info="Clean the noise that is there, or spoil a clean clip first, so that the true error is known.",
    )  # fmt: skip
    with gr.Group(visible=False) as adding:
        unit = gr.Radio(
            [SIGMA, GAMMA],
            value=SIGMA,
            label="Level as",
            info="γ is σ as a share of σₓ, the spread of all pixels.",
        )
        sigma = gr.Slider(
            0, 100, value=25, step=1, label="Added noise σ", info="Deviation on the 0–255 scale."
        )
        gamma = gr.Slider(
            0,
            1.5,
            value=0.25,
            step=0.01,
            label="Added noise γ",
            info="σ = γ·σₓ, as in the benchmark.",
            visible=False,
        )
    strength = gr.Radio(
        [AUTO, BY_HAND], value=AUTO, label="Strength", elem_id="strength",
        info="How much noise the network is told to expect: estimated from the clip, or yours.",
    )  # fmt: skip
    by_hand = gr.Slider(
        0,
        100,
        value=25,
        step=1,
        label="Strength σ",
        info="Higher cleans more, and smooths more.",
        visible=False,
    )
    model = gr.Dropdown(
        list(studio.models), value=_default(studio.models), label="Model", elem_id="model",
        info="dust is the one to use; the others are there to compare.",
    )  # fmt: skip
    local: dict[str, Any] = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}
    mode.change(lambda m: gr.update(visible=m == ADD_NOISE), mode, adding, **local)
    unit.change(
        lambda u: (gr.update(visible=u == SIGMA), gr.update(visible=u == GAMMA)),
        unit,
        [sigma, gamma],
        **local,
    )
    strength.change(lambda s: gr.update(visible=s == BY_HAND), strength, by_hand, **local)
    changes = [
        mode.input,
        unit.input,
        sigma.release,
        gamma.release,
        strength.input,
        by_hand.release,
        model.input,
    ]
    return [model, mode, unit, sigma, gamma, strength, by_hand], changes


def plainly(gr: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a generator or function tell what went wrong in one line on the page, not in a trace."""

    def complaint(error: Exception) -> Any:
        return gr.Error(page.one_line(error), title="That did not work", print_exception=False)

    @functools.wraps(function)
    def telling(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TROUBLE as error:
            raise complaint(error) from error

    @functools.wraps(function)
    def telling_steps(*args: Any, **options: Any) -> Iterator[Any]:
        try:
            yield from function(*args, **options)
        except TROUBLE as error:
            raise complaint(error) from error

    return telling_steps if function.__name__ == "run" else telling


def _stopper(gr: Any, studio: Studio) -> Callable[..., None]:
    def ask_to_stop(request: gr.Request) -> None:
        studio.stop(request.session_hash or "")

    return ask_to_stop


def sigma_x(model: Any) -> float:
    """σₓ of a model's training pixels on the 0–255 scale, which γ is a share of.

    Raises:
        ValueError: if its card does not say.
    """
    value = model.card.get("sigma_x")
    if value is None:
        raise ValueError("this model's card has no sigma_x; give the level as σ")
    return float(value)


def _given(video: str | None) -> str:
    if video is None:
        raise ValueError("there is no video yet; drop one in, or use the example clip")
    return video


def _rgb(frame: Any) -> Any:
    return frame.repeat(3, axis=2) if frame.shape[2] == 1 else frame


def _default(models: dict[str, Path]) -> str | None:
    return "dust" if "dust" in models else next(iter(models), None)


def launch_options(limits: Limits) -> dict[str, Any]:
    """Keyword arguments of Gradio's ``launch`` that do not depend on the command line."""
    import gradio as gr

    return {
        "max_file_size": int(limits.megabytes * 1e6),
        "allowed_paths": [str(EXAMPLE.parent)],
        "ssr_mode": False,
        # Fonts of the reader's own system: nothing is fetched from anywhere else.
        "theme": gr.themes.Default(
            primary_hue="indigo",
            neutral_hue="slate",
            radius_size="lg",
            font=["system-ui", "sans-serif"],
            font_mono=["ui-monospace", "monospace"],
        ),
        "css": page.CSS,
        "head": page.SYNC,
        "footer_links": ["api"],
    }


def build_parser() -> argparse.ArgumentParser:
    """The command line of the app."""
    parser = argparse.ArgumentParser(description="vdenoise in the browser, for this machine only by default.")
    add = parser.add_argument
    add(
        "--host",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 opens it to the network (default: 127.0.0.1)",
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
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
