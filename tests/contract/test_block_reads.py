"""Reads of a block store: open files, reads without a wait for the disk, and the verification before them."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from outrider import pagecache
from outrider.adapters.disk import block_io, block_reads
from outrider.core.block_layout import BlockLayout
from outrider.core.cache import block_file
from outrider.core.cache.block_file import DIGEST_BYTES, PAGE_BYTES, BlockMeta, Header, PayloadChecksum
from outrider.core.errors import StoreUnavailable
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.s3.checksums import Kind
from tests.contract.disk_store import (
    BLOCK,
    FILE,
    HEADER,
    LAYOUT,
    MIB,
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
from tests.fuzz.disk_bytes import sealed_header
from tests.support.engine import slot_of

pytestmark = pytest.mark.parametrize("root", ["disk", "memory"], indirect=True)

EACH_TIME = "verified each time"


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
        lease = given(disk.store.lease_at_once(meta_of(index).key))
        assert open_fds(root) == before
        assert read_through(lease, BLOCK) == payload_of(meta_of(index))
        lease.release()
        assert open_fds(root) == before
    disk.close()


async def test_reads_of_closed_files_are_reported_to_the_policy(root: Path) -> None:
    disk = Disk(root, 3 * FILE, open_files=1)
    await disk.write(*(meta_of(index) for index in range(3)))
    given(disk.store.lease_at_once(meta_of(0).key)).release()
    await disk.write(meta_of(3))
    assert [disk.store.has(meta_of(index).key) for index in range(4)] == [True, False, True, True]
    disk.close()


async def test_reads_of_open_files_are_reported_to_the_policy(root: Path) -> None:
    disk = Disk(root, 3 * FILE)
    await disk.write(*(meta_of(index) for index in range(3)))
    file = given(disk.store.open_file(meta_of(0).key))
    assert os.pread(file.fd, BLOCK, file.payload_offset) == payload_of(meta_of(0))
    await disk.write(meta_of(3))
    assert [disk.store.has(meta_of(index).key) for index in range(4)] == [True, False, True, True]
    disk.close()


async def test_an_open_file_whose_bytes_must_be_verified_is_not_given(disk: Disk) -> None:
    await disk.write(meta_of(0))
    assert disk.store.open_file(meta_of(0).key) is not None
    assert disk.store.open_file(meta_of(1).key) is None
    await _unverified(disk)
    assert disk.store.open_file(meta_of(0).key) is None


@pytest.mark.parametrize("why", ["verified", EACH_TIME])
async def test_an_open_file_that_is_verified_each_time_is_not_given(why: str, root: Path) -> None:
    disk = disk_for(why, root)
    before = open_fds(root)
    await disk.write(meta_of(0))
    assert (disk.store.is_verified(meta_of(0).key), open_fds(root)) == (True, before + 1)
    assert (disk.store.open_file(meta_of(0).key) is None) == (why == EACH_TIME)
    for lease in (disk.store.lease_open(meta_of(0).key), disk.store.lease_at_once(meta_of(0).key)):
        assert (lease is None) == (why == EACH_TIME)
        if lease is not None:
            lease.release()
    disk.close()


async def test_a_block_whose_closed_file_is_read_from_the_loop_is_no_victim(root: Path) -> None:
    disk = Disk(root, 2 * FILE, open_files=1)
    await disk.write(meta_of(0), meta_of(1))
    lease = given(disk.store.lease_open(meta_of(0).key))
    await disk.write(meta_of(2))
    await disk.write(meta_of(3))
    assert [disk.store.has(meta_of(index).key) for index in range(4)] == [True, False, False, True]
    lease.release()
    disk.close()


def disk_for(why: str, root: Path, *, open_files: int = 256) -> Disk:
    return Disk(root, verify_always=why == EACH_TIME, open_files=open_files)


async def _unverified(disk: Disk) -> None:
    slot_of(disk.store, meta_of(0).key).verified = False


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
    "unverified": _unverified, "another's file": _another, "no file": _gone, "a disk that hangs": _hung,
    "a link": _link,
}  # fmt: skip


@pytest.mark.parametrize("why", [EACH_TIME, *WAITS])
async def test_an_unverified_block_gives_no_lease_at_once_and_leaves_no_file_open(why: str, root: Path) -> None:
    disk = disk_for(why, root, open_files=1)
    await disk.write(meta_of(0), meta_of(1), meta_of(2))
    # The file of the first is closed for that of the second.
    for index in (0, 1):
        given(await disk.store.lease(meta_of(index).key)).release()
    if why in WAITS:
        await WAITS[why](disk)
    before = open_fds(root)
    assert disk.store.lease_at_once(meta_of(0).key) is None
    assert disk.store.lease_open(meta_of(0).key) is None
    assert disk.store.open_file(meta_of(0).key) is None
    assert slot_of(disk.store, meta_of(0).key).file is None
    if (page_in := disk.store.page_in(meta_of(0).key, 0, BLOCK)) is not None:
        page_in()  # the read that follows reports the error
    assert (page_in is None) == (why in ("unverified", EACH_TIME, "a disk that hangs"))
    assert open_fds(root) == before
    disk.close()


@pytest.mark.parametrize("why", ["verified", EACH_TIME, *WAITS])
async def test_a_block_that_is_unverified_can_be_prepared(why: str, root: Path) -> None:
    disk = disk_for(why, root)
    await disk.write(meta_of(0), meta_of(1))
    if why in WAITS:
        await WAITS[why](disk)
    prepare = disk.store.prepare(meta_of(0).key)
    assert (prepare is not None) == (why == "unverified")
    if prepare is not None:
        await prepare()
        lease = given(disk.store.lease_at_once(meta_of(0).key))
        assert os.pread(lease.block.fd, BLOCK, lease.block.payload_offset) == payload_of(meta_of(0))
        lease.release()
    disk.close()


@pytest.mark.parametrize("why", ["verified", EACH_TIME, *WAITS])
async def test_a_small_block_in_memory_is_verified_at_once(why: str, root: Path) -> None:
    disk = disk_for(why, root)
    await disk.write(meta_of(0), meta_of(1))
    if why in WAITS:
        await WAITS[why](disk)
    before = open_fds(root)
    done = disk.store.verify_at_once(meta_of(0).key)
    assert done == (why == "unverified")
    if done:
        lease = given(disk.store.lease_at_once(meta_of(0).key))
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
    why: str | int, root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await disk.write(meta_of(0), meta_of(1))
    await _unverified(disk)
    before, path = open_fds(root), disk.path(meta_of(0))
    if isinstance(why, int):
        flip(path, why)
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
    prepare = given(disk.store.prepare(meta_of(0).key))
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
    damaged: bool, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await disk.write(meta_of(0))
    await _unverified(disk)
    if damaged:
        flip(disk.path(meta_of(0)), HEADER + BLOCK - 1)
    else:
        monkeypatch.setattr(block_io, "open_block", refuse)
    opened = Opened(monkeypatch)
    opened.may.set()
    assert await asyncio.gather(*(disk.store.lease(meta_of(0).key) for _ in range(5))) == [None] * 5
    assert disk.store.has(meta_of(0).key) != damaged
    assert opened.count == 1


def refuse(*_: Any, **__: Any) -> tuple[int, int]:
    raise OSError(errno.EIO, "the disk fails")


async def test_an_opening_that_nobody_waits_for_is_dropped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, opened = Disk(root, verify_always=True), Opened(monkeypatch)
    await disk.write(meta_of(0), meta_of(1))
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
    known = block_io.open_verified_block(bytes(path), meta_of(0).key, header.disk_bytes)
    assert known is not None
    os.close(known[0])
    assert block_io.open_verified_block(bytes(path), meta_of(1).key, header.disk_bytes) is None, "another block"
    assert block_io.open_verified_block(bytes(path), meta_of(0).key, BLOCK) is None, "longer than it is to be"
    monkeypatch.setattr(pagecache, "read_in_memory", lambda fd, offset, into, **_: False)
    assert block_io.open_verified_block(bytes(path), meta_of(0).key, header.disk_bytes) is None


class Wanting:
    """Wants a CRC of each block."""

    def kind_for(self, meta: BlockMeta) -> Kind:
        return Kind.CRC32

    def hashed(self, meta: BlockMeta, kind: Kind, digest: bytes) -> None:
        raise AssertionError

    def saved(self, layout: BlockLayout, version: ObjectVersion) -> object:
        return None

    def restore(self, meta: BlockMeta, saved: object) -> None:
        pass


async def test_a_proved_block_is_verified_at_once_though_a_checksum_is_wanted(disk: Disk) -> None:
    await disk.write(meta_of(0))
    disk.store.prove([meta_of(0).key])
    await _unverified(disk)
    disk.store.contents = Wanting()
    assert disk.store.verify_at_once(meta_of(0).key)


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_verification_is_no_read_to_the_policy(at_once: bool, root: Path) -> None:
    disk = Disk(root, 2 * FILE)
    await disk.write(meta_of(0), meta_of(1))
    await _unverified(disk)
    if at_once:
        assert disk.store.verify_at_once(meta_of(0).key)
    else:
        prepare = given(disk.store.prepare(meta_of(0).key))
        await prepare()
    await disk.write(meta_of(2))
    assert [disk.store.has(meta_of(index).key) for index in range(3)] == [False, True, True]
    disk.close()


async def test_a_block_in_the_page_cache_gives_a_lease_at_once(root: Path) -> None:
    disk = Disk(root, open_files=1)
    await disk.write(meta_of(0), meta_of(1))
    with disk.path(meta_of(0)).open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = open_fds(root)
        page_in = given(disk.store.page_in(meta_of(0).key, 100, BLOCK - 100))
        page_in()
        assert open_fds(root) == before
        assert all(pagecache.is_in_memory(file.fileno(), offset) for offset in range(0, FILE, PAGE_BYTES))
    given(disk.store.lease_at_once(meta_of(0).key)).release()
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
        page_in = given(disk.store.page_in(large.key, 3 * MIB, 1000))
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
    given(await disk.store.lease(meta_of(0).key)).release()
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
    return sealed_header(block_file.meta_json(meta), PayloadChecksum(payload_of(meta)).digest()) + payload_of(meta)


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
