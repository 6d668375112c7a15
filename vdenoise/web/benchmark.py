"""The tab that compares models: RMSE over γ on a clean clip."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vdenoise.noise import NOISES
from vdenoise.studio.compare import GAMMAS, to_csv, to_png
from vdenoise.studio.sessions import Studio
from vdenoise.web import charts, page
from vdenoise.web.events import PAGE, QUICK, WORK, plainly, stopper, uploads_only


def benchmark_tab(studio: Studio, example: Path | None) -> None:
    """RMSE over γ on a clean clip for several models, as it is measured."""
    import gradio as gr

    names = list(studio.models)
    with gr.Row():
        with gr.Column(scale=4, min_width=320):
            clip = uploads_only(
                gr.Video(label="Clean video", sources=["upload"], height=240, elem_id="clean")
            )
            try_it = gr.Button(page.USE, size="sm", visible=example is not None, elem_id="bench-example")
            models = gr.CheckboxGroup(
                names, value=names[:3], label="Models", elem_id="bench-models",
                info="Those that end in _erm were trained without layer descent; they are drawn dashed.",
            )  # fmt: skip
            gammas = gr.CheckboxGroup(
                [f"{g:g}" for g in GAMMAS], value=["0.05", "0.25", "0.5", "1"], label="Noise levels γ",
                elem_id="bench-gammas", info="The noise has deviation γ·σₓ, σₓ from the first model's card.",
            )  # fmt: skip
            kind = gr.Dropdown(
                list(NOISES), value="gaussian", label="Kind of noise", elem_id="bench-kind",
                info="The shipped models were trained on gaussian noise.",
            )  # fmt: skip
            with gr.Row():
                start = gr.Button("Measure", variant="primary", elem_id="measure")
                stop = gr.Button("Stop", variant="stop", elem_id="bench-stop")
        with gr.Column(scale=7, min_width=320):
            table = gr.HTML(page.BENCHMARK, elem_id="bench-table")
            with gr.Row():
                as_csv = gr.DownloadButton("Table as CSV", visible=False, elem_id="csv")
                as_png = gr.DownloadButton("Curves as PNG", visible=False, elem_id="png")

    def measure(
        clip: str | None, models: list[str], gammas: list[str], kind: str, request: gr.Request
    ) -> Iterator[Any]:
        hidden = gr.update(visible=False)
        cells: list[Any] = []
        levels = sorted(float(g) for g in gammas)
        folder = studio.folder
        for cells, folder in studio.measure(  # noqa: B007
            clip, models, levels, request.session_hash or "", kind
        ):
            yield charts.comparison_html(cells), hidden, hidden
        if cells:
            name = Path(clip or "").stem
            (folder / f"{name}_rmse.csv").write_text(to_csv(cells), encoding="utf-8")
            to_png(cells, folder / f"{name}_rmse.png", name)
            files = [
                gr.update(value=str(folder / f"{name}_rmse.{kind}"), visible=True) for kind in ("csv", "png")
            ]
            yield charts.comparison_html(cells), *files

    try_it.click(lambda: str(example), None, clip, **PAGE)
    outputs = [table, as_csv, as_png]
    start.click(
        plainly(measure), [clip, models, gammas, kind], outputs, show_progress_on=[table], **WORK, **PAGE
    )
    stop.click(stopper(studio), None, None, **QUICK)
