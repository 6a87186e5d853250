"""Fills of small blocks: one hop to a thread, readable before they are on disk."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from outrider.core.cache.readahead import BlockRun
from outrider.core.model import ObjectRef
from outrider.engine.fill import fill as fill_module
from outrider.engine.fill.fill_scheduler import READS_ON_S
from tests.engine.fill.small_engine import DATA, version_in
from tests.support.engine import BLOCK, REF, Engine, as_large, as_small, engine
from tests.support.fakes import FakeOrigin, Fault


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
