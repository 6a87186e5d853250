"""The contract of a store over several directories: each loses, keeps and gets back its own blocks only."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest

from outrider.adapters.disk import disk_threads
from outrider.adapters.disk.block_dir import BlockDir, UnusableCacheDir
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.disk import Disk, Sizes, disks_of, open_all
from outrider.adapters.disk.recovery import Recovery
from outrider.adapters.disk.written_names import Runs, WrittenNamesFile, WrittenNamesFiles
from outrider.adapters.state import pin_file
from outrider.adapters.state.pin_file import PinFiles
from outrider.core.cache.pins import SavedPin
from outrider.core.cache.policies import Lru
from outrider.core.cache.scrub_pace import ScrubPace
from outrider.core.errors import StoreUnavailable
from outrider.core.model import ObjectRef
from outrider.metrics import Metrics
from outrider.settings import Size
from tests.contract.disk_store import FILE, HEADER, Believed, flip, meta_of, on_disk, payload_of, read_through
from tests.support.engine import cleaned
from tests.support.fakes import FakeClock
from tests.support.faulty_disk import SickDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from outrider.core.cache.block_file import BlockMeta

KIB = 1024
# Few, so that reads of other blocks close the files of a block.
OPEN_FILES = 5


class Disks:
    """A store over `roots`, and the objects that it needs."""

    def __init__(
        self, roots: Sequence[Path], size: int | Sequence[int] = 400 * FILE, *, wall_clock: Callable[[], float] = float
    ) -> None:
        """`size`: of the whole cache, or of each disk."""
        self.metrics, self.clock, self.believed = Metrics(), FakeClock(), Believed()
        sizes = Sizes(Size(amount_bytes=size if isinstance(size, int) else sum(size)), Size())
        self.disks = disks_of(open_all(roots), sizes, self.metrics, self.clock)
        if not isinstance(size, int):
            for disk, capacity in zip(self.disks, size, strict=True):
                disk.budget.capacity_bytes = capacity
        self.store = DiskBlockStore(self.disks, Lru(), self.metrics, self.clock, open_files=OPEN_FILES)
        runs = Runs.of([disk.directory for disk in self.disks]) if len(roots) > 1 else None
        self.touched = [WrittenNamesFile(disk.directory, disk.work, runs=runs) for disk in self.disks]
        self.recovery = Recovery(
            self.store, self.believed, touched=self.touched, wall_clock=wall_clock,
            sizes=sizes if isinstance(size, int) else None,
        )  # fmt: skip

    async def write(self, *metas: BlockMeta) -> None:
        for meta in metas:
            writer = await self.store.create(meta)
            await writer.write(0, [payload_of(meta)])
            await writer.commit()

    async def has(self, meta: BlockMeta) -> bool:
        """Whether a read gives the block's bytes; it gives no others."""
        lease = await self.store.lease(meta.key)
        if lease is None:
            return False
        assert read_through(lease, meta.extent.length) == payload_of(meta)
        lease.release()
        return True

    async def held(self, metas: Sequence[BlockMeta]) -> int:
        return sum([await self.has(meta) for meta in metas])

    def on(self, metas: Sequence[BlockMeta]) -> list[list[BlockMeta]]:
        """Those on each disk."""
        return [[meta for meta in metas if self.store.disk_of(meta.key) is disk] for disk in self.disks]

    async def tidied(self) -> None:
        await self.store.sweep()
        for disk in self.disks:
            await cleaned(disk)

    def check(self) -> None:
        """The bytes in each directory are those that are accounted there, and all of them are of blocks."""
        for disk in self.disks:
            assert on_disk(disk.directory.root) == disk.budget.used_bytes == disk.blocks * FILE
            assert disk.budget.used_bytes <= disk.budget.capacity_bytes

    async def stop(self) -> None:
        await self.recovery.save()
        self.store.close()


METAS = [meta_of(index) for index in range(60)]


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    return [tmp_path / "a", tmp_path / "b"]


@pytest.fixture
def disks(roots: list[Path]) -> Iterator[Disks]:
    disks = Disks(roots)
    yield disks
    disks.store.close()


# -- which disk -----------------------------------------------------------------------------------------------------


async def test_blocks_and_their_reads_are_dealt_in_the_ratio_of_the_rooms(roots: list[Path]) -> None:
    disks = Disks(roots, [200 * FILE, 600 * FILE])
    metas = [meta_of(index, blocks=400) for index in range(400)]
    await disks.write(*metas)
    assert await disks.held(metas) == 400
    reads = [disks.metrics.value("outrider_disk_reads_total", disk=str(root)) for root in roots]
    assert sum(reads) == 400
    # A fair draw of 400 is 100 and 300, and goes off by 35, four times its deviation, once in some ten thousand.
    assert abs(reads[0] - 100) < 35
    assert reads == [disks.metrics.value("outrider_disk_blocks", disk=str(root)) for root in roots]
    disks.check()
    disks.store.close()


async def test_a_disk_that_is_added_gets_new_blocks_and_moves_none(roots: list[Path]) -> None:
    alone = Disks(roots[:1])
    await alone.write(*METAS[:30])
    await alone.stop()
    disks = Disks(roots)
    await disks.recovery.index()
    assert await disks.held(METAS[:30]) == 30
    await disks.write(*METAS[30:])
    old, new = disks.on(METAS)
    assert set(METAS[:30]) <= set(old)
    assert new
    assert len(old) > 30
    disks.check()
    disks.store.close()


async def test_a_disk_evicts_among_its_own_blocks_in_the_order_of_the_policy(roots: list[Path]) -> None:
    disks = Disks(roots, [500 * FILE, 500 * FILE])
    disks.disks[0].budget.capacity_bytes = 10 * FILE
    with pytest.raises(StoreUnavailable, match="no block may be evicted"):
        await disks.store.reserve(disks.disks[0], 11 * FILE, METAS[0])
    written: list[BlockMeta] = []
    for meta in [meta_of(index, blocks=200) for index in range(150)]:
        await disks.write(meta)
        disks.check()
        written.append(meta)
        if len(disks.on(written)[0]) == 10:
            break
    first = disks.on(written)[0]
    assert await disks.has(first[0])  # the oldest one becomes the youngest
    others = disks.on(written)[1]
    for index in range(150, 200):
        meta = meta_of(index, blocks=200)
        await disks.write(meta)
        if disks.store.disk_of(meta.key) is disks.disks[0]:
            break
    assert [disks.store.has(block.key) for block in first[:2]] == [True, False]
    assert await disks.held(others) == len(others)
    disks.store.close()


async def test_a_block_that_its_disk_has_no_room_for_is_kept_on_another(disks: Disks) -> None:
    disks.disks[0].budget.min_free_bytes = 1 << 60  # others have filled the file system
    await disks.write(*METAS)
    assert [len(on) for on in disks.on(METAS)] == [0, 60]
    assert not disks.disks[0].work.trouble


# -- a disk that fails ----------------------------------------------------------------------------------------------


async def test_a_disk_that_fails_takes_only_its_own_blocks_and_is_used_again_once_it_works(
    disks: Disks, roots: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    await disks.write(*METAS[:30])
    sick_ones, sound_ones = disks.on(METAS[:30])
    caplog.set_level(logging.INFO)
    with SickDisk(roots[0]) as sick:
        sick.fail(["open", "pread", "write", "create", "rename", "unlink", "statvfs"], errno.EIO)
        assert await disks.held(sound_ones) == len(sound_ones)
        assert await disks.held(sick_ones) == 0
        # The blocks that it does not give are missing, and are kept on the other disk.
        assert not any(disks.store.has(meta.key) for meta in sick_ones)
        await disks.write(*sick_ones, *METAS[30:])
        assert await disks.held(METAS) == 60
        assert [len(on) for on in disks.on(METAS)] == [0, 60]
        assert disks.disks[0].state == ("failing", "Input/output error")
        assert disks.metrics.value("outrider_disk_works", disk=str(roots[0])) == 0
        assert not await disks.recovery.look(0)
        await disks.store.sweep()
    assert disks.metrics.value("outrider_disk_errors_total", disk=str(roots[0]))
    assert not disks.metrics.value("outrider_disk_errors_total", disk=str(roots[1]))
    await disks.recovery.look(0)
    assert disks.disks[0].state == ("works", "")
    said = [record.message for record in caplog.records if "cache disk" in record.message]
    assert said.count("cache disk left out") == said.count("cache disk works again") == 1
    # The older copies leave, and the disk gets new blocks.
    await disks.tidied()
    disks.check()
    await disks.write(*[meta_of(index) for index in range(60, 90)])
    assert disks.disks[0].blocks
    disks.check()


async def test_a_disk_that_hangs_keeps_one_reader_waiting_and_gives_its_blocks_again_later(
    disks: Disks, roots: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    await disks.write(*METAS[:30])
    await disks.stop()
    disks.__init__(roots)  # type: ignore[misc]
    await disks.recovery.index()
    hung, sound = disks.on(METAS[:30])
    with SickDisk(roots[0]) as sick:
        sick.hold("open", "pread", "create", "write", "unlink", "statvfs")
        with monkeypatch.context() as patch:
            patch.setattr(disk_threads, "PATIENCE_S", 0.01)
            assert not await disks.has(hung[0])
        assert disks.disks[0].work.is_unreachable
        # Nobody else waits: the others are missing at once, and kept on the other disk.
        assert not any(disks.store.has(meta.key) for meta in hung)
        assert disks.store.lease_open(hung[1].key) is None
        await disks.write(hung[0])
        assert await disks.held([hung[0], *sound]) == 1 + len(sound)
        looking = asyncio.create_task(disks.recovery.look(0))
        sick.release()
        assert not await looking
    assert not disks.disks[0].work.is_unreachable
    assert await disks.held(METAS[:30]) == 30
    await disks.tidied()
    disks.check()


async def test_a_disk_that_hangs_does_not_stop_the_scrubber_on_the_others(
    disks: Disks, roots: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    await disks.write(*METAS[:30])
    hung, sound = disks.on(METAS[:30])
    flip(disks.disks[1].directory.path_of(sound[-1].key), HEADER + 1)

    async def sleep(seconds: float) -> None:
        disks.clock.advance(seconds)
        if disks.metrics.value("outrider_scrub_rounds_total") >= 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(disk_threads, "PATIENCE_S", 0.5)
    with SickDisk(roots[0]) as sick:
        sick.hold("open", "pread")
        scrubbing = Recovery(disks.store, disks.believed, sleep).scrub(ScrubPace(1e6, 3600))
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(scrubbing, 30)
    assert disks.disks[0].work.is_unreachable
    # A block that cannot be read is neither verified nor bad.
    assert len(sound) <= disks.metrics.value("outrider_scrubbed_blocks_total") <= len(sound) + 1
    assert disks.metrics.value("outrider_bad_blocks_total") == 1
    assert disks.store.disk_of(sound[-1].key) is None
    assert disks.disks[0].blocks == len(hung)


async def test_the_notes_of_a_disk_that_hangs_hold_up_no_other_ones(disks: Disks, roots: list[Path]) -> None:
    await disks.recovery.index()
    await disks.write(*METAS[:30])
    with SickDisk(roots[0]) as sick:
        sick.hold("open", "create")
        hanging = asyncio.create_task(disks.recovery.note(0))
        await disks.recovery.note(1)
        assert (roots[1] / "landed").exists()
        assert not (roots[0] / "landed").exists()
        sick.release()
        await hanging
    assert (roots[0] / "landed").exists()


async def test_blocks_are_noted_while_the_scan_of_another_disk_hangs(disks: Disks, roots: list[Path]) -> None:
    await disks.recovery.index()
    await disks.write(*METAS[:30])
    disks.store.close()
    again = Disks(roots)
    with SickDisk(roots[0]) as sick:
        sick.hold("open")
        scan = asyncio.create_task(again.recovery.index())
        async with asyncio.timeout(60):
            while not (roots[1] / "landed").exists():
                await asyncio.sleep(0)
                await again.recovery.note(1)
        assert not scan.done()
        sick.release()
        await scan
    again.store.close()


async def test_an_older_file_of_a_block_goes_before_the_block_is_written_there_again(
    disks: Disks, roots: list[Path]
) -> None:
    await disks.write(METAS[0])
    disk = disks.store.disk_of(METAS[0].key)
    assert disk is not None
    await disks.write(*METAS[1 : 1 + OPEN_FILES])
    with SickDisk(disk.directory.root) as sick:
        sick.fail(["open", "pread"], errno.EIO)
        assert not await disks.has(METAS[0])
    assert list(disk.left_behind) == [METAS[0].key]
    await disks.write(METAS[0])
    assert disks.store.disk_of(METAS[0].key) is disk
    await disks.store.sweep()
    assert not disk.leaving
    assert await disks.has(METAS[0])
    disks.check()


async def test_a_disk_that_is_far_slower_than_the_others_gets_no_new_blocks_for_a_while(disks: Disks) -> None:
    slow, fast = disks.disks
    for disk, took_s in ((slow, 3.0), (fast, 0.1)):
        disk.pace.measured(took_s, 10_000_000, disks.clock())
    await disks.write(*METAS[:20])
    assert disks.on(METAS[:20])[0] == []
    # Where the others have no room, it is used all the same.
    fast.budget.min_free_bytes = 1 << 60
    disks.clock.advance(1.1)
    await disks.write(METAS[20])
    assert disks.store.disk_of(METAS[20].key) is slow
    fast.budget.min_free_bytes = 0
    disks.clock.advance(10.0)
    await disks.write(*METAS[21:])
    assert disks.on(METAS[21:])[0]


# -- a disk that is replaced ----------------------------------------------------------------------------------------


async def test_a_disk_that_is_replaced_while_running_is_taken_up(disks: Disks, roots: list[Path]) -> None:
    await disks.write(*METAS)
    lost, kept = disks.on(METAS)
    roots[0].rename(roots[0].with_name("away"))
    assert not await disks.recovery.look(0)
    assert disks.disks[0].state[0] == "failing"
    roots[0].mkdir()
    assert await disks.recovery.look(0)
    assert disks.disks[0].state == ("works", "")
    assert not any(disks.store.has(meta.key) for meta in lost)
    assert await disks.held(kept) == len(kept)
    disks.check()
    await disks.write(*lost)
    assert disks.on(METAS) == [lost, kept]
    disks.check()
    with pytest.raises(UnusableCacheDir, match="another process uses it"):
        BlockDir.open(roots[0])


async def test_a_disk_that_comes_back_gives_the_blocks_that_nobody_filled_since(
    disks: Disks, roots: list[Path]
) -> None:
    await disks.recovery.index()
    await disks.write(*METAS)
    lost, kept = disks.on(METAS)
    assert await disks.held(lost[:5]) == 5
    away = roots[0].with_name("away")
    roots[0].rename(away)
    assert not await disks.recovery.look(0)
    assert await disks.held(lost[:5]) == 5  # their files are open
    assert await disks.held(kept[:OPEN_FILES]) == OPEN_FILES  # and now those of others
    assert await disks.held(lost[:5]) == 0
    await disks.write(*lost[:5])
    assert disks.on(lost[:5]) == [[], lost[:5]]
    roots[0].mkdir()
    assert await disks.recovery.look(0)
    shutil.rmtree(roots[0])
    away.rename(roots[0])
    # Nobody knows what was written meanwhile: no version is recalled, and none is believed after a crash.
    with SickDisk(roots[0]) as sick:
        sick.fail(["unlink"], errno.EIO)
        assert not await disks.recovery.look(0)
    assert await disks.recovery.look(0)
    assert await disks.held(METAS) == 60
    assert disks.on(METAS) == [lost[5:], [meta for meta in METAS if meta in kept or meta in lost[:5]]]
    assert disks.believed.versions == []
    assert not disks.disks[0].directory.touched.exists()
    await disks.tidied()
    disks.check()


async def test_a_take_up_waits_for_the_blocks_that_are_being_written(disks: Disks, roots: list[Path]) -> None:
    await disks.write(*METAS)
    meta = disks.on(METAS)[0][0]
    await disks.store.drop(each.key for each in METAS)
    writer = await disks.store.create(meta)
    await writer.write(0, [payload_of(meta)[:100]])
    roots[0].rename(roots[0].with_name("away"))
    roots[0].mkdir()
    looking = asyncio.create_task(disks.recovery.look(0))
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not looking.done()
    await writer.abort()
    assert await looking
    disks.check()


# -- at a start -----------------------------------------------------------------------------------------------------


async def test_a_disk_that_is_missing_at_the_start_is_taken_up_once_it_is_there(roots: list[Path]) -> None:
    roots[0].parent.joinpath("file").write_bytes(b"")
    beneath = roots[0].parent / "file" / "a"  # no directory can be made there
    disks = Disks([beneath, roots[1]])
    await disks.recovery.index()
    assert disks.disks[0].state[0] == "failing"
    assert [disk.budget.capacity_bytes for disk in disks.disks] == [0, 400 * FILE]
    await disks.write(*METAS)
    assert len(disks.on(METAS)[1]) == 60
    beneath.parent.unlink()
    beneath.mkdir(parents=True)
    assert await disks.recovery.look(0)
    assert [disk.budget.capacity_bytes for disk in disks.disks] == [200 * FILE, 200 * FILE]
    more = [meta_of(index) for index in range(60, 90)]
    await disks.write(*more)
    assert disks.on(more)[0]
    disks.check()
    await disks.stop()
    again = Disks([beneath, roots[1]])
    await again.recovery.index()
    assert await again.held([*METAS, *more]) == 90
    again.store.close()


async def test_a_disk_that_does_not_answer_at_the_start_is_taken_up_once_it_does(
    roots: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Disks(roots)
    await before.recovery.index()
    await before.write(*METAS)
    on = before.on(METAS)
    await before.stop()
    with SickDisk(roots[0]) as sick:
        sick.hold("open", "create", "statvfs", "unlink")
        with monkeypatch.context() as patch:
            patch.setattr(disk_threads, "PATIENCE_S", 0.05)
            disks = Disks(roots)
        assert disks.disks[0].state == ("failing", "no answer")
        await disks.recovery.index()
        assert await disks.held(on[1]) == len(on[1])
    async with asyncio.timeout(10):
        # The call that came too late has the lock for a moment.
        while not await disks.recovery.look(0):
            await asyncio.sleep(0.001)
    assert await disks.held(METAS) == 60
    disks.check()
    disks.store.close()


async def test_each_disk_has_a_snapshot_of_its_own_blocks(disks: Disks, roots: list[Path]) -> None:
    await disks.recovery.index()
    await disks.write(*METAS)
    before = disks.on(METAS)
    await disks.stop()
    (roots[0] / "index").unlink()
    again = Disks(roots)
    await again.recovery.index()
    assert again.on(METAS) == before
    assert await again.held(METAS) == 60
    again.store.close()
    disks.__init__(roots)  # type: ignore[misc]


async def test_versions_on_a_disk_that_was_away_during_the_last_run_are_asked_about(
    roots: list[Path], disks: Disks
) -> None:
    """It lacks what was written meanwhile, even where an object may be believed for ever."""
    now = [1e9]

    async def run(which: Sequence[Path], *metas: BlockMeta, clean: bool = True) -> Disks:
        ran = Disks(which, wall_clock=lambda: now[0])
        await ran.recovery.index()
        await ran.write(*metas)
        for meta in metas:
            ran.believed.ages[meta.version.ref] = 1.0
        if clean:
            await ran.recovery.save()
        ran.store.close()
        return ran

    disks.store.close()
    metas = [meta_of(0, key=f"k{number}") for number in range(20)]
    on = (await run(roots, *metas)).on(metas)
    assert None not in (await run(roots)).believed.ages.values()
    await run([roots[1], roots[1].with_name("c")])
    ages = (await run(roots)).believed.ages
    assert [{ages[meta.version.ref] is None for meta in each} for each in on] == [{True}, {False}]
    disks.__init__(roots)  # type: ignore[misc]


async def test_a_name_that_is_written_is_noted_on_every_disk(disks: Disks) -> None:
    await disks.recovery.index()
    files = WrittenNamesFiles(disks.touched, lambda ref: True)
    await files.note([METAS[0].version.ref])
    for disk in disks.disks:
        assert b'["bucket","k"]' in disk.directory.touched.read_bytes()
    # A disk that does not answer holds no write up, and is not believed for what it lacks once it does.
    disks.disks[0].work.left_out(TimeoutError())
    await files.note([ObjectRef("bucket", "other")])
    assert b"other" not in disks.disks[0].directory.touched.read_bytes()
    assert b"other" in disks.disks[1].directory.touched.read_bytes()
    assert not await disks.recovery.look(0)
    assert [disk.directory.touched.exists() for disk in disks.disks] == [False, True]


@pytest.mark.parametrize("second", ["a", "a/within", ".", "link"])
def test_directories_that_are_not_apart_are_refused(second: str, roots: list[Path]) -> None:
    roots[0].mkdir()
    (roots[0].parent / "link").symlink_to(roots[0])
    with pytest.raises(UnusableCacheDir, match=r"given twice|one lies within the other"):
        open_all([roots[0], roots[0].parent / second])
    with closing(BlockDir.open(roots[0])):
        pass  # it is not locked


def test_one_directory_under_two_mounts_is_refused(roots: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    roots[0].mkdir()
    (roots[0].parent / "b").symlink_to(roots[0])
    monkeypatch.setattr(os.path, "realpath", os.path.abspath)  # as it is for a bind mount
    with pytest.raises(UnusableCacheDir, match="are the same directory"):
        open_all(roots)


def test_a_mistake_of_people_is_no_fault_of_a_disk(roots: list[Path]) -> None:
    with closing(BlockDir.open(roots[0])), pytest.raises(UnusableCacheDir, match="another process"):
        open_all(roots)
    roots[1].mkdir()
    (roots[1] / "outrider-cache").write_bytes(b"outrider cache, layout 1\n")
    with pytest.raises(UnusableCacheDir, match="another format"):
        open_all(roots)


def test_without_any_disk_there_is_no_start(roots: list[Path]) -> None:
    (roots[0].parent / "file").write_bytes(b"")
    with pytest.raises(UnusableCacheDir, match=r"file/x: Not a directory.*file/y: Not a directory"):
        open_all([roots[0].parent / "file" / "x", roots[0].parent / "file" / "y"])


async def test_two_directories_on_one_file_system_leave_what_one_would(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = disks.disks
    by_share = disks_of([one.directory, two.directory], Sizes(Size(share=0.8), Size()), Metrics(), FakeClock())
    assert sum(disk.budget.capacity_bytes for disk in by_share) <= int(one.directory.space()[0] * 0.8)
    found = os.statvfs(one.directory.root)
    monkeypatch.setattr(os, "statvfs", lambda path: found)  # other programs write and delete meanwhile
    for disk in (one, two):
        disk.budget.capacity_bytes = 1 << 60
        disk.budget.min_free_bytes = one.directory.space()[1] - 10 * FILE
    # The bytes that one has reserved are not free for the other.
    await disks.store.reserve(one, 6 * FILE, METAS[0])
    with pytest.raises(StoreUnavailable, match="no block may be evicted"):
        await disks.store.reserve(two, 6 * FILE, METAS[0])
    one.unreserve(6 * FILE)
    assert await disks.store.most_bytes() == 10 * FILE


PINS = [SavedPin("", "c", "kept", "s3://b/k", 1.5, ())]
NEWER = [replace(PINS[0], name="newer")]


def pin_files(disks: Sequence[Disk]) -> PinFiles:
    clock = count(1.0)
    return PinFiles(disks, lambda: next(clock))


def pinned(*disks: Disk) -> list[list[SavedPin]]:
    return [pin_file.load([disk.directory.pins]) for disk in disks]


async def test_pins_are_on_each_disk_and_one_that_cannot_be_read_has_no_say(roots: list[Path]) -> None:
    disks = Disks(roots).disks
    files = pin_files(disks)
    assert files.is_behind()
    await files.save(PINS)
    assert pinned(*disks) == [PINS, PINS]
    assert not files.is_behind()
    newest = disks[1].directory.pins
    newest.write_text("cut")
    assert pin_file.load([disk.directory.pins for disk in disks]) == PINS


async def test_a_disk_that_works_again_or_is_replaced_gets_the_pins(roots: list[Path]) -> None:
    made = Disks(roots)
    disks = made.disks
    files = pin_files(disks)
    disks[0].work.left_out(OSError("away"))
    await files.save(PINS)
    assert not files.is_behind()
    disks[0].work.works_again()
    assert files.is_behind()
    await files.save(PINS)
    assert pinned(*disks) == [PINS, PINS]
    await made.recovery.index()
    shutil.rmtree(roots[0])
    roots[0].mkdir()
    assert await made.recovery.look(0)
    assert files.is_behind()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ETIMEDOUT])
async def test_a_disk_that_refuses_the_pins_is_not_asked_again_and_again(roots: list[Path], number: int) -> None:
    disks = Disks(roots).disks
    files = pin_files(disks)
    with SickDisk(roots[0]) as sick:
        sick.fail(["create"], number)
        await files.save(PINS)
        assert not files.is_behind()
        disks[0].work.left_out(OSError("full"))
        assert not files.is_behind()
    disks[0].work.works_again()
    assert files.is_behind()


async def test_a_disk_that_hangs_holds_up_no_pins_and_gets_the_newest_once_it_works_again(
    roots: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = Disks(roots).disks
    files, every = pin_files(disks), [disk.directory.pins for disk in disks]
    with SickDisk(roots[0]) as sick, monkeypatch.context() as patched:
        patched.setattr(disk_threads, "PATIENCE_S", 0.05)
        sick.hold("create")
        await files.save(PINS)
        assert pinned(disks[1]) == [PINS]
        assert disks[0].work.trouble
        await files.save(NEWER)
        assert not files.is_behind()
        sick.release()
        patched.undo()
        # The save that hung ends after a newer one elsewhere, and is no newer for that.
        await asyncio.wait(files._under_way.values())
        assert pinned(*disks) == [PINS, NEWER]
        assert pin_file.load(every) == NEWER
        disks[0].work.works_again()
        assert files.is_behind()
        await files.save(NEWER)
        assert pinned(*disks) == [NEWER, NEWER]


async def test_of_two_saves_to_one_disk_the_second_waits_for_the_first(roots: list[Path]) -> None:
    disks = Disks(roots).disks
    files = pin_files(disks)
    with SickDisk(roots[0]) as sick:
        sick.hold("create")
        first = asyncio.create_task(files.save(PINS))
        await asyncio.sleep(0.01)
        first.cancel()
        second = asyncio.create_task(files.save(NEWER))
        await asyncio.sleep(0.01)
        sick.release()
        await second
    assert pinned(*disks) == [NEWER, NEWER]


async def test_pins_that_no_disk_takes_are_not_saved(roots: list[Path]) -> None:
    files = pin_files(Disks(roots).disks)
    with SickDisk(roots[0]) as first, SickDisk(roots[1]) as second:
        first.fail(["create"], errno.EIO)
        second.fail(["create"], errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            await files.save(PINS)


async def test_a_single_disk_that_hangs_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pin that was refused must not be there after a restart."""
    disks = Disks([tmp_path]).disks
    monkeypatch.setattr(disk_threads, "PATIENCE_S", 0.01)
    files = pin_files(disks)
    with SickDisk(tmp_path) as sick:
        sick.hold("create")
        saving = asyncio.create_task(files.save(PINS))
        await asyncio.wait([saving], timeout=0.05)
        assert not saving.done()
        sick.release()
        await saving
    assert pinned(*disks) == [PINS]
    assert not files.is_behind()
