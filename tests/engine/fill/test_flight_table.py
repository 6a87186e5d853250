"""One fill for each missing block, however many readers wait for it (single-flight)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.readahead import BlockRun
from outrider.core.errors import OriginBroke, StoreUnavailable, VersionChanged
from outrider.core.model import ObjectVersion
from outrider.engine.fill.flight import Flight
from outrider.ports import BlockWriter
from tests.engine.fill.small_engine import DATA, LAYOUT, here, key_of, payload_in, version_in
from tests.support.engine import BLOCK, REF, Engine, as_large, as_small, by_threads, cleaned, engine
from tests.support.fakes import FakeOrigin, Fault


def flight() -> Flight:
    return Flight(BlockMeta(LAYOUT, ObjectVersion(REF, '"e"', BLOCK), 0))


async def test_a_waiter_wakes_when_its_byte_is_here_and_not_before() -> None:
    lead = flight()
    early, late = asyncio.create_task(here(lead, 0)), asyncio.create_task(here(lead, 100))
    await asyncio.sleep(0)
    lead.advance(0, 50)
    await asyncio.sleep(0)
    assert early.done()
    assert not late.done()
    lead.advance(50, 51)
    assert await late == 101
    assert await early == 50


async def test_bytes_on_their_way_to_disk_are_handed_out_from_memory() -> None:
    lead = flight()
    first, inner, beyond = (asyncio.create_task(lead.bytes_at(at)) for at in (0, 7, 10))
    await asyncio.sleep(0)
    lead.hand_out(0, DATA[:10])
    assert bytes(await first or b"") == DATA[:10]
    assert bytes(await inner or b"") == DATA[7:10]
    assert not beyond.done()
    lead.advance(0, 11)
    assert await beyond is None
    assert await lead.bytes_at(0) is None, "the byte is on disk"


async def test_a_cancelled_waiter_cancels_no_other() -> None:
    lead = flight()
    waiters = [asyncio.create_task(here(lead, 0)) for _ in range(10)]
    await asyncio.sleep(0)
    for waiter in waiters[::2]:
        waiter.cancel()
    await asyncio.wait(waiters[::2])
    lead.advance(0, 5)
    assert await asyncio.gather(*waiters[1::2]) == [5] * 5
    assert all(waiter.cancelled() for waiter in waiters[::2])


async def test_bytes_that_arrived_are_readable_after_the_flight_failed() -> None:
    lead = flight()
    lead.advance(0, 10)
    lead.fail(OriginBroke("gone"))
    assert await here(lead, 9) == 10
    for _ in range(2):
        with pytest.raises(OriginBroke):
            await here(lead, 10)


async def test_a_flight_that_fails_before_its_reader_takes_a_lease_raises(room: Engine) -> None:
    meta = BlockMeta(LAYOUT, version_in(room), 0)
    writer, lead = await room.store.create(meta), Flight(meta)
    lead.begin(writer)
    reader = asyncio.create_task(here(lead, 0))
    await asyncio.sleep(0)
    await writer.write(0, [DATA[:10]])
    lead.advance(0, 10)
    lead.fail(StoreUnavailable("the proxy is stopping"))
    await writer.abort()
    assert await reader == 10
    with pytest.raises(StoreUnavailable):
        lead.lease()


async def test_a_run_is_one_get_and_fills_each_of_its_blocks(room: Engine) -> None:
    version = version_in(room)
    room.flights.fill(room.flights.board(version, BlockRun(0, 4)))
    assert not room.flights.wanted(key_of(version, 2))
    await room.tasks.settle()
    assert room.origin.ranges == [f"bytes=0-{4 * BLOCK - 1}"]
    assert all(room.store.has(key_of(version, index)) for index in range(4))
    assert len(room.flights) == 0


@pytest.mark.parametrize("buffer_bytes", [as_large, as_small])
@pytest.mark.parametrize("chunk_bytes", [BLOCK // 4, BLOCK, 2 * BLOCK, 10_000])
async def test_a_piece_of_a_body_may_end_with_a_block(
    chunk_bytes: int, buffer_bytes: Callable[[int], int], tmp_path: Path
) -> None:
    with engine(tmp_path / "c", FakeOrigin(chunk_bytes=chunk_bytes), buffer_bytes=buffer_bytes) as room:
        room.origin.put(REF, DATA)
        version = version_in(room)
        flights = room.flights.board(version, BlockRun(0, 4))
        room.flights.fill(flights)
        await room.tasks.settle()
        assert all(flight.has_landed for flight in flights)
        assert [payload_in(room, key_of(version, index)) for index in range(4)] == [
            DATA[index * BLOCK : (index + 1) * BLOCK] for index in range(4)
        ]
        assert (room.origin.count(), room.store.used_bytes) == (1, 4 * (BLOCK + 4096))


async def test_a_block_is_in_the_table_or_in_the_store_at_every_moment_of_its_fill(room: Engine) -> None:
    version = version_in(room)
    flights = room.flights.board(version, BlockRun(0, 2))
    room.flights.fill(flights)
    while len(room.flights):
        for index in range(2):
            assert not room.flights.wanted(key_of(version, index))
        await asyncio.sleep(0)
    await room.tasks.settle()


async def test_a_block_never_has_two_flights(room: Engine) -> None:
    version = version_in(room)
    room.flights.fill(room.flights.board(version, BlockRun(0, 1)))
    with pytest.raises(AssertionError):
        room.flights.board(version, BlockRun(0, 1))
    await room.tasks.settle()


async def test_fills_wait_for_slots(tmp_path: Path) -> None:
    with engine(tmp_path / "c", fills_max=2) as room:
        room.origin.put(REF, DATA)
        version = version_in(room)
        gate = asyncio.Event()
        room.origin.faults = [Fault(times=None, gate=gate)]
        for index in range(4):
            room.flights.fill(room.flights.board(version, BlockRun(index, 1)))
        while room.origin.under_way < 2:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert room.origin.count() == 2
        gate.set()
        await room.tasks.settle()
        assert len(room.store) == 4


@pytest.mark.parametrize(
    ("fault", "error"),
    [(Fault(times=None, status=412), VersionChanged), (Fault(times=None, status=404), VersionChanged),
     (Fault(times=None, status=416), VersionChanged), (Fault(times=None, refuse=True), OriginBroke)],
)  # fmt: skip
async def test_all_waiters_of_a_failed_fill_get_its_error(fault: Fault, error: type[Exception], room: Engine) -> None:
    room.origin.faults = [fault]
    flights = room.flights.board(version_in(room), BlockRun(0, 2))
    waiters = [asyncio.create_task(here(lead, 0)) for lead in flights for _ in range(3)]
    room.flights.fill(flights)
    for waiter in waiters:
        with pytest.raises(error):
            await waiter
    await room.tasks.settle()
    assert (len(room.flights), len(room.store), room.store.used_bytes) == (0, 0, 0)


async def test_waiters_get_an_error_for_a_bug_in_the_fill_too(room: Engine, caplog: pytest.LogCaptureFixture) -> None:
    flights = room.flights.board(version_in(room), BlockRun(0, 1))
    room.origin.faults = [Fault(bug=ZeroDivisionError())]
    room.flights.fill(flights)
    with pytest.raises(ZeroDivisionError):
        await here(flights[0], 0)
    await room.tasks.settle()


@pytest.mark.parametrize("buffer_bytes", [as_large, by_threads])
@pytest.mark.parametrize("after", [1, BLOCK - 1, BLOCK, BLOCK + 1])
async def test_a_bug_in_the_midst_of_a_body_fails_the_fill_and_leaves_nothing_behind(
    after: int, buffer_bytes: Callable[[int], int], tmp_path: Path
) -> None:
    with engine(tmp_path, buffer_bytes=buffer_bytes) as room:
        room.origin.put(REF, DATA)
        flights = room.flights.board(version_in(room), BlockRun(0, 2))
        room.origin.faults = [Fault(bug=ZeroDivisionError(), break_after=after)]
        room.flights.fill(flights)
        with pytest.raises(ZeroDivisionError):
            await here(flights[1], BLOCK - 1)
        await room.tasks.settle()
        assert (len(room.flights), room.origin.under_way, room.store.leases()) == (0, 0, 0)
        assert len(room.store) == after // BLOCK
        assert list((tmp_path / "tmp").iterdir()) == []
        assert await room.get() == DATA
        await room.tasks.settle()


@pytest.mark.parametrize(("buffer_bytes", "parts"), [(as_large, 0), (by_threads, 2)])
async def test_the_bytes_of_a_bulk_after_the_first_ones_are_received_by_a_thread(
    buffer_bytes: Callable[[int], int], parts: int, tmp_path: Path
) -> None:
    with engine(tmp_path, buffer_bytes=buffer_bytes) as room:
        room.origin.put(REF, DATA)
        room.flights.fill(room.flights.board(version_in(room), BlockRun(0, 2)))
        await room.tasks.settle()
        assert (len(room.store), room.origin.received) == (2, parts)


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 20])
async def test_a_stop_wakes_the_waiters_and_leaves_nothing_behind(steps: int, room: Engine) -> None:
    room.origin.faults = [Fault(body_gate=asyncio.Event(), gate_after=BLOCK)]
    flights = room.flights.board(version_in(room), BlockRun(0, 2))
    room.flights.fill(flights)
    waiter = asyncio.create_task(here(flights[1], 0))
    for _ in range(steps):
        await asyncio.sleep(0)
    await room.tasks.cancel()
    with pytest.raises(StoreUnavailable):
        await waiter
    assert len(room.flights) == 0
    assert room.store.used_bytes == len(room.store) * (BLOCK + 4096)
    assert room.scheduler.is_idle


async def test_a_stop_while_a_fill_gives_up_leaves_no_room_reserved(room: Engine) -> None:
    room.origin.faults = [Fault(bug=ZeroDivisionError(), break_after=BLOCK + 20_000)]
    # The first block lacks its head when the body breaks off in the second one: both have a file.
    room.flights.fill(room.flights.board(version_in(room), BlockRun(0, 2), BLOCK // 2))
    while len(room.flights):
        await asyncio.sleep(0)
    assert room.store.used_bytes > 2 * BLOCK
    await room.tasks.cancel()
    await cleaned(room.store.disks[0])
    assert room.store.used_bytes == 0


async def test_a_fill_without_room_on_disk_sends_no_request(tmp_path: Path) -> None:
    with engine(tmp_path / "c", capacity_bytes=0) as room:
        room.origin.put(REF, DATA)
        flights = room.flights.board(version_in(room), BlockRun(0, 1))
        room.flights.fill(flights)
        with pytest.raises(StoreUnavailable):
            await here(flights[0], 0)
        await room.tasks.settle()
        assert room.origin.count() == 0


async def test_a_prefetch_sends_no_request_before_it_has_room(room: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, create = asyncio.Event(), room.store.create

    async def slow(meta: BlockMeta, *, hashed: bool) -> BlockWriter:
        await gate.wait()
        return await create(meta, hashed=hashed)

    monkeypatch.setattr(room.store, "create", slow)
    room.origin.put(REF, DATA)
    (flight,) = room.flights.board(version_in(room), BlockRun(0, 1))
    room.flights.fill([flight], prefetch=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert room.origin.count() == 0
    gate.set()
    assert await flight.ended()
