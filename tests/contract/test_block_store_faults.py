"""A block store whose disk fails, hangs, is emptied or is taken away, and writers that are cancelled. Errors of the
disk are injected at the system calls."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outrider import pagecache
from outrider.adapters.disk import disk_threads
from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.block_writer import DiskBlockWriter
from outrider.adapters.disk.disk_threads import _THREADS, DiskThreads
from outrider.adapters.disk.leases import OpenFile
from outrider.core.cache.block_file import PayloadChecksum, digest_text
from outrider.core.errors import StoreUnavailable
from outrider.core.model import BlockKey
from tests.contract.disk_store import (
    FILE,
    WRITINGS,
    Disk,
    Writing,
    failing,
    given,
    meta_of,
    on_disk,
    open_fds,
    payload_of,
    restarted,
    write_at_once,
    write_in_parts,
    write_whole,
)
from tests.support.faulty_disk import SickDisk


async def _create(disk: Disk) -> None:
    await disk.store.create(meta_of(9))


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
    """A disk that hangs gives none, and keeps its file open as long as the thread reads it."""
    monkeypatch.setattr(pagecache, "opens_at_once", lambda path: False)
    monkeypatch.setattr(pagecache, "stays_in_memory", lambda path: False)
    monkeypatch.setattr(disk_threads, "PATIENCE_S", 0.05)
    disk = Disk(root)
    await disk.write(meta_of(0))
    lease = given(disk.store.lease_open(meta_of(0).key))
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


@contextmanager
def gate_closed() -> Iterator[None]:
    Gated.reached.clear()
    Gated.go_on.clear()
    Gated.closed = True
    try:
        yield
    finally:
        Gated.closed = False
        Gated.go_on.set()


@pytest.mark.parametrize("writing", WRITINGS)
async def test_a_writer_cancelled_at_the_rename_leaves_no_block_without_an_index_entry(
    writing: Writing, root: Path
) -> None:
    disk = Disk(root, directory=Gated)
    before = open_fds(root)
    meta = meta_of(0)
    writer = await disk.store.create(meta)
    with gate_closed():
        await cancelled_at_the_rename(writer, writing, payload_of(meta))
    assert on_disk(root) == 0
    assert (disk.store.used_bytes, len(disk.store), open_fds(root)) == (0, 0, before)
    disk.close()


async def test_an_aborted_block_that_cannot_be_removed_is_found_by_the_next_start(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(root, directory=Gated)
    await disk.recovery.index()
    writer = await disk.store.create(meta_of(0))
    with gate_closed(), monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing(errno.EIO))
        await cancelled_at_the_rename(writer, write_whole, payload_of(meta_of(0)))
    assert (on_disk(root), len(disk.store)) == (FILE, 0)
    disk = await restarted(disk, clean=True)
    disk.keep_budget()
    assert len(disk.store) == 1
    disk.close()


async def test_a_block_is_written_anew_only_after_the_aborted_file_is_removed(root: Path) -> None:
    """The thread of the aborted writer may still rename its file into place, and would then remove the new one."""
    disk = Disk(root, directory=Gated)
    writer, data = await disk.store.create(meta_of(0)), payload_of(meta_of(0))
    with gate_closed():
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
    with gate_closed():
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
async def test_what_fails_after_its_caller_left_counts_as_retrieved(
    act: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise tests/conftest.py finds what asyncio logs."""
    monkeypatch.setattr(pagecache, "opens_at_once", lambda path: False)
    monkeypatch.setattr(pagecache, "stays_in_memory", lambda path: False)
    disk = Disk(root)
    await disk.write(meta_of(0))
    lease = given(disk.store.lease_open(meta_of(0).key))
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
    with gate_closed():
        left = asyncio.create_task(disk.store.create(meta_of(1)))
        await asyncio.to_thread(Gated.reached.wait, 60)
        left.cancel()
        await asyncio.wait([left])
        again = asyncio.create_task(disk.write(meta_of(0)))
        for _ in range(20):
            await asyncio.sleep(0)
        disk.keep_budget()
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
