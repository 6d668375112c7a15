"""Any folder of videos or of folders of images, as a data set."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from vdenoise.datasets.base import VideoSet
from vdenoise.datasets.frames import FrameFolder, corrupt_frames, image_files
from vdenoise.datasets.layout import VIDEO_SUFFIXES, frame_folders, not_found, video_files
from vdenoise.datasets.sources import Source


def folder_videos(folder: Path, corrupt: str = "skip") -> list[Source]:
    """Every video under a folder: its video files, its folders of images, and itself if it holds images.

    Looks one level deep, and into the folders that hold neither images nor videos one level more.
    """
    found = video_files(folder) + frame_folders(folder, Fraction(25), corrupt)
    if not found and folder.is_dir():
        if image_files(folder):
            return [FrameFolder(folder.name, folder, corrupt=corrupt)]
        for inner in sorted(p for p in folder.iterdir() if p.is_dir() and p.name[0] != "."):
            found += video_files(inner) + frame_folders(inner, Fraction(25), corrupt)
    return found


class Folder(VideoSet):
    """Your own videos. ``train/``, ``val/`` and ``test/`` inside the root are the splits where they exist.

    Without them everything is for training, its last tenth held out as ``"val"``.
    """

    name = "folder"

    def __init__(self, corrupt: str = "skip"):
        self.corrupt = corrupt

    def training_videos(self, root: Path) -> list[Source]:
        """The videos of ``train/``, or of the root."""
        if (root / "train").is_dir():
            return self._videos(root / "train")
        held = [root / split for split in ("val", "test")]
        found = [v for v in self._videos(root) if not any(v.path.is_relative_to(h) for h in held)]
        if not found:
            raise not_found(self.name, root, ("train/", "videos beside val/ and test/"), "")
        return found

    def test_videos(self, root: Path) -> list[Source]:
        """The videos of ``test/``."""
        return self._videos(root / "test")

    def videos(self, root: Path, split: str) -> list[Source]:
        """The videos of one split; ``val/`` where there is one."""
        if split == "val" and (root / "val").is_dir():
            return self._videos(root / "val")
        if split == "train" and (root / "val").is_dir():
            return self.training_videos(root)
        return super().videos(root, split)

    def check(self, root: Path | str | None = None) -> str:
        """Open every video and decode every image once; what is there, and what is corrupt."""
        place = self.place(root)
        lines = [f"{place.resolve()}"]
        parts = [self.training_videos(place)]
        parts += [self._videos(place / split) for split in ("val", "test") if (place / split).is_dir()]
        for video in (v for part in parts for v in part):
            bad = 0
            if isinstance(video, FrameFolder):
                bad = len(corrupt_frames(video.path, len(image_files(video.path))))
            with video.open() as reader:
                name = video.name if video.path == place else video.path.relative_to(place)
                text = f"{name}: {len(reader)} frames, {reader.width}×{reader.height}"
            lines.append(text + (f", {bad} corrupt ({self.corrupt})" if bad else ""))
        return "\n".join(lines)

    def _videos(self, folder: Path) -> list[Source]:
        if found := folder_videos(folder, self.corrupt):
            return found
        kinds = " ".join(sorted(VIDEO_SUFFIXES))
        raise not_found(self.name, folder, (f"videos ({kinds})", "folders of images"), "")
