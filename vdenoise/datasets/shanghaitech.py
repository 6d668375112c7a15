"""ShanghaiTech Campus (Luo, Liu, Gao; ICCV 2017): thirteen scenes on one campus."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from vdenoise.datasets.layout import frame_folders, video_files
from vdenoise.datasets.published import Published, PublishedSet
from vdenoise.datasets.sources import Source


class ShanghaiTech(PublishedSet):
    """``training/videos/01_001.avi …`` and ``testing/frames/01_0014/000001.jpg …``, 856×480, colour.

    Clip numbers have three digits in training and four in testing, some copies count frames from 000, and
    ``04_001.avi`` has another frame rate than the rest: a frame is indexed by its sorted position alone. The
    masks ``testing/test_frame_mask/*.npy`` are never read.
    """

    name = "shanghaitech"
    where = "https://svip-lab.github.io/dataset/campus_dataset.html"
    published = Published(clips=None, frames=(274_515, 40_791), size=(856, 480))
    fps = Fraction(24)
    original = ("training/videos/*.avi", "testing/frames/<clip>/*.jpg")

    def original_videos(self, top: Path, part: int) -> list[Source]:
        """Videos in training, folders of frames in testing."""
        if part == 0:
            return video_files(top / "training" / "videos", {".avi"})
        return frame_folders(top / "testing" / "frames", self.fps, self.corrupt)
