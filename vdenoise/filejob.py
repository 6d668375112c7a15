"""A whole file cleaned while somebody watches: progress, a stop that keeps what is done, the score."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vdenoise.metrics import mse_per_frame
from vdenoise.preview import Limits, Noise, admit, to_tensor
from vdenoise.restore import denoise_stream
from vdenoise.video import Reader, VideoError, Writer

SUFFIX = "_clean"
PLAYABLE = {"h264"}  # what every browser decodes; in mp4


@dataclass(frozen=True)
class Progress:
    """How far a job is.

    Args:
        done: frames written.
        total: frames of the source.
        seconds: since the start.
        before: the last frame that was read, as the network saw it; None at the start.
        after: the same frame, clean.
    """

    done: int
    total: int
    seconds: float
    before: np.ndarray | None = None
    after: np.ndarray | None = None

    @property
    def rate(self) -> float:
        """Frames per second so far."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float:
        """Seconds that remain at this rate; inf before the first frame."""
        return (self.total - self.done) / self.rate if self.rate else math.inf


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
        stop: set it and the job ends at the next frame, with what is done.
        device: as in ``vdenoise.denoise``.

    Yields:
        Progress after every frame, and at last one Outcome.

    Raises:
        VideoError: if the source can't be read or the results can't be written.
    """
    folder, stop = Path(folder), stop or threading.Event()
    with admit(source, limits) as reader:
        clean = folder / f"{reader.path.stem}{SUFFIX}.mp4"
        shown = folder / f"{reader.path.stem}_before.mp4"
        plays = noise is None and plays_as_it_is(reader)
        waiting: deque[tuple[np.ndarray, np.ndarray]] = deque()  # (truth, given) of frames inside the network
        tally = _Tally()
        progress = Progress(0, len(reader), 0.0)
        yield progress
        started = time.monotonic()

        def given() -> Iterator[np.ndarray]:
            generator = noise.generator() if noise else None
            for truth in reader:
                if stop.is_set():
                    return
                frame = noise.put_on(truth[None], generator)[0] if noise and generator else truth
                waiting.append((truth, frame))
                yield frame

        with Writer(clean, like=reader, overwrite=True) as writer:
            beside = None if plays else Writer(shown, like=reader, overwrite=True, crf=23)
            try:
                for after in denoise_stream(given(), model, sigma, device):
                    truth, before = waiting.popleft()
                    writer.write(even(after))
                    if beside:
                        beside.write(even(before))
                    if noise:
                        tally.add(truth, before, after)
                    progress = replace(
                        progress,
                        done=progress.done + 1,
                        seconds=time.monotonic() - started,
                        before=before,
                        after=after,
                    )
                    yield progress
                    if stop.is_set():
                        break
                if not progress.done:
                    raise VideoError(f"{reader.path} was stopped before a frame was done; nothing to keep")
            except BaseException:
                if beside:
                    beside.discard()
                raise
            if beside:
                beside.close()
        yield Outcome(
            clean,
            reader.path if plays else shown,
            progress,
            progress.done < progress.total,
            *(tally.scores() if noise else (None, None)),
        )


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
    return (
        np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if height % 2 or width % 2
        else frame
    )


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
        a, b = (total / self.count for total in self.sums)
        return (255 * a**0.5, 255 * b**0.5), (_decibels(a), _decibels(b))


def _decibels(mse: float) -> float:
    return -10 * math.log10(mse) if mse > 0 else math.inf
