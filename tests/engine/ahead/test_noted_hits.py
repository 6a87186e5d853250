"""The planner is notified of hits, in bursts or not, and takes little time of the loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from outrider.core.model import Extent, ObjectRef, ObjectVersion
from outrider.engine.fill.fill_scheduler import READS_ON_S
from tests.engine.ahead.shards import CLIENT, REFS, announce, read, under_way
from tests.support.engine import BLOCK, Engine
from tests.support.fakes import Fault


def many(number: int) -> ObjectVersion:
    return ObjectVersion(ObjectRef("train", f"many/{number:06d}"), '"e"', 100)


async def test_a_noted_hit_marks_its_reader_as_reading_on(room: Engine) -> None:
    assert not room.scheduler.reads_on
    room.prefetch.note(CLIENT, many(0), 0, 100, room.clock())
    assert room.scheduler.reads_on
    room.clock.advance(READS_ON_S)
    assert not room.scheduler.reads_on


async def test_a_tick_reports_some_of_a_burst_of_hits_and_the_oldest_beyond_a_bound_are_dropped(
    room: Engine,
) -> None:
    for number in range(20_000):
        room.prefetch.note(CLIENT, many(number), 0, 100, room.clock())
    await room.prefetch.tick()
    assert len(room.planner.registry) == 256
    for _ in range(20_000 // 256):
        await room.prefetch.tick()
    assert len(room.planner.registry) == 16_384
    [dataset] = room.planner.registry.datasets()
    assert dataset.names.keys[0] == many(20_000 - 16_384).ref.key
    assert dataset.names.keys[-1] == many(19_999).ref.key
    await room.tasks.settle()


async def test_other_work_runs_during_a_burst_of_hits(room: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    reported, asked, event_s = [], room.planner.requested, 0.0004

    def takes_long(client: str, ref: ObjectRef, *rest: Any) -> Extent | None:
        room.clock.advance(event_s)
        reported.append(ref)
        return asked(client, ref, *rest)

    async def others() -> None:
        while True:
            scheduler.append(room.clock())
            await asyncio.sleep(0)

    monkeypatch.setattr(room.planner, "requested", takes_long)
    scheduler: list[float] = []
    for number in range(100):
        room.prefetch.note(CLIENT, many(number), 0, 100, room.clock())
    beside = asyncio.create_task(others())
    ticks, done = 0, False
    while not done:
        began = room.clock()
        done = await room.prefetch.tick()
        ticks += 1
        assert room.clock() - began < 0.012, "the burst takes no more than 12 ms of each 50 ms"
    beside.cancel()
    assert max(later - sooner for sooner, later in pairwise(scheduler)) < 0.0013
    assert reported == [many(number).ref for number in range(100)]
    assert ticks == 4
    await room.tasks.settle()


async def test_random_reads_of_one_object_do_not_displace_reads_of_others(room: Engine) -> None:
    version = ObjectVersion(ObjectRef("train", "wide"), '"e"', 10**6)
    for number in range(1000):
        room.prefetch.note(CLIENT, version, 10 * number, 10 * number + 1, room.clock())
    room.prefetch.note(CLIENT, many(0), 0, 100, room.clock())
    await room.prefetch.tick()
    assert len(room.planner.registry) == 2
    await room.tasks.settle()


async def test_a_stop_leaves_nothing_behind(room: Engine) -> None:
    room.origin.faults += [Fault(times=None, key=ref.key, body_gate=asyncio.Event()) for ref in REFS]
    announce(room)
    await under_way(room, 2)
    await room.tasks.cancel()
    assert room.tasks.failures == []
    assert room.origin.under_way == 0
    assert len(room.flights) == 0
    assert room.planner.outstanding.blocks == 0


async def test_a_bug_in_the_planner_fails_no_request_and_is_logged_once_a_minute(
    room: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise IndexError("array index out of range")

    version = await room.version_lookup.ask(REFS[0], 0)
    for act in ("requested", "sent", "wants"):
        with monkeypatch.context() as now:
            now.setattr(room.planner, act, broken)
            await read(room, REFS[1])
            for _ in range(3):
                room.prefetch.note(CLIENT, version, 0, BLOCK, room.clock())
                await room.prefetch.tick()
        assert [line.message for line in caplog.records if line.exc_info] == ["prefetch failed"], act
        caplog.clear()
        room.clock.advance(60.0)


async def test_a_slow_planner_takes_a_tenth_of_the_time(room: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    took_s = 0.02
    thoughts: list[float] = []

    def long_call(now: float, *_: object) -> list[object]:
        thoughts.append(now)
        room.clock.advance(took_s)
        return []

    monkeypatch.setattr(room.planner, "wants", long_call)
    began = room.clock()
    while room.clock() - began < 10.0:
        room.prefetch.think()
        room.clock.advance(0.001)
    assert 0.08 * 10.0 <= took_s * len(thoughts) <= 0.12 * 10.0
    # Short calls cause no pause, and neither does a single call that was interrupted.
    took_s = 0.0005
    room.prefetch.think()
    for took_s in (0.0005, 0.5, 0.0005):
        room.clock.advance(5.0)
        count = len(thoughts)
        for _ in range(3 if took_s < 0.1 else 1):
            room.prefetch.think()
        assert len(thoughts) - count == (3 if took_s < 0.1 else 1)
    await room.tasks.settle()
