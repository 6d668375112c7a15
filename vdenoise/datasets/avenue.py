"""CUHK Avenue (Lu, Shi, Jia; ICCV 2013): one fixed camera over a campus walkway."""

from __future__ import annotations

from pathlib import Path

from vdenoise.datasets.layout import video_files
from vdenoise.datasets.published import Published, PublishedSet
from vdenoise.datasets.sources import Source


class Avenue(PublishedSet):
    """``training_videos/01.avi … 16.avi`` and ``testing_videos/01.avi … 21.avi``, 640×360, colour.

    ``ground_truth_demo/testing_videos`` holds copies with boxes painted in; it is never read.
    """

    name = "avenue"
    where = "http://www.cse.cuhk.edu.hk/leojia/projects/detectabnormal/dataset.html"
    published = Published(clips=(16, 21), frames=(15_328, 15_324), size=(640, 360))
    original = ("training_videos/*.avi", "testing_videos/*.avi")

    def original_videos(self, top: Path, part: int) -> list[Source]:
        """The ``.avi`` files of one part."""
        if top.name == "ground_truth_demo":
            return []
        return video_files(top / ("training_videos", "testing_videos")[part], {".avi"})
