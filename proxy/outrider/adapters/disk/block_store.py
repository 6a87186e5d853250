"""The block store on local disks: makes room for new blocks, and admits them. `block_reads` has its reads.

There is one index and one policy, however many disks there are. A new block goes to the disk that the rendezvous says
among those that work, and makes room among the blocks of that disk; where it cannot be put there, to the next one.

All state lives on the event loop's thread. Files are touched by plain functions (`block_io`) in the store's own
threads (`disk_threads`).

A crash leaves orphan files at worst, never an index entry without its file: a block enters the index after its rename,
and leaves it before its unlink. Bytes are reserved, within the budget and above the free-space floor, before a byte is
written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, islice

from outrider.adapters.disk import disk_threads
from outrider.adapters.disk.block_reads import BlockReads
from outrider.adapters.disk.block_writer import DiskBlockWriter
from outrider.adapters.disk.disk import Disk, Stored, most_bytes_on, working
from outrider.adapters.disk.leases import OpenFile
from outrider.adapters.disk.slots import Slot
from outrider.core.cache import block_file
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.pins import Pins
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.errors import StoreUnavailable
from outrider.core.model import BlockKey
from outrider.core.rendezvous import Rendezvous
from outrider.core.s3.checksums import Kind
from outrider.metrics import Metrics
from outrider.ports import Clock, Evicted

log = logging.getLogger(__name__)

_PERSON = b"outrider disks"
# As many blocks are forgotten in some milliseconds.
_FORGOTTEN_AT_ONCE = 1000


class DiskBlockStore(BlockReads):
    """`BlockStore` in directories that are locked for this process, one on each disk. `recovery` rebuilds its index
    after a start."""

    def __init__(
        self, disks: Sequence[Disk], policy: EvictionPolicy, metrics: Metrics, clock: Clock, *, open_files: int = 256,
        verify_always: bool = False, pins: Pins | None = None,
    ) -> None:  # fmt: skip
        """`open_files`: how many idle block files stay open. `pins` None: nothing is pinned."""
        super().__init__(policy, open_files, metrics, verify_always=verify_always)
        self.disks = disks
        self.clock = clock
        self.weigh()
        self._pins = Pins(int, lambda version: b"") if pins is None else pins
        self._tmp_numbers = count()
        # True once the snapshot is being written: the next start would not know of a block that lands later.
        self.stopping = False
        # When the origin confirmed the version of a block, in seconds since 1970: that becomes the time of its file.
        # None: the time at which the file was written remains.
        self.confirmed_at: Callable[[BlockMeta], float] | None = None
        self.on_reserved: Callable[[BlockMeta, int], None] | None = None
        """Called when `count` bytes are reserved for a block; when the reservation ends, `count` is negative."""
        # Blocks to be dropped once no reader uses them.
        self._doomed: dict[BlockKey, None] = {}
        metrics.store_capacity_bytes.set_function(lambda: self.capacity_bytes)
        metrics.store_bytes.set_function(lambda: self.used_bytes)
        metrics.store_blocks.set_function(lambda: len(self))
        metrics.store_proved_bytes.set_function(lambda: self.proved_bytes)

    def weigh(self) -> None:
        """Deal new blocks by the capacities of now. Blocks that are here stay where they are."""
        self._rendezvous = Rendezvous([(disk.name, disk.budget.capacity_bytes) for disk in self.disks], _PERSON)

    @property
    def used_bytes(self) -> int:
        """Bytes that count against the budget: blocks, reservations, and files that the scan has not read yet."""
        return sum([disk.budget.used_bytes for disk in self.disks])

    @property
    def capacity_bytes(self) -> int:
        return sum([disk.budget.capacity_bytes for disk in self.disks])

    @property
    def room_bytes(self) -> int:
        return sum([disk.budget.room_bytes for disk in self.working_disks])

    @property
    def working_disks(self) -> Sequence[Disk]:
        return working(self.disks)

    # -- room ---------------------------------------------------------------------------------------------------

    def _lost(self, block: BlockKey, slot: Slot) -> None:
        self._forget(block, slot)
        slot.disk.budget.give_back(slot.disk_bytes)

    def _unread(self, block: BlockKey, slot: Slot, error: OSError) -> None:
        # A single disk keeps it until it works again. Beside others, the next reader has it filled and kept on another.
        if len(self.disks) > 1 and not isinstance(error, TimeoutError) and self._slots.get(block) is slot:
            self._forget(block, slot)
            slot.disk.left_behind[block] = slot.disk_bytes

    async def _remove(self, block: BlockKey, slot: Slot) -> None:
        self._forget(block, slot)
        with suppress(StoreUnavailable):  # counted and logged
            await self._unlink(slot.disk, [slot.stored(block)])

    async def reserve(self, disk: Disk, need: int, meta: BlockMeta) -> None:
        """Take `need` bytes of the budget for a block; its victims are off the disk when this returns.

        Raises:
            StoreUnavailable: no further block may be evicted, or the disk failed a moment ago.
        """
        self._check_admits(disk)
        # One reservation at a time: two that saw the same full budget would each evict for both.
        async with disk.making_room:
            await self._make_room(disk, need, meta)
            disk.reserve(need)

    def _check_admits(self, disk: Disk) -> None:
        """Raises StoreUnavailable: no block is written now, whether there is room or not."""
        if self.stopping:
            raise StoreUnavailable("the proxy stops")
        if not disk.admitting:
            raise StoreUnavailable("the directory is being scanned")
        if disk.work.is_failing:
            raise StoreUnavailable("the disk failed a moment ago")

    async def _make_room(self, disk: Disk, need: int, meta: BlockMeta) -> None:
        if disk.leaving:
            # The room of these files is not free yet. Besides, a block that is written anew must not be removed by an
            # unlink that was requested for its predecessor.
            await asyncio.wait(disk.leaving)
        over = disk.budget.excess(need, self.clock())
        if over is None:
            over = await self._over_by_free_space(disk, need)
        if over <= 0:
            return
        self._note_reads()
        victims, enough = self._victims(disk, over, self._policy.victims(meta.key, meta.version))
        if not enough and self._pins.holds_block(meta.key):
            # A pin reserved this room: blocks that the policy would keep are evicted as well.
            victims, enough = self._victims(disk, over, self._ranked())
        if not enough:
            disk.found_no_room(need)
            raise StoreUnavailable("no block may be evicted")
        await self._evict(disk, victims)

    async def _over_by_free_space(self, disk: Disk, need: int) -> int:
        pending = self._pending_beside(disk)
        try:
            free = await disk.work.run(disk.directory.free_bytes)
        except OSError as error:
            raise disk.work.write_failed("statvfs", error) from error
        return disk.budget.excess_after_look(free, need, max(pending, self._pending_beside(disk)), self.clock())

    def _pending_beside(self, disk: Disk) -> int:
        """The bytes that are reserved on the file system of `disk`."""
        return sum([each.budget.pending_bytes for each in self.disks if each.is_beside(disk)])

    def _victims(self, disk: Disk, over: int, order: Iterable[BlockKey]) -> tuple[list[tuple[BlockKey, Slot]], bool]:
        """The first blocks of `order` on `disk` that together take `over` bytes, and whether they were enough."""
        chosen: list[tuple[BlockKey, Slot]] = []
        for block in order:
            if over <= 0:
                break
            slot = self._slots[block]
            if slot.disk is disk and not slot.in_use and not self._pins.holds_block(block):
                chosen.append((block, slot))
                over -= slot.disk_bytes
        return chosen, over <= 0

    async def most_bytes(self) -> int:
        return await most_bytes_on(self.working_disks)

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
        await self._unlink_from_all(going)
        return Evicted(len(going), sum(slot.disk_bytes for _, slot in going), later, held)

    def expel(self, blocks: Iterable[BlockKey]) -> None:
        """Drop `blocks` at once, also pinned ones and those that are being read. Their files are cut, so that readers
        under way get no more bytes of them."""
        going = [(block, slot) for block in blocks if (slot := self._slots.get(block)) is not None]
        for block, slot in going:
            slot.lent = True
            self._forget(block, slot)

        for disk, files in _by_disk(going):
            disk.unlink(files).add_done_callback(partial(self._expelled, disk))

    def _expelled(self, disk: Disk, done: asyncio.Future[list[int | OSError]]) -> None:
        for result in done.result():
            if isinstance(result, OSError):
                disk.whole = False
                disk.work.failed("unlink", result)

    async def sweep(self) -> None:
        """Drop the blocks that could not be dropped earlier because they were being read, and what was left behind on
        disks that work again."""
        for disk in self.disks:
            disk.tidy()
        if self._doomed:
            doomed, self._doomed = self._doomed, {}
            with suppress(StoreUnavailable):  # counted and logged
                await self.drop(doomed)

    async def _evict(self, disk: Disk, victims: Sequence[tuple[BlockKey, Slot]]) -> None:
        # There is no await between the choice and these lines, so no reader has begun to read a victim.
        for block, slot in victims:
            self._forget(block, slot)
        self._metrics.evicted_blocks.inc(len(victims))
        await self._unlink(disk, [slot.stored(block) for block, slot in victims])

    async def _unlink_from_all(self, gone: Sequence[tuple[BlockKey, Slot]]) -> None:
        """As `_unlink`, of files on any disk; one that fails keeps no other one from it."""
        failed: StoreUnavailable | None = None
        for disk, files in _by_disk(gone):
            try:
                await self._unlink(disk, files)
            except StoreUnavailable as error:
                failed = error
        if failed is not None:
            raise failed

    async def _unlink(self, disk: Disk, gone: Sequence[Stored]) -> None:
        """Unlink blocks that the index has already forgotten.

        Raises:
            StoreUnavailable: a file could not be removed. It counts against the budget until the next start's scan.
        """
        if not gone:
            return

        # Shielded: a client that leaves must not make the budget forget bytes that are still on disk.
        try:
            async with asyncio.timeout(disk_threads.PATIENCE_S):
                results = await asyncio.shield(disk.unlink(gone))
        except TimeoutError as error:
            raise disk.work.write_failed("unlink", error) from error
        for result in results:
            if isinstance(result, OSError):
                disk.whole = False
                raise disk.work.write_failed("unlink", result) from result

    # -- writing ------------------------------------------------------------------------------------------------

    async def create(self, meta: BlockMeta, *, hashed: bool = True) -> DiskBlockWriter:
        header = block_file.Header(meta)
        if header.length > block_file.HEADER_BYTES_MAX:
            raise StoreUnavailable("the object's metadata is too long for a block header")
        failed: StoreUnavailable | None = None
        for disk in self._in_order(meta.key):
            try:
                await self._reserve_on(disk, header.disk_bytes, meta)
            except StoreUnavailable as error:
                failed = error
                continue
            if self.on_reserved is not None:
                self.on_reserved(meta, header.disk_bytes)
            path = disk.directory.raw_tmp_path_of(meta.key, next(self._tmp_numbers))
            kind = None if self.contents is None or not hashed else self.contents.kind_for(meta)
            confirmed_at = None if self.confirmed_at is None else self.confirmed_at(meta)
            return DiskBlockWriter(disk, self, header, path, kind, confirmed_at)
        assert failed is not None
        raise failed

    def _in_order(self, block: BlockKey) -> Sequence[Disk]:
        """The disks in the order in which they are to get the block."""
        if len(self.disks) == 1:
            return self.disks
        order = self._rendezvous.order(int.from_bytes(block_file.block_name(block), "big"))
        return working([self.disks[place] for place in order])

    async def _reserve_on(self, disk: Disk, need: int, meta: BlockMeta) -> None:
        """As `reserve`, for as long as a disk is waited for."""
        # Before the wait: on a disk that hangs, only the first reader waits to find that out.
        self._check_admits(disk)
        if meta.key not in disk.left_behind and disk.reserve_at_once(need):
            return
        try:
            async with asyncio.timeout(disk_threads.PATIENCE_S):
                # A thread of an aborted writer may be renaming the same block into place; it is then removed again.
                await disk.work.cleaned(meta.key)
                await disk.unlink_older(meta.key)
                await self.reserve(disk, need, meta)
        except TimeoutError as error:
            raise disk.work.write_failed("create", error) from error

    def landed(
        self, disk: Disk, meta: BlockMeta, disk_bytes: int, file: OpenFile, kind: Kind | None, content: bytes | None
    ) -> None:
        """A block was renamed into place: its reservation becomes an entry of the index."""
        disk.written(disk_bytes)
        if self.on_reserved is not None:
            self.on_reserved(meta, -disk_bytes)
        block = meta.key
        if (old := self._slots.get(block)) is not None:
            self._forget(block, old)
            if old.disk is disk:
                # The rename replaced its file.
                disk.budget.give_back(old.disk_bytes)
            else:
                # Its disk did not give it.
                old.disk.left_behind[block] = old.disk_bytes
        if self._pins.held:
            self._pins.block_cached(meta.version, block.version_id)
        row = self._enter(disk, block, meta, disk_bytes, verified=True)
        self._keep_open(block, self._slots.slot(row), file)
        if self.contents is not None and kind is not None and content is not None:
            self.contents.hashed(meta, kind, content)

    def released(self, disk: Disk, meta: BlockMeta, disk_bytes: int, *, left_behind: bool) -> None:
        """A writer gave its block up. `left_behind`: a file without an index entry lies in the directory."""
        disk.whole &= not left_behind
        disk.unreserve(disk_bytes)
        if self.on_reserved is not None:
            self.on_reserved(meta, -disk_bytes)

    # -- recovery -----------------------------------------------------------------------------------------------

    def adopt(self, disk: Disk, meta: BlockMeta, disk_bytes: int) -> bool:
        """Index a counted file, to be verified at its first use; False: the index already has that block."""
        block = meta.key
        slot = self._slots.get(block)
        if slot is None:
            self._enter(disk, block, meta, disk_bytes, verified=False)
        elif slot.disk is disk:
            # The block was written anew since the scan began: the rename replaced the file that the scan counted.
            disk.budget.give_back(disk_bytes)
        else:
            # It was filled again while this disk was away.
            disk.left_behind[block] = disk_bytes
        return slot is None

    async def trim(self, disk: Disk) -> None:
        """Evict down to the budget, for a directory that was filled under a larger one."""
        over = disk.budget.used_bytes - disk.budget.capacity_bytes
        if over <= 0:
            return
        # The budget is hard: blocks that the policy would keep are evicted as well, after all others.
        victims, _ = self._victims(disk, over, self._ranked())
        with suppress(StoreUnavailable):  # counted and logged
            await self._evict(disk, victims)

    async def clear(self, disk: Disk) -> None:
        """Forget all blocks of `disk`, in whose place another one lies; their files are not touched. The caller has
        stopped to admit new ones."""
        await disk.quiet.wait()
        gone = iter(self._on(disk))
        while batch := list(islice(gone, _FORGOTTEN_AT_ONCE)):
            for block, slot in batch:
                self._forget(block, slot)
            await asyncio.sleep(0)
        while disk.leaving:
            await asyncio.wait(disk.leaving)
        disk.left_behind.clear()
        disk.budget.give_back(disk.budget.used_bytes)
        disk.whole = True

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all files and unlock the directory. No caller may read or write any more."""
        for block, slot in list(self._slots.open.items()):
            self._close(block, slot)
        for disk in self.disks:
            disk.work.threads.shutdown(wait=True)
            disk.directory.close()


def _by_disk(slots: Iterable[tuple[BlockKey, Slot]]) -> Iterable[tuple[Disk, list[Stored]]]:
    found: dict[Disk, list[Stored]] = {}
    for block, slot in slots:
        found.setdefault(slot.disk, []).append(slot.stored(block))
    return found.items()
