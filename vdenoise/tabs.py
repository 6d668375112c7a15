"""The app's tabs: which controls there are and what each does.

Gradio is imported inside functions, since that takes seconds. Annotations are not postponed in this module:
Gradio finds the parameter for the request by its type, which is a local name here.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vdenoise import page
from vdenoise.compare import GAMMAS, to_csv, to_png
from vdenoise.filejob import Outcome
from vdenoise.preview import removed
from vdenoise.studio import ADD_NOISE, AS_IT_IS, AUTO, BY_HAND, GAMMA, SIGMA, Settings, Studio

USE = "Use the example clip"
STILL = 1.5  # seconds between two pictures of a running job
TROUBLE = (ValueError, OSError, MemoryError, RuntimeError)  # told in one line; RuntimeError is torch's
WORK: dict[str, Any] = {"concurrency_id": "network", "concurrency_limit": 1}  # one at a time, the rest queues
PAGE: dict[str, Any] = {"api_visibility": "private"}  # the page's own events are no endpoints
QUICK: dict[str, Any] = {**PAGE, "queue": False, "show_progress": "hidden"}


def denoise_tab(studio: Studio, example: Path | None) -> None:
    """Video in, preview, settings, job, videos, download."""
    import gradio as gr

    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            video = uploads_only(
                gr.Video(label="Noisy video", sources=["upload", "webcam"], height=280, elem_id="source")
            )
            try_it = gr.Button(USE, size="sm", visible=example is not None, elem_id="example")
            facts = gr.HTML(elem_id="facts")
        with gr.Column(scale=7, min_width=320):
            slider = gr.ImageSlider(
                label="Before | after", elem_id="slider", max_height=400, buttons=["fullscreen"]
            )
            found = gr.HTML(page.GUIDE, elem_id="found")
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            controls, changes = settings_controls(studio)
            settings = [video, *controls]
            at = gr.Slider(
                0, 1, value=0, step=1, interactive=False, label="Preview from second",
                info="Where the second that you see begins.",
            )  # fmt: skip
            start = gr.Button("Denoise", variant="primary", interactive=False, elem_id="start")
            stop = gr.Button("Stop and keep what is done", variant="stop", visible=False, elem_id="stop")
            status = gr.HTML(elem_id="status")
        with gr.Column(scale=7, min_width=320):
            with gr.Row(visible=False) as insight:
                curve = gr.HTML(elem_id="curve", min_height=250)
                difference = gr.Image(
                    label="What was removed, ×4", min_width=260, buttons=["fullscreen"], elem_id="difference"
                )
            with gr.Column(visible=False) as results:
                outcome = gr.HTML(elem_id="outcome")
                with gr.Row():
                    shown: dict[str, Any] = {"interactive": False, "min_width": 260, "buttons": []}
                    before = gr.Video(label="Before", elem_id="before", **shown)
                    after = gr.Video(label="After", elem_id="after", **shown)
                download = gr.DownloadButton(
                    "Download the clean video", variant="primary", elem_id="download"
                )

    def show_file(path: str | None) -> Any:
        if path is None:
            return clear()
        known = studio.look(path)
        latest = math.ceil(max(0.0, known.seconds - 1))
        return {
            facts: page.facts_html(known),
            slider: (_rgb(known.first),) * 2,
            at: gr.update(maximum=max(1, latest), value=0, interactive=latest > 0),
            start: gr.update(interactive=bool(studio.models)),
            **dict.fromkeys([found, status], ""),
            **dict.fromkeys([insight, results], gr.update(visible=False)),
        }

    def clear() -> Any:
        return {
            **dict.fromkeys([facts, status], ""),
            found: page.GUIDE,
            slider: None,
            start: gr.update(interactive=False),
            **dict.fromkeys([insight, results], gr.update(visible=False)),
        }

    def show_preview(*values: Any) -> Any:
        *chosen, second = values
        if chosen[0] is None or not studio.models:
            return {}
        seen = studio.preview(Settings(*chosen), second)
        pair = _rgb(seen.before[seen.middle]), _rgb(seen.after[seen.middle])
        return {
            slider: pair,
            found: page.preview_html(seen),
            curve: page.curve_html(seen),
            difference: removed(*pair),
            insight: gr.update(visible=True),
        }

    def run(
        video: str | None, model: str, mode: str, unit: str, sigma: float, gamma: float, strength: str,
        by_hand: float, request: gr.Request,
    ) -> Iterator[Any]:  # fmt: skip
        chosen = Settings(video, model, mode, unit, sigma, gamma, strength, by_hand)
        last, picture = 0.0, None
        for step in studio.run(chosen, request.session_hash or ""):
            if isinstance(step, Outcome):
                yield {
                    status: "", outcome: page.outcome_html(step),
                    before: str(step.before), after: str(step.clean),
                    download: str(step.clean), results: gr.update(visible=True),
                }  # fmt: skip
                return
            news: dict[Any, Any] = {status: page.progress_html(step), **busy}
            if step.after is not None and step.after is not picture and step.seconds - last >= STILL:
                last, picture = step.seconds, step.after
                news[slider] = _rgb(step.before), _rgb(step.after)
            yield news

    busy = {start: gr.update(visible=False), stop: gr.update(visible=True)}
    idle = {start: gr.update(visible=True), stop: gr.update(visible=False)}
    everything = [facts, slider, found, at, start, stop, status, insight, curve, difference]
    everything += [results, outcome, before, after, download]
    try_it.click(lambda: (str(example), ADD_NOISE), None, [video, controls[1]], **PAGE)
    opened = video.change(plainly(show_file), video, everything, show_progress_on=[facts], **PAGE)
    opened.failure(lambda: {**clear(), video: None}, None, [*everything, video], **QUICK)
    show: dict[str, Any] = {
        "fn": plainly(show_preview), "inputs": [*settings, at], "outputs": everything,
        "show_progress_on": [slider], "trigger_mode": "always_last", **WORK, **PAGE,
    }  # fmt: skip
    opened.success(**show)
    gr.on([*changes, at.release], **show)
    ended = start.click(plainly(run), settings, everything, show_progress_on=[status], **WORK, **PAGE)
    ended.then(lambda: idle, None, [start, stop], **QUICK)
    stop.click(stopper(studio), None, None, **QUICK)


def settings_controls(studio: Studio) -> tuple[list[Any], list[Any]]:
    """Model, noise and strength, in the order of ``Settings``, and the events that outdate a preview."""
    import gradio as gr

    with gr.Group():
        mode = gr.Radio(
            [AS_IT_IS, ADD_NOISE], value=AS_IT_IS, label="Noise", elem_id="mode",
            info="Clean what noise is there, or spoil a clean clip first: then the true error is known.",
        )  # fmt: skip
        unit = gr.Radio(
            [SIGMA, GAMMA], value=SIGMA, label="Level as", visible=False,
            info="γ is σ as a share of σₓ, the spread of the training pixels.",
        )  # fmt: skip
        sigma = gr.Slider(
            0,
            100,
            value=25,
            step=1,
            label="Added noise σ",
            info="Deviation on the 0–255 scale.",
            visible=False,
        )
        gamma = gr.Slider(
            0, 1.5, value=0.25, step=0.01, label="Added noise γ", info="σ = γ·σₓ, as in the benchmark.",
            visible=False,
        )  # fmt: skip
        strength = gr.Radio(
            [AUTO, BY_HAND], value=AUTO, label="Strength", elem_id="strength",
            info="How much noise the network is told to expect: estimated from the clip, or yours.",
        )  # fmt: skip
        by_hand = gr.Slider(
            0, 100, value=25, step=1, label="Strength σ", visible=False,
            info="Higher cleans more, and smooths more.",
        )  # fmt: skip
        model = gr.Dropdown(
            list(studio.models), value=_default(studio), label="Model", elem_id="model",
            info="dust is the one to use; the others are there to compare.",
        )  # fmt: skip

    def show_levels(mode: str, unit: str) -> Any:
        added = mode == ADD_NOISE
        return [gr.update(visible=v) for v in (added, added and unit == SIGMA, added and unit == GAMMA)]

    gr.on([mode.change, unit.change], show_levels, [mode, unit], [unit, sigma, gamma], **QUICK)
    strength.change(lambda s: gr.update(visible=s == BY_HAND), strength, by_hand, **QUICK)
    changes = [mode.input, unit.input, sigma.release, gamma.release]
    changes += [strength.input, by_hand.release, model.input]
    return [model, mode, unit, sigma, gamma, strength, by_hand], changes


def benchmark_tab(studio: Studio, example: Path | None) -> None:
    """RMSE over γ on a clean clip for several models, as it is measured."""
    import gradio as gr

    names = list(studio.models)
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            clip = uploads_only(
                gr.Video(label="Clean video", sources=["upload"], height=240, elem_id="clean")
            )
            try_it = gr.Button(USE, size="sm", visible=example is not None, elem_id="bench-example")
            models = gr.CheckboxGroup(
                names, value=names[:3], label="Models", elem_id="bench-models",
                info="Those that end in _erm were trained without layer descent; they are drawn dashed.",
            )  # fmt: skip
            gammas = gr.CheckboxGroup(
                [f"{g:g}" for g in GAMMAS], value=["0.05", "0.25", "0.5", "1"], label="Noise levels γ",
                elem_id="bench-gammas", info="The noise has deviation γ·σₓ, σₓ from the first model's card.",
            )  # fmt: skip
            with gr.Row():
                start = gr.Button("Measure", variant="primary", elem_id="measure")
                stop = gr.Button("Stop", variant="stop", elem_id="bench-stop")
        with gr.Column(scale=7, min_width=320):
            table = gr.HTML(page.BENCHMARK, elem_id="bench-table")
            with gr.Row():
                as_csv = gr.DownloadButton("Table as CSV", visible=False, elem_id="csv")
                as_png = gr.DownloadButton("Curves as PNG", visible=False, elem_id="png")

    def measure(clip: str | None, models: list[str], gammas: list[str], request: gr.Request) -> Iterator[Any]:
        hidden = gr.update(visible=False)
        cells: list[Any] = []
        levels = sorted(float(g) for g in gammas)
        folder = studio.folder
        for cells, folder in studio.measure(clip, models, levels, request.session_hash or ""):  # noqa: B007
            yield page.comparison_html(cells), hidden, hidden
        if cells:
            name = Path(clip or "").stem
            (folder / f"{name}_rmse.csv").write_text(to_csv(cells), encoding="utf-8")
            to_png(cells, folder / f"{name}_rmse.png", name)
            files = [
                gr.update(value=str(folder / f"{name}_rmse.{kind}"), visible=True) for kind in ("csv", "png")
            ]
            yield page.comparison_html(cells), *files

    try_it.click(lambda: str(example), None, clip, **PAGE)
    outputs = [table, as_csv, as_png]
    start.click(plainly(measure), [clip, models, gammas], outputs, show_progress_on=[table], **WORK, **PAGE)
    stop.click(stopper(studio), None, None, **QUICK)


def endpoints(studio: Studio) -> None:
    """What programs call, through gradio_client: ``/look`` and ``/denoise``, with the limits of the page."""
    import gradio as gr

    with gr.Row(visible=False):
        video = uploads_only(gr.File(label="video", type="filepath"))
        model = gr.Dropdown(list(studio.models), value=_default(studio), label="model")
        sigma = gr.Number(None, label="sigma", minimum=0, maximum=255)
        added = gr.Number(None, label="added_sigma", minimum=0, maximum=255)
        report, clean = gr.JSON(label="report"), gr.File(label="clean")
        call_look, call_denoise = gr.Button(), gr.Button()

    def look(video: str) -> dict[str, Any]:
        """Size, length, sound and estimated noise of a video."""
        return page.facts_dict(studio.look(video))

    def denoise(
        video: str, model: str, sigma: float | None, added_sigma: float | None, request: gr.Request
    ) -> Iterator[tuple[dict[str, Any], str | None]]:
        """The clean video, and how it went; sigma None estimates, added_sigma puts noise on first."""
        chosen = Settings(video, model)
        if sigma is not None:
            chosen = chosen._replace(strength=BY_HAND, by_hand=sigma)
        if added_sigma is not None:
            chosen = chosen._replace(mode=ADD_NOISE, sigma=added_sigma)
        for step in studio.run(chosen, request.session_hash or ""):
            yield page.step_dict(step), str(step.clean) if isinstance(step, Outcome) else None

    call_look.click(plainly(look), video, report, api_name="look")
    inputs = [video, model, sigma, added]
    call_denoise.click(plainly(denoise), inputs, [report, clean], api_name="denoise", **WORK)


def uploads_only(component: Any) -> Any:
    """Refuse addresses: a client may send a file, but not make this machine fetch one."""
    import gradio as gr

    move = component.async_move_resource_to_block_cache

    async def checked(path: str | Path | None) -> str | None:
        if path is not None and "://" in str(path):
            raise gr.Error("An address is not taken; upload the file itself.", print_exception=False)
        return await move(path)

    component.async_move_resource_to_block_cache = checked
    return component


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function, or a generator, tell what went wrong in one line on the page and not in a trace."""
    import gradio as gr

    def complaint(error: Exception) -> gr.Error:
        return gr.Error(page.one_line(error), title="That did not work", print_exception=False)

    @functools.wraps(function)
    def telling(*args: Any) -> Any:
        try:
            return function(*args)
        except TROUBLE as error:
            raise complaint(error) from error

    @functools.wraps(function)
    def telling_steps(*args: Any) -> Iterator[Any]:
        try:
            yield from function(*args)
        except TROUBLE as error:
            raise complaint(error) from error

    return telling_steps if inspect.isgeneratorfunction(function) else telling


def stopper(studio: Studio) -> Callable[..., None]:
    """What ends the work of the session that asks, and of no other."""
    import gradio as gr

    def ask_to_stop(request: gr.Request) -> None:
        studio.stop(request.session_hash or "")

    return ask_to_stop


def _rgb(frame: Any) -> Any:
    return frame.repeat(3, axis=2) if frame.shape[2] == 1 else frame


def _default(studio: Studio) -> str | None:
    return "dust" if "dust" in studio.models else next(iter(studio.models), None)
