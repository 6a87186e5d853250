"""Rebuilds the index after a start, while the proxy already serves; then verifies, slowly, the blocks nobody reads.

The index comes from the snapshot of a clean stop, otherwise from a scan of the directory. So do the versions, with the
time of their confirmation by the wall clock. The snapshot knows it; for the scan, the time of a block's file is that of
the last confirmation of its version when the block was filled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from outrider.adapters import sealed_file
from outrider.adapters.disk import block_io, disk_threads, index_snapshot
from outrider.adapters.disk.block_dir import FoundFile, UnusableCacheDir
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.disk import Disk, Sizes
from outrider.adapters.disk.index_snapshot import SavedPage, Snapshot, SnapshotFacts
from outrider.adapters.disk.written_names import NAMES_MAX, WrittenNamesFile
from outrider.adapters.sealed_file import BadFile
from outrider.core.cache.block_file import PAGE_BYTES, BlockMeta
from outrider.core.cache.freshness import DOUBT_S, age_s, was_settled
from outrider.core.cache.scrub_pace import ScrubPace
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion
from outrider.ports import Belief, Clock, Name, Versions

log = logging.getLogger(__name__)

# Files per trip to a thread: enough to amortise the trip, and short enough (about 10 ms) that reads are not held up.
_BATCH = 256
# How often a disk that works is looked at, in seconds: one that was replaced is taken up this much later at most.
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Restart:
    """The facts of the last stop and of this start that are the same for all disks. `is_alone` False: other members of
    a cluster may write while this one is away, so each version that a start finds has to be confirmed."""

    store: DiskBlockStore
    versions: Versions
    wall_clock: Clock
    is_alone: bool

    def confirmed_at(self, meta: BlockMeta) -> float:
        """When the origin confirmed the version of a block; 0: not known."""
        belief = self.versions.belief(meta.layout.origin, meta.version)
        return 0.0 if belief.age_s is None else self.wall_clock() - belief.age_s

    def belief(self, origin: str, version: ObjectVersion) -> Belief:
        """For the snapshot."""
        belief = self.versions.belief(origin, version)
        return belief if self.is_alone else belief._replace(age_s=None)

    def age_s(self, confirmed_at: float | None, now: float, ran_at: float) -> float | None:
        return age_s(confirmed_at, now, ran_at) if self.is_alone else None


class Recovery:
    """Owned by the app: `index` once after a start, `save` once before the end."""

    def __init__(
        self, store: DiskBlockStore, versions: Versions, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        touched: Sequence[WrittenNamesFile] = (), *, wall_clock: Clock = time.time, is_alone: bool = True,
        under_way: Callable[[], Iterable[Name]] = tuple, sizes: Sizes | None = None,
    ) -> None:  # fmt: skip
        """`touched`: of each disk; none: written names are not recorded, so no version that a scan finds is believed.

        `is_alone`: see `Restart`. `under_way`: the names of writes that have no answer yet. `sizes` None: the disks
        keep the capacities that they have.
        """
        self._store = store
        self._versions = versions
        self._sleep = sleep
        self._sizes = sizes
        self._under_way = under_way
        self._wall_clock = wall_clock
        restart = Restart(store, versions, wall_clock, is_alone)
        if touched and is_alone:
            store.confirmed_at = restart.confirmed_at
        files: Sequence[WrittenNamesFile | None] = touched or [None] * len(store.disks)
        self._disks = [DiskRecovery(disk, restart, file) for disk, file in zip(store.disks, files, strict=True)]

    async def index(self) -> None:
        """Fill the store's index. Blocks can be admitted as soon as the sizes are known, long before the end."""
        for disk in self._store.disks:
            disk.admitting = False
        try:
            await asyncio.gather(*(disk.index() for disk in self._disks))
        finally:
            self._versions.recalled()
        for _ in iter(partial(rank, self._store), False):
            await asyncio.sleep(0)
        for disk in self._store.disks:
            await self._store.trim(disk)
        await self._divide()

    async def _divide(self) -> None:
        """Divide the cache by the room that the disks turned out to have."""
        if self._sizes is not None and len(self._store.disks) > 1:
            await self._sizes.measure(self._store.disks)
            self._sizes.divide(self._store.disks)
            self._store.weigh()
            for disk in self._store.disks:
                await self._store.trim(disk)

    async def watch(self, number: int) -> None:
        """Without end: look at one of several disks, use it again once it works again, and index what lies there where
        it was replaced."""
        disk = self._store.disks[number]
        while True:
            await self._sleep(disk_threads.FAILURE_PAUSE_S if disk.work.trouble else _LOOK_S)
            if await self._disks[number].look():
                await self._divide()

    async def scrub(self, pace: ScrubPace) -> None:
        """Verify the blocks of the start that were not read since; then all blocks, round after round, without end."""
        await self._scrub_round(self._store.each(unverified=True), pace, None)
        while True:
            if not len(self._store):
                await self._sleep(pace.round_s)
            await self._scrub_round(self._store.each(), pace, self._store.used_bytes)

    async def _scrub_round(self, blocks: Iterable[BlockKey], pace: ScrubPace, round_bytes: int | None) -> None:
        for block in blocks:
            began = self._store.clock()
            if size := await self._store.verify(block, again=round_bytes is not None):
                await self._sleep(pace.pause_s(size, self._store.clock() - began, round_bytes))
        self._store.scrubbed()

    async def save(self) -> None:
        """Write the snapshots for the next start. A disk without a complete index has none, and the next start scans
        it."""
        saving = [disk for disk in self._disks if disk.may_save()]
        for disk in saving:
            disk.end()
        for name in self._under_way():
            self._versions.doubt(name, DOUBT_S)
        now = self._wall_clock()
        doubts = [(name, now + left_s) for name, left_s in self._versions.doubts()]
        on_disks = self._store.metas_by_disk()
        await asyncio.gather(*(disk.save(on_disks.get(disk.disk, ()), doubts) for disk in saving))


def rank(store: DiskBlockStore) -> bool:
    """Report some blocks that a start has found to the policy, and what is known of their content. Returns whether
    there were any."""
    proved = next(store.rank(_BATCH), None)
    for meta in proved or ():
        if store.contents is not None:
            store.contents.restore(meta, True)
    return proved is not None


class DiskRecovery:
    """The recovery of one disk."""

    def __init__(self, disk: Disk, restart: Restart, touched: WrittenNamesFile | None) -> None:
        self.disk = disk
        self._restart = restart
        self._store = restart.store
        self._versions = restart.versions
        self._touched = touched
        # Objects found that are not to be believed after a crash. One more than NAMES_MAX exceeds the bound.
        self._doubtful: set[ObjectRef] = set()
        self._whole = False
        self._changes = disk.directory.changes

    async def index(self) -> None:
        if self.disk.directory.missing is not None:
            return
        try:
            saved = await self.disk.work.run(self._read_snapshot)
            if saved is None or not await self._adopt_snapshot(saved):
                saved = None
                await self._scan()
        except OSError as error:
            # The index is not complete: blocks that were not seen are not counted. The proxy serves the known ones,
            # and the next start scans again.
            self.disk.work.failed("scan", error)
            return
        finally:
            self.disk.admitting = True
        self._whole = True
        if self._touched is not None:
            # A block that could not be read now may be readable at the next start, which then needs the older names.
            keep: Callable[[], OSError | None] | None = None
            if self.disk.whole:
                keep = partial(self._touched.settle, self._doubtful)
            elif len(self._store.disks) > 1:
                # The file would be one of an older run.
                keep = self._touched.give_up
            if keep is not None and (failed := await self.disk.work.run(keep)) is not None:
                self.disk.work.failed("note", failed)
        self._doubtful = set()
        log.info("index ready", extra={"disk": self.disk.name, "blocks": self.disk.blocks,
                                       "bytes": self.disk.budget.used_bytes,
                                       "by": "scan" if saved is None else "snapshot"})  # fmt: skip

    async def look(self) -> bool:
        """Look whether the disk works. Returns whether another directory has taken the place of the one that was
        there, and was taken up."""
        disk, work = self.disk, self.disk.work
        looking = work.begin(disk.directory.probe if work.trouble else disk.directory.hold)
        done, _ = await asyncio.wait([looking], timeout=disk_threads.PATIENCE_S)
        if not done:
            work.left_out(TimeoutError("no answer"))
        try:
            await looking
            is_new = disk.directory.changes != self._changes
            if is_new:
                await self._take_up()
            elif work.trouble:
                await work.run(self._drop_if_lost)
        except (OSError, UnusableCacheDir) as error:
            work.left_out(error)
            return False
        work.works_again()
        return is_new

    async def _take_up(self) -> None:
        """As at a start after a crash, but for the versions: nobody knows what was written meanwhile, and a block of a
        version that the origin has confirmed since is as good as a new one."""
        disk = self.disk
        log.info("cache disk taken up", extra={"disk": disk.name})
        self._whole, changes = False, disk.directory.changes
        disk.admitting = False
        try:
            await self._store.clear(disk)
            await disk.work.run(self._prepare)
            await self._scan(recalls=False)
        finally:
            disk.admitting = True
        disk.directory.missing = None
        self._whole, self._changes = True, changes

    def _prepare(self) -> None:
        directory = self.disk.directory
        directory.prepare()
        directory.snapshot.unlink(missing_ok=True)
        if self._touched is not None:
            self._touched.give_up()
        self._drop_if_lost()

    def _drop_if_lost(self) -> None:
        if self._touched is not None and (failed := self._touched.drop_if_lost()) is not None:
            raise failed

    def _read_snapshot(self) -> Snapshot | None:
        path = self.disk.directory.snapshot
        try:
            raw = path.read_bytes()
            # A snapshot is used once: after a crash the directory has changed, and only a scan shows how.
            self.disk.directory.drop_snapshot()
            return index_snapshot.decode(raw)
        except FileNotFoundError:
            return None
        except BadFile as error:
            log.warning("index snapshot ignored", extra={"error": str(error)})
            return None
        except OSError as error:
            self.disk.work.failed("snapshot", error)
            return None

    async def _adopt_snapshot(self, saved: Snapshot) -> bool:
        """False: it makes no sense from some point on, and a scan has to find the rest."""
        left = [(name, until - self._restart.wall_clock()) for name, until in saved.doubts]
        # A clock that stepped back would tell of more.
        self._doubt((name, min(left_s, DOUBT_S)) for name, left_s in left if left_s > 0)
        self._store.expect(saved.blocks)
        self._versions.expect(saved.blocks)
        try:
            for page in saved.pages():
                self.disk.budget.take(PAGE_BYTES * sum(page.pages))
                self._adopt_page(page, saved.saved_at)
                await asyncio.sleep(0)
        except BadFile as error:
            log.warning("index snapshot ignored", extra={"error": str(error)})
            return False
        return True

    def _adopt_page(self, page: SavedPage, saved_at: float) -> None:
        disk, now = self.disk, self._restart.wall_clock()
        is_current = self._touched is None or self._touched.is_current
        left = self._store.add_all(disk, page)
        numbers: Iterable[int] = range(len(page.refs))
        if left:
            numbers = sorted(set(page.numbers) - {page.numbers[place] for place in left})
        for layout_number, layout in enumerate(page.layouts):
            its = [number for number in numbers if page.layout_numbers[number] == layout_number]
            refs, at = [page.refs[number] for number in its], [page.confirmed_at[number] for number in its]
            ages = {each: self._restart.age_s(each, now, saved_at) if is_current else None for each in set(at)}
            ages_s, vouched = [ages[each] for each in at], [is_current and page.vouched[number] for number in its]
            if len(self._doubtful) <= NAMES_MAX:
                known = zip(refs, ages_s, vouched, strict=True)
                self._doubtful.update(ref for ref, age_s, is_vouched in known if age_s is None and not is_vouched)
            self._versions.recall_all(layout.origin, refs, [page.packed[number] for number in its], ages_s, vouched)
        for place in left:
            meta, disk_bytes, (version, confirmed_at, is_vouched, content) = page.block(place)
            belief = Belief(version)
            if is_current:
                belief = Belief(version, self._restart.age_s(confirmed_at, now, saved_at), is_vouched)
            self._adopt(meta, disk_bytes, belief)
            if self._store.contents is not None:
                self._store.contents.restore(meta, content)

    async def _scan(self, *, recalls: bool = True) -> None:
        """`recalls` False: the versions that are found are not recalled."""
        disk = self.disk
        found: list[FoundFile] = await disk.work.run(lambda: list(disk.directory.walk()))
        for file in found:
            disk.budget.take(file.disk_bytes)
        disk.admitting = True
        touched = self._touched
        # A write may be under way yet whose answer the crash cut off.
        self._doubt((name, DOUBT_S) for name in (() if touched is None else touched.recent))
        # Oldest first: policies that go by order then have the oldest block as the first victim.
        found.sort(key=lambda file: file.modified_at)
        ran_at = found[-1].modified_at if found else 0.0
        waiting = iter(found)
        while batch := list(islice(waiting, _BATCH)):
            metas = await disk.work.run(block_io.read_found, [file.path for file in batch])
            blocks: list[tuple[BlockMeta, int, float | None, bool]] = []
            for file, meta in zip(batch, metas, strict=True):
                if meta is None:
                    disk.budget.give_back(file.disk_bytes)
                elif isinstance(meta, OSError):
                    # The file stays on disk and in the budget; the next start tries again.
                    disk.work.failed("scan", meta)
                    disk.whole = False
                elif not recalls:
                    self._store.adopt(disk, meta, file.disk_bytes)
                elif touched is None or touched.has(meta.version.ref):
                    blocks.append((meta, file.disk_bytes, None, False))
                else:
                    is_settled = was_settled(meta.version, file.modified_at)
                    blocks.append((meta, file.disk_bytes, file.modified_at, is_settled))
            self._adopt_page(index_snapshot.page_of(blocks), ran_at)
            if disk.budget.room_bytes <= 0:
                # The policy has to know some victims.
                rank(self._store)

    def _doubt(self, doubts: Iterable[tuple[Name, float]]) -> None:
        for name, for_s in doubts:
            self._versions.doubt(name, for_s)
            if self._touched is not None:
                self._touched.carry([name])

    def _adopt(self, meta: BlockMeta, disk_bytes: int, belief: Belief) -> None:
        # Headers that are newer than those in the file are known from the snapshot alone.
        is_known = belief.vouched or belief.age_s is not None
        if not (is_known and belief.version.headers == meta.version.headers) and len(self._doubtful) <= NAMES_MAX:
            self._doubtful.add(meta.version.ref)
        if self._store.adopt(self.disk, meta, disk_bytes):
            self._versions.recall(meta.layout.origin, belief)

    def may_save(self) -> bool:
        """Whether a snapshot would tell all that lies on the disk."""
        return self._whole and self.disk.whole and not self.disk.left_behind and not self.disk.work.trouble

    def end(self) -> None:
        """`save` is about to be called. See `WrittenNamesFile.end`."""
        if self._touched is not None:
            self._touched.end()

    async def save(self, blocks: Iterable[BlockMeta], doubts: Sequence[tuple[Name, float]]) -> None:
        work, path = self.disk.work, self.disk.directory.snapshot
        try:
            await work.run(self.disk.directory.hold)
            contents = self._store.contents
            facts = SnapshotFacts(
                self._restart.wall_clock, self._restart.belief, doubts=doubts, blocks=self.disk.blocks,
                on_disk=self._store.on_disk,
            )  # fmt: skip
            if contents is not None:
                facts = facts._replace(content=contents.saved)
            lines = index_snapshot.encode(blocks, facts)
            if self._touched is None:
                await sealed_file.write(path, lines, work.threads)
            else:
                await work.run(self._touched.put, await sealed_file.write_part(path, lines, work.threads))
        except OSError as error:
            work.failed("snapshot", error)
