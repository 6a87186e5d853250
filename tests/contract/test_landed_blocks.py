"""The file `landed`: a scan after a crash that reads few headers."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.adapters.disk import landed_blocks
from outrider.adapters.disk.index_snapshot import OnDisk
from outrider.adapters.disk.recovery import Recovery
from outrider.adapters.disk.slots import BlockRows
from outrider.adapters.disk.snapshot_page import pages_in
from outrider.adapters.disk.written_names import WrittenNamesFile
from outrider.core.cache.block_file import Header
from outrider.core.model import BlockKey, ObjectRef
from outrider.ports import Belief
from tests.contract.disk_store import FILE, Disk, flip, meta_of, on_disk, payload_of
from tests.support.faulty_disk import SickDisk

MODIFIED = (("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT"),)
METAS = [meta_of(index, key, headers=MODIFIED) for key in ("a", "b\udcff") for index in range(3)]


class Noted(Disk):
    """A disk with notes of its writes, and of the blocks that land."""

    def __init__(self, root: Path, capacity: int = 100 * FILE) -> None:
        super().__init__(root, capacity)
        self.touched = WrittenNamesFile(self.store.disks[0].directory, self.store.disks[0].work)
        self.recovery = Recovery(self.store, self.believed, touched=[self.touched])

    @classmethod
    async def started(cls, root: Path, capacity: int = 100 * FILE) -> Noted:
        disk = cls(root, capacity)
        await disk.recovery.index()
        return disk

    async def start_without_reading(self) -> None:
        """No file of a block can be opened."""
        with SickDisk(self.store.disks[0].directory.blocks) as sick:
            sick.fail(["open"], errno.EIO)
            await self.recovery.index()

    @property
    def found(self) -> object:
        believed = self.believed
        versions = {(version.ref, version.headers) for version in believed.versions}
        return (
            versions,
            {version.ref for version in believed.vouched},
            {ref: age is None for ref, age in believed.ages.items()},
        )


def blocks_in(landed: Path) -> int:
    """How many the pages of the file have, some of them more than once."""
    with landed.open("rb") as file:
        return sum(len(page.numbers) for page in pages_in(file))


async def noted_blocks(root: Path) -> int:
    """How many blocks a start after a crash finds without reading a header."""
    disk = Noted(root)
    await disk.start_without_reading()
    count = len(disk.store)
    disk.close()
    return count


async def test_a_scan_reads_no_header_of_a_block_that_was_noted(root: Path) -> None:
    disk = await Noted.started(root)
    for meta in METAS:
        disk.believed.recall(meta.layout.origin, Belief(meta.version, 5.0, True))
    await disk.write(*METAS)
    await disk.recovery.note(0)
    await disk.touched.note([ObjectRef("bucket", "a")])
    disk.close()
    landed = root / "landed"
    landed.rename(root / "kept")
    disk = await Noted.started(root)
    by_headers, used = disk.found, disk.store.used_bytes
    disk.close()
    (root / "kept").rename(landed)
    for _ in range(2):
        disk = Noted(root)
        await disk.start_without_reading()
        assert len(disk.store) == len(METAS)
        assert disk.found == by_headers
        assert disk.store.used_bytes == used == on_disk(root)
        await disk.recovery.note(0)
        disk.close()
    disk = await Noted.started(root)
    for meta in METAS:
        assert await disk.read(meta) == payload_of(meta)
    disk.close()


async def test_blocks_of_a_snapshot_are_known_after_a_crash_and_so_are_those_that_a_scan_read(root: Path) -> None:
    disk = await Noted.started(root)
    await disk.write(*METAS[:3])
    await disk.recovery.save()
    disk.close()
    disk = await Noted.started(root)
    await disk.write(METAS[3])
    disk.close()
    assert await noted_blocks(root) == 3, "the last block was not noted"
    disk = await Noted.started(root)
    await disk.recovery.note(0)
    disk.close()
    assert await noted_blocks(root) == 4


async def test_headers_that_are_newer_than_the_file_are_not_noted_as_those_of_the_file(root: Path) -> None:
    disk = await Noted.started(root)
    await disk.write(METAS[0])
    newer = replace(METAS[0].version, headers=(*MODIFIED, ("x-amz-tagging-count", "7")))
    disk.believed.newer[METAS[0].version] = newer
    disk.believed.recall(METAS[0].layout.origin, Belief(newer, 5.0, True))
    await disk.recovery.note(0)
    disk.close()
    disk = await Noted.started(root)
    assert disk.believed.versions == [METAS[0].version]
    assert disk.believed.ages == {newer.ref: None}
    disk.close()


async def test_a_block_that_was_written_again_is_described_by_its_first_note(root: Path) -> None:
    disk = await Noted.started(root)
    newer = meta_of(0, "a", headers=(*MODIFIED, ("x-amz-tagging-count", "7")))
    assert (newer.key, Header(newer).disk_bytes) == (METAS[0].key, Header(METAS[0]).disk_bytes)
    await disk.write(METAS[0])
    await disk.recovery.note(0)
    await disk.store.drop([METAS[0].key])
    await disk.write(newer)
    disk.close()
    disk = await Noted.started(root)
    assert [version.headers for version in disk.believed.versions] == [MODIFIED]
    assert await disk.read(newer) == payload_of(newer)
    assert disk.store.used_bytes == on_disk(root)
    disk.close()


async def test_a_note_from_before_a_crash_says_nothing_of_a_block_that_was_written_after_it(root: Path) -> None:
    disk = await Noted.started(root)
    disk.believed.recall(METAS[0].layout.origin, Belief(METAS[0].version, 5.0, True))
    await disk.write(METAS[0])
    await disk.recovery.note(0)
    await disk.store.drop([METAS[0].key])
    await disk.touched.note([METAS[0].version.ref])
    disk.close()
    disk = await Noted.started(root)
    newer = meta_of(0, "a", headers=(*MODIFIED, ("x-amz-tagging-count", "7")))
    await disk.write(newer)
    disk.close()
    disk = await Noted.started(root)
    assert [version.headers for version in disk.believed.versions] == [newer.version.headers]
    disk.close()


async def test_all_blocks_are_noted_again_after_a_crash_if_some_left_and_none_if_none_left(root: Path) -> None:
    disk = await Noted.started(root)
    await disk.write(*METAS)
    await disk.recovery.note(0)
    disk.close()
    for _ in range(2):
        assert await noted_blocks(root) == len(METAS)
    disk = await Noted.started(root)
    await disk.store.drop([METAS[0].key])
    disk.close()
    disk = await Noted.started(root)
    assert not (root / "landed").exists()
    await disk.recovery.note(0)
    disk.close()
    for _ in range(2):
        assert await noted_blocks(root) == len(METAS) - 1


async def test_a_row_that_gets_another_block_while_it_is_noted_is_noted_as_neither(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = await Noted.started(root)
    await disk.write(METAS[0])
    find = BlockRows.row

    def replaces(rows: BlockRows, block: BlockKey) -> int:
        row = find(rows, block)
        if block == METAS[0].key and row >= 0:
            monkeypatch.undo()
            rows.remove(block, rows[block])
            assert rows.add(disk.store.disks[0], METAS[3].key, METAS[3], FILE, verified=True) == row
        return row

    monkeypatch.setattr(BlockRows, "row", replaces)
    assert disk.store.on_disk(METAS[0]) == OnDisk(0, b"")
    disk.close()


async def test_the_file_is_begun_anew_when_most_of_its_blocks_have_left(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = 5
    monkeypatch.setattr(landed_blocks, "_SPARE_BLOCKS", spare)
    disk = await Noted.started(root)
    await disk.write(*METAS)
    await disk.recovery.note(0)
    size, most = (root / "landed").stat().st_size, 2 * len(METAS) + spare + 1
    for count in (*range(len(METAS) + 1, most + 1), len(METAS), len(METAS) + 1):
        await disk.store.drop([METAS[0].key])
        await disk.write(METAS[0])
        await disk.recovery.note(0)
        assert blocks_in(root / "landed") == count
    assert (root / "landed").stat().st_size < 2 * size
    disk.close()
    disk = Noted(root)
    await disk.start_without_reading()
    assert len(disk.store) == len(METAS)
    disk.close()


async def test_pages_behind_one_that_a_crash_has_cut_are_read(root: Path) -> None:
    disk = await Noted.started(root)
    await disk.write(*METAS[:3])
    await disk.recovery.note(0)
    disk.close()
    landed = root / "landed"
    os.truncate(landed, landed.stat().st_size - 9)
    disk = await Noted.started(root)
    await disk.recovery.note(0)
    disk.close()
    assert await noted_blocks(root) == 3


async def test_blocks_that_landed_during_a_scan_or_while_the_disk_failed_are_noted_later(root: Path) -> None:
    disk = Noted(root)
    started = asyncio.ensure_future(disk.recovery.index())
    await asyncio.sleep(0)
    await disk.recovery.note(0)
    await started
    await disk.write(*METAS[:3])
    disk.store.disks[0].admitting = False
    await disk.recovery.note(0)
    assert not (root / "landed").exists()
    disk.store.disks[0].admitting = True
    await disk.write(METAS[3])
    await disk.recovery.note(0)
    await disk.recovery.note(0)
    disk.close()
    assert await noted_blocks(root) == 4


async def test_a_file_of_another_format_is_begun_anew(root: Path) -> None:
    disk = await Noted.started(root)
    await disk.write(*METAS)
    disk.close()
    (root / "landed").write_bytes(b'{"outrider index":4}\n')
    disk = await Noted.started(root)
    await disk.recovery.note(0)
    disk.close()
    disk = Noted(root)
    await disk.start_without_reading()
    assert len(disk.store) == len(METAS)
    disk.close()


async def directory_with_notes(root: Path) -> bytes:
    """Blocks that landed in two notes, one of them twice, and one that was never noted. Returns the notes."""
    disk = await Noted.started(root)
    for metas in (METAS[:3], METAS[2:5]):
        await disk.store.drop([METAS[2].key])
        await disk.write(*metas)
        await disk.recovery.note(0)
    await disk.write(METAS[5])
    disk.close()
    return (root / "landed").read_bytes()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_beginning_of_the_notes_and_any_files_give_right_bytes_within_the_capacity(data: st.DataObject) -> None:
    async def check(root: Path) -> None:
        whole = await directory_with_notes(root)
        landed = whole[: int(data.draw(st.floats(0, 1), label="beginning") * len(whole))]
        (root / "landed").write_bytes(landed)
        rot = data.draw(st.none() | st.floats(0, 0.999), label="rot")
        if landed and rot is not None:
            flip(root / "landed", int(rot * len(landed)))
        disk = Disk(root)
        paths = [disk.path(meta) for meta in METAS]
        disk.close()
        gone = data.draw(st.sets(st.sampled_from(range(len(METAS)))), label="gone")
        cut = data.draw(st.sets(st.sampled_from(range(len(METAS)))), label="cut")
        for place, path in enumerate(paths):
            if place in gone:
                path.unlink()
            elif place in cut:
                os.truncate(path, data.draw(st.integers(0, FILE - 1), label="length"))
        capacity = data.draw(st.integers(1, 8), label="blocks") * FILE
        for _ in range(2):
            disk = await Noted.started(root, capacity)
            disk.keep_budget()
            assert set(disk.believed.versions) <= {meta.version for meta in METAS}
            assert len({meta.key for meta in disk.ranked()}) == len(disk.store) <= len(METAS)
            for place, meta in enumerate(METAS):
                body = await disk.read(meta)
                assert body in (payload_of(meta), None)
                if place not in gone | cut and capacity >= len(METAS) * FILE:
                    assert body is not None
            await disk.recovery.note(0)
            disk.close()

    root = Path(tempfile.mkdtemp(prefix="outrider-landed-"))
    try:
        asyncio.run(check(root / "cache"))
    finally:
        with suppress(OSError):
            shutil.rmtree(root)
