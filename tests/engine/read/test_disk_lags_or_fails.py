"""A GET while the disk lags, is full or fails, or a block rots: the bytes come all the same."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from outrider.adapters.disk.block_writer import DiskBlockWriter
from outrider.core.cache.readahead import BlockRun, runs_ahead
from outrider.core.model import ObjectRef
from outrider.engine.fill.flight import Flight
from outrider.engine.read import body as body_module
from outrider.ports import Buffer
from tests.engine.read.five_blocks import DATA, SIZE
from tests.support.engine import BLOCK, REF, Engine, as_large, as_small, by_threads, engine, flights_of, taken
from tests.support.fakes import FakeOrigin, Fault, ramp

pytestmark = pytest.mark.one_python


class SlowWrites:
    """A disk that reports some seconds for each write. The clock does not move: that would count for the origin as
    well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        real = DiskBlockWriter.write

        async def write(writer: DiskBlockWriter, offset: int, pieces: Sequence[Buffer]) -> float:
            return await real(writer, offset, pieces) + self.seconds

        monkeypatch.setattr(DiskBlockWriter, "write", write)


@pytest.mark.parametrize("buffer_bytes", [as_large, as_small, by_threads])
async def test_while_the_disk_lags_most_misses_are_relayed(
    buffer_bytes: Callable[[int], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine(tmp_path / "c", freshness="immutable", buffer_bytes=buffer_bytes) as room:
        refs = [ObjectRef("train", f"{number}.tar") for number in range(60)]
        for ref in refs:
            room.origin.put(ref, DATA)
        disk = SlowWrites(monkeypatch)

        async def filled(some: list[ObjectRef]) -> list[int]:
            """How many blocks of each object were kept in the end."""
            cached = []
            for ref in some:
                before = len(room.store)
                assert await room.get(ref) == DATA
                await room.tasks.settle()
                room.clock.advance(disk.seconds)
                cached.append(len(room.store) - before)
            return cached

        assert await filled(refs[:5]) == [6] * 5
        disk.seconds = 0.5
        await filled(refs[5:10])
        relayed = room.metrics.value("outrider_relays_total")
        assert all(count < 6 for count in await filled(refs[10:20]))
        assert room.metrics.value("outrider_relays_total") >= relayed + 10
        disk.seconds = 0.0
        for _ in range(30):
            room.clock.advance(1.0)
            await filled(refs[20:21])
        room.clock.advance(5.0)
        assert await filled(refs[30:40]) == [6] * 10


async def test_read_ahead_fills_no_more_than_the_disk_takes(room: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await room.reads.head(REF, {})
    most = reader_at = 0

    fill = room.flights.fill

    def planned(position: int, last: int, sent: float, wanted: Callable[[int], bool], readers: int) -> list[BlockRun]:
        nonlocal reader_at
        reader_at = position
        return runs_ahead(position, last, sent, wanted, readers)

    def counted(flights: Sequence[Flight], *, ahead: int) -> None:
        nonlocal most
        if flights[0].meta.index > reader_at:  # what the reader waits for comes in any case
            most = max(most, len(room.flights))
        fill(flights, ahead=ahead)

    monkeypatch.setattr(body_module, "runs_ahead", planned)
    monkeypatch.setattr(room.flights, "admits", lambda: len(room.flights) < 2)
    monkeypatch.setattr(room.flights, "fill", counted)
    assert await room.get() == DATA
    await room.tasks.settle()
    assert 2 <= most <= 3  # beside one, a run of two may begin


async def test_a_relay_past_a_lagging_disk_sends_a_new_request_after_a_window(
    room: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ramp(20 * BLOCK)
    room.origin.put(REF, whole)
    await room.reads.head(REF, {})
    monkeypatch.setattr(room.flights, "admits", lambda: False)
    assert await room.get() == whole
    assert room.origin.ranges == [f"bytes=0-{16 * BLOCK - 1}", f"bytes={16 * BLOCK}-{20 * BLOCK - 1}"]
    assert len(room.store) == 0


async def test_with_no_room_at_all_the_bytes_are_relayed_and_counted(tmp_path: Path) -> None:
    with engine(tmp_path / "c", capacity_bytes=0) as room:
        room.origin.put(REF, DATA)
        assert await room.get() == DATA
        assert await room.range(5, SIZE - 5) == DATA[5:-5]
        await room.tasks.settle()
        assert room.metrics.value("outrider_relays_total") >= 2
        assert (len(room.store), room.store.used_bytes) == (0, 0)


async def test_the_reply_of_a_question_is_closed_where_its_fill_ends_before_the_first_byte(tmp_path: Path) -> None:
    with engine(tmp_path / "c", capacity_bytes=0) as room:
        room.origin.put(REF, DATA)
        # In mid-block, where room for the head is taken before any byte of the reply.
        answer = await room.reads.get(REF, {"range": f"bytes={BLOCK // 2}-"})
        assert await taken(answer) == DATA[BLOCK // 2 :]
        await room.tasks.settle()
        assert room.origin.under_way == 0


@pytest.mark.parametrize("blocks", [1, 2, 3])
async def test_with_room_for_less_than_the_object_every_byte_comes(blocks: int, tmp_path: Path) -> None:
    with engine(tmp_path / "c", FakeOrigin(chunk_bytes=9000), capacity_bytes=blocks * (BLOCK + 4096)) as room:
        room.origin.put(REF, DATA)
        for _ in range(3):
            assert await asyncio.gather(*(room.get() for _ in range(4))) == [DATA] * 4
        await room.tasks.settle()
        assert room.store.used_bytes <= blocks * (BLOCK + 4096)


@pytest.mark.parametrize(
    ("act", "good_calls"),
    # The free space of the disk is looked up only once within so short a time.
    [("statvfs", 0), *((act, good_calls) for act in ("open", "pwritev", "rename") for good_calls in (0, 1, 3, 5))],
)
async def test_a_disk_that_fails_at_any_step_costs_no_byte(
    act: str, good_calls: int, room: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(os, act)
    calls = iter(range(10**9))

    def failing(*args: object, **named: object) -> object:
        if next(calls) >= good_calls:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, act, failing)
        bodies = await asyncio.gather(*(room.get() for _ in range(3)), room.range(3, SIZE - 9))
        await room.tasks.settle()
    assert bodies == [DATA, DATA, DATA, DATA[3:-9]]
    assert room.metrics.total("outrider_store_errors_total") >= 1
    if room.flights.buffer_bytes < BLOCK and (act, good_calls) in (("open", 0), ("pwritev", 0)):
        # No block can keep its second half. Its first half is handed out from memory, which needs no disk.
        assert room.metrics.value("outrider_relays_total") >= 1
    room.clock.advance(10)
    assert await room.get() == DATA
    await room.tasks.settle()
    blocks = room.store.disks[0].directory.blocks
    assert room.store.used_bytes == sum(
        path.stat().st_size + (-path.stat().st_size) % 4096 for path in blocks.rglob("?" * 32)
    )


async def test_a_reader_that_comes_while_a_failed_fill_is_cleaned_up_gets_its_bytes(
    room: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fill has bytes, fails, and its file is closed. Between the failure and the close no reader may find the flight
    # in the table.
    await room.reads.head(REF, {})
    late: list[asyncio.Task[bytes]] = []
    real = type(room.store.disks[0].work).write_failed

    def failing(*_: object) -> int:
        raise OSError(errno.EIO, "sick")

    def failed(work: object, act: str, error: OSError) -> Exception:
        # From here on one more reader comes at every step of the loop.
        late.append(asyncio.get_running_loop().create_task(comers()))
        return real(work, act, error)  # type: ignore[arg-type]

    async def comers() -> bytes:
        tasks = []
        for _ in range(40):
            tasks.append(asyncio.create_task(room.range(0, 100)))
            await asyncio.sleep(0)
        assert {await task for task in tasks} == {DATA[:100]}
        return b""

    gate = asyncio.Event()
    room.origin.faults = [Fault(body_gate=gate, gate_after=7000)]
    leader = asyncio.create_task(room.range(0, BLOCK))
    while not (flights := flights_of(room.flights)):
        await asyncio.sleep(0)
    await flights[0].bytes_at(0)
    # No other reader must hold the file open.
    leader.cancel()
    await asyncio.wait([leader])
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing)
        patch.setattr(type(room.store.disks[0].work), "write_failed", failed)
        gate.set()
        while not late:
            await asyncio.sleep(0)
        await asyncio.gather(*late)
    await room.tasks.settle()


async def test_a_block_that_rots_while_it_lies_is_filled_again(tmp_path: Path) -> None:
    with engine(tmp_path / "c", verify_always=True) as room:
        room.origin.put(REF, DATA)
        await room.get()
        await room.tasks.settle()
        for path in (tmp_path / "c" / "v2").rglob("?" * 32):
            with path.open("r+b") as file:
                file.seek(4096 + 7)
                file.write(b"\xff")
        assert await room.get() == DATA
        await room.tasks.settle()
        assert room.metrics.value("outrider_bad_blocks_total") == 6


async def test_bytes_that_are_relayed_to_two_readers_at_once_are_counted(tmp_path: Path) -> None:
    with engine(tmp_path, capacity_bytes=0) as room:
        room.origin.put(REF, DATA)
        gate = asyncio.Event()
        assert await room.get() == DATA
        counted = partial(room.metrics.value, "outrider_duplicate_origin_bytes_total", cause="relay")
        before = counted()
        assert await room.get() == DATA
        assert counted() == before, "one after the other: nothing was kept that came twice"
        room.origin.faults = [Fault(times=None, body_gate=gate)]
        readers = [asyncio.create_task(room.get()) for _ in range(3)]
        for _ in range(50):
            await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*readers) == [DATA] * 3
        assert counted() - before == 2 * len(DATA)
