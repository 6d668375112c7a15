"""UCSD Anomaly Detection (Mahadevan et al.; CVPR 2010): two fixed cameras over walkways, grey."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path

from vdenoise.datasets.layout import frame_folders
from vdenoise.datasets.published import Published, PublishedSet
from vdenoise.datasets.sources import Source

SIZES = {
    1: Published(clips=(34, 36), frames=None, size=(238, 158)),
    2: Published(clips=(16, 12), frames=None, size=(360, 240)),
}


class UCSD(PublishedSet):
    """``UCSDped{1,2}/{Train/Train001, Test/Test001}/001.tif …``.

    The masks in ``Test001_gt`` and the label files ``UCSDped1.m`` are never read. The set has no frame rate;
    10 is used. In the released copy ``UCSDped1/Test/Test017/142.tif`` is corrupt.

    Args:
        ped: 1 or 2, which camera; None is both, one after the other.
        corrupt: See :class:`~vdenoise.datasets.published.PublishedSet`.
    """

    where = "http://www.svcl.ucsd.edu/projects/anomaly/dataset.htm"
    fps = Fraction(10)
    downscale = 1.5  # frames are small and were never strongly compressed

    def __init__(self, ped: int | None = None, corrupt: str = "skip"):
        super().__init__(corrupt)
        if ped not in (None, *SIZES):
            raise ValueError(f"ped={ped}: expected 1, 2 or None for both")
        self.ped = ped
        if ped is None:
            self.name = "ucsd"
            return
        self.name, self.published = f"ucsd-ped{ped}", SIZES[ped]
        self.original = (f"UCSDped{ped}/Train/Train001/*.tif", f"UCSDped{ped}/Test/Test001/*.tif")

    def place(self, root: Path | str | None) -> Path:
        """The root given, or ``data/ucsd``: both cameras come in one archive."""
        return Path("data/ucsd") if root is None else Path(root)

    def _cameras(self) -> list[UCSD]:
        return [self] if self.ped else [UCSD(ped, self.corrupt) for ped in SIZES]

    def _part(self, root: Path, part: int) -> list[Source]:
        if self.ped:
            return super()._part(root, part)
        return [v for camera in self._cameras() for v in camera._part(root, part)]

    def videos(self, root: Path, split: str) -> list[Source]:
        """The videos of one split, of each camera the last tenth of the training videos for validation."""
        if self.ped:
            return super().videos(root, split)
        return [v for camera in self._cameras() for v in camera.videos(root, split)]

    def check(self, root: Path | str | None = None) -> str:
        """Count clips of every camera and compare them with what is published."""
        if self.ped:
            return super().check(root)
        return "\n".join(camera.check(root) for camera in self._cameras())

    def original_videos(self, top: Path, part: int) -> list[Source]:
        """The folders ``Train001 …`` or ``Test001 …``; ``Test001_gt`` does not match."""
        folder, pattern = (("Train", "Train[0-9][0-9][0-9]"), ("Test", "Test[0-9][0-9][0-9]"))[part]
        return self._named(
            frame_folders(top / f"UCSDped{self.ped}" / folder, self.fps, self.corrupt, pattern)
        )

    def repacked_videos(self, top: Path, part: int) -> list[Source]:
        """``{training,testing}/frames`` in a folder whose name ends with the camera (``ped1``)."""
        inner = sorted(p for p in top.glob("*") if p.is_dir())
        named = [p for p in (top, *inner) if p.name.lower().endswith(f"ped{self.ped}")]
        return self._named(next((v for p in named if (v := super(UCSD, self).repacked_videos(p, part))), []))

    def _named(self, videos: list[Source]) -> list[Source]:
        return [dataclasses.replace(v, name=f"ped{self.ped}-{v.name}") for v in videos]
