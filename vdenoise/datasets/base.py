"""What every data set offers: a training stream, evaluation clips, σ_x and a check of the copy on disk."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vdenoise.datasets.frames import CORRUPT
from vdenoise.datasets.lanes import LaneStream
from vdenoise.datasets.sampling import ClipStream, CropPlan
from vdenoise.datasets.sources import Source

if TYPE_CHECKING:
    from typing_extensions import Self

SPLITS = ("train", "val", "test")


class VideoSet:
    """A data set; subclasses say where its videos lie.

    No published set here has a validation part. Ours is the last tenth of the training videos in sorted
    order (at least one), and the training stream does not see it. σ_x and the published counts refer to all.
    """

    name = ""
    # Compressed sources are shrunk by up to this factor for most crops.
    downscale = 2.0
    stride = 4
    # What becomes of a frame image that can't be decoded, a key of datasets.frames.CORRUPT.
    corrupt = "skip"

    def treating(self, corrupt: str) -> Self:
        """The same set with another policy for corrupt frame images.

        Raises:
            ValueError: Unknown policy.
        """
        if corrupt not in CORRUPT:
            raise ValueError(f"corrupt={corrupt!r}: expected one of {', '.join(CORRUPT)}")
        made = copy.copy(self)
        made.corrupt = corrupt
        return made

    def place(self, root: Path | str | None) -> Path:
        """The root given, or the set's usual place, ``data/<name>`` in the working folder."""
        return Path("data") / self.name if root is None else Path(root)

    def training_videos(self, root: Path) -> list[Source]:
        """Every training video, in sorted order."""
        raise NotImplementedError

    def test_videos(self, root: Path) -> list[Source]:
        """Every test video, in sorted order."""
        raise NotImplementedError

    def videos(self, root: Path, split: str) -> list[Source]:
        """The videos of one split.

        Raises:
            ValueError: Unknown split, or a root that is missing or laid out otherwise.
        """
        if split not in SPLITS:
            raise ValueError(f"split={split!r}: expected one of {', '.join(SPLITS)}")
        if split == "test":
            return self.test_videos(root)
        every = self.training_videos(root)
        held = max(1, len(every) // 10) if len(every) > 1 else 0
        if split == "train":
            return every[: len(every) - held]
        if not held:
            warnings.warn(f"{self.name}: one training video, so validation sees it too", stacklevel=2)
        return every[-max(held, 1) :]

    def training_stream(
        self,
        root: Path | str | None = None,
        *,
        frames: int,
        crop: int,
        gray: bool,
        seed: int,
        block: int = 8,
        cache_mb: float = 0,
        **settings: Any,
    ) -> LaneStream:
        """An endless stream of clean uint8 samples (T, C, crop, crop).

        Args:
            root: Where the set lies; None is ``data/<name>``.
            frames: T.
            crop: Side of the crop in pixels.
            gray: Luma if true, else RGB.
            seed: Everything random follows from it.
            block: The loader's batch size, see :class:`~vdenoise.datasets.lanes.LaneStream`.
            cache_mb: Megabytes of decoded video held per worker.
            settings: Further settings of :class:`~vdenoise.datasets.sampling.ClipStream`.
        """
        videos = [as_gray(v, gray) for v in self.videos(self.place(root), "train")]
        plan = CropPlan(crop, downscale=self.downscale)
        settings = {"stride": self.stride, **settings}
        return ClipStream(
            videos, frames=frames, plan=plan, seed=seed, block=block, cache_mb=cache_mb, **settings
        )

    def evaluation_clips(self, root: Path | str | None, split: str) -> Sequence[Source]:
        """Named clips of a split, opened only when read: ``.name``, ``.open()``, ``.read()``, ``.load()``."""
        return self.videos(self.place(root), split)

    def sigma_x(self, root: Path | str | None = None) -> float:
        """Standard deviation of the training pixels' luma, 0–255 scale.

        Streams once over all training frames and keeps the result in ``sigma_x.json`` under the root, with
        a fingerprint (names and sizes) of the files it holds for.
        """
        place = self.place(root)
        videos = self.training_videos(place)
        print_ = fingerprint([v.path for v in videos])
        kept = place / "sigma_x.json"
        if kept.is_file():
            content = json.loads(kept.read_text())
            if content.get(self.name, {}).get("files") == print_:
                return float(content[self.name]["sigma_x"])
        else:
            content = {}
        value = pixel_deviation([as_gray(v, True) for v in videos])
        content[self.name] = {"sigma_x": value, "files": print_, "videos": len(videos)}
        try:
            temporary = kept.with_name(f".{kept.name}.{os.getpid()}.part")
            temporary.write_text(json.dumps(content, indent=1) + "\n")
            temporary.replace(kept)
        except OSError as error:
            warnings.warn(f"σ_x is computed anew every time, {kept} can't be written: {error}", stacklevel=2)
        return value

    def check(self, root: Path | str | None = None) -> str:
        """Compare a copy on disk with what is known of the set; a report of several lines.

        Raises:
            ValueError: The copy is incomplete; the message says what is missing.
        """
        raise NotImplementedError


def as_gray(source: Source, gray: bool) -> Source:
    """The same source, read as luma or as RGB."""
    return dataclasses.replace(source, gray=gray)


def fingerprint(paths: Sequence[Path]) -> str:
    """A short digest of names and sizes (of a folder: the number of its entries)."""
    sizes = [(p.name, len(os.listdir(p)) if p.is_dir() else p.stat().st_size) for p in paths]
    return hashlib.sha256(repr(sizes).encode()).hexdigest()[:16]


def pixel_deviation(sources: Sequence[Source]) -> float:
    """Standard deviation of every pixel of every frame, exactly, from a histogram of 256 counts."""
    counts = np.zeros(256, np.int64)
    for source in sources:
        with source.open() as reader:
            for frame in reader:
                counts += np.bincount(frame.ravel(), minlength=256)
    if not counts.any():
        raise ValueError(f"σ_x needs at least one frame, got none in {len(sources)} videos")
    levels = np.arange(256)
    mean = counts @ levels / counts.sum()
    return float(np.sqrt(counts @ (levels - mean) ** 2 / counts.sum()))
