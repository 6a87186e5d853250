"""The file of written names: it holds all names or is removed, and a start keeps those that still have blocks."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.adapters.disk import disk_threads, written_names
from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.disk_threads import DiskThreads
from outrider.adapters.disk.written_names import WrittenNamesFile, WrittenNamesFiles
from outrider.core.model import ObjectRef
from outrider.metrics import Metrics
from tests.support.engine import REF, engine
from tests.support.fakes import FakeClock, Fault
from tests.support.faulty_disk import SickDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

A, B, C, ODD = ObjectRef("bkt", "a"), ObjectRef("bkt", "b"), ObjectRef("other", "c"), ObjectRef("bkt", "\udcff\n")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[BlockDir]:
    directory = BlockDir.open(tmp_path / "cache")
    yield directory
    directory.close()


def started(directory: BlockDir, names: set[ObjectRef] | None = None) -> WrittenNamesFile:
    """A `WrittenNamesFile` after a start that settled on `names`; None: it has not settled yet."""
    touched = WrittenNamesFile(directory, DiskThreads(Metrics(), FakeClock()))
    if names is not None:
        assert touched.settle(names) is None
    return touched


def noted(directory: BlockDir) -> list[bool]:
    """For each name, whether a start after a crash would take it for written."""
    found = started(directory)
    return [found.has(ref) for ref in (A, B, C, ODD)]


NONE, ALL = [False] * 4, [True] * 4


async def test_a_noted_name_is_known_to_the_next_two_starts(directory: BlockDir) -> None:
    await started(directory, set()).note([A])
    assert noted(directory) == [True, False, False, False]
    again = started(directory)
    await again.note([ODD, "other"])
    assert noted(directory) == [True, False, True, True]
    again.settle({A})
    assert noted(directory) == [True, False, True, True], "names that were noted meanwhile are known, too"
    assert directory.touched.stat().st_mode & 0o077 == 0


async def test_a_start_keeps_only_names_that_have_blocks(directory: BlockDir) -> None:
    await started(directory, set()).note([A, B, C])
    started(directory, {B})
    assert noted(directory) == [False, True, False, False]
    assert len(directory.touched.read_bytes().splitlines()) == 3
    part = directory.root / "touched.part"
    part.write_bytes(b"cut off")
    directory.close()
    BlockDir.open(directory.root).close()
    assert not part.exists()


async def test_a_name_is_noted_once(directory: BlockDir) -> None:
    touched = started(directory, set())
    for _ in range(3):
        await touched.note([A])
    assert len(directory.touched.read_bytes().splitlines()) == 3


async def test_a_name_that_was_written_for_a_tenant_may_be_known_without_it_and_the_other_way_round(
    directory: BlockDir,
) -> None:
    await started(directory, set()).note([ObjectRef("tenant:bkt", "a"), "tenant:other"])
    assert noted(directory) == [True, False, True, False]
    assert started(directory).has(ObjectRef("tenant:bkt", "b")), "a write without the tenant is not noted for it"


async def test_a_start_knows_which_names_the_last_process_noted(directory: BlockDir) -> None:
    await started(directory, {C}).note([B, A])
    found = started(directory)
    assert (found.has(C), found.recent) == (True, [B, A])
    found.carry(["bkt"])
    found.settle({A})
    assert (noted(directory), started(directory).recent) == ([True, True, False, True], ["bkt"])


async def test_the_notes_of_a_member_of_a_cluster_do_not_do_for_a_proxy_alone(directory: BlockDir) -> None:
    member = WrittenNamesFile(directory, DiskThreads(Metrics(), FakeClock()), is_alone=False)
    assert member.settle({A}) is None
    assert noted(directory) == ALL


@pytest.mark.parametrize("settled", [False, True])
async def test_beyond_the_bound_any_name_may_have_been_written(
    settled: bool, directory: BlockDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(directory, set())
    monkeypatch.setattr(written_names, "NAMES_MAX", 2)
    touched = started(directory, set() if settled else None)
    await touched.note([A])
    await touched.note([B])
    assert noted(directory) == [True, True, False, False]
    await touched.note([C])
    assert noted(directory) == ALL
    await touched.note([ODD])
    assert noted(directory) == ALL
    assert started(directory, {A, B, C}).has(ODD) is False, "settled"
    assert noted(directory) == ALL
    started(directory, {A})
    assert noted(directory) == [True, False, False, False]


@pytest.mark.parametrize("damage", ["cut", "odd", "another boot", "none"])
async def test_without_a_complete_file_any_name_may_have_been_written(damage: str, directory: BlockDir) -> None:
    await started(directory, set()).note([A])
    raw = directory.touched.read_bytes()
    if damage == "none":
        directory.touched.unlink()
    else:
        cut = {"cut": raw[:-1], "odd": raw + b"[1]\n", "another boot": raw.replace(b'"boot":"', b'"boot":"0')}
        directory.touched.write_bytes(cut[damage])
    assert noted(directory) == ALL
    await started(directory).note([B])
    assert noted(directory) == ALL, "later notes do not make the file complete"


async def test_in_another_directory_any_name_may_have_been_written(directory: BlockDir) -> None:
    touched = started(directory, set())
    await touched.note([A])
    directory.touched.rename(directory.root / "of old")
    started(directory, set())
    await touched.note([B])
    assert noted(directory) == ALL


async def test_the_file_of_another_process_that_has_locked_the_directory_is_not_changed(
    directory: BlockDir, tmp_path: Path
) -> None:
    touched, later = started(directory, set()), started(directory)
    directory.root.rename(tmp_path / "gone")
    other = BlockDir.open(directory.root)
    started(other, {B})
    await touched.note([A])
    await touched.note([C])
    assert later.settle({C}) is not None
    assert noted(other) == [False, True, False, False]
    other.close()


@pytest.mark.parametrize("acts", [["open"], ["open", "unlink"]])
async def test_after_a_failed_note_the_file_is_removed_once_the_disk_works_again(
    acts: list[str], directory: BlockDir
) -> None:
    touched = started(directory, set())
    await touched.note([A])
    with SickDisk(directory.root) as disk:
        disk.fail(acts, errno.EIO)
        await touched.note([B])
        disk.heal()
        await touched.note([A])
    assert noted(directory) == ALL


async def test_a_disk_that_hangs_is_waited_for_once(directory: BlockDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_threads, "PATIENCE_S", 0.05)
    touched = started(directory, set())
    with SickDisk(directory.root) as disk:
        disk.hold("open")
        await touched.note([A])
        monkeypatch.setattr(disk_threads, "PATIENCE_S", 3600.0)
        await touched.note([B])
        disk.release()
        async with asyncio.timeout(60):
            while noted(directory) != ALL:
                await touched.note([B])


@pytest.mark.parametrize("after", [False, True])
async def test_a_snapshot_that_a_write_overtook_is_removed(after: bool, directory: BlockDir) -> None:
    touched = started(directory, set())
    await touched.note([A])
    part = directory.root / "index.part"
    part.write_bytes(b"as it was")
    touched.end()
    if after:
        touched.put(part)
        assert directory.snapshot.exists()
    await touched.note([A])
    if not after:
        touched.put(part)
    assert not directory.snapshot.exists()
    assert not part.exists()


async def test_only_names_that_may_have_blocks_are_noted(directory: BlockDir) -> None:
    touched = started(directory)
    files = WrittenNamesFiles([touched], {B}.__contains__)
    await files.note([A])
    touched.settle(set())
    assert noted(directory) == [True, False, False, False], "before all is known that was found"
    touched = started(directory, set())
    files = WrittenNamesFiles([touched], {B}.__contains__)
    await files.note([A, ODD])
    assert noted(directory) == NONE
    await files.note([A, B, "other", ObjectRef("tenant:bkt", "\udcff\n")])
    assert noted(directory) == [False, True, True, True], "of a tenant's bucket nobody knows the blocks"


async def test_an_object_whose_version_is_being_looked_up_is_about_to_have_blocks(tmp_path: Path) -> None:
    gate = asyncio.Event()
    with engine(tmp_path / "cache") as room:
        room.origin.put(REF, b"some")
        room.origin.faults = [Fault(gate=gate)]
        assert not room.version_lookup.is_looking_up(REF)
        reading = asyncio.create_task(room.reads.head(REF, {}))
        while not room.version_lookup.is_looking_up(REF):
            await asyncio.sleep(0)
        assert not room.versions.may_have(REF)
        gate.set()
        await reading
        assert not room.version_lookup.is_looking_up(REF)
        assert room.versions.may_have(REF)


async def test_a_cache_in_memory_notes_nothing() -> None:
    await WrittenNamesFiles([], lambda ref: True).note([A, "bkt"])
