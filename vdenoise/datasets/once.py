"""A log message said once, over all the processes that load samples."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from typing import Any

ROOM = 1024  # messages that workers share; what comes after may be said by each of them


class Once(logging.Filter):
    """Lets a message pass once per process, or once for all processes that share a table.

    Attributes:
        seen: digests of the messages of this process.
        table: shared digests, 0 where there is room; None shares nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()
        self.table: Any = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message is new."""
        digest = hashlib.blake2b(record.getMessage().encode(), digest_size=8).digest()
        key = int.from_bytes(digest, "big") or 1
        new = key not in self.seen and (self.table is None or _entered(self.table, key))
        self.seen.add(key)
        return new


def _entered(table: Any, key: int) -> bool:
    """Put a digest into the first free place; False if it was there."""
    with table.get_lock():
        for place, known in enumerate(table):
            if known == key:
                return False
            if not known:
                table[place] = key
                return True
    return True


def shared(context: Any, logger: logging.Logger) -> Any:
    """A table for the workers of a multiprocessing context, with what this process has said already."""
    said: Iterable[int] = (key for f in logger.filters if isinstance(f, Once) for key in f.seen)
    table = context.Array("Q", ROOM)
    for key in said:
        _entered(table, key)
    return table


def share(table: Any, logger: logging.Logger) -> None:
    """In a worker: say what no other process with this table has said."""
    for each in logger.filters:
        if isinstance(each, Once):
            each.table = table
