"""The log of hits: reads that touch are joined, and a burst is taken in bounded parts."""

from __future__ import annotations

from outrider.core.model import Extent, ObjectRef, ObjectVersion
from outrider.engine.ahead.read_log import ClientRead, ReadLog

SIZE = 1000
VERSION = ObjectVersion(ObjectRef("b", "shard"), '"e"', SIZE)


def read(start: int, stop: int, at: float = 0.0, client: str = "a", version: ObjectVersion = VERSION) -> ClientRead:
    return ClientRead(client, version, Extent(start, stop), at)


def log_of(*reads: ClientRead) -> ReadLog:
    log = ReadLog()
    for each in reads:
        log.add((each.client, each.version, each.extent.start, each.extent.stop, each.at))
    return log


def test_reads_of_one_object_that_touch_are_joined_and_as_late_as_the_last() -> None:
    log = log_of(read(0, 10, 1.0), read(10, 20, 2.0), read(30, 40, 3.0), read(20, 30, 4.0))
    assert log.take() == [read(0, 20, 2.0), read(30, 40, 3.0), read(20, 30, 4.0)]
    assert not log
    assert log.take() == []


def test_reads_of_other_clients_and_other_versions_are_not_joined() -> None:
    newer = ObjectVersion(VERSION.ref, '"f"', SIZE)
    log = log_of(read(0, 10), read(10, 20, client="b"), read(10, 20, version=newer))
    assert log.take() == [read(0, 10), read(10, 20, version=newer), read(10, 20, client="b")], "grouped by client"


def test_beyond_a_few_runs_of_one_object_the_rest_is_dropped() -> None:
    log = log_of(*(read(20 * number, 20 * number + 1) for number in range(10)))
    assert log.take() == [read(20 * number, 20 * number + 1) for number in range(4)]
    assert not log


def versions(count: int) -> list[ObjectVersion]:
    return [ObjectVersion(ObjectRef("b", str(number)), '"e"', SIZE) for number in range(count)]


def test_a_burst_is_taken_in_parts_the_oldest_first() -> None:
    burst = versions(600)
    log = log_of(*(read(0, 10, version=version) for version in burst))
    parts = []
    while log:
        parts.append([each.version for each in log.take()])
    assert list(map(len, parts)) == [256, 256, 88]
    assert [version for part in parts for version in part] == burst


def test_the_oldest_of_too_many_reads_are_dropped() -> None:
    burst = versions(16_384 + 5)
    log = log_of(*(read(0, 10, version=version) for version in burst))
    assert log.take()[0].version == burst[5]
