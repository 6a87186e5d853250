"""A fill that begins in the middle of a block, where its first reader wants it; and fills of prefetch."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outrider.core.cache.readahead import BlockRun
from outrider.core.errors import StoreUnavailable, VersionChanged
from tests.engine.fill.small_engine import DATA, here, key_of, payload_in, version_in
from tests.support.engine import BLOCK, REF, Engine, engine
from tests.support.fakes import Fault

AT = BLOCK // 2 + 5


async def test_a_fill_begins_where_its_first_reader_wants_and_brings_no_byte_twice(room: Engine) -> None:
    version = version_in(room)
    flights = room.flights.board(version, BlockRun(0, 2), AT)
    room.flights.fill(flights)
    assert await here(flights[0], AT) < BLOCK
    await room.tasks.settle()
    assert room.origin.ranges == [f"bytes={AT}-{2 * BLOCK - 1}", f"bytes=0-{AT - 1}"]
    assert room.origin.body_bytes == 2 * BLOCK
    assert [payload_in(room, key_of(version, index)) for index in (0, 1)] == [DATA[:BLOCK], DATA[BLOCK : 2 * BLOCK]]


@pytest.mark.parametrize(("wanted", "start"), [(0, 0), (BLOCK // 32, 0), (BLOCK // 32 + 1, BLOCK // 32 + 1),
                                               (BLOCK, 0), (BLOCK + AT, 0)])  # fmt: skip
async def test_a_short_head_is_not_skipped_and_only_the_first_block_begins_in_its_middle(
    wanted: int, start: int, room: Engine
) -> None:
    flights = room.flights.board(version_in(room), BlockRun(0, 2), wanted)
    assert [lead.begins_at for lead in flights] == [start, BLOCK]
    room.flights.fill(flights)
    await room.tasks.settle()


async def test_the_head_of_a_block_is_requested_at_once_when_a_reader_waits_for_it(room: Engine) -> None:
    version, gate = version_in(room), asyncio.Event()
    room.origin.faults = [Fault(body_gate=gate, gate_after=100)]
    (lead,) = room.flights.board(version, BlockRun(0, 1), AT)
    room.flights.fill([lead])
    assert await here(lead, AT) == AT + 100
    for _ in range(50):
        await asyncio.sleep(0)
    assert room.origin.count() == 1  # no reader waits for the head yet
    assert await here(lead, 0) > 0
    while lead.reach(0) < AT:
        await asyncio.sleep(0)
    assert await here(lead, 10) == AT
    assert await here(lead, AT) == AT + 100  # the tail is still on its way
    gate.set()
    await room.tasks.settle()
    assert payload_in(room, key_of(version, 0)) == DATA[:BLOCK]
    assert room.origin.body_bytes == BLOCK


@pytest.mark.parametrize("which", [0, 1])
async def test_either_part_that_fails_ends_the_flight_for_all(which: int, room: Engine) -> None:
    gate = asyncio.Event()
    faults = [Fault(status=404), Fault(body_gate=gate, gate_after=100)]
    room.origin.faults = faults if which == 0 else faults[::-1]
    (lead,) = room.flights.board(version_in(room), BlockRun(0, 1), AT)
    waiters = [asyncio.create_task(here(lead, at)) for at in (0, BLOCK - 1)]
    room.flights.fill([lead])
    for waiter in waiters:
        with pytest.raises(VersionChanged):
            await waiter
    await room.tasks.settle()
    assert (len(room.flights), len(room.store), room.store.used_bytes, room.origin.under_way) == (0, 0, 0, 0)


@pytest.mark.parametrize("steps", [1, 2, 5, 20, 40])
async def test_a_flight_that_is_stopped_in_either_part_leaves_nothing_behind(steps: int, room: Engine) -> None:
    (lead,) = room.flights.board(version_in(room), BlockRun(0, 1), AT)
    room.flights.fill([lead])
    waiters = [asyncio.create_task(here(lead, at)) for at in (AT - 1, BLOCK - 1)]
    for _ in range(steps):
        await asyncio.sleep(0)
    await room.tasks.cancel()
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert all(isinstance(result, StoreUnavailable) or result in range(AT, BLOCK + 1) for result in results)
    assert (len(room.flights), room.origin.under_way) == (0, 0)
    assert room.store.used_bytes == len(room.store) * (BLOCK + 4096)


async def test_a_prefetch_waits_for_demand_and_becomes_demand_when_a_reader_waits_for_it(tmp_path: Path) -> None:
    with engine(tmp_path / "c", fills_max=1) as room:
        room.origin.put(REF, DATA)
        version, gate = version_in(room), asyncio.Event()
        room.origin.faults = [Fault(gate=gate)]
        boarded = [room.flights.board(version, BlockRun(index, 1)) for index in range(4)]
        room.flights.fill(boarded[0])
        while room.origin.under_way < 1:
            await asyncio.sleep(0)
        room.flights.fill(boarded[1], prefetch=True)
        room.flights.fill(boarded[2], prefetch=True)
        for _ in range(20):
            await asyncio.sleep(0)
        reader = asyncio.create_task(here(boarded[2][0], 0))
        await asyncio.sleep(0)
        room.flights.fill(boarded[3])
        gate.set()
        assert await reader > 0
        await room.tasks.settle()
        assert room.origin.ranges == [f"bytes={at * BLOCK}-{(at + 1) * BLOCK - 1}" for at in (0, 2, 3, 1)]


async def test_no_prefetch_is_granted_a_slot_before_demand_whose_task_has_not_begun(tmp_path: Path) -> None:
    with engine(tmp_path / "c", fills_max=1) as room:
        room.origin.put(REF, DATA)
        version, gate = version_in(room), asyncio.Event()
        room.origin.faults = [Fault(times=None, gate=gate)]
        first, prefetch, demand = (room.flights.board(version, BlockRun(index, 1))[0] for index in range(3))
        room.flights.fill([first])
        while room.origin.under_way < 1:
            await asyncio.sleep(0)
        room.flights.fill([prefetch], prefetch=True)
        room.flights.fill([demand])
        assert first.slot is not None
        first.slot.give_back()
        assert prefetch.slot is not None
        assert demand.slot is not None
        assert (prefetch.slot.held, demand.slot.held) == (False, True)
        gate.set()
        await room.tasks.settle()
        assert len(room.store) == 3
