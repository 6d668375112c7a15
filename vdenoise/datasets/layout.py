"""Finding the parts of a data set under a root, and saying clearly what is not there."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from vdenoise.datasets.frames import FrameFolder, image_files, natural_key
from vdenoise.datasets.sources import Source

VIDEO_SUFFIXES = {".avi", ".mp4", ".mkv", ".mov", ".webm", ".m4v", ".mpg", ".mpeg", ".ts"}


def candidates(root: Path) -> list[Path]:
    """The root and its folders: archives often unpack into a folder of their own."""
    inner = (
        sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
        if root.is_dir()
        else []
    )
    return [root, *inner]


def video_files(folder: Path, suffixes: set[str] | None = None) -> list[Source]:
    """The videos that lie directly in a folder, in natural order."""
    if not folder.is_dir():
        return []
    kinds = suffixes or VIDEO_SUFFIXES
    found = [p for p in folder.iterdir() if p.suffix.lower() in kinds and not p.name.startswith(".")]
    return [Source(p.stem, p) for p in sorted(found, key=lambda p: natural_key(p.name))]


def frame_folders(folder: Path, fps: Fraction, corrupt: str, pattern: str = "*") -> list[Source]:
    """The folders of images inside a folder, in natural order; folders without images are left out."""
    if not folder.is_dir():
        return []
    inner = sorted((p for p in folder.glob(pattern) if p.is_dir()), key=lambda p: natural_key(p.name))
    return [
        FrameFolder(p.name, p, fps=fps, corrupt=corrupt) for p in inner if p.name[0] != "." and image_files(p)
    ]


def not_found(name: str, root: Path, wanted: Sequence[str], where: str) -> ValueError:
    """The error for a root that is missing or half unpacked: what was looked for and what was found.

    Args:
        name: The data set.
        root: Where it was looked for.
        wanted: The folders, any of which would have done.
        where: Page that describes the set; empty if there is none.
    """
    if not root.is_dir():
        found = "there is no such folder"
    else:
        found = f"found {_listing(root)}"
        deepest = _deepest(root, wanted)
        if deepest != root and (deepest.parent != root or any(deepest.iterdir())):
            found += f", and in {deepest.relative_to(root)} {_listing(deepest)}"
    source = f"The set is described at {where}; " if where else ""
    return ValueError(
        f"{name}: looked in {root.resolve()} for {' or '.join(wanted)}; {found}. "
        f"{source}data/README.md shows how it should be laid out"
    )


def _listing(folder: Path) -> str:
    names = [p.name + _emptiness(p) for p in sorted(folder.iterdir()) if not p.name.startswith(".")]
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "nothing"


def _deepest(root: Path, wanted: Sequence[str]) -> Path:
    """How far down the folders that are wanted are there: where the unpacking stopped."""
    reached = [(0, root)]
    for top in candidates(root):
        for pattern in wanted:
            folder, depth = top, 0
            for part in Path(pattern).parts:
                if not (folder / part).is_dir():
                    break
                folder, depth = folder / part, depth + 1
            reached.append((depth, folder))
    return max(reached, key=lambda pair: pair[0])[1]


def _emptiness(path: Path) -> str:
    if not path.is_dir():
        return ""
    return "/" if any(path.iterdir()) else "/ (empty)"
