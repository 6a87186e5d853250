"""Flights and their table: a block has one fill, and each waiter of it waits on its own."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.adapters.disk import block_io
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.readahead import BlockRun
from outrider.core.errors import OriginBroke, StoreUnavailable, VersionChanged
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion
from outrider.engine.fill import fill as fill_module
from outrider.engine.fill.fill import BlockFill, FillParts
from outrider.engine.fill.fill_scheduler import READS_ON_S
from outrider.engine.fill.flight import Flight
from outrider.engine.tasks.runtime import Runtime
from outrider.ports import BlockWriter
from tests.support.engine import BLOCK, REF, Engine, as_large, as_small, by_threads, cleaned, engine, is_idle
from tests.support.fakes import RAMP, FakeOrigin, Fault

DATA = RAMP[: 4 * BLOCK]
LAYOUT = BlockLayout("http://fake", BLOCK)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Engine]:
    with engine(tmp_path / "c", FakeOrigin(chunk_bytes=10_000)) as room:
        room.origin.put(REF, DATA)
        yield room


async def here(lead: Flight, offset: int) -> int:
    """Wait for the byte at `offset`, and return the end of the run of bytes from there on."""
    early = await lead.bytes_at(offset)
    return lead.partial.reach(offset) if early is None else offset + len(early)


def version_in(room: Engine, ref: ObjectRef = REF, size: int = len(DATA)) -> ObjectVersion:
    etag = room.origin.objects[ref].etag
    assert etag is not None
    return ObjectVersion(ref, etag, size)


def key_of(version: ObjectVersion, index: int) -> BlockKey:
    return LAYOUT.key(version, index)


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
    assert is_idle(room.scheduler)


async def test_a_stop_while_a_fill_gives_up_leaves_no_room_reserved(room: Engine) -> None:
    unused: Any = None
    fill = BlockFill([], None, FillParts(unused, room.store, room.contents, unused, unused, Runtime(unused, unused)))
    version = version_in(room)
    for index in range(2):
        await fill._open(Flight(BlockMeta(LAYOUT, version, index)))
    assert room.store.used_bytes > 2 * BLOCK
    giving_up = asyncio.ensure_future(fill._abort())
    await asyncio.sleep(0)
    giving_up.cancel()
    await asyncio.wait([giving_up])
    assert giving_up.cancelled()
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


# -- from the middle --------------------------------------------------------------------------------------------

AT = BLOCK // 2 + 5


def payload_in(room: Engine, key: BlockKey) -> bytes:
    """The content of the block's file, after its checksum was verified."""
    path = room.store.disks[0].directory.path_of(key)
    fd, offset = block_io.open_block(path, key, True)
    os.close(fd)
    return path.read_bytes()[offset:]


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
    while lead.partial.reach(0) < AT:
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
async def test_a_stop_in_either_part_leaves_nothing_behind(steps: int, room: Engine) -> None:
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


# -- prefetch ---------------------------------------------------------------------------------------------------


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


# -- in larger pieces -------------------------------------------------------------------------------------------


async def test_bytes_in_the_write_buffer_are_readable_for_every_reader(room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults = [Fault(body_gate=gate, gate_after=25_000)]
    (lead,) = room.flights.board(version_in(room), BlockRun(0, 1))
    room.flights.fill([lead])
    while room.origin.body_bytes < 25_000:
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert lead.partial.reach(0) == 0
    # The origin is silent. The bytes that have come are handed out all the same.
    for start, stop in ((0, 10_000), (5, 10_000), (10_000, 20_000), (24_999, 25_000)):
        assert bytes(await lead.bytes_at(start) or b"") == DATA[start:stop]
    gate.set()
    await room.tasks.settle()
    assert payload_in(room, lead.meta.key) == DATA[:BLOCK]
    assert not lead._unwritten, "the bytes are on disk and in memory as well"


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


# -- small ones -------------------------------------------------------------------------------------------------


async def test_a_small_block_costs_one_hop_to_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(tmp_path / "c", FakeOrigin(chunk_bytes=7000), buffer_bytes=as_small) as room:
        refs = [ObjectRef("train", f"{number}.jpg") for number in range(5)]
        for ref in refs:
            room.origin.put(ref, DATA[:BLOCK])
        assert await room.get(refs[0]) == DATA[:BLOCK]  # looks at the free space
        await room.tasks.settle()
        hops, begin = 0, room.store.disks[0].work.begin

        def counted(work: Callable[..., Any], *args: object) -> asyncio.Future[Any]:
            nonlocal hops
            hops += 1
            return begin(work, *args)

        monkeypatch.setattr(room.store.disks[0].work, "begin", counted)
        for ref in refs[1:]:
            assert await room.get(ref) == DATA[:BLOCK]
            await room.tasks.settle()
        assert (hops, len(room.store)) == (4, 5)


async def test_readers_of_a_small_block_get_it_before_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, real = threading.Event(), os.pwritev

    def write(*given: Any) -> int:
        disk.wait(60)
        return real(*given)

    with engine(tmp_path / "c", FakeOrigin(chunk_bytes=7000), buffer_bytes=as_small) as room:
        room.origin.put(REF, DATA[:BLOCK])
        monkeypatch.setattr(os, "pwritev", write)
        readers = [room.get(), room.range(5, BLOCK - 5), room.range(BLOCK // 2, BLOCK)]
        wanted = [DATA[:BLOCK], DATA[5 : BLOCK - 5], DATA[BLOCK // 2 : BLOCK]]
        assert await asyncio.gather(*readers) == wanted
        assert await room.range(1, 9) == DATA[1:9]  # a later reader has them from memory, too
        assert len(room.store) == 0
        disk.set()
        await room.tasks.settle()
        assert (len(room.store), room.origin.body_bytes) == (1, BLOCK)


async def test_a_reader_of_small_objects_can_request_the_next_before_the_disk_begins(tmp_path: Path) -> None:
    waits: list[float] = []
    gate = asyncio.Event()

    async def reads_on(seconds: float) -> None:
        waits.append(seconds)
        await gate.wait()

    with engine(tmp_path / "c", buffer_bytes=as_small, reads_on=reads_on) as room:
        room.origin.put(REF, DATA[:BLOCK])
        assert await room.get() == DATA[:BLOCK]
        assert await room.range(1, 9) == DATA[1:9], "the bytes come from memory"
        assert waits == [READS_ON_S]
        assert list(room.store.disks[0].directory.tmp.iterdir()) == []
        gate.set()
        await room.tasks.settle()
        assert (len(room.store), room.origin.body_bytes) == (1, BLOCK)


async def test_a_stop_before_the_disk_begins_leaves_nothing_behind(tmp_path: Path) -> None:
    waiting = asyncio.Event()

    async def reads_on(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    with engine(tmp_path / "c", buffer_bytes=as_small, reads_on=reads_on) as room:
        room.origin.put(REF, DATA[:BLOCK])
        assert await room.get() == DATA[:BLOCK]
        await waiting.wait()
        assert len(room.flights) == 1
        await room.tasks.cancel()
        assert (len(room.flights), len(room.store), room.store.used_bytes) == (0, 0, 0)


async def test_the_next_fill_may_begin_while_a_small_block_waits_for_the_disk(tmp_path: Path) -> None:
    gate, other = asyncio.Event(), ObjectRef("train", "b.tar")

    async def reads_on(seconds: float) -> None:
        await gate.wait()

    with engine(tmp_path / "c", buffer_bytes=as_small, reads_on=reads_on, fills_max=1) as room:
        for ref in (REF, other):
            room.origin.put(ref, DATA[:BLOCK])
            version = version_in(room, ref, BLOCK)
            room.flights.fill(room.flights.board(version, BlockRun(0, 1)))
        async with asyncio.timeout(60):
            while len(room.origin.log) < 2:
                await asyncio.sleep(0)
        assert len(room.store) == 0
        gate.set()
        await room.tasks.settle()
        assert len(room.store) == 2


@pytest.mark.parametrize("ends_after", [1, 3, None])
async def test_a_small_prefetched_block_is_written_once_readers_of_hits_pause(
    ends_after: int | None, tmp_path: Path
) -> None:
    """The readers go on for `ends_after` waits; None means until the test ends."""
    waits: list[float] = []

    async def reads_on(seconds: float) -> None:
        waits.append(seconds)
        its.clock.advance(seconds)
        if len(waits) != ends_after:
            its.scheduler.read_at = its.clock()

    with engine(tmp_path / "c", buffer_bytes=as_small, reads_on=reads_on) as its:
        its.origin.put(REF, DATA[:BLOCK])
        flights = its.flights.board(version_in(its, size=BLOCK), BlockRun(0, 1))
        its.scheduler.read_at = its.clock()
        its.flights.fill(flights, prefetch=True)
        await its.tasks.settle()
        assert len(its.store) == 1
        assert len(waits) == (ends_after or 4)
        assert sum(waits) <= 15 * READS_ON_S


@pytest.mark.parametrize(("reads", "waits", "begun"), [(True, False, 1), (True, True, 2), (False, False, 2)])
async def test_a_small_prefetch_gives_its_slot_back_before_it_is_on_disk_unless_readers_of_hits_go_on(
    reads: bool, waits: bool, begun: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `reads` a client reads cached blocks. With `waits` a client waits for a reply."""
    other, disk, real = ObjectRef("train", "b.tar"), threading.Event(), os.pwritev

    def write(*given: Any) -> int:
        disk.wait(60)
        return real(*given)

    async def reads_on(seconds: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(os, "pwritev", write)
    with engine(tmp_path / "c", buffer_bytes=as_small, reads_on=reads_on, fills_max=1) as room, ExitStack() as stack:
        if reads:
            room.scheduler.read_at = room.clock()
        if waits:
            stack.enter_context(room.scheduler.question())
        for ref in (REF, other):
            room.origin.put(ref, DATA[:BLOCK])
            version = version_in(room, ref, BLOCK)
            room.flights.fill(room.flights.board(version, BlockRun(0, 1)), prefetch=True)
        async with asyncio.timeout(60):
            while len(room.origin.log) < begun:
                await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(room.origin.log) == begun
        disk.set()
        await room.tasks.settle()
        assert len(room.store) == 2


@pytest.mark.parametrize(("prefetch", "buffer_bytes", "small", "count"), [
    (True, as_small, BLOCK, 1), (False, as_large, BLOCK, 1), (False, as_small, BLOCK - 1, 1),
    (False, as_small, BLOCK, 2),
])  # fmt: skip
async def test_a_block_is_written_at_once_if_it_has_no_reader_or_is_large_or_has_parts(
    prefetch: bool, buffer_bytes: Callable[[int], int], small: int, count: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The object has `count` blocks, of which one is filled."""
    waits: list[float] = []
    monkeypatch.setattr(fill_module, "_SMALL_BYTES", small)

    async def reads_on(seconds: float) -> None:
        waits.append(seconds)

    with engine(tmp_path / "c", FakeOrigin(chunk_bytes=7000), buffer_bytes=buffer_bytes, reads_on=reads_on) as room:
        room.origin.put(REF, DATA[: count * BLOCK])
        version = version_in(room, size=count * BLOCK)
        room.flights.fill(room.flights.board(version, BlockRun(0, 1)), prefetch=prefetch)
        await room.tasks.settle()
        assert (len(room.store), waits) == (1, [])


async def test_small_bodies_report_their_time_and_large_ones_their_bytes(
    room: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    small: list[float] = []
    flowed: list[int] = []
    monkeypatch.setattr(fill_module, "_SMALL_BYTES", BLOCK)
    monkeypatch.setattr(room.scheduler, "small_received", small.append)
    monkeypatch.setattr(room.scheduler, "flowed", lambda count, awaited: flowed.append(count))
    version, gate = version_in(room), asyncio.Event()
    room.origin.faults = [Fault(body_gate=gate, gate_after=25_000)]
    room.flights.fill(room.flights.board(version, BlockRun(0, 1)))
    while room.origin.body_bytes < 25_000:
        await asyncio.sleep(0)
    room.clock.advance(3.0)
    gate.set()
    await room.tasks.settle()
    assert (small, flowed) == ([3.0], []), "a small body reports its time at its end"
    room.flights.fill(room.flights.board(version, BlockRun(1, 2)))
    await room.tasks.settle()
    assert (small, sum(flowed)) == ([3.0], 2 * BLOCK - 10_000), "the first piece does not count: its time is latency"
