"""The block store on local disk: makes room for new blocks, and admits them. `block_reads` has its reads.

All state lives on the event loop's thread. Files are touched by plain functions (`block_io`) in the store's own
threads (`disk_threads`).

A crash leaves orphan files at worst, never an index entry without its file: a block enters the index after its rename,
and leaves it before its unlink. Bytes are reserved, within the budget and above the free-space floor, before a byte is
written.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from outrider.adapters.disk import disk_threads
from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.block_reads import BlockReads
from outrider.adapters.disk.block_writer import DiskBlockWriter
from outrider.adapters.disk.disk_threads import DiskThreads
from outrider.adapters.disk.leases import OpenFile, Slot
from outrider.core.cache import block_file
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.disk_budget import DiskBudget
from outrider.core.cache.pins import Pins
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.errors import StoreUnavailable
from outrider.core.model import BlockKey
from outrider.core.s3.checksums import Kind
from outrider.metrics import Metrics
from outrider.ports import Clock, Evicted

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """`capacity_bytes` bounds the bytes on disk, headers and reservations included.

    `min_free_bytes` is left free for others on the file system. `open_files` is how many idle block files stay open.
    """

    capacity_bytes: int
    min_free_bytes: int = 0
    open_files: int = 256

    def __post_init__(self) -> None:
        if self.capacity_bytes < 0 or self.min_free_bytes < 0 or self.open_files < 1:
            raise ValueError(f"impossible limits: {self}")


class DiskBlockStore(BlockReads):
    """`BlockStore` in one directory, which is locked for this process. `recovery` rebuilds its index after a start."""

    def __init__(
        self, directory: BlockDir, policy: EvictionPolicy, limits: Limits, metrics: Metrics, clock: Clock,
        *, verify_always: bool = False, pins: Pins | None = None,
    ) -> None:  # fmt: skip
        """`pins` None: nothing is pinned."""
        work = DiskThreads(metrics, clock)
        super().__init__(directory, work, policy, limits.open_files, metrics, verify_always=verify_always)
        self.clock = clock
        self.budget = DiskBudget(limits.capacity_bytes, limits.min_free_bytes)
        self._pins = Pins(int, lambda version: b"") if pins is None else pins
        self._tmp_numbers = count()
        # False until the scan knows the sizes in the directory: the budget could not be kept before.
        self.admitting = True
        # True once the snapshot is being written: the next start would not know of a block that lands later.
        self.stopping = False
        # False: a file lies in the directory that only a scan would find, so no snapshot may be written.
        self.whole = True
        self._making_room = asyncio.Lock()
        # When the origin confirmed the version of a block, in seconds since 1970: that becomes the time of its file.
        # None: the time at which the file was written remains.
        self.confirmed_at: Callable[[BlockMeta], float] | None = None
        # Blocks to be dropped once no reader uses them.
        self._doomed: dict[BlockKey, None] = {}
        self._leaving: set[asyncio.Future[list[int | OSError]]] = set()
        metrics.store_capacity_bytes.set(limits.capacity_bytes)
        metrics.store_bytes.set_function(lambda: self.budget.used_bytes)
        metrics.store_blocks.set_function(lambda: len(self))
        metrics.store_proved_bytes.set_function(lambda: self.proved_bytes)

    @property
    def used_bytes(self) -> int:
        """Bytes that count against the budget: blocks, reservations, and files that the scan has not read yet."""
        return self.budget.used_bytes

    @property
    def room_bytes(self) -> int:
        return self.budget.room_bytes

    # -- room ---------------------------------------------------------------------------------------------------

    def _lost(self, block: BlockKey, slot: Slot) -> None:
        self._forget(block, slot)
        self.budget.give_back(slot.disk_bytes)

    async def _remove(self, block: BlockKey, slot: Slot) -> None:
        self._forget(block, slot)
        with suppress(StoreUnavailable):  # counted and logged
            await self._unlink([(block, slot)])

    async def reserve(self, need: int, meta: BlockMeta | None = None) -> None:
        """Take `need` bytes of the budget for a block; its victims are off the disk when this returns.

        Raises:
            StoreUnavailable: no further block may be evicted, or the disk failed a moment ago.
        """
        self._check_admits()
        # One reservation at a time: two that saw the same full budget would each evict for both.
        async with self._making_room:
            await self._make_room(need, meta)
            self.budget.reserve(need)

    def _reserve_at_once(self, need: int) -> bool:
        """As `reserve`, where it needs no wait: nothing has to leave, and nothing is leaving. False: it may."""
        if self._leaving or self._making_room.locked() or self.work.is_cleaning:
            return False
        return self.budget.reserve_at_once(need, self.clock())

    def _check_admits(self) -> None:
        """Raises StoreUnavailable: no block is written now, whether there is room or not."""
        if not self.admitting:
            raise StoreUnavailable("the directory is being scanned")
        if self.stopping:
            raise StoreUnavailable("the proxy stops")
        if self.work.is_failing:
            raise StoreUnavailable("the disk failed a moment ago")

    async def _make_room(self, need: int, meta: BlockMeta | None) -> None:
        if self._leaving:
            # The room of these files is not free yet. Besides, a block that is written anew must not be removed by an
            # unlink that was requested for its predecessor.
            await asyncio.wait(self._leaving)
        over = self.budget.excess(need, self.clock())
        if over is None:
            over = await self._over_by_free_space(need)
        self._note_reads()
        incoming = (None, None) if meta is None else (meta.key, meta.version)
        victims, enough = self._victims(over, self._policy.victims(*incoming))
        if not enough and meta is not None and self._pins.holds_block(meta.key):
            # A pin reserved this room: blocks that the policy would keep are evicted as well.
            victims, enough = self._victims(over, self._ranked())
        if not enough:
            raise StoreUnavailable("no block may be evicted")
        await self._evict(victims)

    async def _over_by_free_space(self, need: int) -> int:
        pending = self.budget.pending_bytes
        try:
            free = await self.work.run(self.directory.free_bytes)
        except OSError as error:
            raise self.work.write_failed("statvfs", error) from error
        return self.budget.excess_after_look(free, need, pending, self.clock())

    def _victims(self, over: int, order: Iterable[BlockKey]) -> tuple[list[tuple[BlockKey, Slot]], bool]:
        """The first blocks of `order` that together take `over` bytes, and whether they were enough."""
        chosen: list[tuple[BlockKey, Slot]] = []
        if over <= 0:
            return chosen, True
        for block in order:
            if over <= 0:
                break
            slot = self._slots[block]
            if not slot.in_use and not self._pins.holds_block(block):
                chosen.append((block, slot))
                over -= slot.disk_bytes
        return chosen, over <= 0

    async def most_bytes(self) -> int:
        return self.budget.most_bytes(await self.work.run(self.directory.free_bytes))

    async def drop(self, blocks: Iterable[BlockKey]) -> Evicted:
        """Evict `blocks` now. Those that are being read are evicted by a `sweep` after their release.

        Raises StoreUnavailable: a file could not be removed.
        """
        going: list[tuple[BlockKey, Slot]] = []
        held = later = 0
        for block in blocks:
            slot = self._slots.get(block)
            if slot is None:
                continue
            if self._pins.holds_block(block):
                held += 1
            elif slot.in_use:
                later += 1
                self._doomed[block] = None
            else:
                going.append((block, slot))
        for block, slot in going:
            self._forget(block, slot)
        await self._unlink(going)
        return Evicted(len(going), sum(slot.disk_bytes for _, slot in going), later, held)

    def expel(self, blocks: Iterable[BlockKey]) -> None:
        """Drop `blocks` at once, also pinned ones and those that are being read. Their files are cut, so that readers
        under way get no more bytes of them."""
        going = [(block, slot) for block in blocks if (slot := self._slots.get(block)) is not None]
        for block, slot in going:
            self._forget(block, slot)

        def unlink() -> list[int | OSError]:
            for block, _ in going:
                with suppress(OSError):
                    os.truncate(self.directory.path_of(block), 0)
            return self._unlink_all(going)

        if going:
            self._counted_unlink(unlink).add_done_callback(self._expelled)

    def _expelled(self, done: asyncio.Future[list[int | OSError]]) -> None:
        for result in done.result():
            if isinstance(result, OSError):
                self.whole = False
                self.work.failed("unlink", result)

    async def sweep(self) -> None:
        """Drop the blocks that could not be dropped earlier because they were being read."""
        if self._doomed:
            doomed, self._doomed = self._doomed, {}
            with suppress(StoreUnavailable):  # counted and logged
                await self.drop(doomed)

    async def _evict(self, victims: Sequence[tuple[BlockKey, Slot]]) -> None:
        # There is no await between the choice and these lines, so no reader has begun to read a victim.
        for block, slot in victims:
            self._forget(block, slot)
        self._metrics.evicted_blocks.inc(len(victims))
        await self._unlink(victims)

    async def _unlink(self, gone: Sequence[tuple[BlockKey, Slot]]) -> None:
        """Unlink blocks that the index has already forgotten.

        Raises:
            StoreUnavailable: a file could not be removed. It counts against the budget until the next start's scan.
        """
        if not gone:
            return

        # Shielded: a client that leaves must not make the budget forget bytes that are still on disk.
        try:
            async with asyncio.timeout(disk_threads.PATIENCE_S):
                results = await asyncio.shield(self._counted_unlink(lambda: self._unlink_all(gone)))
        except TimeoutError as error:
            raise self.work.write_failed("unlink", error) from error
        for result in results:
            if isinstance(result, OSError):
                self.whole = False
                raise self.work.write_failed("unlink", result) from result

    def _unlink_all(self, gone: Sequence[tuple[BlockKey, Slot]]) -> list[int | OSError]:
        """The bytes on disk that each unlink freed, or why it failed. Runs in a thread."""
        results: list[int | OSError] = []
        for block, slot in gone:
            try:
                self.directory.remove(self.directory.raw_path_of(block))
                results.append(slot.disk_bytes)
            except OSError as error:
                results.append(error)
        return results

    def _counted_unlink(self, unlink: Callable[[], list[int | OSError]]) -> asyncio.Future[list[int | OSError]]:
        future = self.work.begin(unlink)
        self._leaving.add(future)
        future.add_done_callback(self._left)
        return future

    def _left(self, done: asyncio.Future[list[int | OSError]]) -> None:
        self._leaving.discard(done)
        self.budget.give_back(sum(result for result in done.result() if isinstance(result, int)))

    # -- writing ------------------------------------------------------------------------------------------------

    async def create(self, meta: BlockMeta, *, hashed: bool = True) -> DiskBlockWriter:
        header = block_file.Header(meta)
        if header.length > block_file.HEADER_BYTES_MAX:
            raise StoreUnavailable("the object's metadata is too long for a block header")
        need = header.disk_bytes
        # Before the wait: on a disk that hangs, only the first reader waits to find that out.
        self._check_admits()
        if not self._reserve_at_once(need):
            try:
                async with asyncio.timeout(disk_threads.PATIENCE_S):
                    # A thread of an aborted writer may be renaming the same block into place; it is then removed again.
                    await self.work.cleaned(meta.key)
                    await self.reserve(need, meta)
            except TimeoutError as error:
                raise self.work.write_failed("create", error) from error
        path = self.directory.raw_tmp_path_of(meta.key, next(self._tmp_numbers))
        kind = None if self.contents is None or not hashed else self.contents.kind_for(meta)
        confirmed_at = None if self.confirmed_at is None else self.confirmed_at(meta)
        return DiskBlockWriter(self.directory, self.work, self, header, path, kind, confirmed_at)

    def landed(
        self, meta: BlockMeta, disk_bytes: int, file: OpenFile, kind: Kind | None, content: bytes | None
    ) -> None:
        """A block was renamed into place: its reservation becomes an entry of the index."""
        self.budget.landed(disk_bytes)
        block = meta.key
        if (old := self._slots.get(block)) is not None:
            # The rename replaced its file.
            self._forget(block, old)
            self.budget.give_back(old.disk_bytes)
        self._pins.block_came(meta.version, block.version_id)
        self._keep_open(*self._enter(block, meta, disk_bytes, verified=True), file)
        if self.contents is not None and kind is not None and content is not None:
            self.contents.came(meta, kind, content)

    def released(self, disk_bytes: int, *, left_behind: bool) -> None:
        """A writer gave its block up. `left_behind`: a file without an index entry lies in the directory."""
        self.whole &= not left_behind
        self.budget.unreserve(disk_bytes)

    # -- recovery -----------------------------------------------------------------------------------------------

    def adopt(self, meta: BlockMeta, disk_bytes: int) -> bool:
        """Index a counted file, to be verified at its first use; False: the index already has that block."""
        block = meta.key
        if block in self._slots:
            # The block was written anew since the scan began: the rename replaced the file that the scan counted.
            self.budget.give_back(disk_bytes)
            return False
        self._enter(block, meta, disk_bytes, verified=False)
        return True

    async def trim(self) -> None:
        """Evict down to the budget, for a directory that was filled under a larger one."""
        over = self.budget.used_bytes - self.budget.capacity_bytes
        if over <= 0:
            return
        # The budget is hard: blocks that the policy would keep are evicted as well, after all others.
        victims, _ = self._victims(over, self._ranked())
        with suppress(StoreUnavailable):  # counted and logged
            await self._evict(victims)

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all files and unlock the directory. No caller may read or write any more."""
        for block, slot in list(self._slots.items()):
            self._close(block, slot)
        self.work.threads.shutdown(wait=True)
        self.directory.close()
