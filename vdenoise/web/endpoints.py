"""What programs call, through gradio_client."""

from collections.abc import Iterator
from typing import Any

from vdenoise.studio.filejob import Outcome
from vdenoise.studio.sessions import ADD_NOISE, BY_HAND, Settings, Studio
from vdenoise.web import page
from vdenoise.web.events import WORK, default_model, plainly, uploads_only


def endpoints(studio: Studio) -> None:
    """``/look`` and ``/denoise``, with the limits of the page."""
    import gradio as gr

    with gr.Row(visible=False):
        video = uploads_only(gr.File(label="video", type="filepath"))
        model = gr.Dropdown(list(studio.models), value=default_model(studio), label="model")
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
