"""Rebuilds the index after a start, while the proxy already serves; then verifies, slowly, the blocks nobody reads.

The index comes from the snapshot of a clean stop, otherwise from a scan of the directory. So do the versions, with the
time of their confirmation by the wall clock. The snapshot knows it, and so do the notes of `landed_blocks`; the time of
any other block's file is that of the last confirmation of its version when the block was filled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from outrider.adapters.disk import disk_threads
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.disk import Sizes
from outrider.adapters.disk.disk_recovery import DiskRecovery, Restart, rank
from outrider.adapters.disk.written_names import WrittenNamesFile
from outrider.core.cache.freshness import DOUBT_S
from outrider.core.cache.scrub_pace import ScrubPace
from outrider.core.model import BlockKey
from outrider.ports import Clock, Name, Versions

# How often a disk that works is looked at, in seconds: one that was replaced is taken up this much later at most.
_LOOK_S = 1.0


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
            store.confirmed_at = partial(versions.confirmed_at, wall_clock)
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
            await self.look(number)

    async def look(self, number: int) -> bool:
        """One round of `watch`. Returns whether the disk was replaced, and the new one was taken up."""
        is_new = await self._disks[number].look()
        if is_new:
            await self._divide()
        return is_new

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

    async def note(self, number: int) -> None:
        """Note the blocks that landed on a disk since the last call, for a start after a crash."""
        disk = self._disks[number]
        if disk.is_indexed:
            await disk.note()

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
