"""Reading and writing video. Nothing else in the package touches Decord or PyAV."""

from __future__ import annotations

from pathlib import Path

from vdenoise.video.codecs import CODECS
from vdenoise.video.images import FolderReader, FolderWriter
from vdenoise.video.probe import VideoError, VideoInfo, probe
from vdenoise.video.reader import FileReader, Reader
from vdenoise.video.tracks import SOUND
from vdenoise.video.writer import Writer, create

__all__ = [
    "CODECS", "SOUND", "FileReader", "FolderReader", "FolderWriter", "Reader", "VideoError", "VideoInfo",
    "Writer", "create", "open_video", "probe",
]  # fmt: skip


def open_video(
    path: str | Path,
    *,
    backend: str = "auto",
    gray: bool | None = None,
    exact: bool = True,
    bits: int | None = None,
) -> Reader:
    """Open a video file or a folder of images.

    Args:
        path: the file or folder.
        backend: "auto", "decord" or "pyav".
        gray: True reads luma only, False RGB; None follows the source.
        exact: colours by the standard's formula, to half a level, for frames that are written again. False
            lets Decord read, which rounds them down by a level: a training set's frames are as good so.
        bits: 8 or 16 per component; None follows the source (16 for those of more than 8).

    Returns:
        A reader; use it in a ``with`` statement.

    Raises:
        VideoError: if it can't be read; the message says what to do.
    """
    if bits not in (None, 8, 16):
        raise VideoError(f"bits must be 8 or 16, got {bits}")
    path, deep = Path(path), None if bits is None else bits == 16
    return FolderReader(path, gray, deep) if path.is_dir() else FileReader(path, backend, gray, exact, deep)
