"""A log handler that keeps recent warnings and errors, for the dashboard and `outrider stats`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from outrider.adapters.process.system import fields_of
from outrider.core.insight.recent_errors import RecentErrors


class _Keeper(logging.Handler):
    def __init__(self, recent_errors: RecentErrors) -> None:
        super().__init__(logging.WARNING)
        self._recent_errors = recent_errors

    def emit(self, record: logging.LogRecord) -> None:
        facts = [f"{name}: {value}" for name, value in fields_of(record).items() if value != ""]
        if record.exc_info is not None and record.exc_info[1] is not None:
            # Only the type: the text of an exception may come from outside.
            facts.append(type(record.exc_info[1]).__name__)
        self._recent_errors.add(record.getMessage(), ", ".join(facts), record.levelname.lower(), record.created)


@contextmanager
def keep_recent_errors(recent_errors: RecentErrors) -> Iterator[None]:
    """While the context is open, warnings and errors of the package are added to `recent_errors`."""
    logger, keeper = logging.getLogger("outrider"), _Keeper(recent_errors)
    logger.addHandler(keeper)
    try:
        yield
    finally:
        logger.removeHandler(keeper)
