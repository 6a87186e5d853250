"""The access log: lines of hits are written in bundles.

A log record for each line would cost more than the hit itself.
"""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

from outrider.adapters.process.recent_errors import keep_recent_errors
from outrider.adapters.process.system import LineHandler
from outrider.core.insight.recent_errors import RecentErrors
from outrider.http.record.access_log import AccessLog, subject_of

if TYPE_CHECKING:
    import pytest


def stream_of_lines(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    outrider = logging.getLogger("outrider")
    monkeypatch.setattr(outrider, "handlers", [LineHandler(stream)])
    monkeypatch.setattr(outrider, "propagate", False)
    monkeypatch.setattr(outrider, "level", logging.INFO)
    logging.getLogger("outrider.access").manager._clear_cache()  # type: ignore[attr-defined]
    return stream


async def test_lines_of_hits_are_bundled_although_recent_errors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stream_of_lines(monkeypatch)
    records: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("outrider").handlers[0], "emit", records.append)
    with keep_recent_errors(RecentErrors()):
        access_log = AccessLog()
        for number in range(3):
            access_log.hit(subject_of("b", "k"), 0.001, "GET", 206, number, "0F", "-", "::1", "", "bytes=0-1")
        assert stream.getvalue() == ""
        access_log.flush()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["bytes"], line["address"]) for line in lines] == [(number, "::1") for number in range(3)]
    assert records == []


async def test_lines_that_wait_come_before_a_later_record(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stream_of_lines(monkeypatch)
    access_log = AccessLog()
    for number in range(2):
        access_log.hit(subject_of("b", "k"), 0.001, "GET", 206, number, "0F", "-", "::1", "", None)
        logging.getLogger("outrider.engine").warning("the bucket is slow")
    access_log.flush()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["request", "the bucket is slow"] * 2
    assert lines == sorted(lines, key=lambda line: str(line["time"]))
