"""Streams of training samples that are the same whatever the number of loader workers.

A stream is split into a fixed number of lanes, each an independent seeded generator with its own shuffle
buffer. Samples come in blocks: block k is the next ``block`` samples of lane k mod ``lanes``. Worker w of n
owns the lanes congruent to w modulo n, so where n divides ``lanes`` and ``block`` is the loader's batch size,
batch k holds the same bytes for every n: a DataLoader takes batch k from worker k mod n.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import cv2
import numpy as np
import torch
from numpy.random import Generator, SeedSequence
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from vdenoise.datasets import once
from vdenoise.datasets.frames import log as frames_log


def generator(*key: int) -> Generator:
    """An independent numpy generator for a tuple of non-negative integers."""
    return np.random.default_rng(SeedSequence(key))


class LaneStream(IterableDataset[torch.Tensor]):
    """A sharded stream of uint8 samples (T, C, S, S); subclasses say what one lane holds.

    Args:
        seed: Everything random follows from it.
        block: Samples taken from one lane before the next has its turn. Set it to the loader's batch size.
        lanes: Number of lanes. The number of workers must divide it.
        rank: Index of this process among ``world``; None asks torch.distributed.
        world: Number of training processes; each gets other samples. None asks torch.distributed.
    """

    def __init__(
        self, *, seed: int, block: int = 8, lanes: int = 8, rank: int | None = None, world: int | None = None
    ):
        super().__init__()
        together = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.rank = (torch.distributed.get_rank() if together else 0) if rank is None else rank
        self.world = (torch.distributed.get_world_size() if together else 1) if world is None else world
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank={self.rank}: expected 0 ≤ rank < world={self.world}; check both settings")
        if min(block, lanes) < 1:
            raise ValueError(f"block={block}, lanes={lanes}: both must be at least 1")
        self.seed, self.block, self.lanes = seed, block, lanes
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers that live on see it change

    @property
    def epoch(self) -> int:
        """Which of many equally seeded streams this is."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose which of many equally seeded streams the next iteration gives (default 0)."""
        self._epoch.fill_(epoch)

    def lane(self, index: int) -> Iterator[torch.Tensor]:
        """The samples of lane ``index`` of this rank, in order."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        if self.lanes % workers:
            raise ValueError(
                f"num_workers={workers}: expected a divisor of lanes={self.lanes}; change one of the two"
            )
        mine = [self.lane(i) for i in range(worker, self.lanes, workers)]
        while mine:
            for lane in list(mine):
                samples = list(islice(lane, self.block))
                yield from samples
                if len(samples) < self.block:
                    mine.remove(lane)


class Mixture(LaneStream):
    """Draws each sample from one of several streams, with fixed shares.

    Args:
        parts: Streams to draw from; they are used by lane, so all have this stream's lanes.
        shares: Probability of each part; they sum to 1.
        seed: Seed of the draws.
        block: See :class:`LaneStream`.
    """

    def __init__(self, parts: Sequence[LaneStream], shares: Sequence[float], *, seed: int, block: int = 8):
        first = parts[0]
        super().__init__(seed=seed, block=block, lanes=first.lanes, rank=first.rank, world=first.world)
        if len(parts) != len(shares) or abs(sum(shares) - 1) > 1e-6 or min(shares) < 0:
            raise ValueError(f"shares={list(shares)}: expected {len(parts)} numbers ≥ 0 that sum to 1")
        if any(p.lanes != self.lanes for p in parts):
            raise ValueError(f"lanes={[p.lanes for p in parts]}: expected the same number in every part")
        self.parts, self.shares = list(parts), list(shares)

    def set_epoch(self, epoch: int) -> None:
        """The same for every part."""
        super().set_epoch(epoch)
        for part in self.parts:
            part.set_epoch(epoch)

    def lane(self, index: int) -> Iterator[torch.Tensor]:
        """Lane ``index`` of every part, interleaved; it ends when a part ends."""
        rng = generator(self.seed, self.epoch, 3, self.rank, index)
        lanes = [part.lane(index) for part in self.parts]
        while True:
            sample = next(lanes[rng.choice(len(lanes), p=self.shares)], None)
            if sample is None:
                return
            yield sample


def shuffled(samples: Iterator[torch.Tensor], size: int, rng: Generator) -> Iterator[torch.Tensor]:
    """Shuffle a stream through a buffer of ``size`` samples; memory is bounded by it."""
    held = list(islice(samples, size))
    for sample in samples:
        i = int(rng.integers(size))
        held[i], sample = sample, held[i]
        yield sample
    for i in rng.permutation(len(held)):
        yield held[i]


def loader(stream: LaneStream, batch: int, workers: int = 0) -> DataLoader[torch.Tensor]:
    """A DataLoader of uint8 batches (B, T, C, S, S), the same bytes for any number of workers.

    Workers are spawned, not forked: Decord hangs in a fork of a process that has used it. They live, with the
    video they hold, as long as the loader; every iteration begins anew, with the epoch that was set.

    Args:
        stream: Where samples come from; its ``block`` becomes ``batch``.
        batch: B.
        workers: Worker processes, 0 or a divisor of ``stream.lanes``. The script that asks for them needs the
            usual ``if __name__ == "__main__"`` guard.

    Raises:
        ValueError: The number of workers does not divide the number of lanes.
    """
    if workers and stream.lanes % workers:
        raise ValueError(
            f"workers={workers}: expected 0 or a divisor of lanes={stream.lanes}; change one of the two"
        )
    stream.block = batch
    context = multiprocessing.get_context("spawn") if workers else None
    reports = once.shared(context, frames_log) if context else None
    return DataLoader(
        stream,
        batch_size=batch,
        num_workers=workers,
        drop_last=True,
        multiprocessing_context=context,
        persistent_workers=workers > 0,
        worker_init_fn=partial(_start_worker, reports),
    )


def _start_worker(reports: Any, _: int) -> None:
    cv2.setNumThreads(1)  # as torch does in its workers: they share the cores already
    once.share(reports, frames_log)
