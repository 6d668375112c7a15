"""Windows of frames and random crops out of a list of videos, as a stream that never holds a whole video.

What is guaranteed (and tested): a sample is a function of the seed and its place in its lane alone, so the
same seed gives the same bytes, with any number of workers that divides the number of lanes (see
:mod:`vdenoise.datasets.lanes`). One pass over the sources shows every rank other visits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import cv2
import numpy as np
import torch
from numpy.random import Generator

from vdenoise.datasets.lanes import LaneStream, generator, shuffled
from vdenoise.datasets.sources import Source

Window = tuple[int, ...]
Augment = Callable[[torch.Tensor, Generator], torch.Tensor]


def _drop(count: int, frames: int, stride: int) -> list[Window]:
    """Whole windows only; frames past the last one are not seen."""
    return [tuple(range(s, s + frames)) for s in range(0, count - frames + 1, stride)]


def _shift(count: int, frames: int, stride: int) -> list[Window]:
    """As drop, and one more window that ends on the last frame where the stride left some over."""
    windows = _drop(count, frames, stride)
    if windows and windows[-1][-1] != count - 1:
        windows.append(tuple(range(count - frames, count)))
    return windows


def _repeat(count: int, frames: int, stride: int) -> list[Window]:
    """Every start; past the end the last frame is repeated. A short video gives windows all the same."""
    return [tuple(min(i, count - 1) for i in range(s, s + frames)) for s in range(0, count, stride)]


def _reflect(count: int, frames: int, stride: int) -> list[Window]:
    """Every start; past the end time runs back, the last frame not shown twice."""
    period = max(2 * count - 2, 1)
    fold = [min(i % period, period - i % period) if count > 1 else 0 for i in range(count + frames)]
    return [tuple(fold[s : s + frames]) for s in range(0, count, stride)]


BOUNDARIES: dict[str, Callable[[int, int, int], list[Window]]] = {
    "drop": _drop,
    "shift": _shift,
    "repeat": _repeat,
    "reflect": _reflect,
}


def windows_of(count: int, frames: int, stride: int, boundary: str = "shift") -> list[Window]:
    """Frame indices of every window of a video of ``count`` frames.

    Args:
        count: Frames in the video.
        frames: Window length T.
        stride: Frames between the starts of consecutive windows.
        boundary: A key of ``BOUNDARIES``.

    Raises:
        ValueError: Unknown boundary, or a length or stride below 1.
    """
    if boundary not in BOUNDARIES:
        raise ValueError(f"boundary={boundary!r}: expected one of {', '.join(BOUNDARIES)}")
    if frames < 1 or stride < 1:
        raise ValueError(f"frames={frames}, stride={stride}: both must be at least 1")
    return BOUNDARIES[boundary](count, frames, stride) if count else []


@dataclasses.dataclass(frozen=True)
class CropPlan:
    """How a crop is taken from a window; every choice holds for all frames of the window.

    Args:
        size: Side of the square crop S in pixels.
        downscale: Largest factor by which a region is shrunk (area average) to the crop; the factor is drawn
            log-uniformly from 1 to it. Sheds compression artefacts. 1 never shrinks.
        native: Share of crops taken without shrinking.
        flips: Whether to mirror, transpose and turn time around, each with probability ½.
        flat: A crop whose first frame varies less than this (standard deviation, 0–255) is drawn again once,
            so that black borders don't fill the stream. 0 keeps every first draw.
    """

    size: int
    downscale: float = 1.0
    native: float = 0.25
    flips: bool = True
    flat: float = 1.5

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size={self.size}: expected at least 1 pixel")
        if self.downscale < 1:
            raise ValueError(f"downscale={self.downscale}: expected a factor of at least 1")


def take_crop(window: Sequence[np.ndarray], plan: CropPlan, rng: Generator) -> torch.Tensor:
    """One random crop of a window.

    Args:
        window: T frames, uint8 (H, W, C).
        plan: How to crop.
        rng: Source of every choice.

    Returns:
        uint8 tensor (T, C, S, S).

    Raises:
        ValueError: The frames are smaller than the crop.
    """
    height, width, channels = window[0].shape
    if min(height, width) < plan.size:
        raise ValueError(
            f"crop={plan.size}: expected at most {min(height, width)} for frames of {width}×{height}; "
            "use a smaller crop"
        )
    for _ in range(2 if plan.flat else 1):
        limit = min(plan.downscale, min(height, width) / plan.size)
        factor = 1.0 if rng.random() < plan.native else float(limit ** rng.random())
        side = min(round(plan.size * factor), height, width)
        y, x = int(rng.integers(height - side + 1)), int(rng.integers(width - side + 1))
        if not plan.flat or window[0][y : y + side, x : x + side].std() >= plan.flat:
            break
    out = np.empty((len(window), plan.size, plan.size, channels), np.uint8)
    for t, frame in enumerate(window):
        region = frame[y : y + side, x : x + side]
        if side != plan.size:
            region = cv2.resize(region, (plan.size, plan.size), interpolation=cv2.INTER_AREA)
        out[t] = region.reshape(out.shape[1:])
    return oriented(out, rng) if plan.flips else _to_tensor(out)


def oriented(clip: np.ndarray, rng: Generator) -> torch.Tensor:
    """Mirror, transpose and reverse in time, each with probability ½: (T, S, S, C) -> tensor (T, C, S, S)."""
    mirror_y, mirror_x, transpose, back = rng.random(4) < 0.5
    clip = clip[:: -1 if back else 1, :: -1 if mirror_y else 1, :: -1 if mirror_x else 1]
    return _to_tensor(clip.swapaxes(1, 2) if transpose else clip)


def _to_tensor(clip: np.ndarray) -> torch.Tensor:
    # a copy even where numpy calls it contiguous: one reversed frame keeps a negative stride
    return torch.from_numpy(clip.transpose(0, 3, 1, 2).copy(order="C"))


class FrameCache:
    """Decoded videos kept in memory up to a budget; what does not fit is decoded again at every visit.

    Args:
        budget_mb: Most megabytes of frames to hold in this process.
    """

    def __init__(self, budget_mb: float):
        self.left = int(budget_mb * 1e6)
        self.frames: dict[Source, np.ndarray] = {}

    def admit(self, source: Source, reader: Any) -> np.ndarray | None:
        """The source's frames (n, H, W, C), read now if they fit the budget; None if they don't."""
        size = len(reader) * reader.height * reader.width * reader.channels
        if size > self.left:
            return None
        frames = reader.read(0, len(reader))
        self.left -= frames.nbytes
        self.frames[source] = frames
        return frames


class ClipStream(LaneStream):
    """Random crops of windows of frames, each video read in order through one reader.

    Videos are visited in a new seeded order on every pass. A visit walks one video once, front to back, and
    gives ``crops`` crops from each window (or from a random choice of ``windows`` of them). Readers are
    opened where the samples are made, that is inside the worker: Decord hangs when a reader crosses a fork.

    Args:
        sources: The videos; one named twice is visited twice a pass.
        frames: Window length T.
        plan: How crops are taken.
        seed: Everything random follows from it.
        stride: Frames between window starts; each visit draws a new phase.
        boundary: What happens at a video's end, a key of ``BOUNDARIES``.
        windows: Most windows used per visit, drawn at random, so that a long video weighs no more than a
            short one; None uses all.
        crops: Crops per window.
        buffer: Samples in the shuffle buffer, shared evenly by the lanes.
        cache_mb: Megabytes of decoded video to keep in memory, per worker. 0 keeps none.
        passes: Passes over the sources; None never ends.
        augment: Further change of a sample, such as :class:`~vdenoise.datasets.augment.KorniaVideo`.
        block, lanes, rank, world: See :class:`LaneStream`.

    Raises:
        ValueError: No source, or a setting out of range.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        *,
        frames: int,
        plan: CropPlan,
        seed: int,
        stride: int = 1,
        boundary: str = "shift",
        windows: int | None = None,
        crops: int = 4,
        buffer: int = 1024,
        cache_mb: float = 0,
        passes: int | None = None,
        augment: Augment | None = None,
        **lane_settings: Any,
    ):
        super().__init__(seed=seed, **lane_settings)
        self.sources = list(sources)
        if not self.sources:
            raise ValueError("sources is empty: expected at least one video")
        windows_of(1, frames, stride, boundary)  # complains here and not in a worker
        self.frames, self.plan, self.stride, self.boundary = frames, plan, stride, boundary
        self.windows, self.crops, self.passes, self.augment = windows, crops, passes, augment
        self.buffer = max(buffer // self.lanes, 1)
        self.cache_mb = cache_mb
        self._cache: FrameCache | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None}  # decoded frames don't travel to workers

    def lane(self, index: int) -> Iterator[torch.Tensor]:
        """The samples of every ``lanes``-th visit of this rank, shuffled."""
        if self._cache is None:
            self._cache = FrameCache(self.cache_mb)
        return shuffled(
            self._samples(index), self.buffer, generator(self.seed, self.epoch, 1, self.rank, index)
        )

    def _samples(self, index: int) -> Iterator[torch.Tensor]:
        count = len(self.sources)
        visit = self.rank + self.world * index
        barren: set[int] = set()  # videos too short for a window
        while self.passes is None or visit < self.passes * count:
            turn, place = divmod(visit, count)
            which = int(generator(self.seed, self.epoch, 0, turn).permutation(count)[place])
            rng = generator(self.seed, self.epoch, 2, turn, which)
            gave = False
            for window in self._windows(self.sources[which], rng):
                gave = True
                for _ in range(self.crops):
                    sample = take_crop(window, self.plan, rng)
                    yield sample if self.augment is None else self.augment(sample, rng)
            if not gave:
                barren.add(which)
            if len(barren) == count:
                raise ValueError(
                    f"frames={self.frames}: no window fits any of {count} videos; use a smaller length, "
                    "or boundary='repeat' or 'reflect'"
                )
            visit += self.world * self.lanes

    def _windows(self, source: Source, rng: Generator) -> Iterator[list[np.ndarray]]:
        assert self._cache is not None
        cached = self._cache.frames.get(source)
        if cached is not None:
            for window in self._chosen(len(cached), rng):
                yield [cached[i] for i in window]
            return
        with source.open() as reader:
            frames = self._cache.admit(source, reader)
            wanted = self._chosen(len(reader) if frames is None else len(frames), rng)
            if frames is None:
                yield from sequential_windows(reader, wanted)
                return
        for window in wanted:
            yield [frames[i] for i in window]

    def _chosen(self, count: int, rng: Generator) -> list[Window]:
        phase = int(rng.integers(self.stride))
        phase = phase if count - phase >= self.frames else 0
        found = windows_of(count - phase, self.frames, self.stride, self.boundary)
        if self.windows is not None and self.windows < len(found):
            keep = np.sort(rng.choice(len(found), self.windows, replace=False))
            found = [found[i] for i in keep]
        return [tuple(i + phase for i in window) for window in found]


def sequential_windows(frames: Iterable[np.ndarray], windows: Sequence[Window]) -> Iterator[list[np.ndarray]]:
    """Windows out of one forward read; only frames that a coming window needs are held.

    Args:
        frames: Frames in order.
        windows: Frame indices, in the order in which a forward read completes them.
    """
    # first[k]: the earliest frame that window k or any later one needs (time may run back near the end)
    first = list(np.minimum.accumulate([min(w) for w in reversed(windows)]))[::-1]
    held: dict[int, np.ndarray] = {}
    k = 0
    for index, frame in enumerate(frames):
        if k == len(windows):
            return
        if index >= first[k]:
            held[index] = frame
        while k < len(windows) and max(windows[k]) <= index:
            yield [held[i] for i in windows[k]]
            k += 1
            keep = first[k] if k < len(windows) else index + 1
            held = {i: f for i, f in held.items() if i >= keep}
