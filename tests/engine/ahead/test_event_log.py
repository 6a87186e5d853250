"""The planner learns of reads and blocks in bundles, and of all of them before it is asked for a victim."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.core.model import ObjectRef
from outrider.engine.ahead.event_log import BUNDLE_S, EventLog
from outrider.engine.ahead.prefetch import Mode
from outrider.engine.fill.fill_scheduler import READS_ON_S
from tests.support.engine import BLOCK, Engine, engine, taken
from tests.support.fakes import FakeClock, FakeOrigin, ramp

REFS = [ObjectRef("train", f"shard-{number:06d}.tar") for number in range(6)]
# A block takes a page more than its payload.
THREE_BLOCKS = 3 * (BLOCK + 4096)


class Calls:
    """The calls that are to be made later, each with its delay."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def later(self, after_s: float, act: Callable[[], None]) -> None:
        self.waiting.append((after_s, act))

    def make(self) -> None:
        while self.waiting:
            self.waiting.pop(0)[1]()


def origin_of(size: int) -> FakeOrigin:
    origin = FakeOrigin()
    for number, ref in enumerate(REFS):
        origin.put(ref, ramp(size, number))
    return origin


async def read(room: Engine, ref: ObjectRef, **headers: str) -> None:
    await taken(
        await room.reads.get(
            ref, headers, lambda version, extent: room.prefetch.requested("job", version, extent, checksums=False)
        )
    )
    room.prefetch.sent("job", ref)
    await room.tasks.settle()


async def test_an_eviction_right_after_a_landing_knows_the_block_and_its_read(tmp_path: Path) -> None:
    calls = Calls()
    with engine(
        tmp_path / "c", origin_of(BLOCK), policy="epoch", prefetch=Mode.OFF, capacity_bytes=THREE_BLOCKS,
        later=calls.later,
    ) as room:  # fmt: skip
        for ref in REFS[:4]:
            await read(room, ref)
        # No call was made: all that the planner knows it learned when it was asked for a victim.
        assert len(calls.waiting) == 1
        [dataset] = room.planner.registry.datasets()
        assert [bool(room.store.blocks_of(ref.__eq__)) for ref in REFS[:4]].count(True) == 3
        assert room.fills.is_cached(REFS[3]), "the incoming block was not kept, for want of a victim"
        calls.make()
        assert sorted(dataset.cached) == [index for index, ref in enumerate(REFS) if room.fills.is_cached(ref)]
        assert dataset.kept_bytes == 3 * (BLOCK + 4096)


async def test_a_bundle_begins_the_prefetch_of_all_reads_in_it(tmp_path: Path) -> None:
    calls = Calls()
    with engine(tmp_path / "c", origin_of(BLOCK), policy="epoch", later=calls.later) as room:
        for number in (5, 0, 3, 1):
            await read(room, REFS[number])
        assert [after_s for after_s, _ in calls.waiting] == [BUNDLE_S]
        assert not any(map(room.fills.is_cached, (REFS[2], REFS[4])))
        calls.waiting.pop()[1]()
        await room.tasks.settle()
        assert all(map(room.fills.is_cached, REFS))


async def test_a_reader_that_leaves_a_block_is_reported_soon(tmp_path: Path) -> None:
    calls = Calls()
    with engine(tmp_path / "c", origin_of(8 * BLOCK), policy="epoch", later=calls.later) as room:
        for number in range(3):
            await read(room, REFS[0], range=f"bytes={number * BLOCK}-{(number + 1) * BLOCK - 1}")
            assert min(after_s for after_s, _ in calls.waiting) == READS_ON_S
            calls.make()
            await room.tasks.settle()
        assert len(room.store) > 3, "the next blocks are on disk"


async def test_a_tick_reports_all_events(tmp_path: Path) -> None:
    with engine(tmp_path / "c", origin_of(BLOCK), policy="epoch", later=Calls().later) as room:
        await read(room, REFS[0])
        assert not room.planner.registry.datasets()
        assert await room.prefetch.tick()
        [dataset] = room.planner.registry.datasets()
        assert dataset.kept_bytes == BLOCK + 4096
        await room.tasks.settle()


@pytest.mark.parametrize(("policy", "prefetch", "is_logged"), [("lru", Mode.OFF, False), ("epoch", Mode.OFF, True)])
async def test_nothing_is_logged_for_a_planner_that_decides_nothing(
    tmp_path: Path, policy: str, prefetch: Mode, is_logged: bool
) -> None:
    calls = Calls()
    with engine(tmp_path / "c", origin_of(BLOCK), policy=policy, prefetch=prefetch, later=calls.later) as room:
        await read(room, REFS[0])
        assert bool(calls.waiting) == is_logged


def test_events_are_reported_in_their_order_and_leave_others_their_turn(caplog: pytest.LogCaptureFixture) -> None:
    calls, clock, reported = Calls(), FakeClock(), list[str]()
    events = EventLog(clock, calls.later)

    def think() -> None:
        events.has_reported = False
        reported.append("bundle")

    events.on_reported = think

    def report(what: str) -> None:
        clock.advance(0.0006)
        reported.append(what)
        if what == "b":
            raise IndexError("a bug of ours")

    for what in "abcde":
        events.add(report, what)
    assert [after_s for after_s, _ in calls.waiting] == [BUNDLE_S]
    calls.waiting.pop()[1]()
    assert reported == ["a", "b"]
    assert "prefetch failed" in caplog.text
    events.add(report, "f", within_s=0.001)
    events.report_one()
    calls.make()
    assert reported == [*"abcdef", "bundle"]
    assert events.is_empty
    events.add(report, "g")
    events.add(report, "h", within_s=0.001)
    assert len(calls.waiting) == 2
    calls.make()
    assert reported[7:] == ["g", "h", "bundle"], "the later call found nothing"
    events.add(report, "i")
    events.report_all()
    calls.make()
    assert reported[10:] == ["i", "bundle"], "what was reported for a decision is thought of, too"


def test_a_full_log_reports_its_oldest_events() -> None:
    calls, reported = Calls(), list[int]()
    events = EventLog(FakeClock(), calls.later)
    for number in range(5000):
        events.add(reported.append, number)
    assert reported == list(range(5000 - 1024))


def test_a_call_that_a_sooner_one_has_overtaken_reports_nothing() -> None:
    """Else a log that is busy would be reported once for each call that is still to come."""
    clock, calls, reported = FakeClock(), Calls(), list[int]()
    events = EventLog(clock, calls.later)
    events.add(reported.append, 1)
    events.add(reported.append, 2, within_s=READS_ON_S)
    assert [after_s for after_s, _ in calls.waiting] == [BUNDLE_S, READS_ON_S]
    (_, slow), (_, soon) = calls.waiting
    calls.waiting.clear()
    clock.advance(READS_ON_S)
    soon()
    assert reported == [1, 2]
    events.add(reported.append, 3)
    slow()
    assert reported == [1, 2]
    calls.make()
    assert reported == [1, 2, 3]


async def test_nothing_begins_after_the_stop(tmp_path: Path) -> None:
    calls = Calls()
    with engine(tmp_path / "c", origin_of(BLOCK), policy="epoch", later=calls.later) as room:
        for ref in REFS[:4]:
            await read(room, ref)
        room.prefetch.stop()
        before = room.origin.count()
        calls.make()
        await room.prefetch.tick()
        await room.tasks.settle()
        assert room.origin.count() == before
        assert len(room.planner.registry.datasets()) == 1, "learned for the next start"
