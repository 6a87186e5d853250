"""The recovery of one disk: its snapshot, or the scan of its directory; and whether it works. See `recovery`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import attrgetter

from outrider.adapters import sealed_file
from outrider.adapters.disk import block_io, disk_threads, index_snapshot
from outrider.adapters.disk.block_dir import UnusableCacheDir
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.disk import Disk
from outrider.adapters.disk.index_snapshot import Snapshot, SnapshotFacts
from outrider.adapters.disk.landed_blocks import LandedBlocks, known_blocks
from outrider.adapters.disk.snapshot_page import SavedPage, pages_of
from outrider.adapters.disk.written_names import NAMES_MAX, WrittenNamesFile
from outrider.adapters.sealed_file import BadFile
from outrider.core.cache.block_file import PAGE_BYTES, BlockMeta
from outrider.core.cache.freshness import DOUBT_S, age_s, was_settled
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.rows import without
from outrider.ports import Belief, Clock, Name, Versions

log = logging.getLogger(__name__)

# Files per trip to a thread: enough to amortise the trip, and short enough (about 10 ms) that reads are not held up.
_BATCH = 256


@dataclass(frozen=True, slots=True)
class Restart:
    """The facts of the last stop and of this start that are the same for all disks. `is_alone` False: other members of
    a cluster may write while this one is away, so each version that a start finds has to be confirmed."""

    store: DiskBlockStore
    versions: Versions
    wall_clock: Clock
    is_alone: bool

    def belief(self, origin: str, version: ObjectVersion) -> Belief:
        """For the snapshot."""
        belief = self.versions.belief(origin, version)
        return belief if self.is_alone else belief._replace(age_s=None)

    def age_s(self, confirmed_at: float | None, now: float, ran_at: float) -> float | None:
        return age_s(confirmed_at, now, ran_at) if self.is_alone else None


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
        self._landed = LandedBlocks(disk)
        self._whole = self.is_indexed = False
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
            self.disk.admitting = self.is_indexed = True
        self._whole = True
        if self._touched is not None:
            # A block that could not be read now may be readable at the next start, which then needs the older names.
            keep: Callable[[], OSError | None] | None = None
            if self.disk.whole:
                keep = partial(self._settle, self._touched, after_crash=saved is None)
            elif len(self._store.disks) > 1:
                # The file would be one of an older run.
                keep = self._touched.give_up
            if keep is not None and (failed := await self.disk.work.run(keep)) is not None:
                self.disk.work.failed("note", failed)
        self._doubtful = set()
        log.info("index ready", extra={"disk": self.disk.name, "blocks": self.disk.blocks,
                                       "bytes": self.disk.budget.used_bytes,
                                       "by": "scan" if saved is None else "snapshot"})  # fmt: skip

    def _settle(self, touched: WrittenNamesFile, *, after_crash: bool) -> OSError | None:
        if after_crash:
            # From here on writes of names without blocks are not recorded.
            try:
                self._landed.drop_if_some_left()
            except OSError as error:
                return error
        return touched.settle(self._doubtful)

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
        disk.work.returns += 1
        self._whole, self._changes = True, changes

    def _prepare(self) -> None:
        directory = self.disk.directory
        directory.prepare()
        directory.snapshot.unlink(missing_ok=True)
        self._landed.blocks = 0
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
            self.disk.directory.use_snapshot()
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
        # After a clock has stepped back, more would seem to be left.
        self._doubt((name, min(left_s, DOUBT_S)) for name, left_s in left if left_s > 0)
        self._store.expect(saved.blocks)
        self._versions.expect(saved.blocks)
        try:
            for page in saved.pages():
                self._landed.blocks += len(page.numbers)
                self.disk.budget.take(PAGE_BYTES * sum(page.pages))
                self._adopt_page(page, saved.saved_at)
                await asyncio.sleep(0)
        except BadFile as error:
            log.warning("index snapshot ignored", extra={"error": str(error)})
            return False
        return True

    def _adopt_page(self, page: SavedPage, saved_at: float, *, is_noted: bool = True) -> None:
        disk, now = self.disk, self._restart.wall_clock()
        is_current = self._touched is None or self._touched.is_current
        left = self._store.add_all(disk, page, is_noted=is_noted)
        refs, packed, confirmed_at, vouched = page.refs, page.packed, page.confirmed_at, page.vouched
        if left:
            gone = {page.numbers[place] for place in left}
            refs, packed, confirmed_at = without(gone, refs), without(gone, packed), without(gone, confirmed_at)
            vouched = without(gone, vouched)
        ages = {each: self._restart.age_s(each, now, saved_at) if is_current else None for each in set(confirmed_at)}
        ages_s = [ages[each] for each in confirmed_at]
        if not is_current:
            vouched = [False] * len(vouched)
        if None in ages.values() and len(self._doubtful) <= NAMES_MAX:
            known = zip(refs, ages_s, vouched, strict=True)
            self._doubtful.update(ref for ref, age_s, is_vouched in known if age_s is None and not is_vouched)
        self._versions.recall_all(page.layout.origin, refs, packed, ages_s, vouched)
        for place in left:
            meta, disk_bytes, (version, at, is_vouched, content) = page.block(place)
            belief = Belief(version)
            if is_current:
                belief = Belief(version, self._restart.age_s(at, now, saved_at), is_vouched)
            self._adopt(meta, disk_bytes, belief)
            if self._store.contents is not None:
                self._store.contents.restore(meta, content)

    async def _scan(self, *, recalls: bool = True) -> None:
        """`recalls` False: the versions that are found are not recalled."""
        disk, touched = self.disk, self._touched
        names, ran_at = await disk.work.run(lambda: (set(disk.directory.names()), disk.directory.changed_at()))
        # A write may be under way yet whose answer the crash cut off.
        self._doubt((name, DOUBT_S) for name in (() if touched is None else touched.recent))
        if recalls:
            await self._adopt_noted(names, ran_at)
        # Oldest first: policies that go by order then have the oldest block as the first victim.
        by_age = attrgetter("modified_at")
        found = await disk.work.run(lambda: sorted(disk.directory.found(names), key=by_age))
        for file in found:
            disk.budget.take(file.disk_bytes)
        disk.admitting = True
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
            for page in pages_of(blocks):
                self._adopt_page(page, ran_at, is_noted=False)
            self._rank_if_full()

    async def _adopt_noted(self, names: set[str], ran_at: float) -> None:
        """Index the files that need not be looked at, and take them out of `names`."""
        is_doubtful = (lambda ref: True) if self._touched is None else self._touched.has
        try:
            pages = self._landed.pages()
            while (page := await self.disk.work.run(next, pages, None)) is not None:
                if page.written_at > self._restart.wall_clock():
                    continue  # of a clock that was ahead: by it each file would be older than the page
                if (known := known_blocks(page, names, is_doubtful)).refs:
                    self._landed.found += len(known.refs)
                    self.disk.budget.take(PAGE_BYTES * sum(known.pages))
                    self._adopt_page(known, ran_at)
                    self._rank_if_full()
        except FileNotFoundError:
            pass
        except OSError as error:
            self._landed.found = -1  # the rest was not read, so the file is dropped
            self.disk.work.failed("note", error)

    def _rank_if_full(self) -> None:
        if self.disk.budget.room_bytes <= 0:
            # The policy has to know some victims.
            rank(self._store)

    async def note(self) -> None:
        """See `landed_blocks`. A cache in memory ends with the process."""
        rows: Collection[int] | None = self._store.unnoted(self.disk)
        if self._touched is None or not (rows or self._landed.is_behind):
            return
        if not self._whole or not self.disk.works:
            self._landed.is_behind = True
            return
        if self._landed.is_useless:
            self._landed.blocks, self._landed.is_behind, rows = 0, False, None
        facts = SnapshotFacts(self._restart.wall_clock, self._restart.belief, on_disk=self._store.on_disk)
        pages = index_snapshot.pages_to_write(self._store.metas_on(self.disk, rows), facts)
        try:
            while await self.disk.work.run(self._landed.add_next, pages):
                pass
        except OSError as error:
            self._landed.is_behind = True
            self.disk.work.failed("note", error)

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
        """Whether a snapshot would describe all that lies on the disk."""
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
