"""A whole file cleaned while somebody watches: progress, a stop that keeps what is done, the score."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vdenoise.metrics import mse_per_frame
from vdenoise.restore import denoise_stream, resolve
from vdenoise.studio.preview import Limits, Noise, admit, to_tensor
from vdenoise.tiling import OVERLAP, TILE, WINDOW, halo
from vdenoise.video import Reader, VideoError, Writer

SUFFIX = "_clean"
PLAYABLE = {"h264"}  # what every browser decodes, in mp4
CRF_BEFORE = 23  # noise costs many bits, and this copy is only to be looked at


class Stopped(Exception):
    """A job was asked to stop while the network was at work."""


@dataclass(frozen=True)
class Progress:
    """How far a job is.

    Args:
        done: frames written.
        total: frames of the source.
        seconds: since the start.
        ahead: frames' worth of work already put into those that are still inside the network.
        since: seconds since one of these numbers last changed.
        before: the last frame that was done, as the network saw it; None at the start.
        after: the same frame, clean.
    """

    done: int
    total: int
    seconds: float
    ahead: float = 0.0
    since: float = 0.0
    before: np.ndarray | None = None
    after: np.ndarray | None = None

    @property
    def share(self) -> float:
        """Of the work, 0–1."""
        return min(1.0, (self.done + self.ahead) / max(1, self.total))

    @property
    def rate(self) -> float:
        """Frames per second up to the last change."""
        spent = self.seconds - self.since
        return (self.done + self.ahead) / spent if spent > 0 else 0.0

    @property
    def left(self) -> float:
        """Seconds that remain at this rate; inf while there is none."""
        return max(0.0, (1 - self.share) * self.total / self.rate - self.since) if self.rate else math.inf


@dataclass(frozen=True)
class Outcome:
    """What a job has made.

    Args:
        clean: the clean video.
        before: what went in, in a form that browsers play.
        progress: at the end.
        stopped: it was stopped; the files hold the frames up to there.
        rmse: (before, after) on 0–255, pooled, where the truth is known.
        psnr: (before, after) in dB, likewise.
    """

    clean: Path
    before: Path
    progress: Progress
    stopped: bool
    rmse: tuple[float, float] | None = None
    psnr: tuple[float, float] | None = None


def clean_file(
    source: str | Path,
    folder: str | Path,
    model: Any,
    *,
    sigma: float | str = "auto",
    noise: Noise | None = None,
    limits: Limits | None = None,
    stop: threading.Event | None = None,
    tick: Callable[[float], None] = lambda ahead: None,
    device: str = "auto",
) -> Iterator[Progress | Outcome]:
    """Clean a file into a folder, frame by frame in bounded memory.

    The clean file is H.264 in mp4 with the source's timing and sound, named after the source.

    Args:
        source: the video.
        folder: where the results go; it must exist.
        model: a model, a shipped name or a path.
        sigma: on the 0–255 scale, or "auto".
        noise: what to put on first; the file then counts as the truth.
        limits: what is taken in.
        stop: set it and the job ends at the next layer or frame, with what is done.
        tick: called after every layer with the frames' worth of work that is done inside the network.
        device: as in ``vdenoise.denoise``.

    Yields:
        Progress after every frame, and at last one Outcome.

    Raises:
        VideoError: if the source can't be read, the results can't be written, or nothing was done.
    """
    folder, stop = Path(folder), stop or threading.Event()
    net, device = resolve(model, device)
    with admit(source, limits) as reader:
        clean = folder / f"{reader.path.stem}{SUFFIX}.mp4"
        copied = noise is not None or not plays_as_it_is(reader)
        before_path = folder / f"{reader.path.stem}_before.mp4" if copied else reader.path
        inside: deque[tuple[np.ndarray, np.ndarray]] = deque()  # (truth, given) of frames in the network
        tally, started = _Tally(), time.monotonic()
        progress = Progress(0, len(reader), 0.0)
        yield progress

        def given() -> Iterator[np.ndarray]:
            generator = noise.generator() if noise else None
            for truth in reader:
                if stop.is_set():
                    return
                frame = noise.put_on(truth[None], generator)[0] if noise and generator else truth
                inside.append((truth, frame))
                yield frame

        with ExitStack() as files:
            writer = files.enter_context(Writer(clean, like=reader, sound="browser", overwrite=True))
            beside = None
            if copied:
                beside = Writer(before_path, like=reader, sound="browser", overwrite=True, crf=CRF_BEFORE)
                files.enter_context(beside)
            try:
                with _watched(
                    net, reader, stop, lambda part: tick(part * min(len(inside), WINDOW - OVERLAP))
                ):
                    for after in denoise_stream(given(), net, sigma, device):
                        truth, before = inside.popleft()
                        writer.write(even(after))
                        if beside:
                            beside.write(even(before))
                        if noise:
                            tally.add(truth, before, after)
                        seconds = time.monotonic() - started
                        progress = Progress(
                            progress.done + 1, len(reader), seconds, before=before, after=after
                        )
                        yield progress
                        if stop.is_set():
                            break
            except Stopped:
                pass  # what is written stays
            if not progress.done:
                raise VideoError(f"{reader.path.name}: stopped before a frame was done; nothing is kept")
        rmse, psnr = tally.scores() if noise else (None, None)
        yield Outcome(clean, before_path, progress, progress.done < progress.total, rmse, psnr)


def watch(
    job: Callable[[Callable[[float], None]], Iterator[Progress | Outcome]],
    stop: threading.Event,
    every: float = 0.5,
) -> Iterator[Progress | Outcome]:
    """Run a job in a thread of its own and tell how far it is at even intervals, whatever a frame takes.

    Leaving the iteration stops the job and waits for it.

    Args:
        job: given a ``tick``, the iterator of :func:`clean_file`.
        stop: the event that ends it.
        every: seconds between two reports.
    """
    started = time.monotonic()
    latest, changed = Progress(0, 0, 0.0), started

    def tick(ahead: float) -> None:
        nonlocal latest, changed
        latest, changed = replace(latest, ahead=ahead), time.monotonic()

    def work() -> Outcome | None:
        nonlocal latest, changed
        for step in job(tick):
            if isinstance(step, Outcome):
                return step
            latest, changed = step, time.monotonic()
        return None

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            while not future.done():
                wait([future], timeout=every)
                now = time.monotonic()
                if latest.total and not future.done():
                    yield replace(latest, seconds=now - started, since=now - changed)
            if (outcome := future.result()) is not None:
                yield outcome
        finally:
            stop.set()


@contextmanager
def _watched(
    net: Any, reader: Reader, stop: threading.Event, report: Callable[[float], None]
) -> Iterator[None]:
    """Look at ``stop`` before every layer, and report the share of a window that is done after each.

    Only in this thread: others may use the same network.
    """
    reach, step = halo(net)
    side = max(step, TILE // step * step)
    sizes = reader.height, reader.width
    whole = all(size <= TILE + 2 * reach for size in sizes)
    tiles = 1 if whole else math.prod(-(-size // side) for size in sizes)
    layers = [layer for group in net.modules() if isinstance(group, torch.nn.ModuleList) for layer in group]
    calls = dict.fromkeys(
        layers, 0
    )  # within a tile; a layer may go through it in pieces, or be used repeatedly
    per_tile, done, thread = 0, 0, threading.get_ident()

    def before(*_: Any) -> None:
        if threading.get_ident() == thread and stop.is_set():
            raise Stopped

    def after_layer(layer: Any, *_: Any) -> None:
        if threading.get_ident() == thread:
            calls[layer] += 1
            # Of the first tile the number of calls is known once the second layer has begun.
            total = per_tile or (
                calls[layers[0]] * len(layers) if calls[layers[0]] < sum(calls.values()) else 0
            )
            report((done % tiles + min(1.0, sum(calls.values()) / total if total else 0.0)) / tiles)

    def after_tile(*_: Any) -> None:
        nonlocal per_tile, done
        if threading.get_ident() == thread:
            per_tile, done = sum(calls.values()), done + 1
            calls.update(dict.fromkeys(layers, 0))
            report((done % tiles) / tiles)

    handles = [module.register_forward_pre_hook(before) for module in [net, *layers]]
    handles += [net.register_forward_hook(after_tile)]
    handles += [layer.register_forward_hook(after_layer) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def plays_as_it_is(reader: Reader) -> bool:
    """Browsers can be relied on to show the source itself."""
    info = reader.info
    return (
        info is not None
        and info.codec in PLAYABLE
        and info.pix_fmt == "yuv420p"
        and info.container.startswith("mov")
        and info.path.suffix.lower() in (".mp4", ".m4v")
    )


def even(frame: np.ndarray) -> np.ndarray:
    """Repeat the last row or column of odd sizes: 4:2:0, which browsers play, has a colour for every 2×2."""
    height, width = frame.shape[:2]
    if height % 2 == 0 and width % 2 == 0:
        return frame
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


class _Tally:
    """Squared errors of a stream, pooled."""

    def __init__(self) -> None:
        self.sums, self.count = [0.0, 0.0], 0

    def add(self, truth: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
        clean = to_tensor(truth[None])
        for i, frame in enumerate((before, after)):
            self.sums[i] += float(mse_per_frame(to_tensor(frame[None]), clean))
        self.count += 1

    def scores(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """RMSE on 0–255 and PSNR in dB, each before and after."""
        a, b = (total / self.count for total in self.sums)
        return (255 * a**0.5, 255 * b**0.5), (_decibels(a), _decibels(b))


def _decibels(mse: float) -> float:
    return -10 * math.log10(mse) if mse > 0 else math.inf
