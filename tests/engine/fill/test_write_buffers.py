"""Bytes of a fill on their way to disk: readable from memory, and bounded."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cache.readahead import BlockRun
from outrider.core.errors import StoreUnavailable
from outrider.engine.fill import fill as fill_module
from tests.engine.fill.small_engine import DATA, here, payload_in, version_in
from tests.support.engine import BLOCK, REF, Engine, engine
from tests.support.fakes import FakeOrigin, Fault


async def test_bytes_in_the_write_buffer_are_readable_for_every_reader(room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults = [Fault(body_gate=gate, gate_after=25_000)]
    (lead,) = room.flights.board(version_in(room), BlockRun(0, 1))
    room.flights.fill([lead])
    while room.origin.body_bytes < 25_000:
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert lead.reach(0) == 0
    # The origin is silent. The bytes that have come are handed out all the same.
    for start, stop in ((0, 10_000), (5, 10_000), (10_000, 20_000), (24_999, 25_000)):
        assert bytes(await lead.bytes_at(start) or b"") == DATA[start:stop]
    gate.set()
    await room.tasks.settle()
    assert payload_in(room, lead.meta.key) == DATA[:BLOCK]
    for offset in range(BLOCK):
        assert await lead.bytes_at(offset) is None, "the bytes are on disk and in memory as well"


async def test_awaited_bytes_are_handed_out_as_they_come(room: Engine) -> None:
    (lead,) = room.flights.board(version_in(room), BlockRun(0, 1))
    reader = asyncio.create_task(here(lead, 0))
    await asyncio.sleep(0)
    room.flights.fill([lead])
    assert await reader == 10_000  # one piece of the origin's
    await room.tasks.settle()


async def test_a_disk_that_fails_to_write_the_buffer_ends_the_fill(
    room: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    room.origin.faults = [Fault(body_gate=gate, gate_after=25_000)]
    flights = room.flights.board(version_in(room), BlockRun(0, 2))
    room.flights.fill(flights)
    while room.origin.body_bytes < 25_000:
        await asyncio.sleep(0)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "fake")

    monkeypatch.setattr(os, "pwritev", fail)
    gate.set()
    for lead in flights:
        with pytest.raises(StoreUnavailable):
            await lead.bytes_at(BLOCK - 1)
    await room.tasks.settle()
    assert (len(room.flights), room.store.used_bytes, room.origin.under_way) == (0, 0, 0)


@given(st.integers(1, 10_000))
def test_the_buffers_of_all_fills_are_bounded_and_a_lone_fill_buffers_a_whole_write(fills: int) -> None:
    # 64 is the default of the setting `fills`. Each of more than 128 fills buffers 64 KiB: as much as a socket brings
    # at once.
    assert fills * fill_module.buffer_bytes(fills) <= max(8 * 2**20, fills * 64 * 2**10)
    assert fill_module.buffer_bytes(fills) <= fill_module.buffer_bytes(1) == 512 * 2**10


async def test_each_of_many_fills_writes_sooner_than_a_lone_one(tmp_path: Path) -> None:
    written: dict[int, int] = {}
    for fills in (1, 4):
        with engine(
            tmp_path / str(fills), FakeOrigin(chunk_bytes=1000), buffer_bytes=lambda count: BLOCK // 2 // count
        ) as room:
            room.origin.put(REF, DATA)
            version, writes = version_in(room), 0

            def counted(waited_s: float, disk_s: float, count: int) -> None:
                nonlocal writes
                writes += 1

            each = [room.flights.board(version, BlockRun(index, 1)) for index in range(fills)]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(room.flights, "written", counted)
                for flights in each:
                    room.flights.fill(flights, prefetch=False)
                await room.tasks.settle()
            written[fills] = writes // fills
    assert written[4] > written[1]
