"""Rebuilds the index after a start, while the proxy already serves; then verifies, slowly, the blocks nobody reads.

The index comes from the snapshot of a clean stop, otherwise from a scan of the directory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from pathlib import Path

from outrider.adapters import sealed_file
from outrider.adapters.disk import block_io, index_snapshot
from outrider.adapters.disk.block_dir import FoundFile
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.index_snapshot import Snapshot
from outrider.adapters.disk.written_names import NAMES_MAX, WrittenNamesFile
from outrider.adapters.sealed_file import BadFile
from outrider.core.cache import block_file
from outrider.core.cache.block_file import BadBlock, BlockMeta
from outrider.core.cache.freshness import was_settled
from outrider.core.cache.scrub_pace import ScrubPace
from outrider.core.model import BlockKey, ObjectRef
from outrider.ports import Versions

log = logging.getLogger(__name__)

# Files per trip to a thread: enough to amortise the trip, and short enough (about 10 ms) that reads are not held up.
_BATCH = 256


class Recovery:
    """Owned by the app: `index` once after a start, `save` once before the end."""

    def __init__(
        self, store: DiskBlockStore, versions: Versions, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        touched: WrittenNamesFile | None = None,
    ) -> None:  # fmt: skip
        """`touched` None: written names are not recorded, so no version that a scan finds is vouched for."""
        self._store = store
        self._versions = versions
        self._sleep = sleep
        self._touched = touched
        # Objects found that are not vouched for. One more than NAMES_MAX is enough to exceed the bound.
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
        metas = iter(saved)
        while batch := list(islice(metas, _BATCH)):
            for meta, vouched, content in batch:
                disk_bytes = block_file.Header(meta).disk_bytes
                self._store.budget.take(disk_bytes)
                self._adopt(meta, disk_bytes, vouched=vouched)
                if self._store.contents is not None:
                    self._store.contents.restore(meta, content)
            await asyncio.sleep(0)

    async def _scan(self) -> None:
        found: list[FoundFile] = await self._store.work.run(lambda: list(self._store.directory.walk()))
        for file in found:
            self._store.budget.take(file.disk_bytes)
        self._store.admitting = True
        # Oldest first: policies that go by order then have the oldest block as the first victim.
        waiting = iter(sorted(found, key=lambda file: file.modified_at))
        while batch := list(islice(waiting, _BATCH)):
            metas = await self._store.work.run(_read_batch, batch)
            for file, meta in zip(batch, metas, strict=True):
                if meta is None:
                    self._store.budget.give_back(file.disk_bytes)
                elif isinstance(meta, OSError):
                    # The file stays on disk and in the budget; the next start tries again.
                    self._store.work.failed("scan", meta)
                    self._store.whole = False
                else:
                    untouched = self._touched is not None and not self._touched.has(meta.version.ref)
                    vouched = untouched and was_settled(meta.version, file.modified_at)
                    self._adopt(meta, file.disk_bytes, vouched=vouched)

    def _adopt(self, meta: BlockMeta, disk_bytes: int, *, vouched: bool) -> None:
        if not vouched and len(self._doubtful) <= NAMES_MAX:
            self._doubtful.add(meta.version.ref)
        if self._store.adopt(meta, disk_bytes):
            self._versions.recall(meta.layout.origin, meta.version, vouched=vouched)

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
        try:
            await work.run(self._store.directory.hold)
            contents = self._store.contents
            content_of = (lambda layout, version: None) if contents is None else contents.saved
            lines = index_snapshot.encode(self._store.blocks(), self._versions.vouches, content_of)
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
