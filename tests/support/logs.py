"""What is logged meanwhile, from a fixture's begin to its end.

pytest's `caplog` takes its handler away between a test and its teardown: what another thread says in that moment is in
neither of its lists.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def logged(name: str | None = None, level: int = logging.DEBUG) -> Iterator[list[logging.LogRecord]]:
    """The records of the logger `name` (None: of all) and of those under it, `level` and worse."""
    seen: list[logging.LogRecord] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    keeper, logger = Keeper(level), logging.getLogger(name)
    before = logger.level
    logger.addHandler(keeper)
    logger.setLevel(min(level, before) if before else level)
    try:
        yield seen
    finally:
        logger.setLevel(before)
        logger.removeHandler(keeper)
