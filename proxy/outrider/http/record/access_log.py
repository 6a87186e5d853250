"""The access log: one line for each request. The lines are formatted here and written in bundles. A log record for each
would take longer than all other work for a hit (15 us of some 40, py-spy), and a fifteenth of the time of a small miss.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import secrets
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Protocol, runtime_checkable

log = logging.getLogger("outrider.access")

# A line is written this much later at most; a bundle of so many lines is written at once.
_DELAY_S = 0.25
_LINES_MAX = 1000


_json = json.JSONEncoder(default=str).encode

_numbers = itertools.count(secrets.randbits(40) << 20)


new_request_number: Callable[[], int] = partial(next, _numbers)
"""A counter, because random bytes cost a system call, and hand over the GIL."""


def request_id_of(number: int) -> str:
    """Sixteen hexadecimal digits, as S3's."""
    return f"{number:016X}"


def new_request_id() -> str:
    return request_id_of(new_request_number())


class AccessLog:
    """Writes the lines in the order in which the requests ended."""

    def __init__(self) -> None:
        self._handler = _line_handler()
        self._flushing: asyncio.TimerHandle | None = None
        self._second = 0
        self._clock_text = ""
        self.is_wanted: Callable[[], bool] = partial(log.isEnabledFor, logging.INFO)
        """False: no line would be written."""

    def request(self, facts: dict[str, object]) -> None:
        self._add(_json(facts)[1:-1])

    def hit(self, subject: str, seconds: float, method: str, status: int, count: int, request_id: str, client: str,
            address: str, app: str, requested_range: str | None) -> None:  # fmt: skip
        """The line of a read that the fast path answered. `subject`: see `subject_of`."""
        ranged = "" if requested_range is None else f', "range": "{requested_range}"'
        self._add(
            f'"request": "{request_id}", "op": "{method.lower()}", "method": "{method}", "status": {status}, '
            f'"cache": "HIT", "bytes": {count}, "seconds": {seconds:.6f}, {_sender(client, address, app)}, '
            f"{subject}{ranged}"
        )

    def _now_text(self) -> str:
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._clock_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._clock_text}.{int((now - second) * 1000):03d}Z"

    def _add(self, facts: str) -> None:
        """`facts`: the members of a JSON object."""
        if self._handler is None:
            log.info("request", extra=json.loads(f"{{{facts}}}"))
            return
        lines = self._handler.waiting
        lines.append(f'{{"time": "{self._now_text()}", "level": "info", "event": "request", {facts}}}\n')
        if len(lines) >= _LINES_MAX:
            self.flush()
        elif self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(_DELAY_S, self.flush)

    def flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._handler is not None:
            self._handler.write_waiting()


def subject_of(bucket: str, key: str) -> str:
    """The part of a line that names the object, made once for many lines."""
    return f'"bucket": {json.dumps(bucket)}, "key": {json.dumps(key)}'


def app_said(app: str) -> dict[str, str]:
    """The field for the app that the client has named (see `headers.app_of`); most clients name none."""
    return {"app": app} if app else {}


@lru_cache(maxsize=256)
def _sender(client: str, address: str, app: str) -> str:
    return json.dumps({"client": client, "address": address, **app_said(app)})[1:-1]


@runtime_checkable
class _LineHandler(Protocol):
    """Writes lines past the logging module: those in `waiting`, before the next record or by `write_waiting`."""

    waiting: list[str]

    def write_waiting(self) -> None: ...


def _line_handler() -> _LineHandler | None:
    """None: the records would reach several handlers, or one that takes no lines."""
    handlers: list[logging.Handler] = []
    logger: logging.Logger | None = log
    while logger is not None:
        # The handler that keeps recent errors has a higher level, and is none of these.
        handlers += [handler for handler in logger.handlers if handler.level <= logging.INFO]
        logger = logger.parent if logger.propagate else None
    if len(handlers) != 1 or not log.isEnabledFor(logging.INFO):
        return None
    handler: object = handlers[0]
    return handler if isinstance(handler, _LineHandler) else None
