"""How long readers wait for the disk: of reads that take longer than those of memory."""

from __future__ import annotations

import threading

from outrider.http.wire.disk_readers import DiskReaders


def test_a_read_that_waits_is_measured_from_its_submission() -> None:
    waits: list[float] = []
    gate, others = threading.Event(), threading.Event()
    readers = DiskReaders(1, "test", waits.append)
    slow = readers.submit(gate.wait)
    queued = readers.submit(others.set)
    assert not others.wait(0.005)
    gate.set()
    assert slow.result() is True
    assert queued.result() is None
    readers.shutdown()
    assert len(waits) == 2, "the second one waited for the first"
    assert min(waits) >= 0.005


def test_a_read_that_was_cancelled_before_its_turn_is_not_counted() -> None:
    waits: list[float] = []
    gate = threading.Event()
    readers = DiskReaders(1, "test", waits.append)
    readers.submit(gate.wait)
    queued = readers.submit(print)
    assert not gate.wait(0.005)
    assert queued.cancel()
    gate.set()
    readers.shutdown()
    assert len(waits) == 1
