"""A fixture of the log records of a test, its set-up and teardown included.

pytest's `caplog` removes its handler between a test and its teardown: a record that another thread logs at that moment
is in neither of its lists.
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
