"""How fast a loader is, against the training step it feeds and against a plain OpenCV loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vdenoise.datasets.lanes import LaneStream, loader


def loader_speed(
    stream: LaneStream,
    *,
    batch: int,
    workers: int = 0,
    step: Callable[[torch.Tensor], object] | None = None,
    batches: int = 50,
    warm_up: int = 10,
) -> dict[str, Any]:
    """Time a stream through its loader.

    Args:
        stream: What to read.
        batch: Clips per batch.
        workers: Worker processes.
        step: The training step, called with the uint8 batch; None consumes at once.
        batches: Batches that are timed.
        warm_up: Batches before, in which videos are first opened.

    Returns:
        ``clips_per_second``; ``wait``, the fraction of the time spent waiting for a batch; ``wait_ms`` and
        ``step_ms``, medians per batch; ``first_batch_s``.
    """
    started = time.perf_counter()
    source = iter(loader(stream, batch, workers))
    waits, steps, first = [], [], 0.0
    for k in range(warm_up + batches):
        before = time.perf_counter()
        clips = next(source)
        between = time.perf_counter()
        first = first or between - started
        if step is not None:
            step(clips)
        if k >= warm_up:
            waits.append(between - before)
            steps.append(time.perf_counter() - between)
    total = sum(waits) + sum(steps)
    return {
        "clips_per_second": batch * batches / total,
        "wait": sum(waits) / total,
        "wait_ms": float(np.median(waits)) * 1e3,
        "step_ms": float(np.median(steps)) * 1e3,
        "first_batch_s": first,
        "workers": workers,
        "batch": batch,
    }


def opencv_speed(paths: Sequence[Path], *, frames: int, crop: int, clips: int = 500, crops: int = 1) -> float:
    """Clips per second of the loop everybody writes first: cv2.VideoCapture, windows in order, random crops.

    Args:
        paths: Videos, read one after the other, again and again.
        frames: T.
        crop: Side of the crop.
        clips: How many clips are timed.
        crops: Crops per window of T frames.

    Raises:
        ValueError: OpenCV reads no window out of any of the files.
    """
    import cv2

    rng = np.random.default_rng(0)
    done, started = 0, time.perf_counter()
    while done < clips:
        before = done
        for path in paths:
            capture = cv2.VideoCapture(str(path))
            window: list[np.ndarray] = []
            while done < clips:
                ok, frame = capture.read()
                if not ok:
                    break
                window.append(frame)
                if len(window) == frames:
                    for _ in range(crops):
                        y, x = (int(rng.integers(n - crop + 1)) for n in frame.shape[:2])
                        torch.from_numpy(np.stack([f[y : y + crop, x : x + crop] for f in window]))
                        done += 1
                    window.clear()
            capture.release()
        if done == before:
            raise ValueError(f"frames={frames}: OpenCV reads no such window from {len(paths)} files")
    return done / (time.perf_counter() - started)
