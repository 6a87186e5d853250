"""The contract of `BlockStore`: blocks are written whole, within the budget, and no damaged one is read."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.adapters.disk.block_dir import BlockDir
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import PAGE_BYTES, BlockMeta, Header
from outrider.core.cache.policies import Lru
from outrider.core.errors import StoreUnavailable
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion
from tests.contract.disk_store import (
    BLOCK,
    FILE,
    HEADER,
    LAYOUT,
    Disk,
    flip,
    given,
    meta_of,
    on_disk,
    open_fds,
    payload_of,
    read_through,
    restarted,
)
from tests.support.fakes import AtOnce

pytestmark = pytest.mark.parametrize("root", ["disk", "memory"], indirect=True)


async def test_a_block_is_there_after_commit_and_not_before(disk: Disk) -> None:
    meta = meta_of()
    writer = await disk.store.create(meta)
    assert disk.store.used_bytes == FILE
    await writer.write(0, [payload_of(meta)])
    assert not disk.store.has(meta.key)
    assert await disk.read(meta) is None
    await writer.commit()
    assert disk.store.has(meta.key)
    assert await disk.read(meta) == payload_of(meta)
    assert disk.store.lease_open(meta.key) is not None
    disk.keep_budget()


async def test_written_bytes_can_be_read_before_and_after_commit(disk: Disk) -> None:
    meta = meta_of()
    data = payload_of(meta)
    writer = await disk.store.create(meta)
    await writer.write(0, [data[:10]])
    lease = writer.lease()
    assert read_through(lease, 10) == data[:10]
    await writer.write(10, [data[10:]])
    await writer.commit()
    assert read_through(lease, BLOCK) == data
    lease.release()
    lease.release()


@pytest.mark.parametrize("cuts", [(3000, 0), (3000, 0, 500), (0, 3000, 500), (500, 3000, 0, 700)])
async def test_pieces_may_come_in_any_order_and_the_checksum_is_of_the_whole(cuts: tuple[int, ...], disk: Disk) -> None:
    meta = meta_of()
    data = payload_of(meta)
    writer = await disk.store.create(meta)
    for start in cuts:
        stop = min((cut for cut in cuts if cut > start), default=len(data))
        await writer.write(start, [data[start:stop]])
    await writer.commit()
    again = await restarted(disk, clean=False)
    assert await again.read(meta) == data  # the first use after a start verifies it
    assert again.metrics.value("outrider_bad_blocks_total") == 0
    again.close()


async def test_two_parts_may_be_written_at_once(disk: Disk) -> None:
    meta = meta_of()
    data = payload_of(meta)
    writer = await disk.store.create(meta)

    async def write(start: int, stop: int) -> None:
        for at in range(start, stop, 100):
            await writer.write(at, [data[at : min(at + 100, stop)]])

    await asyncio.gather(write(0, 1050), write(1050, len(data)))
    await writer.commit()
    again = await restarted(disk, clean=False)
    assert await again.read(meta) == data
    again.close()


async def test_an_aborted_block_leaves_nothing(disk: Disk) -> None:
    before = open_fds(disk.root)
    writer = await disk.store.create(meta_of())
    await writer.write(0, [b"x" * 100])
    await writer.abort()
    await writer.abort()
    assert (disk.store.used_bytes, on_disk(disk.root), open_fds(disk.root)) == (0, 0, before)


async def test_a_reader_of_an_aborted_block_keeps_the_written_bytes(disk: Disk) -> None:
    writer = await disk.store.create(meta_of())
    await writer.write(0, [b"abc"])
    lease = writer.lease()
    await writer.abort()
    assert read_through(lease, 3) == b"abc"
    lease.release()


async def test_the_last_block_is_short_and_long_metadata_moves_the_payload(disk: Disk) -> None:
    version = ObjectVersion(ObjectRef("b", "\udcff" * 200), '"e"', BLOCK + 3, (("x-amz-meta-a", "v" * 9000),))
    meta = BlockMeta(LAYOUT, version, 1)
    await disk.write(meta)
    assert await disk.read(meta) == payload_of(meta)
    assert Header(meta).length > PAGE_BYTES
    assert disk.store.used_bytes == Header(meta).disk_bytes == on_disk(disk.root)


async def test_metadata_beyond_any_header_is_not_stored(disk: Disk) -> None:
    with pytest.raises(StoreUnavailable):
        await disk.store.create(meta_of(headers=(("x", "v" * 70_000),)))
    disk.keep_budget()


async def test_the_budget_holds_after_every_step(root: Path) -> None:
    disk = Disk(root, 3 * FILE + 100)
    reserved: list[tuple[BlockMeta, int]] = []
    disk.store.on_reserved = lambda meta, count: reserved.append((meta, count))
    for index in range(12):
        meta = meta_of(index)
        writer = await disk.store.create(meta)
        disk.keep_budget()
        assert reserved == [(meta, disk.store.disks[0].budget.pending_bytes)]
        await writer.write(0, [payload_of(meta)])
        disk.keep_budget()
        if index % 4 == 3:
            await writer.abort()
        else:
            await writer.commit()
        disk.keep_budget()
        assert reserved.pop(1) == (meta, -reserved.pop(0)[1])
    assert len(disk.store) >= 2
    disk.close()


async def test_blocks_that_come_all_at_once_evict_no_more_than_they_need(root: Path) -> None:
    disk = Disk(root, 12 * FILE)
    await disk.write(*(meta_of(index) for index in range(11)))

    async def come(index: int) -> None:
        meta = meta_of(index)
        writer = await disk.store.create(meta)
        disk.keep_budget()
        await writer.write(0, [payload_of(meta)])
        await writer.commit()
        disk.keep_budget()

    await asyncio.gather(*(come(50 + index) for index in range(6)))
    assert len(disk.store) == 12
    assert disk.metrics.value("outrider_evicted_blocks_total") == 5
    assert [meta.index for meta in disk.ranked()][:6] == [5, 6, 7, 8, 9, 10]
    disk.close()


@pytest.mark.parametrize("steps", range(20))
async def test_room_made_for_one_block_is_not_taken_by_another(steps: int, root: Path) -> None:
    # With threads that answer at once, each order of the two is repeatable.
    disk = Disk(root, 2 * FILE)
    await disk.write(meta_of(0), meta_of(1))
    disk.store.disks[0].work.threads.shutdown()
    disk.store.disks[0].work.threads = AtOnce()
    first = asyncio.create_task(disk.store.create(meta_of(2)))
    for _ in range(steps):
        await asyncio.sleep(0)
    other = asyncio.create_task(disk.store.create(meta_of(3)))
    while not (first.done() and other.done()):
        disk.keep_budget()
        await asyncio.sleep(0)
    disk.keep_budget()
    assert disk.metrics.value("outrider_evicted_blocks_total") == 2
    for task in (first, other):
        await (await task).abort()
    disk.close()


async def test_with_enough_room_no_victim_is_searched(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for victims takes time in proportion to the number of datasets."""
    disk, victims = Disk(root, 2 * FILE), Lru.victims
    looked: list[BlockKey] = []

    def spied(policy: Lru, *incoming: Any) -> Iterator[BlockKey]:
        for block in victims(policy, *incoming):
            looked.append(block)
            yield block

    monkeypatch.setattr(Lru, "victims", spied)
    await disk.write(meta_of(0), meta_of(1))
    assert looked == []
    await disk.write(meta_of(2))
    assert looked[:1] == [meta_of(0).key]
    disk.close()


async def test_a_leased_block_is_no_victim(root: Path) -> None:
    disk = Disk(root, 2 * FILE)
    await disk.write(meta_of(0), meta_of(1))
    lease = given(disk.store.lease_open(meta_of(0).key))
    await disk.write(meta_of(2))
    assert disk.store.has(meta_of(0).key)
    assert not disk.store.has(meta_of(1).key)
    other = given(disk.store.lease_open(meta_of(2).key))
    with pytest.raises(StoreUnavailable):
        await disk.store.create(meta_of(3))
    disk.keep_budget()
    lease.release()
    await disk.write(meta_of(3))
    assert not disk.store.has(meta_of(0).key)
    other.release()
    disk.close()


async def test_a_block_larger_than_the_budget_is_refused_and_evicts_no_block(root: Path) -> None:
    disk = Disk(root, FILE)
    await disk.write(meta_of(0))
    big = BlockMeta(BlockLayout("http://o", 10 * BLOCK), meta_of().version, 0)
    with pytest.raises(StoreUnavailable):
        await disk.store.create(big)
    assert disk.store.has(meta_of(0).key)
    disk.close()


async def test_with_policy_none_no_block_is_evicted(root: Path) -> None:
    disk = Disk(root, FILE, policy="none")
    await disk.write(meta_of(0))
    with pytest.raises(StoreUnavailable):
        await disk.store.create(meta_of(1))
    disk.close()


class Crowded(BlockDir):
    """A file system on which other users leave only `room` bytes to the store."""

    room = 0

    def free_bytes(self) -> int:
        return self.room - on_disk(self.root)


async def test_free_space_stays_above_its_floor(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Crowded, "room", 5 * FILE)
    disk = Disk(root, directory=Crowded, min_free=2 * FILE)
    await disk.write(*(meta_of(index) for index in range(3)))
    await disk.write(meta_of(3))
    assert len(disk.store) == 3
    # Reserved bytes count as used, although the free space does not show them yet.
    leases = [disk.store.lease_open(meta_of(index).key) for index in (2, 3)]
    writer = await disk.store.create(meta_of(4))
    with pytest.raises(StoreUnavailable):
        await disk.store.create(meta_of(5))
    await writer.abort()
    assert disk.store.disks[0].directory.free_bytes() >= 2 * FILE
    # Other users took more: evicting all blocks would not make that room.
    monkeypatch.setattr(Crowded, "room", FILE)
    with pytest.raises(StoreUnavailable):
        await disk.store.create(meta_of(6))
    for lease in leases:
        assert lease is not None
        lease.release()
    disk.close()


def warnings_of_others(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.message == "others have filled the disk of the cache" for record in caplog.records)


async def test_a_disk_that_others_have_filled_is_named_once_a_minute(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Crowded, "room", FILE)
    disk = Disk(root, directory=Crowded, min_free=2 * FILE)
    for waited_s, warned in ((0, 1), (59, 1), (1, 2)):
        disk.clock.advance(waited_s)
        with pytest.raises(StoreUnavailable):
            await disk.store.create(meta_of(0))
        assert warnings_of_others(caplog) == warned
    disk.close()


async def test_a_cache_that_is_full_of_blocks_in_use_is_not_called_filled_by_others(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(root, capacity=FILE)
    await disk.write(meta_of(0))
    lease = disk.store.lease_open(meta_of(0).key)
    assert lease is not None
    with pytest.raises(StoreUnavailable):
        await disk.store.create(meta_of(1))
    assert warnings_of_others(caplog) == 0
    lease.release()
    disk.close()


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


# `tests/unit/cache/test_block_file.py` turns each bit of a header.
DAMAGES: dict[str, Callable[[Path], object]] = {
    "header": lambda path: flip(path, 21),
    "first byte": lambda path: flip(path, HEADER),
    "last byte": lambda path: flip(path, HEADER + BLOCK - 1),
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer": lengthen,
    "empty": lambda path: os.truncate(path, 0),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_bad_block_is_a_miss_a_deletion_and_a_count(damage: str, root: Path) -> None:
    disk = Disk(root, verify_always=True)
    await disk.write(meta_of(0), meta_of(1))
    DAMAGES[damage](disk.path(meta_of(0)))
    assert await disk.read(meta_of(0)) is None
    assert not disk.store.has(meta_of(0).key)
    assert not disk.path(meta_of(0)).exists()
    assert disk.metrics.value("outrider_bad_blocks_total") == 1
    assert disk.store.used_bytes == FILE
    assert await disk.read(meta_of(1)) == payload_of(meta_of(1))
    await disk.write(meta_of(0))
    assert await disk.read(meta_of(0)) == payload_of(meta_of(0))
    disk.close()


async def test_many_readers_of_a_bad_block_count_it_once(root: Path) -> None:
    disk = Disk(root, verify_always=True)
    await disk.write(meta_of(0))
    flip(disk.path(meta_of(0)), HEADER + 5)
    assert await asyncio.gather(*(disk.read(meta_of(0)) for _ in range(8))) == [None] * 8
    assert disk.metrics.value("outrider_bad_blocks_total") == 1
    assert disk.store.used_bytes == 0
    disk.close()


async def test_a_block_under_anothers_name_is_bad(root: Path) -> None:
    disk = Disk(root, verify_always=True)
    await disk.write(meta_of(0), meta_of(1))
    shutil.copy(disk.path(meta_of(1)), disk.path(meta_of(0)))
    assert await disk.read(meta_of(0)) is None
    assert disk.metrics.value("outrider_bad_blocks_total") == 1
    disk.close()


async def test_verify_first_reads_a_payload_once_after_a_start_and_always_each_time(root: Path) -> None:
    disk = Disk(root)
    await disk.write(meta_of(0))
    disk = await restarted(disk, clean=True)
    assert await disk.read(meta_of(0)) == payload_of(meta_of(0))
    flip(disk.path(meta_of(0)), HEADER)
    assert await disk.read(meta_of(0)) is not None  # this process has verified it
    assert list(disk.store.each(unverified=True)) == []
    disk = await restarted(disk, clean=True)
    assert list(disk.store.each(unverified=True)) == [meta_of(0).key]
    assert disk.store.lease_open(meta_of(0).key) is None
    assert await disk.read(meta_of(0)) is None
    disk.close()


async def test_a_deleted_file_is_a_miss_for_all_concurrent_readers(root: Path) -> None:
    disk = Disk(root, verify_always=True)
    await disk.write(meta_of(0), meta_of(1))
    disk.path(meta_of(0)).unlink()
    assert await asyncio.gather(*(disk.read(meta_of(0)) for _ in range(8))) == [None] * 8
    assert disk.store.used_bytes == FILE
    assert not disk.store.has(meta_of(0).key)
    disk.keep_budget()
    disk.close()


async def test_free_space_is_read_once_a_second_and_whenever_it_may_be_short(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    free = 10 * FILE

    def look(*_: object) -> int:
        looks.append(free)
        return free

    monkeypatch.setattr(type(disk.store.disks[0].directory), "free_bytes", look)
    for index in range(3):
        await disk.write(meta_of(index))
    assert len(looks) == 1
    for index in range(3, 7):
        await disk.write(meta_of(index))
    assert len(looks) > 1, "bytes that were reserved since may have filled the disk"
    seen = len(looks)
    disk.clock.advance(1.1)
    await disk.write(meta_of(7))
    assert len(looks) == seen + 1
