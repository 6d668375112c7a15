"""The study, as a page of the app: ``docs/study.md`` where it is there, else the published paper."""

import base64
import mimetypes
import re
from pathlib import Path
from typing import Any

STUDY = Path(__file__).resolve().parents[2] / "docs" / "study.md"
PAPER = "https://arxiv.org/abs/2601.17257"
ADDRESS = "study" if STUDY.exists() else PAPER
MATHS: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "$", "right": "$", "display": False},
]


def study_page(app: Any) -> None:
    """Put the study at ``/study``."""
    import gradio as gr

    if STUDY.exists():
        with app.route("Study", "study", show_in_navbar=False):
            gr.Markdown(with_pictures(STUDY), latex_delimiters=MATHS, elem_id="study")


def with_pictures(path: Path) -> str:
    """A Markdown text with its own pictures inside, so that no folder has to be served for them."""

    def inline(found: re.Match[str]) -> str:
        words, name = found.groups()
        picture = (path.parent / name).resolve()
        if not (picture.is_relative_to(path.parent.resolve()) and picture.is_file()):
            return words  # on another host, or missing: the words alone
        kind = mimetypes.guess_type(picture)[0]
        return f"![{words}](data:{kind};base64,{base64.b64encode(picture.read_bytes()).decode()})"

    return re.sub(r"!\[([^\]]*)\]\(([^)\s]+)\)", inline, path.read_text(encoding="utf-8"))
