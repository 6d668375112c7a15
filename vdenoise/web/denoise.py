"""The first tab: a video in, a preview, the settings, the job, both videos, the download."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vdenoise.noise import NOISES
from vdenoise.studio.filejob import Outcome
from vdenoise.studio.preview import removed
from vdenoise.studio.sessions import ADD_NOISE, AS_IT_IS, AUTO, BY_HAND, GAMMA, SIGMA, Settings, Studio
from vdenoise.web import page
from vdenoise.web.events import (
    LOOK,
    PAGE,
    QUICK,
    WORK,
    default_model,
    plainly,
    rgb,
    stopper,
    uploads_only,
)

STILL = 1.5  # seconds between two pictures of a running job


def denoise_tab(studio: Studio, example: Path | None) -> None:
    """Video in, preview, settings, job, videos, download."""
    import gradio as gr

    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            video = uploads_only(
                gr.Video(label="Noisy video", sources=["upload", "webcam"], height=310, elem_id="source")
            )
            try_it = gr.Button(page.USE, size="sm", visible=example is not None, elem_id="example")
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
            leave = gr.Button("Leave the queue", visible=False, elem_id="leave")
            stop = gr.Button("Stop and keep what is done", variant="stop", visible=False, elem_id="stop")
            status = gr.HTML(elem_id="status", elem_classes="queued")
        with gr.Column(scale=7, min_width=320):
            with gr.Row(visible=False) as insight:
                with gr.Column(min_width=280):  # side by side on a desk, one above the other on a phone
                    curve = gr.HTML(elem_id="curve", min_height=250)
                with gr.Column(min_width=260):
                    difference = gr.Image(
                        label="What was removed, ×4", buttons=["fullscreen"], elem_id="difference"
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
            slider: (rgb(known.first),) * 2,
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
            return {found: gr.skip()}  # Gradio takes an empty dictionary for a value
        seen = studio.preview(Settings(*chosen), second)
        pair = rgb(seen.before[seen.middle]), rgb(seen.after[seen.middle])
        return {
            slider: pair,
            found: page.preview_html(seen),
            curve: page.curve_html(seen),
            difference: removed(*pair),
            insight: gr.update(visible=True),
        }

    def run(
        video: str | None, model: str, mode: str, unit: str, sigma: float, gamma: float, strength: str,
        by_hand: float, kind: str, request: gr.Request,
    ) -> Iterator[Any]:  # fmt: skip
        chosen = Settings(video, model, mode, unit, sigma, gamma, strength, by_hand, kind)
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
                news[slider] = rgb(step.before), rgb(step.after)
            yield news

    def only(button: Any) -> dict[Any, Any]:
        return {each: gr.update(visible=each is button) for each in (start, leave, stop)}

    busy = only(stop)
    buttons: dict[str, Any] = {"inputs": None, "outputs": [start, leave, stop], **QUICK}
    everything = [facts, slider, found, at, start, leave, stop, status, insight, curve, difference]
    everything += [results, outcome, before, after, download]
    try_it.click(lambda: (str(example), ADD_NOISE), None, [video, controls[1]], **PAGE)
    opened = video.change(plainly(show_file), video, everything, show_progress_on=[facts], **PAGE)
    opened.failure(lambda: {**clear(), video: None}, None, [*everything, video], **QUICK)
    show: dict[str, Any] = {
        "fn": plainly(show_preview), "inputs": [*settings, at], "outputs": everything,
        "show_progress_on": [slider], "trigger_mode": "always_last", **LOOK, **PAGE,
    }  # fmt: skip
    opened.success(**show)
    gr.on([*changes, at.release], **show)
    waiting = start.click(
        lambda: {**only(leave), status: page.note(page.WAITING)}, None, [*everything], **QUICK
    )
    work = waiting.then(plainly(run), settings, everything, show_progress_on=[status], **WORK, **PAGE)
    work.then(lambda: only(start), **buttons)
    work.failure(lambda: "", None, status, **QUICK)
    leave.click(lambda: {**only(start), status: ""}, None, [*everything], cancels=[work], **QUICK)
    stop.click(stopper(studio), None, None, **QUICK)


def settings_controls(studio: Studio) -> tuple[list[Any], list[Any]]:
    """Model, noise and strength, in the order of ``Settings``, and the events that outdate a preview."""
    import gradio as gr

    with gr.Group():
        mode = gr.Radio(
            [AS_IT_IS, ADD_NOISE], value=AS_IT_IS, label="Noise", elem_id="mode",
            info="Clean what noise is there, or spoil a clean clip first: then the true error is known.",
        )  # fmt: skip
        kind = gr.Dropdown(
            list(NOISES), value="gaussian", label="Kind of noise", visible=False, elem_id="kind",
            info="dust has learned gaussian noise; the other kinds are unknown to it.",
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
            list(studio.models), value=default_model(studio), label="Model", elem_id="model",
            info="dust is the one to use; the others are there to compare.",
        )  # fmt: skip

    def show_levels(mode: str, unit: str) -> Any:
        added = mode == ADD_NOISE
        return [
            gr.update(visible=v) for v in (added, added, added and unit == SIGMA, added and unit == GAMMA)
        ]

    gr.on([mode.change, unit.change], show_levels, [mode, unit], [kind, unit, sigma, gamma], **QUICK)
    strength.change(lambda s: gr.update(visible=s == BY_HAND), strength, by_hand, **QUICK)
    changes = [mode.input, kind.input, unit.input, sigma.release, gamma.release]
    changes += [strength.input, by_hand.release, model.input]
    return [model, mode, unit, sigma, gamma, strength, by_hand, kind], changes
