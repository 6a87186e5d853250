"""Stops and starts of a block store: snapshots, scans, and the directory that it takes over."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from outrider.adapters.disk import block_io, index_snapshot, memory_dir
from outrider.adapters.disk.block_dir import BlockDir, UnusableCacheDir
from outrider.adapters.disk.recovery import Recovery
from outrider.adapters.disk.written_names import WrittenNamesFile
from outrider.adapters.sealed_file import LinesFormat
from outrider.core.cache import block_file
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.scrub_pace import ScrubPace
from outrider.core.errors import StoreUnavailable
from outrider.core.packed_version import pack
from outrider.ports import Belief
from tests.contract.disk_store import (
    FILE,
    HEADER,
    Disk,
    flip,
    meta_of,
    on_disk,
    open_fds,
    payload_of,
    restarted,
)
from tests.support.faulty_disk import SickDisk


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
        assert [meta.key for meta in disk.ranked()] == [meta.key for meta in [*metas[1:], metas[0]]]
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


async def test_a_damaged_snapshot_is_ignored_and_the_directory_scanned(root: Path) -> None:
    disk = Disk(root)
    await disk.recovery.index()
    await disk.write(meta_of(0), meta_of(1))
    await disk.recovery.save()
    disk.close()
    index = root / "index"
    index.write_bytes(index.read_bytes()[:-30])
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
    assert [meta.index for meta in disk.ranked()] == [0]
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
    assert sorted(meta.index for meta in disk.ranked()) == [0, 1, 3, 4]
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


async def test_no_block_is_admitted_before_the_scan_knows_all_sizes(disk: Disk) -> None:
    await disk.write(meta_of(0))
    disk.store.disks[0].admitting = False
    with pytest.raises(StoreUnavailable):
        await disk.store.create(meta_of(1))
    assert await disk.read(meta_of(0)) is not None


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
    assert [meta.index for meta in disk.ranked()] == [1, 3, 0]
    assert list(disk.store.each(unverified=True)) == []
    assert disk.metrics.value("outrider_bad_blocks_total") == 1
    disk.close()


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
    metas, used_bytes = disk.ranked(), disk.store.used_bytes
    form, path = LinesFormat("outrider index", 5), disk.store.disks[0].directory.snapshot
    disk.close()
    head, page = form.decode(b"".join(index_snapshot.encode(metas[:2])))
    path.write_bytes(b"".join(form.encode([head, page + b"\n", b'{"frames":7}\n'])))
    disk = Disk(root)
    await disk.recovery.index()
    assert {meta.key for meta in disk.ranked()} == {meta.key for meta in metas}
    assert disk.store.used_bytes == used_bytes
    disk.close()


async def test_a_snapshot_of_an_older_format_is_followed_by_a_scan_and_logged_in_one_line(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(root)
    await disk.write(*(meta_of(index) for index in range(3)))
    metas, path = disk.ranked(), disk.store.disks[0].directory.snapshot
    disk.close()
    path.write_bytes(b"".join(LinesFormat("outrider index", 3).encode([b'{"saved_at":1.5,"doubts":[]}\n'])))
    disk = Disk(root)
    await disk.recovery.index()
    assert {meta.key for meta in disk.ranked()} == {meta.key for meta in metas}
    assert [record.msg for record in caplog.records].count("index snapshot ignored") == 1
    disk.close()


async def three_saved(root: Path) -> list[BlockMeta]:
    """A block of each of three objects, in the snapshot of a disk that is closed."""
    disk = Disk(root)
    metas = [meta_of(0, key) for key in "abc"]
    await disk.recovery.index()
    await disk.write(*metas)
    await disk.recovery.save()
    disk.close()
    return metas


async def test_a_block_that_landed_before_its_page_was_read_is_counted_once(root: Path) -> None:
    metas = await three_saved(root)
    disk = Disk(root)
    started = asyncio.ensure_future(disk.recovery.index())
    await disk.write(metas[1])
    await started
    assert disk.believed.expected == 3
    assert sorted(meta.version.ref.key for meta in disk.ranked()) == ["a", "b", "c"]
    assert disk.store.used_bytes == 3 * block_file.Header(metas[0]).disk_bytes
    disk.close()


async def test_the_policy_learns_of_each_block_of_a_snapshot_that_is_still_there_when_it_is_ranked(root: Path) -> None:
    metas = await three_saved(root)
    disk = Disk(root)
    saved = index_snapshot.decode(disk.store.disks[0].directory.snapshot.read_bytes())
    assert saved.blocks == 3
    (page,) = saved.pages()
    assert disk.store.add_all(disk.store.disks[0], page) == []
    disk.store.disks[0].budget.take(disk.store.on_disk(metas[0]).disk_bytes * 3)
    await disk.store.drop([metas[1].key])
    assert not list(disk.policy.victims())
    assert len(list(disk.store.rank(2))) == 2
    assert list(disk.policy.victims()) == [metas[0].key, metas[2].key]
    assert not list(disk.store.rank(2))
    disk.close()


async def test_a_snapshot_overtaken_by_a_write_is_not_put_in_place(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(root)
    touched, recovery = noting(disk)
    await recovery.index()
    await disk.write(meta := meta_of())
    encode, encoded, is_noted = index_snapshot.encode, threading.Event(), threading.Event()

    def meanwhile(blocks: Iterable[BlockMeta], facts: index_snapshot.SnapshotFacts) -> Iterator[bytes]:
        yield from encode(blocks, facts)
        encoded.set()
        assert is_noted.wait(60)

    monkeypatch.setattr(index_snapshot, "encode", meanwhile)
    saving = asyncio.create_task(recovery.save())
    assert await asyncio.to_thread(encoded.wait, 60)
    await touched.note([meta.version.ref])
    is_noted.set()
    await saving
    assert not disk.store.disks[0].directory.snapshot.exists()
    monkeypatch.undo()
    disk.close()
    disk = Disk(root)
    touched, recovery = noting(disk)
    await recovery.index()
    await recovery.save()
    assert disk.store.disks[0].directory.snapshot.exists()
    disk.close()


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
