"""What all tabs share: how work queues, how errors are told, what stops a job, what a client may send."""

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vdenoise.studio.sessions import Studio
from vdenoise.web import page

TROUBLE = (ValueError, OSError, MemoryError, RuntimeError)  # told in one line; RuntimeError is torch's
WORK: dict[str, Any] = {"concurrency_id": "network", "concurrency_limit": 1}  # one at a time, the rest queues
LOOK: dict[str, Any] = {
    "concurrency_id": "preview",
    "concurrency_limit": 1,
}  # seconds: not behind somebody's hour
PAGE: dict[str, Any] = {"api_visibility": "private"}  # the page's own events are no endpoints
QUICK: dict[str, Any] = {**PAGE, "queue": False, "show_progress": "hidden"}


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


def rgb(frame: Any) -> Any:
    """A frame (H, W, C) as pictures are shown, with three channels."""
    return frame.repeat(3, axis=2) if frame.shape[2] == 1 else frame


def default_model(studio: Studio) -> str | None:
    """The model that is chosen at first: dust where it is there."""
    return "dust" if "dust" in studio.models else next(iter(studio.models), None)
