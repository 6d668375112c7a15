"""Sets whose sizes are published: original and repacked layouts, and a check against the counts."""

from __future__ import annotations

import dataclasses
import logging
from fractions import Fraction
from pathlib import Path

from vdenoise.datasets.base import SPLITS, VideoSet
from vdenoise.datasets.frames import FrameFolder, corrupt_frames, image_files
from vdenoise.datasets.layout import candidates, frame_folders, not_found
from vdenoise.datasets.sources import Source

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Published:
    """What the authors say of their set; None where they give no number.

    Args:
        clips: Training and test videos.
        frames: Training and test frames.
        size: Width and height.
    """

    clips: tuple[int, int] | None
    frames: tuple[int, int] | None
    size: tuple[int, int]


class PublishedSet(VideoSet):
    """A set with a published layout, and the repacked layout ``{training,testing}/frames/<clip>/*.jpg``.

    Args:
        corrupt: What becomes of a corrupt frame image, a key of :data:`vdenoise.datasets.frames.CORRUPT`.
    """

    published: Published
    where = ""
    fps = Fraction(25)
    # Folders of the original layout, for the message when nothing is found.
    original: tuple[str, str] = ("", "")

    def __init__(self, corrupt: str = "skip"):
        self.corrupt = corrupt

    def original_videos(self, top: Path, part: int) -> list[Source]:
        """The videos of part 0 (training) or 1 (test) in the original layout under ``top``, if any."""
        raise NotImplementedError

    def repacked_videos(self, top: Path, part: int) -> list[Source]:
        """The same in the repacked layout."""
        folder = top / ("training", "testing")[part] / "frames"
        return frame_folders(folder, self.fps, self.corrupt)

    def _part(self, root: Path, part: int) -> list[Source]:
        for top in candidates(root):
            if found := self.original_videos(top, part) or self.repacked_videos(top, part):
                return found
        repacked = f"{('training', 'testing')[part]}/frames/<clip>/*.jpg"
        raise not_found(self.name, root, (self.original[part], repacked), self.where)

    def videos(self, root: Path, split: str) -> list[Source]:
        """The videos of one split; a copy with clips missing is used, and said to be one."""
        if self.published.clips is not None and split in SPLITS:
            part = int(split == "test")
            if (got := len(self._part(root, part))) != self.published.clips[part]:
                log.warning(
                    "%s: %d %s clips under %s, published %d; vdenoise-train --check compares the whole set",
                    self.name,
                    got,
                    ("training", "test")[part],
                    root,
                    self.published.clips[part],
                )
        return super().videos(root, split)

    def training_videos(self, root: Path) -> list[Source]:
        """Every training video, in sorted order."""
        return self._part(root, 0)

    def test_videos(self, root: Path) -> list[Source]:
        """Every test video, in sorted order."""
        return self._part(root, 1)

    def check(self, root: Path | str | None = None) -> str:
        """Count clips and frames and compare them, and the frame size, with what is published.

        Every frame image is decoded once; a video's frames are counted by its reader. Corrupt images are
        counted as frames, as the published numbers do, and listed.

        Raises:
            ValueError: A number differs; one line with all differences.
        """
        place = self.place(root)
        lines, wrong = [f"{self.name}: {place.resolve()}"], []
        for part, title in enumerate(("training", "test")):
            videos = self._part(place, part)
            frames, sizes, bad = 0, set(), 0
            for video in videos:
                if isinstance(video, FrameFolder):
                    files = len(image_files(video.path))
                    frames, bad = frames + files, bad + len(corrupt_frames(video.path, files))
                    if len(corrupt_frames(video.path, files)) == files:
                        wrong.append(f"{video.path}: no readable frame")
                        continue
                try:
                    with video.open() as reader:
                        sizes.add((reader.width, reader.height))
                        if not isinstance(video, FrameFolder):
                            frames += len(reader)
                except (ValueError, OSError) as error:
                    wrong.append(" ".join(str(error).split()))
            lines.append(
                f"{title}: {len(videos)} clips, {frames} frames"
                + (f", {bad} of them corrupt ({self.corrupt})" if bad else "")
            )
            for what, got, known in (
                ("clips", len(videos), self.published.clips),
                ("frames", frames, self.published.frames),
            ):
                if known is not None and got != known[part]:
                    wrong.append(f"{title} {what}: {got}, published {known[part]}")
            if odd := sorted(sizes - {self.published.size}):
                listed = ", ".join(f"{w}×{h}" for w, h in odd)
                wrong.append(f"{title} size: {listed}, published {'×'.join(map(str, self.published.size))}")
        if wrong:
            raise ValueError(
                f"{self.name} under {place.resolve()} is not the published set: {'; '.join(wrong)}; "
                "unpack it again"
            )
        return "\n".join([*lines, "as published"])
