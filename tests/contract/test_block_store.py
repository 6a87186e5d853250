"""The contract of `BlockStore`, on a disk and on the tmpfs. Errors of the disk are injected at the system calls."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from outrider import pagecache
from outrider.adapters.disk import block_io, block_reads, disk_threads, index_snapshot, memory_dir
from outrider.adapters.disk.block_dir import BlockDir, UnusableCacheDir
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.block_writer import DiskBlockWriter
from outrider.adapters.disk.disk import Disk as StoreDisk
from outrider.adapters.disk.disk_threads import _THREADS, DiskThreads
from outrider.adapters.disk.leases import FileLease, OpenFile
from outrider.adapters.disk.recovery import Recovery
from outrider.adapters.disk.written_names import WrittenNamesFile
from outrider.adapters.sealed_file import LinesFormat
from outrider.core.block_layout import BlockLayout
from outrider.core.cache import block_file
from outrider.core.cache.block_file import DIGEST_BYTES, PAGE_BYTES, BlockMeta, Header, PayloadChecksum, digest_text
from outrider.core.cache.disk_budget import DiskBudget
from outrider.core.cache.policies import POLICIES, Lru
from outrider.core.cache.scrub_pace import ScrubPace
from outrider.core.errors import StoreUnavailable
from outrider.core.model import BlockKey, Headers, ObjectRef, ObjectVersion
from outrider.core.packed_version import pack, unpack
from outrider.core.s3.checksums import Kind
from outrider.metrics import Metrics
from outrider.ports import Belief, BlockStore, Name
from tests.fuzz.disk_bytes import sealed_header
from tests.support.descriptors import open_below
from tests.support.fakes import AtOnce, FakeClock, ramp
from tests.support.sickdisk import SickDisk

BLOCK = 8 * 1024
MIB = 1024 * 1024
LAYOUT = BlockLayout("http://o", BLOCK)
FILE = BLOCK + PAGE_BYTES
"""The bytes of a whole block on disk."""


@pytest.fixture(params=["disk", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path / "cache"
        return
    parent = tempfile.mkdtemp(prefix="test-outrider-", dir="/dev/shm")
    yield Path(parent) / "cache"
    shutil.rmtree(parent)


def meta_of(index: int = 0, key: str = "k", *, blocks: int = 100, headers: Headers = ()) -> BlockMeta:
    version = ObjectVersion(ObjectRef("bucket", key), '"e"', blocks * BLOCK, headers)
    return BlockMeta(LAYOUT, version, index)


HEADER = Header(meta_of(0)).length
"""The offset of the payload in the file of a small block."""


def payload_of(meta: BlockMeta) -> bytes:
    return ramp(meta.extent.length, meta.extent.start)


class Believed:
    """`Versions` that records the versions the store recalls at a start."""

    def __init__(self) -> None:
        self.versions: list[ObjectVersion] = []
        self.vouched: list[ObjectVersion] = []
        self.ages: dict[ObjectRef, float | None] = {}
        self.doubted: dict[Name, float] = {}
        self.is_whole = False

    def recall(self, origin: str, belief: Belief) -> None:
        self.versions.append(belief.version)
        self.ages[belief.version.ref] = belief.age_s
        if belief.vouched:
            self.vouched.append(belief.version)

    def recall_all(
        self, origin: str, refs: Sequence[ObjectRef], packed: Sequence[bytes], ages_s: Sequence[float | None],
        vouched: Sequence[bool],
    ) -> None:  # fmt: skip
        for ref, its, age_s, is_vouched in zip(refs, packed, ages_s, vouched, strict=True):
            self.recall(origin, Belief(unpack(its), age_s, is_vouched))
            assert unpack(its).ref == ref

    def recalled(self) -> None:
        self.is_whole = True

    def belief(self, origin: str, version: ObjectVersion) -> Belief:
        return Belief(version, self.ages.get(version.ref))

    def doubt(self, name: Name, for_s: float) -> None:
        self.doubted[name] = for_s

    def doubts(self) -> list[tuple[Name, float]]:
        return list(self.doubted.items())


class Disk:
    """A store under test and the objects that it needs. `restart` is a stop, clean or not, and a start."""

    def __init__(
        self, root: Path, capacity: int = 100 * FILE, *, directory: type[BlockDir] = BlockDir, policy: str = "lru",
        verify_always: bool = False, min_free: int = 0, open_files: int = 256,
    ) -> None:  # fmt: skip
        self.root = root
        self.metrics = Metrics()
        self.clock = FakeClock()
        self.believed = Believed()
        self.capacity = capacity
        self.store = DiskBlockStore(
            [StoreDisk(directory.open(root), DiskBudget(capacity, min_free), self.metrics, self.clock)],
            POLICIES[policy](), self.metrics, self.clock, open_files=open_files, verify_always=verify_always,
        )  # fmt: skip
        self.recovery = Recovery(self.store, self.believed)

    async def write(self, *metas: BlockMeta) -> None:
        for meta in metas:
            writer = await self.store.create(meta)
            data = payload_of(meta)
            await writer.write(0, [data[:100], b"", memoryview(data)[100:]])
            await writer.commit()

    async def read(self, meta: BlockMeta) -> bytes | None:
        lease = await self.store.lease(meta.key)
        if lease is None:
            return None
        try:
            return read_through(lease, meta.extent.length)
        finally:
            lease.release()

    def path(self, meta: BlockMeta) -> Path:
        return self.store.disks[0].directory.path_of(meta.key)

    def keep_budget(self) -> None:
        """Bytes on disk never exceed the accounted bytes, and those never exceed the budget."""
        assert on_disk(self.root) <= self.store.used_bytes <= self.capacity
        assert self.metrics.value("outrider_store_bytes") == self.store.used_bytes
        assert self.metrics.value("outrider_store_blocks") == len(self.store)

    def close(self) -> None:
        self.store.close()


def read_through(lease: FileLease, length: int) -> bytes:
    return os.pread(lease.block.fd, length, lease.block.payload_offset)


def on_disk(root: Path) -> int:
    """Bytes of all blocks and unfinished files, in full pages. A file that is moved meanwhile is not counted twice."""
    total = 0
    for part in ("v2", "tmp"):
        for path in (root / part).rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_file():
                    total += -(-path.stat().st_size // PAGE_BYTES) * PAGE_BYTES
    return total


def open_fds(root: Path) -> int:
    return len(open_below(root))


@pytest.fixture
def disk(root: Path) -> Iterator[Disk]:
    disk = Disk(root)
    yield disk
    disk.close()


def test_the_store_is_a_block_store(disk: Disk) -> None:
    store: BlockStore = disk.store
    assert not store.has(meta_of().key)


# -- write and read ---------------------------------------------------------------------------------------------


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


# -- room -------------------------------------------------------------------------------------------------------


async def test_the_budget_holds_after_every_step(root: Path) -> None:
    disk = Disk(root, 3 * FILE + 100)
    told: list[tuple[BlockMeta, int]] = []
    disk.store.on_reserved = lambda meta, count: told.append((meta, count))
    for index in range(12):
        meta = meta_of(index)
        writer = await disk.store.create(meta)
        disk.keep_budget()
        assert told == [(meta, disk.store.disks[0].budget.pending_bytes)]
        await writer.write(0, [payload_of(meta)])
        disk.keep_budget()
        if index % 4 == 3:
            await writer.abort()
        else:
            await writer.commit()
        disk.keep_budget()
        assert told.pop(1) == (meta, -told.pop(0)[1])
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
    assert [meta.index for meta in disk.store.blocks()][:6] == [5, 6, 7, 8, 9, 10]
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
    lease = disk.store.lease_open(meta_of(0).key)
    assert lease is not None
    await disk.write(meta_of(2))
    assert disk.store.has(meta_of(0).key)
    assert not disk.store.has(meta_of(1).key)
    other = disk.store.lease_open(meta_of(2).key)
    assert other is not None
    with pytest.raises(StoreUnavailable):
        await disk.store.create(meta_of(3))
    disk.keep_budget()
    lease.release()
    await disk.write(meta_of(3))
    assert not disk.store.has(meta_of(0).key)
    other.release()
    disk.close()


@pytest.fixture
def strange(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel must ask the disk for each file that is opened."""
    monkeypatch.setattr(pagecache, "open_known", lambda path: None)


@pytest.mark.usefixtures("strange")
async def test_a_block_that_two_opened_at_once_is_no_victim_while_either_reads(root: Path) -> None:
    disk = Disk(root, 2 * FILE, open_files=1)
    await disk.write(meta_of(0), meta_of(1))
    leases = await asyncio.gather(disk.store.lease(meta_of(0).key), disk.store.lease(meta_of(0).key))
    for first, second in (leases, leases[::-1]):
        assert first is not None
        assert second is not None
    leases[0].release()  # type: ignore[union-attr]
    keeper = disk.store.lease_open(meta_of(1).key) or await disk.store.lease(meta_of(1).key)
    with pytest.raises(StoreUnavailable):
        await disk.store.create(meta_of(2))
    leases[1].release()  # type: ignore[union-attr]
    await disk.write(meta_of(2))
    assert keeper is not None
    keeper.release()
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


@pytest.mark.parametrize("known", [True, False])
async def test_few_files_stay_open_and_none_leaks(root: Path, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not known:
        monkeypatch.setattr(pagecache, "open_known", lambda path: None)
    disk = Disk(root, open_files=4)
    before = open_fds(root)
    await disk.write(*(meta_of(index) for index in range(20)))
    assert open_fds(root) <= before + 4
    for index in (0, 5, 0, 19, 3):
        assert await disk.read(meta_of(index)) == payload_of(meta_of(index))
    assert open_fds(root) <= before + 4
    disk.close()
    assert open_fds(root) < before


async def test_a_file_that_was_closed_is_read_without_a_wait_in_the_place_of_another(root: Path) -> None:
    disk = Disk(root, open_files=1)
    await disk.write(*(meta_of(index) for index in range(5)))
    before = open_fds(root)
    for index in (0, 3, 0):
        lease = disk.store.lease_at_once(meta_of(index).key)
        assert lease is not None
        assert open_fds(root) == before
        assert read_through(lease, BLOCK) == payload_of(meta_of(index))
        lease.release()
        assert open_fds(root) == before
    disk.close()


async def test_reads_of_closed_files_are_reported_to_the_policy(root: Path) -> None:
    disk = Disk(root, 3 * FILE, open_files=1)
    await disk.write(*(meta_of(index) for index in range(3)))
    lease = disk.store.lease_at_once(meta_of(0).key)
    assert lease is not None
    lease.release()
    await disk.write(meta_of(3))
    assert [disk.store.has(meta_of(index).key) for index in range(4)] == [True, False, True, True]
    disk.close()


async def test_reads_of_open_files_are_reported_to_the_policy(root: Path) -> None:
    disk = Disk(root, 3 * FILE)
    await disk.write(*(meta_of(index) for index in range(3)))
    file = disk.store.open_file(meta_of(0).key)
    assert file is not None
    assert os.pread(file.fd, BLOCK, file.payload_offset) == payload_of(meta_of(0))
    await disk.write(meta_of(3))
    assert [disk.store.has(meta_of(index).key) for index in range(4)] == [True, False, True, True]
    disk.close()


@pytest.mark.parametrize("why", ["unverified", "verified each time"])
async def test_an_open_file_whose_bytes_must_be_verified_is_not_given(why: str, root: Path) -> None:
    disk = Disk(root)
    await disk.write(meta_of(0))
    assert disk.store.open_file(meta_of(0).key) is not None
    assert disk.store.open_file(meta_of(1).key) is None
    if why == "unverified":
        disk.store._slots[meta_of(0).key].verified = False
    else:
        disk.store._verify_always = True
    assert disk.store.open_file(meta_of(0).key) is None
    disk.close()


async def test_a_block_whose_closed_file_is_read_from_the_loop_is_no_victim(root: Path) -> None:
    disk = Disk(root, 2 * FILE, open_files=1)
    await disk.write(meta_of(0), meta_of(1))
    lease = disk.store.lease_open(meta_of(0).key)
    assert lease is not None
    await disk.write(meta_of(2))
    await disk.write(meta_of(3))
    assert [disk.store.has(meta_of(index).key) for index in range(4)] == [True, False, False, True]
    lease.release()
    disk.close()


async def _unverified(disk: Disk) -> None:
    disk.store._slots[meta_of(0).key].verified = False


async def _verified_each_time(disk: Disk) -> None:
    disk.store._verify_always = True


async def _another(disk: Disk) -> None:
    shutil.copy(disk.path(meta_of(1)), disk.path(meta_of(0)))


async def _gone(disk: Disk) -> None:
    disk.path(meta_of(0)).unlink()


async def _hung(disk: Disk) -> None:
    disk.store.disks[0].work.open_failed(TimeoutError())


async def _link(disk: Disk) -> None:
    path = disk.path(meta_of(0))
    path.rename(disk.root / "elsewhere")
    path.symlink_to(disk.root / "elsewhere")


WAITS: dict[str, Callable[[Disk], Awaitable[None]]] = {
    "unverified": _unverified, "verified each time": _verified_each_time, "another's file": _another, "no file": _gone,
    "a disk that hangs": _hung, "a link": _link,
}  # fmt: skip


@pytest.mark.parametrize("why", WAITS)
async def test_an_unverified_block_gives_no_lease_at_once_and_leaves_no_file_open(why: str, root: Path) -> None:
    disk = Disk(root, open_files=1)
    await disk.write(meta_of(0), meta_of(1), meta_of(2))
    # The file of the first is closed for that of the second.
    for index in (0, 1):
        lease = disk.store.lease_at_once(meta_of(index).key)
        assert lease is not None
        lease.release()
    await WAITS[why](disk)
    before = open_fds(root)
    assert disk.store.lease_at_once(meta_of(0).key) is None
    assert disk.store.lease_open(meta_of(0).key) is None
    assert disk.store.open_file(meta_of(0).key) is None
    assert disk.store._slots[meta_of(0).key].file is None
    if (page_in := disk.store.page_in(meta_of(0).key, 0, BLOCK)) is not None:
        page_in()  # the read that follows reports the error
    assert (page_in is None) == (why in ("unverified", "verified each time", "a disk that hangs"))
    assert open_fds(root) == before
    disk.close()


@pytest.mark.parametrize("why", ["verified", *WAITS])
async def test_a_block_that_is_unverified_can_be_prepared(why: str, root: Path) -> None:
    disk = Disk(root)
    await disk.write(meta_of(0), meta_of(1))
    if why != "verified":
        await WAITS[why](disk)
    prepare = disk.store.prepare(meta_of(0).key)
    assert (prepare is not None) == (why == "unverified")
    if prepare is not None:
        await prepare()
        lease = disk.store.lease_at_once(meta_of(0).key)
        assert lease is not None
        assert os.pread(lease.block.fd, BLOCK, lease.block.payload_offset) == payload_of(meta_of(0))
        lease.release()
    disk.close()


@pytest.mark.parametrize("why", ["verified", *WAITS])
async def test_a_small_block_in_memory_is_verified_at_once(why: str, root: Path) -> None:
    disk = Disk(root)
    await disk.write(meta_of(0), meta_of(1))
    if why != "verified":
        await WAITS[why](disk)
    before = open_fds(root)
    done = disk.store.verify_at_once(meta_of(0).key)
    assert done == (why == "unverified")
    if done:
        lease = disk.store.lease_at_once(meta_of(0).key)
        assert lease is not None
        assert os.pread(lease.block.fd, BLOCK, lease.block.payload_offset) == payload_of(meta_of(0))
        lease.release()
    else:
        assert open_fds(root) == before
    assert not disk.store.verify_at_once(meta_of(0).key)
    disk.close()


# Offsets of bytes: of the payload, its checksum, the header's checksum, the header's unused bytes, and its padding.
TURNED = [HEADER + BLOCK - 1, DIGEST_BYTES - 10, DIGEST_BYTES - 1, 10, HEADER - 1]
UNFIT = [
    *TURNED, "a byte too much", "a byte missing", "not in memory", "a large block",
    "another kind of checksum is wanted", "no probe of memory",
]  # fmt: skip


@pytest.mark.parametrize("why", UNFIT)
async def test_a_block_that_may_be_wrong_is_not_verified_at_once(
    why: str | int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(root)
    await disk.write(meta_of(0), meta_of(1))
    await _unverified(disk)
    before, path = open_fds(root), disk.path(meta_of(0))
    if isinstance(why, int):
        turn(path, why)
    elif why == "a byte too much":
        path.write_bytes(path.read_bytes() + b"\0")
    elif why == "a byte missing":
        path.write_bytes(path.read_bytes()[:-1])
    elif why == "not in memory":
        monkeypatch.setattr(pagecache, "read_in_memory", lambda fd, offset, into, **_: False)
    elif why == "a large block":
        monkeypatch.setattr(block_reads, "_AT_ONCE_BYTES_MAX", FILE - 1)
    elif why == "another kind of checksum is wanted":
        disk.store.contents = Wanting()
    else:
        disk.store.disks[0].directory.can_probe_memory = False
    assert not disk.store.verify_at_once(meta_of(0).key)
    assert disk.store.lease_at_once(meta_of(0).key) is None
    assert open_fds(root) == before
    disk.close()


class Opened:
    """Counts the block files that threads open, which wait until they may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.begun, self.may = 0, threading.Event(), threading.Event()
        real = block_io.open_block

        def counted(*args: Any, **knobs: Any) -> tuple[int, int]:
            self.count += 1
            self.begun.set()
            self.may.wait(60)
            return real(*args, **knobs)

        monkeypatch.setattr(block_io, "open_block", counted)


async def test_all_who_wait_for_a_block_share_one_verification(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, opened = Disk(root), Opened(monkeypatch)
    await disk.write(meta_of(0))
    await _unverified(disk)
    prepare = disk.store.prepare(meta_of(0).key)
    assert prepare is not None
    leaves, prepares = asyncio.create_task(disk.store.lease(meta_of(0).key)), asyncio.create_task(prepare())
    leases = [asyncio.create_task(disk.store.lease(meta_of(0).key)) for _ in range(5)]
    await asyncio.to_thread(opened.begun.wait, 60)
    # The one that began it leaves.
    leaves.cancel()
    await asyncio.sleep(0)
    opened.may.set()
    await prepares
    for lease in await asyncio.gather(*leases):
        assert lease is not None
        assert os.pread(lease.block.fd, BLOCK, lease.block.payload_offset) == payload_of(meta_of(0))
        lease.release()
    assert opened.count == 1
    disk.close()


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_shared_verification_that_fails_is_a_miss_for_all(
    damaged: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(root)
    await disk.write(meta_of(0))
    await _unverified(disk)
    if damaged:
        turn(disk.path(meta_of(0)), HEADER + BLOCK - 1)
    else:
        monkeypatch.setattr(block_io, "open_block", refuse)
    opened = Opened(monkeypatch)
    opened.may.set()
    assert await asyncio.gather(*(disk.store.lease(meta_of(0).key) for _ in range(5))) == [None] * 5
    assert disk.store.has(meta_of(0).key) != damaged
    assert disk.store._verifying == {}
    assert opened.count == 1
    disk.close()


def refuse(*_: Any, **__: Any) -> tuple[int, int]:
    raise OSError(errno.EIO, "the disk fails")


async def test_an_opening_that_nobody_waits_for_is_dropped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, opened = Disk(root), Opened(monkeypatch)
    await disk.write(meta_of(0), meta_of(1))
    disk.store._verify_always = True
    disk.store.disks[0].work.threads = ThreadPoolExecutor(1)
    before = open_fds(root)
    reads = [asyncio.create_task(disk.store.lease(meta_of(number).key)) for number in (0, 1, 0, 1)]
    await asyncio.to_thread(opened.begun.wait, 60)
    for read in reads:
        read.cancel()
    await asyncio.wait(reads)
    opened.may.set()
    await asyncio.to_thread(disk.store.disks[0].work.threads.shutdown)
    await asyncio.sleep(0)
    assert (opened.count, open_fds(root)) == (1, before), "and the file of the one that had begun is closed"
    disk.close()


def test_pages_that_were_not_read_are_not_taken_for_zeros(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload, header = bytes(BLOCK), Header(meta_of(0))
    path = root.parent / "block"
    path.write_bytes(header.sealed(PayloadChecksum(payload).digest()) + payload)
    known = block_io.open_verified_block(bytes(path), meta_of(0))
    assert known is not None
    os.close(known[0])
    monkeypatch.setattr(pagecache, "read_in_memory", lambda fd, offset, into, **_: False)
    assert block_io.open_verified_block(bytes(path), meta_of(0)) is None


class Wanting:
    """Wants a CRC of each block."""

    def kind_for(self, meta: BlockMeta) -> Kind:
        return Kind.CRC32

    def came(self, meta: BlockMeta, kind: Kind, digest: bytes) -> None:
        raise AssertionError

    def saved(self, layout: BlockLayout, version: ObjectVersion) -> object:
        return None

    def restore(self, meta: BlockMeta, saved: object) -> None:
        pass


async def test_a_proved_block_is_verified_at_once_though_a_checksum_is_wanted(root: Path) -> None:
    disk = Disk(root)
    await disk.write(meta_of(0))
    disk.store.prove([meta_of(0).key])
    await _unverified(disk)
    disk.store.contents = Wanting()
    assert disk.store.verify_at_once(meta_of(0).key)
    disk.close()


def turn(path: Path, offset: int) -> None:
    """One bit of this byte."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_verification_is_no_read_to_the_policy(at_once: bool, root: Path) -> None:
    disk = Disk(root, 2 * FILE)
    await disk.write(meta_of(0), meta_of(1))
    await _unverified(disk)
    if at_once:
        assert disk.store.verify_at_once(meta_of(0).key)
    else:
        prepare = disk.store.prepare(meta_of(0).key)
        assert prepare is not None
        await prepare()
    await disk.write(meta_of(2))
    assert [disk.store.has(meta_of(index).key) for index in range(3)] == [False, True, True]
    disk.close()


async def test_a_damaged_block_that_is_prepared_is_dropped(root: Path) -> None:
    disk = Disk(root)
    await disk.write(meta_of(0))
    await _unverified(disk)
    disk.path(meta_of(0)).write_bytes(b"damaged")
    prepare = disk.store.prepare(meta_of(0).key)
    assert prepare is not None
    await prepare()
    assert not disk.store.has(meta_of(0).key)
    assert disk.store.prepare(meta_of(0).key) is None
    disk.close()


async def test_a_block_in_the_page_cache_gives_a_lease_at_once(root: Path) -> None:
    disk = Disk(root, open_files=1)
    await disk.write(meta_of(0), meta_of(1))
    with disk.path(meta_of(0)).open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = open_fds(root)
        page_in = disk.store.page_in(meta_of(0).key, 100, BLOCK - 100)
        assert page_in is not None
        page_in()
        assert open_fds(root) == before
        assert all(pagecache.is_in_memory(file.fileno(), offset) for offset in range(0, FILE, PAGE_BYTES))
    lease = disk.store.lease_at_once(meta_of(0).key)
    assert lease is not None
    lease.release()
    disk.close()


async def test_the_middle_of_a_large_block_is_paged_in_without_its_beginning(root: Path) -> None:
    large = BlockMeta(
        BlockLayout("http://o", 4 * MIB), ObjectVersion(ObjectRef("bucket", "large"), '"e"', 4 * MIB, ()), 0
    )
    disk = Disk(root, 8 * MIB)
    await disk.write(large)
    with disk.path(large).open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        forgotten = not pagecache.is_in_memory(file.fileno(), MIB)  # a tmpfs keeps all pages in memory
        page_in = disk.store.page_in(large.key, 3 * MIB, 1000)
        assert page_in is not None
        page_in()
        assert pagecache.is_in_memory(file.fileno(), PAGE_BYTES + 3 * MIB)
        assert pagecache.is_in_memory(file.fileno(), MIB) != forgotten
    disk.close()


async def test_a_file_whose_opening_may_take_long_is_opened_in_a_thread(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(root, open_files=1)
    await disk.write(meta_of(0), meta_of(1))
    monkeypatch.setattr(disk.store.disks[0].directory, "can_probe_memory", False)
    assert disk.store.lease_at_once(meta_of(0).key) is None
    assert disk.store.lease_open(meta_of(0).key) is None
    lease = await disk.store.lease(meta_of(0).key)
    assert lease is not None
    lease.release()
    disk.close()


async def test_no_pages_are_read_in_where_the_page_cache_cannot_be_probed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pagecache, "open_known", lambda path: None)
    disk = Disk(root)
    await disk.write(meta_of(0))
    assert disk.store.page_in(meta_of(0).key, 0, BLOCK) is None
    disk.close()


@pytest.mark.parametrize("other", ["another block's", "of the format without names", "short"])
async def test_a_file_that_is_not_the_block_s_gives_no_lease_at_once(other: str, root: Path) -> None:
    disk = Disk(root, open_files=1)
    await disk.write(meta_of(0), meta_of(1))
    path = disk.path(meta_of(0))
    if other == "another block's":
        shutil.copy(disk.path(meta_of(1)), path)
    elif other == "short":
        os.truncate(path, 40)
    else:
        path.write_bytes(paged(meta_of(0)))
    assert disk.store.lease_at_once(meta_of(0).key) is None
    assert await disk.read(meta_of(0)) == (payload_of(meta_of(0)) if "format" in other else None)
    disk.close()


async def test_files_of_the_release_before_are_read_after_a_start(root: Path) -> None:
    """Their bytes count as they are, by a scan and by a snapshot."""
    version = ObjectVersion(ObjectRef("bucket", "odd"), '"e"', BLOCK - 500)
    meta = BlockMeta(LAYOUT, version, 0)
    disk = Disk(root)
    await disk.write(meta, meta_of(1))
    disk.path(meta).write_bytes(paged(meta))
    assert disk.store.used_bytes < on_disk(disk.root)
    for clean in (False, True, True):
        disk = await restarted(disk, clean=clean)
        assert disk.store.used_bytes == on_disk(disk.root)
        for each in (meta, meta_of(1)):
            assert await disk.read(each) == payload_of(each)
    disk.close()


def paged(meta: BlockMeta) -> bytes:
    """The block's file in format 1."""
    return sealed_header(block_file._meta_json(meta), PayloadChecksum(payload_of(meta)).digest()) + payload_of(meta)


@pytest.mark.parametrize(("number", "leased"), [(errno.EAGAIN, False), (errno.EIO, False), (errno.EOPNOTSUPP, True)])
async def test_a_header_that_must_come_from_the_disk_gives_no_lease_at_once(
    number: int, leased: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(root, open_files=1)
    await disk.write(meta_of(0), meta_of(1))
    before = open_fds(root)

    preadv = os.preadv

    def cold(fd: int, memory: list[bytearray], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(number, os.strerror(number))
        return preadv(fd, memory, offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", cold)
        lease = disk.store.lease_at_once(meta_of(0).key)
        assert (lease is not None) == leased
        if lease is not None:
            lease.release()
    assert open_fds(root) == before
    assert await disk.read(meta_of(0)) == payload_of(meta_of(0))
    disk.close()


# -- damage -----------------------------------------------------------------------------------------------------


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "magic": lambda path: flip(path, 0),
    "format": lambda path: flip(path, 8),
    "payload checksum": lambda path: flip(path, 21),
    "header checksum": lambda path: flip(path, 38),
    "meta": lambda path: flip(path, 60),
    "padding": lambda path: flip(path, HEADER - 1),
    "first byte": lambda path: flip(path, HEADER),
    "middle": lambda path: flip(path, HEADER + BLOCK // 2),
    "last byte": lambda path: flip(path, HEADER + BLOCK - 1),
    "cut": cut,
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
    assert disk.store.unverified() == []
    disk = await restarted(disk, clean=True)
    assert disk.store.unverified() == [meta_of(0).key]
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


# -- the disk's troubles ----------------------------------------------------------------------------------------


def failing(number: int) -> Callable[..., object]:
    def fail(*_: object, **__: object) -> object:
        raise OSError(number, os.strerror(number))

    return fail


async def _create(disk: Disk) -> None:
    await disk.store.create(meta_of(9))


async def write_whole(writer: DiskBlockWriter, data: bytes) -> None:
    await writer.write(0, [data])


async def write_in_parts(writer: DiskBlockWriter, data: bytes) -> None:
    await writer.write(0, [data[:100]])
    await writer.write(100, [data[100:]])


async def write_at_once(writer: DiskBlockWriter, data: bytes) -> None:
    """Two concurrent parts: neither knows that it is the last, so the commit renames the block into place."""
    await writer.write(0, [data[:100]])
    await asyncio.gather(writer.write(100, [data[100:4000]]), writer.write(4000, [data[4000:]]))


Writing = Callable[[DiskBlockWriter, bytes], Awaitable[None]]
WRITINGS = [write_whole, write_in_parts, write_at_once]


async def _write(disk: Disk, writing: Writing = write_whole) -> None:
    writer = await disk.store.create(meta_of(9))
    try:
        await writing(writer, payload_of(meta_of(9)))
        await writer.commit()
    finally:
        await writer.abort()


async def _write_in_parts(disk: Disk) -> None:
    await _write(disk, write_in_parts)


async def _write_at_once(disk: Disk) -> None:
    await _write(disk, write_at_once)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize(
    ("broken", "act"),
    [
        ("statvfs", _create),
        *(
            (broken, act)
            for broken in ("open", "pwritev", "rename")
            for act in (_write, _write_in_parts, _write_at_once)
        ),
    ],
)
async def test_a_disk_that_fails_a_write_is_not_used_for_a_while(
    broken: str, act: Callable[[Disk], Awaitable[None]], number: int, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await disk.write(meta_of(0))
    disk.clock.advance(1.1)  # the free space is read again
    with monkeypatch.context() as patch:
        patch.setattr(os, broken, failing(number))
        with pytest.raises(StoreUnavailable):
            await act(disk)
    assert disk.metrics.total("outrider_store_errors_total") == 1
    assert disk.store.used_bytes == FILE
    # The disk works again, but is not written before the pause is over. Reads of stored blocks go on.
    with pytest.raises(StoreUnavailable):
        await disk.store.create(meta_of(1))
    assert await disk.read(meta_of(0)) == payload_of(meta_of(0))
    disk.clock.advance(5.1)
    await disk.write(meta_of(1))
    disk.keep_budget()


async def test_a_read_that_fails_is_a_miss_and_keeps_the_block(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    await disk.write(meta_of(0))
    disk = await restarted(disk, clean=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", failing(errno.EIO))
        assert await disk.read(meta_of(0)) is None
    assert disk.store.has(meta_of(0).key)
    assert await disk.read(meta_of(0)) == payload_of(meta_of(0))
    assert disk.metrics.value("outrider_bad_blocks_total") == 0
    disk.close()


async def test_a_victim_that_cannot_be_removed_stays_accounted_and_prevents_a_snapshot(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(root, 2 * FILE)
    await disk.recovery.index()
    await disk.write(meta_of(0), meta_of(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing(errno.EIO))
        with pytest.raises(StoreUnavailable):
            await disk.store.create(meta_of(2))
    disk.keep_budget()
    assert disk.store.used_bytes == 2 * FILE
    disk = await restarted(disk, clean=True)
    disk.keep_budget()
    assert len(disk.store) == 2  # the scan found it again
    disk.close()


def test_a_file_whose_close_fails_is_closed_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    file = OpenFile(os.open(root / "f", os.O_RDWR | os.O_CREAT), 0)
    close = os.close

    def closes_and_fails(fd: int) -> None:
        close(fd)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", closes_and_fails)
        file.doom()
    # The lowest free descriptor number is the one that was closed.
    other = os.open(os.devnull, os.O_RDONLY)
    file.doom()
    os.fstat(other)
    os.close(other)


async def test_the_digest_of_a_remote_file_is_read_in_a_thread(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that hangs tells none, and keeps its file open as long as the thread reads it."""
    monkeypatch.setattr(pagecache, "opens_at_once", lambda path: False)
    monkeypatch.setattr(pagecache, "stays_in_memory", lambda path: False)
    monkeypatch.setattr(disk_threads, "PATIENCE_S", 0.05)
    disk = Disk(root)
    await disk.write(meta_of(0))
    lease = disk.store.lease_open(meta_of(0).key)
    assert lease is not None
    assert lease.block.is_remote
    checksum = PayloadChecksum(payload_of(meta_of(0))).digest()
    assert await disk.store.digest(meta_of(0).key, lease) == digest_text(checksum)
    with SickDisk(root) as sick:
        sick.hold("pread")
        assert await disk.store.digest(meta_of(0).key, lease) == ""
        file = lease.block
        lease.release()
        file.doom()
        assert file.fd >= 0
        sick.heal()
        while file.fd >= 0:
            await asyncio.sleep(0)
    disk.close()


async def test_a_store_that_stops_admits_no_further_block(disk: Disk) -> None:
    disk.store.stopping = True
    with pytest.raises(StoreUnavailable, match="stops"):
        await disk.store.create(meta_of(0))
    disk.keep_budget()


async def test_a_directory_that_was_emptied_in_use_is_made_again(disk: Disk) -> None:
    await disk.write(meta_of(0))
    shutil.rmtree(disk.root / "v2")
    shutil.rmtree(disk.root / "tmp")
    await disk.write(meta_of(1))
    assert await disk.read(meta_of(1)) == payload_of(meta_of(1))


async def test_a_directory_that_is_gone_is_an_error_of_the_disk(disk: Disk) -> None:
    shutil.rmtree(disk.root)
    with pytest.raises(StoreUnavailable):
        await disk.store.create(meta_of(0))


async def test_no_file_is_moved_or_removed_in_a_directory_that_another_process_has_locked(disk: Disk) -> None:
    meta = meta_of(0)
    data = payload_of(meta)
    writer = await disk.store.create(meta)
    await writer.write(0, [data[:100]])
    (ours,) = (disk.root / "tmp").iterdir()
    shutil.rmtree(disk.root)
    other = BlockDir.open(disk.root)
    # By chance the other process makes the same block.
    ours.write_bytes(b"his")
    with pytest.raises(StoreUnavailable):
        await writer.write(100, [data[100:]])
    await writer.abort()
    assert ours.read_bytes() == b"his"
    assert list(disk.root.glob("v2/*")) == []
    assert disk.store.used_bytes == 0
    other.close()


async def test_no_block_is_begun_in_a_directory_that_another_process_has_locked(disk: Disk) -> None:
    await disk.write(meta_of(0))
    shutil.rmtree(disk.root)
    other = BlockDir.open(disk.root)
    with pytest.raises(StoreUnavailable):
        await disk.write(meta_of(1))
    assert list((disk.root / "tmp").iterdir()) == []
    other.close()


# -- cancelled --------------------------------------------------------------------------------------------------


class Gated(BlockDir):
    """Makes commits and removals wait in their thread just before the system call."""

    reached = threading.Event()
    go_on = threading.Event()
    closed = False

    def put(self, path: bytes, block: BlockKey) -> None:
        self._pass()
        super().put(path, block)

    def remove(self, path: bytes) -> None:
        self._pass()
        super().remove(path)

    def _pass(self) -> None:
        if Gated.closed:
            Gated.reached.set()
            assert Gated.go_on.wait(60)


@pytest.mark.parametrize("writing", WRITINGS)
async def test_a_writer_cancelled_at_the_rename_leaves_no_block_without_an_index_entry(
    writing: Writing, root: Path
) -> None:
    disk = Disk(root, directory=Gated)
    before = open_fds(root)
    meta = meta_of(0)
    writer = await disk.store.create(meta)
    Gated.reached.clear()
    Gated.go_on.clear()
    Gated.closed = True
    try:
        await cancelled_at_the_rename(writer, writing, payload_of(meta))
    finally:
        Gated.closed = False
        Gated.go_on.set()
    assert on_disk(root) == 0
    assert (disk.store.used_bytes, len(disk.store), open_fds(root)) == (0, 0, before)
    disk.close()


async def test_an_aborted_block_that_cannot_be_removed_is_found_by_the_next_start(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(root, directory=Gated)
    await disk.recovery.index()
    writer = await disk.store.create(meta_of(0))
    Gated.reached.clear()
    Gated.go_on.clear()
    Gated.closed = True
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", failing(errno.EIO))
            await cancelled_at_the_rename(writer, write_whole, payload_of(meta_of(0)))
    finally:
        Gated.closed = False
        Gated.go_on.set()
    assert (on_disk(root), len(disk.store)) == (FILE, 0)
    disk = await restarted(disk, clean=True)
    disk.keep_budget()
    assert len(disk.store) == 1
    disk.close()


async def test_a_block_is_written_anew_only_after_the_aborted_file_is_removed(root: Path) -> None:
    """The thread of the aborted writer may still rename its file into place, and would then remove the new one."""
    disk = Disk(root, directory=Gated)
    writer, data = await disk.store.create(meta_of(0)), payload_of(meta_of(0))
    Gated.reached.clear()
    Gated.go_on.clear()
    Gated.closed = True
    try:
        old = asyncio.create_task(write_whole(writer, data))
        await asyncio.to_thread(Gated.reached.wait, 60)
        old.cancel()
        await asyncio.wait([old])
        given_up = asyncio.create_task(writer.abort())
        again = asyncio.create_task(disk.store.create(meta_of(0)))
        another = await disk.store.create(meta_of(1))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not again.done()
    finally:
        Gated.closed = False
        Gated.go_on.set()
    await given_up
    await another.abort()
    new = await again
    await write_whole(new, data)
    await new.commit()
    assert disk.path(meta_of(0)).exists()
    assert await disk.read(meta_of(0)) == data
    disk.keep_budget()
    disk.close()


async def test_after_a_failure_of_the_disk_no_block_waits_for_a_hanging_cleanup(root: Path) -> None:
    disk = Disk(root, directory=Gated)
    writer = await disk.store.create(meta_of(0))
    Gated.reached.clear()
    Gated.go_on.clear()
    Gated.closed = True
    try:
        old = asyncio.create_task(write_whole(writer, payload_of(meta_of(0))))
        await asyncio.to_thread(Gated.reached.wait, 60)
        old.cancel()
        await asyncio.wait([old])
        given_up = asyncio.create_task(writer.abort())
        await asyncio.sleep(0)
        disk.store.disks[0].work.write_failed("write", OSError("it hangs"))
        again = asyncio.create_task(disk.store.create(meta_of(0)))
        await asyncio.sleep(0)
        assert again.done()
        with pytest.raises(StoreUnavailable):
            await again
    finally:
        Gated.closed = False
        Gated.go_on.set()
    await given_up
    disk.keep_budget()
    disk.close()


async def cancelled_at_the_rename(writer: DiskBlockWriter, writing: Writing, data: bytes) -> None:
    async def write() -> None:
        try:
            await writing(writer, data)
            await writer.commit()
        finally:
            await writer.abort()

    task = asyncio.create_task(write())
    await asyncio.to_thread(Gated.reached.wait, 60)
    task.cancel()
    await asyncio.sleep(0)
    Gated.go_on.set()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize("act", ["write", "pread"])
async def test_what_fails_after_its_caller_left_is_counted_as_heard(
    act: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise tests/conftest.py finds what asyncio logs."""
    monkeypatch.setattr(pagecache, "opens_at_once", lambda path: False)
    monkeypatch.setattr(pagecache, "stays_in_memory", lambda path: False)
    disk = Disk(root)
    await disk.write(meta_of(0))
    lease = disk.store.lease_open(meta_of(0).key)
    assert lease is not None
    writer = await disk.store.create(meta_of(1))
    with SickDisk(root) as sick:
        sick.hold(act)
        sick.fail([act], errno.EIO)
        block = meta_of(0).key
        begun = writer.write(0, [payload_of(meta_of(1))]) if act == "write" else disk.store.digest(block, lease)
        left = asyncio.create_task(begun)
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait([left])
        sick.release()
        await writer.abort()
        disk.close()
        await asyncio.sleep(0)
        assert sick.failed == 1
    lease.release()


async def test_room_that_is_still_being_made_is_waited_for(root: Path) -> None:
    # A caller that left during an eviction: its victim is out of the index, but still on the disk.
    disk = Disk(root, FILE, directory=Gated)
    await disk.write(meta_of(0))
    Gated.reached.clear()
    Gated.go_on.clear()
    Gated.closed = True
    try:
        left = asyncio.create_task(disk.store.create(meta_of(1)))
        await asyncio.to_thread(Gated.reached.wait, 60)
        left.cancel()
        await asyncio.wait([left])
        again = asyncio.create_task(disk.write(meta_of(0)))
        for _ in range(20):
            await asyncio.sleep(0)
        disk.keep_budget()
    finally:
        Gated.closed = False
        Gated.go_on.set()
    await again
    disk.keep_budget()
    assert disk.path(meta_of(0)).exists()
    disk.close()


async def all_done(work: DiskThreads) -> None:
    """Wait until the threads of the store have finished all work, including work that its callbacks started."""
    for _ in range(3):
        shared_epoch = threading.Barrier(_THREADS)
        await asyncio.gather(*(work.run(shared_epoch.wait) for _ in range(_THREADS)))
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.mark.parametrize("steps", range(1, 12))
@pytest.mark.parametrize("writing", WRITINGS)
async def test_a_writer_cancelled_at_any_step_releases_its_reservation_and_files(
    steps: int, writing: Writing, root: Path
) -> None:
    disk = Disk(root, 2 * FILE)
    await disk.write(meta_of(0), meta_of(1))
    before = open_fds(root)

    async def write() -> None:
        writer = await disk.store.create(meta_of(2))
        try:
            await writing(writer, payload_of(meta_of(2)))
            await writer.commit()
        finally:
            await writer.abort()

    task = asyncio.create_task(write())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await all_done(disk.store.disks[0].work)
    assert disk.store.used_bytes == FILE * len(disk.store)
    assert len(list((root / "v2").rglob("*.*"))) == 0
    assert on_disk(root) == disk.store.used_bytes
    assert open_fds(root) <= before + 1
    disk.close()


# -- restarts ---------------------------------------------------------------------------------------------------


async def restarted(disk: Disk, *, clean: bool, capacity: int | None = None, policy: str = "lru") -> Disk:
    if clean:
        await disk.recovery.index() if not disk.recovery._disks[0]._whole else None
        await disk.recovery.save()
    disk.close()
    fresh = Disk(disk.root, capacity or disk.capacity, policy=policy)
    await fresh.recovery.index()
    return fresh


@pytest.mark.parametrize("clean", [True, False])
async def test_blocks_survive_a_stop_clean_or_not(clean: bool, root: Path) -> None:
    disk = Disk(root)
    await disk.recovery.index()
    metas = [meta_of(index, key) for key in ("a", "b\udcff") for index in range(3)]
    await disk.write(*metas)
    assert await disk.read(metas[0]) is not None
    disk = await restarted(disk, clean=clean)
    assert not (root / "index").exists()
    assert {version.ref.key for version in disk.believed.versions} == {"a", "b\udcff"}
    assert len(disk.store) == 6
    disk.keep_budget()
    if clean:  # the snapshot keeps the policy's order; a scan only knows when each block was written
        assert [meta.key for meta in disk.store.blocks()] == [meta.key for meta in [*metas[1:], metas[0]]]
    for meta in metas:
        assert await disk.read(meta) == payload_of(meta)
    disk.close()


async def test_a_snapshot_is_used_once(root: Path) -> None:
    disk = Disk(root)
    await disk.write(meta_of(0))
    disk = await restarted(disk, clean=True)
    await disk.write(meta_of(1))
    disk = await restarted(disk, clean=False)
    assert len(disk.store) == 2
    disk.close()


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "junk"])
async def test_a_damaged_snapshot_is_ignored_and_the_directory_scanned(damage: str, root: Path) -> None:
    disk = Disk(root)
    await disk.recovery.index()
    await disk.write(meta_of(0), meta_of(1))
    await disk.recovery.save()
    disk.close()
    index = root / "index"
    raw = bytearray(index.read_bytes())
    if damage == "flip":
        raw[len(raw) // 2] ^= 1
    damaged = {"cut": bytes(raw[:-30]), "empty": b"", "junk": b"{}\n{}\n"}
    index.write_bytes(damaged.get(damage, bytes(raw)))
    disk = Disk(root)
    await disk.recovery.index()
    assert len(disk.store) == 2
    assert await disk.read(meta_of(1)) == payload_of(meta_of(1))
    disk.close()


@pytest.mark.parametrize("dated", [True, False])
async def test_blocks_of_a_release_that_named_them_without_a_date_are_kept(dated: bool, root: Path) -> None:
    headers = (("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT"),) if dated else ()
    meta, undated = meta_of(0, headers=headers), meta_of(0)
    disk = Disk(root)
    await disk.write(meta)
    older = disk.path(undated)
    older.parent.mkdir(exist_ok=True)
    disk.path(meta).rename(older)
    assert (older == disk.path(meta)) is not dated
    for _ in range(2):
        disk = await restarted(disk, clean=False)
        assert await disk.read(meta) == payload_of(meta)
        assert older.exists() is not dated
        disk.keep_budget()
    disk.close()


async def test_a_snapshot_keeps_two_sets_of_headers_of_one_version_apart(root: Path) -> None:
    disk = Disk(root)
    await disk.recovery.index()
    await disk.write(meta_of(0), meta_of(1, headers=(("x-amz-meta-a", "v" * 5000),)))
    used = disk.store.used_bytes
    disk = await restarted(disk, clean=True)
    assert disk.store.used_bytes == used == on_disk(root)
    disk.close()


async def test_a_scan_removes_the_leftovers_of_a_crash_and_touches_no_other_file(root: Path) -> None:
    disk = Disk(root)
    await disk.write(meta_of(0), meta_of(1))
    left_over = await disk.store.create(meta_of(2))
    await left_over.write(0, [b"half"])
    half = next((root / "tmp").iterdir())
    flip(disk.path(meta_of(1)), 3)
    disk.close()
    junk = [root / "README", root / "tmp" / "mine.txt", root / "v2" / "notes", root / "v2" / "aa" / "photo.jpg",
            root / "v2" / "aa" / "f", root / "other" / "x"]  # fmt: skip
    for path in junk:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not ours")
    target = root / "other" / "target"
    target.write_text("not ours either")
    link = root / "v2" / "aa" / ("0" * 32)
    link.symlink_to(target)
    disk = Disk(root)
    await disk.recovery.index()
    assert not half.exists()
    assert all(path.read_text() == "not ours" for path in junk)
    assert link.is_symlink()
    assert target.exists()
    assert [meta.index for meta in disk.store.blocks()] == [0]
    assert not disk.path(meta_of(1)).exists()
    assert disk.store.used_bytes == FILE
    disk.close()


async def test_one_file_that_cannot_be_read_does_not_stop_the_scan(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(root)
    await disk.write(*(meta_of(index) for index in range(5)))
    sick_path = disk.path(meta_of(2))
    disk.close()
    real = block_io.read_meta

    def read_meta(path: Path) -> BlockMeta:
        if path == sick_path:
            raise OSError(errno.EIO, "sick sector")
        return real(path)

    disk = Disk(root)
    with monkeypatch.context() as patch:
        patch.setattr(block_io, "read_meta", read_meta)
        await disk.recovery.index()
    assert sorted(meta.index for meta in disk.store.blocks()) == [0, 1, 3, 4]
    assert disk.store.used_bytes == 5 * FILE  # the file is still on disk
    disk = await restarted(disk, clean=True)
    assert len(disk.store) == 5  # no snapshot was written without it
    disk.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("policy", ["lru", "none"])
async def test_a_directory_filled_under_a_larger_budget_is_trimmed(clean: bool, policy: str, root: Path) -> None:
    disk = Disk(root)
    await disk.recovery.index()
    await disk.write(*(meta_of(index) for index in range(6)))
    disk = await restarted(disk, clean=clean, capacity=2 * FILE + 5, policy=policy)
    disk.keep_budget()
    assert len(disk.store) == 2
    disk.close()


async def test_no_block_is_admitted_before_the_scan_knows_all_sizes(root: Path) -> None:
    disk = Disk(root)
    await disk.write(meta_of(0))
    disk.store.disks[0].admitting = False
    with pytest.raises(StoreUnavailable):
        await disk.store.create(meta_of(1))
    assert await disk.read(meta_of(0)) is not None
    disk.close()


async def scrub_rounds(disk: Disk, rounds: int) -> None:
    """Run the scrubber in virtual time until it has finished `rounds` rounds."""

    async def sleep(seconds: float) -> None:
        disk.clock.advance(seconds)
        if disk.metrics.value("outrider_scrub_rounds_total") >= rounds:
            raise asyncio.CancelledError

    with suppress(asyncio.CancelledError):
        await Recovery(disk.store, disk.believed, sleep).scrub(ScrubPace(1e6, 3600))


async def test_the_scrubber_finds_bad_blocks_and_does_not_change_the_order_of_eviction(root: Path) -> None:
    disk = Disk(root)
    await disk.recovery.index()
    await disk.write(*(meta_of(index) for index in range(4)))
    disk = await restarted(disk, clean=True)
    flip(disk.path(meta_of(2)), HEADER + 1)
    assert await disk.read(meta_of(0)) is not None
    await scrub_rounds(disk, 1)
    assert [meta.index for meta in disk.store.blocks()] == [1, 3, 0]
    assert disk.store.unverified() == []
    assert disk.metrics.value("outrider_bad_blocks_total") == 1
    disk.close()


# -- the directory ----------------------------------------------------------------------------------------------


def test_one_process_per_directory(root: Path) -> None:
    directory = BlockDir.open(root)
    code = "from pathlib import Path; from outrider.adapters.disk.block_dir import BlockDir; "
    code += f"BlockDir.open(Path({str(root)!r}))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                           env={**os.environ, "PYTHONPATH": "proxy"}, cwd=Path(__file__).parents[2])  # fmt: skip
    assert "another process uses it" in other.stderr
    with pytest.raises(UnusableCacheDir, match="another process"):
        BlockDir.open(root)
    directory.close()
    BlockDir.open(root).close()


def test_a_directory_of_another_format_is_refused_and_not_changed(root: Path) -> None:
    root.mkdir()
    (root / "outrider-cache").write_text("outrider cache, layout 99\n")
    (root / "tmp").mkdir()
    (root / "tmp" / ("0" * 32 + ".1")).write_text("theirs")
    before = open_fds(root)
    with pytest.raises(UnusableCacheDir, match="layout 99"):
        BlockDir.open(root)
    assert (root / "tmp" / ("0" * 32 + ".1")).read_text() == "theirs"
    assert open_fds(root) == before


MARKER = b"outrider cache, layout 2\n"
DAMAGED = {
    "empty": b"",
    "cut": MARKER[:11],
    "without its end": MARKER[:-1],
    "NULs": bytes(25),
    "cut, then NULs": MARKER[:9] + bytes(16),
    "garbage": bytes(range(251)),
    "longer": MARKER + b"x",
    "of no number": b"outrider cache, layout two\n",
}


@pytest.mark.parametrize("damage", [*DAMAGED, "unreadable", "removed"])
async def test_a_damaged_marker_is_written_anew_and_the_blocks_are_verified(
    root: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(root)
    await disk.recovery.index()
    await disk.write(*(meta_of(index) for index in range(3)))
    await disk.recovery.save()
    disk.close()
    flip(disk.path(meta_of(1)), HEADER + 1)
    (root / "lost+found").mkdir()
    marker = root / "outrider-cache"
    if damage == "removed":
        marker.unlink()
    else:
        marker.write_bytes(DAMAGED.get(damage, MARKER + b"?"))
    caplog.clear()
    with SickDisk(root) as sick:
        if damage == "unreadable":
            sick.fail(("pread",), errno.EIO)
        directory = BlockDir.open(root)
        sick.heal()
    assert marker.read_bytes() == MARKER
    assert [record.message for record in caplog.records] == [
        "marker file of the cache directory was damaged, and is written anew"
    ]
    assert not (root / "index").exists()
    directory.close()
    disk = Disk(root)
    await disk.recovery.index()
    assert [await disk.read(meta_of(index)) is not None for index in range(3)] == [True, False, True]
    disk.close()


@pytest.mark.parametrize("strange", ["notes.txt", "v2/notes", "nothing here"])
def test_a_damaged_marker_among_other_files_is_refused_and_nothing_is_changed(root: Path, strange: str) -> None:
    (root / "v2" / ("notes" if strange == "v2/notes" else "00")).mkdir(parents=True)
    if strange == "notes.txt":
        (root / strange).write_text("theirs")
    if strange == "nothing here":
        (root / "v2" / "00").rmdir()
    marker = root / "outrider-cache"
    marker.write_bytes(b"#!/bin/sh\n")
    with pytest.raises(UnusableCacheDir, match="remove that file"):
        BlockDir.open(root)
    assert marker.read_bytes() == b"#!/bin/sh\n"


@pytest.mark.parametrize("content", [b"", b"theirs"])
def test_a_marker_that_is_a_link_is_refused_and_its_target_not_written(root: Path, content: bytes) -> None:
    (root / "v2" / "00").mkdir(parents=True)
    target = root.parent / "target"
    target.write_bytes(content)
    (root / "outrider-cache").symlink_to(target)
    with pytest.raises(UnusableCacheDir, match="outrider-cache is a link"):
        BlockDir.open(root)
    (root / "outrider-cache").unlink()
    (root / "outrider-cache").hardlink_to(target)
    with pytest.raises(UnusableCacheDir, match="remove that file"):
        BlockDir.open(root)
    assert target.read_bytes() == content


def test_a_marker_on_a_disk_that_takes_no_writes_is_refused(root: Path) -> None:
    root.mkdir()
    with SickDisk(root) as sick:
        sick.fail(("create",), errno.EROFS)
        with pytest.raises(UnusableCacheDir, match=r"Read-only file system\. Make it writable"):
            BlockDir.open(root)


def test_a_directory_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableCacheDir, match="--cache-dir"):
        BlockDir.open(tmp_path / "file" / "cache")


def test_memory_directories_of_killed_processes_are_removed_and_those_in_use_stay() -> None:
    dead, alive = memory_dir.make(), memory_dir.make()
    BlockDir.open(dead).close()
    held = BlockDir.open(alive)
    third = memory_dir.make()
    assert not dead.exists()
    assert alive.exists()
    held.close()
    for path in (alive, third):
        memory_dir.remove(path)


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


def noting(disk: Disk) -> tuple[WrittenNamesFile, Recovery]:
    touched = WrittenNamesFile(disk.store.disks[0].directory, disk.store.disks[0].work)
    return touched, Recovery(disk.store, disk.believed, touched=[touched])


async def test_after_a_crash_a_version_is_vouched_for_unless_written_or_filled_too_soon(
    root: Path,
) -> None:
    modified = (("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT"),)
    old, written = (meta_of(key=key, headers=modified) for key in ("old", "written"))
    new = meta_of(key="new", headers=modified)
    put_at = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    disk = Disk(root)
    touched, recovery = noting(disk)
    await recovery.index()
    await disk.write(old, written, new)
    await touched.note([written.version.ref])
    for meta, filled_at in ((old, put_at + 60), (written, put_at + 60), (new, put_at + 59)):
        os.utime(disk.path(meta), (filled_at, filled_at))
    disk.close()
    for _ in range(2):
        disk = Disk(root)
        _, recovery = noting(disk)
        await recovery.index()
        assert disk.believed.vouched == [old.version]
        disk.close()


async def test_written_names_are_kept_for_blocks_that_a_start_could_not_read(root: Path) -> None:
    disk = Disk(root)
    touched, recovery = noting(disk)
    await recovery.index()
    await disk.write(meta := meta_of())
    await touched.note([meta.version.ref])
    disk.close()
    disk = Disk(root)
    touched, recovery = noting(disk)
    with SickDisk(disk.store.disks[0].directory.blocks) as sick:
        sick.fail(["open"], errno.EIO)
        await recovery.index()
    assert len(disk.store) == 0
    assert not touched.is_whole
    disk.close()
    disk = Disk(root)
    assert noting(disk)[0].has(meta.version.ref)
    disk.close()


def test_a_block_that_is_dropped_while_a_snapshot_is_written_is_not_in_it() -> None:
    """Nor does the rest become useless: the next start would scan."""
    first, dropped, last = metas = [meta_of(index) for index in range(3)]
    sizes = {meta.key: block_file.Header(meta).disk_bytes for meta in metas} | {dropped.key: 0}
    facts = index_snapshot.SnapshotFacts(
        lambda: 1.5e9, lambda _, version: Belief(version),
        on_disk=lambda meta: index_snapshot.OnDisk(sizes[meta.key], pack(meta.version)),
    )  # fmt: skip
    saved = index_snapshot.decode(b"".join(index_snapshot.encode(metas, facts)))
    assert [meta for meta, *_ in saved] == [first, last]


async def test_a_snapshot_that_makes_no_sense_from_some_page_on_is_followed_by_a_scan(root: Path) -> None:
    disk = Disk(root)
    await disk.write(*(meta_of(index) for index in range(3)))
    metas, used_bytes = disk.store.blocks(), disk.store.used_bytes
    form, path = LinesFormat("outrider index", 4), disk.store.disks[0].directory.snapshot
    disk.close()
    head, page = form.decode(b"".join(index_snapshot.encode(metas[:2])))
    path.write_bytes(b"".join(form.encode([head, page + b"\n", b'{"frames":7}\n'])))
    disk = Disk(root)
    await disk.recovery.index()
    assert {meta.key for meta in disk.store.blocks()} == {meta.key for meta in metas}
    assert disk.store.used_bytes == used_bytes
    disk.close()


async def test_a_snapshot_of_an_older_format_is_followed_by_a_scan_and_told_of_in_one_line(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(root)
    await disk.write(*(meta_of(index) for index in range(3)))
    metas, path = disk.store.blocks(), disk.store.disks[0].directory.snapshot
    disk.close()
    path.write_bytes(b"".join(LinesFormat("outrider index", 3).encode([b'{"saved_at":1.5,"doubts":[]}\n'])))
    disk = Disk(root)
    await disk.recovery.index()
    assert {meta.key for meta in disk.store.blocks()} == {meta.key for meta in metas}
    assert [record.msg for record in caplog.records].count("index snapshot ignored") == 1
    disk.close()


async def test_a_block_that_landed_before_its_page_was_read_is_counted_once(root: Path) -> None:
    disk = Disk(root)
    metas = [meta_of(0, key) for key in "abc"]
    await disk.recovery.index()
    await disk.write(*metas)
    await disk.recovery.save()
    disk.close()
    disk = Disk(root)
    started = asyncio.ensure_future(disk.recovery.index())
    await disk.write(metas[1])
    await started
    assert sorted(meta.version.ref.key for meta in disk.store.blocks()) == ["a", "b", "c"]
    assert disk.store.used_bytes == 3 * block_file.Header(metas[0]).disk_bytes
    disk.close()


async def test_the_policy_hears_of_each_block_of_a_snapshot_that_is_still_there_when_it_is_ranked(root: Path) -> None:
    disk = Disk(root)
    metas = [meta_of(0, key) for key in "abc"]
    await disk.recovery.index()
    await disk.write(*metas)
    await disk.recovery.save()
    disk.close()
    disk = Disk(root)
    (page,) = index_snapshot.decode(disk.store.disks[0].directory.snapshot.read_bytes()).pages()
    assert disk.store.add_all(disk.store.disks[0], page) == []
    disk.store.disks[0].budget.take(disk.store.on_disk(metas[0]).disk_bytes * 3)
    await disk.store.drop([metas[1].key])
    assert not list(disk.store._policy.victims())
    assert [meta for batch in disk.store.rank(2) for meta, _ in batch] == [metas[0], metas[2]]
    assert list(disk.store._policy.victims()) == [metas[0].key, metas[2].key]
    assert not [meta for batch in disk.store.rank(2) for meta in batch]
    disk.close()


async def test_a_snapshot_overtaken_by_a_write_is_not_put_in_place(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(root)
    touched, recovery = noting(disk)
    await recovery.index()
    await disk.write(meta := meta_of())
    encode = index_snapshot.encode

    def meanwhile(blocks: Iterable[BlockMeta], facts: index_snapshot.SnapshotFacts) -> Iterator[bytes]:
        yield from encode(blocks, facts)
        touched._note([meta.version.ref])

    monkeypatch.setattr(index_snapshot, "encode", meanwhile)
    await recovery.save()
    assert not disk.store.disks[0].directory.snapshot.exists()
    monkeypatch.undo()
    disk.close()
    disk = Disk(root)
    touched, recovery = noting(disk)
    await recovery.index()
    await recovery.save()
    assert disk.store.disks[0].directory.snapshot.exists()
    disk.close()
