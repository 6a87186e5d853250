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
from itertools import islice
from pathlib import Path

from outrider.adapters import sealed_file
from outrider.adapters.disk import block_io, index_snapshot
from outrider.adapters.disk.block_dir import FoundFile
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.index_snapshot import Facts, Snapshot
from outrider.adapters.disk.written_names import NAMES_MAX, WrittenNamesFile
from outrider.adapters.sealed_file import BadFile
from outrider.core.cache.block_file import BadBlock, BlockMeta
from outrider.core.cache.freshness import DOUBT_S, age_s, was_settled
from outrider.core.cache.scrub_pace import ScrubPace
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion
from outrider.ports import Belief, Clock, Name, Versions

log = logging.getLogger(__name__)

# Files per trip to a thread: enough to amortise the trip, and short enough (about 10 ms) that reads are not held up.
_BATCH = 256


class Recovery:
    """Owned by the app: `index` once after a start, `save` once before the end."""

    def __init__(
        self, store: DiskBlockStore, versions: Versions, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        touched: WrittenNamesFile | None = None, *, wall_clock: Clock = time.time, is_alone: bool = True,
        under_way: Callable[[], Iterable[Name]] = tuple,
    ) -> None:  # fmt: skip
        """`touched` None: written names are not recorded, so no version that a scan finds is believed.

        `is_alone` False: other members of a cluster may write while this one is away, so each version that a start
        finds has to be confirmed. `under_way`: the names of writes that have no answer yet.
        """
        self._store = store
        self._versions = versions
        self._sleep = sleep
        self._touched = touched
        self._wall_clock = wall_clock
        self._is_alone = is_alone
        self._under_way = under_way
        if touched is not None and is_alone:
            store.confirmed_at = self._confirmed_at
        # Objects found that are not to be believed after a crash. One more than NAMES_MAX exceeds the bound.
        self._doubtful: set[ObjectRef] = set()
        self._whole = False

    async def index(self) -> None:
        """Fill the store's index. Blocks can be admitted as soon as the sizes are known, long before the end."""
        self._store.admitting = False
        try:
            saved = await self._store.work.run(self._read_snapshot)
            if saved is not None:
                await self._adopt_snapshot(saved)
            else:
                await self._scan()
            await self._store.trim()
        except OSError as error:
            # The index is not complete: blocks that were not seen are not counted. The proxy serves the known ones,
            # and the next start scans again.
            self._store.work.failed("scan", error)
            return
        finally:
            self._store.admitting = True
            self._versions.recalled()
        self._whole = True
        # A block that could not be read now may be readable at the next start, which then needs the older names.
        if self._touched is not None and self._store.whole:
            failed = await self._store.work.run(self._touched.settle, self._doubtful)
            if failed is not None:
                self._store.work.failed("note", failed)
        self._doubtful = set()
        log.info("index ready", extra={"blocks": len(self._store), "bytes": self._store.budget.used_bytes,
                                       "by": "scan" if saved is None else "snapshot"})  # fmt: skip

    def _read_snapshot(self) -> Snapshot | None:
        path = self._store.directory.snapshot
        try:
            raw = path.read_bytes()
            # A snapshot is used once: after a crash the directory has changed, and only a scan tells how.
            self._store.directory.drop_snapshot()
            return index_snapshot.decode(raw)
        except FileNotFoundError:
            return None
        except BadFile as error:
            log.warning("index snapshot ignored", extra={"error": str(error)})
            return None
        except OSError as error:
            self._store.work.failed("snapshot", error)
            return None

    async def _adopt_snapshot(self, saved: Snapshot) -> None:
        left = [(name, until - self._wall_clock()) for name, until in saved.doubts]
        # A clock that stepped back would tell of more.
        self._doubt((name, min(left_s, DOUBT_S)) for name, left_s in left if left_s > 0)
        metas = iter(saved)
        while batch := list(islice(metas, _BATCH)):
            now = self._wall_clock()
            for meta, disk_bytes, (version, confirmed_at, vouched, content) in batch:
                self._store.budget.take(disk_bytes)
                belief = Belief(version, self._age_s(confirmed_at, now, saved.saved_at), vouched)
                self._adopt(meta, disk_bytes, belief)
                if self._store.contents is not None:
                    self._store.contents.restore(meta, content)
            await asyncio.sleep(0)

    async def _scan(self) -> None:
        found: list[FoundFile] = await self._store.work.run(lambda: list(self._store.directory.walk()))
        for file in found:
            self._store.budget.take(file.disk_bytes)
        self._store.admitting = True
        touched = self._touched
        # A write may be under way yet whose answer the crash cut off.
        self._doubt((name, DOUBT_S) for name in (() if touched is None else touched.recent))
        # Oldest first: policies that go by order then have the oldest block as the first victim.
        found.sort(key=lambda file: file.modified_at)
        ran_at = found[-1].modified_at if found else 0.0
        waiting = iter(found)
        while batch := list(islice(waiting, _BATCH)):
            metas, now = await self._store.work.run(_read_batch, batch), self._wall_clock()
            for file, meta in zip(batch, metas, strict=True):
                if meta is None:
                    self._store.budget.give_back(file.disk_bytes)
                elif isinstance(meta, OSError):
                    # The file stays on disk and in the budget; the next start tries again.
                    self._store.work.failed("scan", meta)
                    self._store.whole = False
                else:
                    belief = Belief(meta.version)
                    if touched is not None and not touched.has(meta.version.ref):
                        age = self._age_s(file.modified_at, now, ran_at)
                        belief = Belief(meta.version, age, was_settled(meta.version, file.modified_at))
                    self._adopt(meta, file.disk_bytes, belief)

    def _doubt(self, doubts: Iterable[tuple[Name, float]]) -> None:
        for name, for_s in doubts:
            self._versions.doubt(name, for_s)
            if self._touched is not None:
                self._touched.carry([name])

    def _age_s(self, confirmed_at: float | None, now: float, ran_at: float) -> float | None:
        return age_s(confirmed_at, now, ran_at) if self._is_alone else None

    def _adopt(self, meta: BlockMeta, disk_bytes: int, belief: Belief) -> None:
        # Headers that are newer than those in the file are known from the snapshot alone.
        is_known = belief.vouched or belief.age_s is not None
        if not (is_known and belief.version.headers == meta.version.headers) and len(self._doubtful) <= NAMES_MAX:
            self._doubtful.add(meta.version.ref)
        if self._store.adopt(meta, disk_bytes):
            self._versions.recall(meta.layout.origin, belief)

    def _confirmed_at(self, meta: BlockMeta) -> float:
        """When the origin confirmed the version of a block; 0: not known."""
        belief = self._versions.belief(meta.layout.origin, meta.version)
        return 0.0 if belief.age_s is None else self._wall_clock() - belief.age_s

    def _belief(self, origin: str, version: ObjectVersion) -> Belief:
        """For the snapshot."""
        belief = self._versions.belief(origin, version)
        return belief if self._is_alone else belief._replace(age_s=None)

    async def scrub(self, pace: ScrubPace) -> None:
        """Verify the blocks of the start that were not read since; then all blocks, round after round, without end."""
        await self._scrub_round(self._store.unverified(), pace, None)
        while True:
            if not len(self._store):
                await self._sleep(pace.round_s)
            await self._scrub_round(self._store.present(), pace, self._store.budget.used_bytes)

    async def _scrub_round(self, blocks: Sequence[BlockKey], pace: ScrubPace, round_bytes: int | None) -> None:
        for block in blocks:
            began = self._store.clock()
            if size := await self._store.verify(block, again=round_bytes is not None):
                await self._sleep(pace.pause_s(size, self._store.clock() - began, round_bytes))
        self._store.scrubbed()

    async def save(self) -> None:
        """Write a snapshot for the next start. Without a complete index there is none, and the next start scans."""
        if not (self._whole and self._store.whole):
            return
        work, path = self._store.work, self._store.directory.snapshot
        if self._touched is not None:
            self._touched.end()
        for name in self._under_way():
            self._versions.doubt(name, DOUBT_S)
        now = self._wall_clock()
        doubts = [(name, now + left_s) for name, left_s in self._versions.doubts()]
        try:
            await work.run(self._store.directory.hold)
            contents = self._store.contents
            facts = Facts(self._wall_clock, self._belief, doubts=doubts, disk_bytes=self._store.disk_bytes_of)
            if contents is not None:
                facts = facts._replace(content=contents.saved)
            lines = index_snapshot.encode(self._store.blocks(), facts)
            if self._touched is None:
                await sealed_file.write(path, lines, work.threads)
            else:
                await work.run(self._touched.put, await sealed_file.write_part(path, lines, work.threads))
        except OSError as error:
            work.failed("snapshot", error)


def _read_batch(files: Sequence[FoundFile]) -> list[BlockMeta | OSError | None]:
    """The meta of each file; None where it was no intact block, and has been removed."""
    metas: list[BlockMeta | OSError | None] = []
    for file in files:
        try:
            metas.append(_read_or_remove(file.path))
        except OSError as error:
            metas.append(error)
    return metas


def _read_or_remove(path: Path) -> BlockMeta | None:
    try:
        meta = block_io.read_meta(path)
    except (BadBlock, FileNotFoundError):
        path.unlink(missing_ok=True)
        return None
    name = block_io.file_name(meta.key)
    if path.name != name:
        # Outrider 0.2 named a version without its date.
        folder = path.parent.with_name(name[:2])
        folder.mkdir(mode=0o700, exist_ok=True)
        path.rename(folder / name)
    return meta
