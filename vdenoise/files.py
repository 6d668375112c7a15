"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: str | Path) -> Iterator[Path]:
    """A temporary name in the same folder that becomes ``path`` when the block ends, and goes if it fails.

    Args:
        path: the file; its folder must exist. The temporary name has the same suffix.

    Example:
        >>> with whole("result.txt") as temporary:  # doctest: +SKIP
        ...     temporary.write_text("all of it")
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
