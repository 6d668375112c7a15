"""Decoding in a thread of its own: ahead of the reader by a little, and never waited for without end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from vdenoise.video.probe import VideoError

LIMIT = 60.0  # seconds that one frame may take; a frame of 8K takes well under one
PATIENCE = 2.0  # seconds that a thread has to close its file when nobody reads on
AHEAD = 2  # frames decoded before they are asked for: decoding and cleaning go side by side
T = TypeVar("T")


def in_time(source: Callable[[], Iterator[T]], what: str, limit: float | None = None) -> Iterator[T]:
    """The items of an iterator that runs in a thread; an error if one takes longer than ``limit``.

    A native decoder that hangs can't be stopped from outside: its thread is left behind, asleep. Native code
    must let other threads run while it works, as Decord and PyAV do.

    Args:
        source: makes the iterator; called in the thread.
        what: its name in the message.
        limit: seconds; None is ``LIMIT``.

    Raises:
        VideoError: after the limit.
        Exception: what the iterator raises.
    """
    limit = LIMIT if limit is None else limit
    box: queue.Queue[tuple[str, T | BaseException | None]] = queue.Queue(maxsize=AHEAD)
    left = threading.Event()

    def put(kind: str, value: T | BaseException | None = None) -> None:
        while not left.is_set():
            try:
                box.put((kind, value), timeout=0.1)
            except queue.Full:
                continue
            return

    def work() -> None:
        items = source()
        try:
            for item in items:
                put("item", item)
                if left.is_set():
                    break
            put("end")
        except BaseException as error:  # it belongs to whoever reads
            put("error", error)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    thread = threading.Thread(target=work, name=f"decode {what}", daemon=True)
    thread.start()
    stuck = False
    try:
        while True:
            try:
                kind, value = box.get(timeout=limit)
            except queue.Empty:
                stuck = True
                raise VideoError(
                    f"{what}: the decoder has not answered for {limit:g} s and is left alone; the file is"
                    " damaged, or lies on a drive that does not answer: copy or re-encode it"
                ) from None
            if kind == "end":
                return
            if isinstance(value, BaseException):
                raise value
            yield value  # type: ignore[misc]
    finally:
        left.set()
        patience = 0.0 if stuck else PATIENCE
        while patience > 0 and thread.is_alive():  # it closes its file before the reader goes on
            with suppress(queue.Empty):
                box.get_nowait()  # makes room for what it is about to put
            thread.join(0.01)
            patience -= 0.01
