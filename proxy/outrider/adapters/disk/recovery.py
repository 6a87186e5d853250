"""Rebuild the index after a start: from the snapshot of a clean stop, else by a scan, while the proxy already serves;
then verify, slowly, what nobody has read yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from pathlib import Path

import aiofiles

from outrider.adapters.disk import block_dir, index_snapshot
from outrider.adapters.disk.block_dir import FoundFile
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.index_snapshot import BadSnapshot, Snapshot
from outrider.adapters.disk.written_names import NAMES_MAX, WrittenNamesFile
from outrider.core.cache import block_file
from outrider.core.cache.block_file import BadBlock, BlockMeta
from outrider.core.cache.freshness import was_settled
from outrider.core.cache.scrub_pace import ScrubPace
from outrider.core.model import BlockKey, ObjectRef
from outrider.ports import Versions

log = logging.getLogger(__name__)

# Per trip to a thread: enough to amortise the trip, short enough (about 10 ms) that reads get their turn.
_BATCH = 256


class Recovery:
    """Owned by the app: `run` once after a start, `save` once before the end."""

    def __init__(
        self, store: DiskBlockStore, versions: Versions, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        touched: WrittenNamesFile | None = None,
    ) -> None:  # fmt: skip
        """`touched` None: nobody keeps it, and nothing of what a scan finds is vouched for."""
        self._store = store
        self._versions = versions
        self._sleep = sleep
        self._touched = touched
        # What was found and is not vouched for; of more than are noted some will do.
        self._doubtful: set[ObjectRef] = set()
        self._whole = False

    async def index(self) -> None:
        """Fill the store's index. Blocks can be admitted as soon as their sizes are known, long before the end."""
        self._store.admitting = False
        try:
            saved = await self._store.work.run(self._read_snapshot)
            if saved is not None:
                await self._adopt_snapshot(saved)
            else:
                await self._scan()
            await self._store.trim()
        except OSError as error:
            # Not whole: what was not seen is not counted. Serve from what is known; the next start scans again.
            self._store.work.trouble("scan", error)
            return
        finally:
            self._store.admitting = True
        self._whole = True
        # What could not be read now may be at the next start: the older notes are good for that.
        if self._touched is not None and self._store.whole:
            failed = await self._store.work.run(self._touched.settle, self._doubtful)
            if failed is not None:
                self._store.work.trouble("note", failed)
        self._doubtful = set()
        log.info("index ready", extra={"blocks": len(self._store), "bytes": self._store.budget.used_bytes,
                                       "by": "scan" if saved is None else "snapshot"})  # fmt: skip

    def _read_snapshot(self) -> Snapshot | None:
        path = self._store.directory.snapshot
        try:
            raw = path.read_bytes()
            # Used once: after a crash the directory has moved on, and only a scan knows it.
            self._store.directory.drop_snapshot()
            return index_snapshot.decode(raw)
        except FileNotFoundError:
            return None
        except BadSnapshot as error:
            log.warning("index snapshot ignored", extra={"error": str(error)})
            return None
        except OSError as error:
            self._store.work.trouble("snapshot", error)
            return None

    async def _adopt_snapshot(self, saved: Snapshot) -> None:
        metas = iter(saved)
        while batch := list(islice(metas, _BATCH)):
            for meta, vouched in batch:
                disk_bytes = block_file.Header(meta).disk_bytes
                self._store.budget.take(disk_bytes)
                self._adopt(meta, disk_bytes, vouched=vouched)
            await asyncio.sleep(0)

    async def _scan(self) -> None:
        found: list[FoundFile] = await self._store.work.run(lambda: list(self._store.directory.walk()))
        for file in found:
            self._store.budget.take(file.disk_bytes)
        self._store.admitting = True
        # Oldest first, so that the policies that go by order know the oldest block as the first victim.
        waiting = iter(sorted(found, key=lambda file: file.modified_at))
        while batch := list(islice(waiting, _BATCH)):
            metas = await self._store.work.run(_read_batch, batch)
            for file, meta in zip(batch, metas, strict=True):
                if meta is None:
                    self._store.budget.give_back(file.disk_bytes)
                elif isinstance(meta, OSError):
                    # It stays, and stays counted; the next start looks at it again.
                    self._store.work.trouble("scan", meta)
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
        """Verify what was here at the start and has not been read since; then all blocks, round after round."""
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
        """Leave a snapshot for the next start; without a whole index there is none, and the next start scans."""
        if not (self._whole and self._store.whole):
            return
        path = self._store.directory.snapshot
        part = Path(f"{path}.part")
        if self._touched is not None:
            self._touched.end()
        try:
            await self._store.work.run(self._store.directory.hold)
            async with aiofiles.open(part, "wb", executor=self._store.work.threads, opener=block_dir.private) as file:
                await file.writelines(index_snapshot.encode(self._store.blocks(), self._versions.vouches))
            if self._touched is None:
                await self._store.work.run(part.replace, path)
            else:
                await self._store.work.run(self._touched.put, part)
        except OSError as error:
            self._store.work.trouble("snapshot", error)


def _read_batch(files: Sequence[FoundFile]) -> list[BlockMeta | OSError | None]:
    """The meta of each file; None where it is no intact block, and then the file is gone."""
    metas: list[BlockMeta | OSError | None] = []
    for file in files:
        try:
            metas.append(_read_or_remove(file.path))
        except OSError as error:
            metas.append(error)
    return metas


def _read_or_remove(path: Path) -> BlockMeta | None:
    try:
        return block_dir.read_meta(path)
    except (BadBlock, FileNotFoundError):
        path.unlink(missing_ok=True)
        return None
