"""The block store on local disk: reads blocks, makes room for new ones, and admits them.

All state lives on the event loop's thread. Files are touched by plain functions (`block_io`) in the store's own
threads (`disk_threads`).

A crash leaves orphan files at worst, never an index entry without its file: a block enters the index after its rename,
and leaves it before its unlink. Bytes are reserved, within the budget and above the free-space floor, before a byte is
written.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from outrider import pagecache
from outrider.adapters.disk import block_io, disk_threads
from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.block_index import BlockIndex
from outrider.adapters.disk.block_writer import DiskBlockWriter
from outrider.adapters.disk.disk_threads import DiskThreads
from outrider.adapters.disk.leases import FileLease, OpenFile, Slot
from outrider.core.cache import block_file
from outrider.core.cache.block_file import BadBlock, BlockMeta
from outrider.core.cache.disk_budget import DiskBudget
from outrider.core.cache.pins import Pins
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.errors import StoreUnavailable
from outrider.core.model import BlockKey
from outrider.core.s3.checksums import Kind
from outrider.metrics import Metrics
from outrider.ports import Clock, Contents, Evicted, Lease

log = logging.getLogger(__name__)

# Verifying a block may take this much longer per byte: a large block on a slow disk is no hung disk.
_SLOWEST_BYTES_PER_S = 10e6
# A block up to this size is verified on the loop, if its pages are in memory: the checksum takes less than the hop to a
# thread and back.
_AT_ONCE_BYTES_MAX = 256 * 1024


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


class DiskBlockStore(BlockIndex):
    """`BlockStore` in one directory, which is locked for this process. `recovery` rebuilds its index after a start."""

    def __init__(
        self, directory: BlockDir, policy: EvictionPolicy, limits: Limits, metrics: Metrics, clock: Clock,
        *, verify_always: bool = False, pins: Pins | None = None,
    ) -> None:  # fmt: skip
        """`pins` None: nothing is pinned."""
        super().__init__(policy, limits.open_files, verify_always=verify_always)
        self.directory = directory
        self.clock = clock
        self.budget = DiskBudget(limits.capacity_bytes, limits.min_free_bytes)
        self.work = DiskThreads(metrics, clock)
        self._pins = Pins(int, lambda version: b"") if pins is None else pins
        self._metrics = metrics
        self._tmp_numbers = count()
        # False until the scan knows the sizes in the directory: the budget could not be kept before.
        self.admitting = True
        # True once the snapshot is being written: the next start would not know of a block that lands later.
        self.stopping = False
        # False: a file lies in the directory that only a scan would find, so no snapshot may be written.
        self.whole = True
        self._making_room = asyncio.Lock()
        # Blocks to be dropped once no reader uses them.
        self._doomed: dict[BlockKey, None] = {}
        self.on_bad: list[Callable[[BlockMeta, str], None]] = []
        self.contents: Contents | None = None
        """Hears of the content hash of each block that is written, or verified. None: nobody does."""
        self._leaving: set[asyncio.Future[list[int | OSError]]] = set()
        self._verifying: dict[BlockKey, asyncio.Task[bool]] = {}
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

    # -- reading ------------------------------------------------------------------------------------------------

    async def lease(self, block: BlockKey) -> FileLease | None:
        if (lease := self.lease_open(block)) is not None:
            return lease
        slot = self._slots.get(block)
        if slot is not None and self._is_unverified(slot):
            if not await self._is_verified_now(block):
                return None
            lease = self.lease_open(block)
        if lease is None and (lease := await self._open_block(block)) is not None:
            self._policy.read(block)
        return lease

    def lease_at_once(self, block: BlockKey) -> FileLease | None:
        slot = self._slots.get(block)
        if slot is None or not slot.verified or self._verify_always:
            return None
        file = slot.file
        lease = None if file is None else FileLease.try_take(file)
        if lease is None and (opened := self._opened_at_once(block, slot)) is not None:
            # Closed when the lease ends: only the loop's thread decides which files stay open.
            lease = FileLease(opened)
            opened.doom()
        if lease is not None:
            self._reads.append(block)
        return lease

    def open_file(self, block: BlockKey) -> OpenFile | None:
        slot = self._slots.get(block)
        if slot is None or not slot.verified or self._verify_always:
            return None
        if slot.file is not None:
            self._reads.append(block)
        return slot.file

    def lease_open(self, block: BlockKey) -> FileLease | None:
        slot = self._slots.get(block)
        if slot is not None and slot.file is None and (opened := self._opened_at_once(block, slot)) is not None:
            self._keep_open(block, slot, opened)
        lease = self.lease_at_once(block)
        if lease is not None:
            self._note_reads()
        return lease

    def page_in(self, block: BlockKey, start: int, count: int) -> Callable[[], None] | None:
        slot = self._slots.get(block)
        # Where the kernel cannot say what is in memory, paging in would gain nothing.
        if slot is None or not self.directory.can_probe_memory or not self._is_trusted(slot):
            return None
        return partial(block_io.page_in, self.directory.raw_path_of(block), start, count)

    def verify_at_once(self, block: BlockKey) -> bool:
        slot = self._slots.get(block)
        if slot is None or slot.disk_bytes > _AT_ONCE_BYTES_MAX or not self._is_unverified(slot):
            return False
        meta = slot.meta(block)
        if self.contents is not None and not slot.proved and self.contents.kind_for(meta) is not None:
            return False
        if not self.directory.can_probe_memory:
            return False
        opened = block_io.open_known_block(self.directory.raw_path_of(block), meta, verify=True)
        if opened is None:
            return False
        file = OpenFile(*opened, stays_in_memory=self.directory.stays_in_memory)
        self._lease_opened(block, slot, file, keep=True).release()
        return True

    def prepare(self, block: BlockKey) -> Callable[[], Coroutine[Any, Any, None]] | None:
        slot = self._slots.get(block)
        return None if slot is None or not self._is_unverified(slot) else partial(self._prepare, block)

    async def _prepare(self, block: BlockKey) -> None:
        await self._is_verified_now(block)

    async def _is_verified_now(self, block: BlockKey) -> bool:
        """Verify the block, once for all who wait for it. It goes on without them: the next reader has it then."""
        task = self._verifying.get(block)
        if task is None:
            task = self._verifying[block] = asyncio.create_task(self._verify(block), name="verify")
            task.add_done_callback(lambda _: self._verifying.pop(block))
        return await asyncio.shield(task)

    async def _verify(self, block: BlockKey) -> bool:
        lease = await self._open_block(block)
        if lease is not None:
            lease.release()
        return lease is not None

    def _opened_at_once(self, block: BlockKey, slot: Slot) -> OpenFile | None:
        """The file of a verified block, if it can be opened without waiting for the disk. Callable from any thread.

        Jobs read more small blocks in turn than files may stay open, and a hit that waits for a thread takes six times
        as long.
        """
        if not self.directory.can_probe_memory or not self._is_trusted(slot):
            return None
        opened = block_io.open_known_block(self.directory.raw_path_of(block), slot.meta(block))
        if opened is None:
            return None
        return OpenFile(*opened, stays_in_memory=self.directory.stays_in_memory)

    def _is_trusted(self, slot: Slot) -> bool:
        return slot.verified and not self._verify_always and not self.work.is_hung

    def _is_unverified(self, slot: Slot) -> bool:
        """One verification will do for all reads."""
        return not (slot.verified or self._verify_always or self.work.is_hung)

    def digest(self, lease: Lease) -> str:
        # The header was read when the file was opened, so it is most likely in memory.
        if self.directory.can_probe_memory:
            header = pagecache.read_known(lease.block.fd, block_file.DIGEST_BYTES)
            return "" if header is None else block_file.digest_of(header)
        try:
            return block_file.digest_of(os.pread(lease.block.fd, block_file.DIGEST_BYTES, 0))
        except OSError:
            return ""

    def doubt(self, block: BlockKey) -> None:
        slot = self._slots.get(block)
        # The file of a block that was expelled is cut on purpose.
        if slot is not None:
            self.work.failed("send", OSError(errno.EIO, "a block file gave fewer bytes than it has"))
            slot.verified = False
            self._close(block, slot)

    async def verify(self, block: BlockKey, *, again: bool = True) -> int:
        """Verify a block for the scrubber; the policy does not count it as a read. Returns its bytes on disk.

        0: the block is gone, or was verified before and `again` is False.
        """
        slot = self._slots.get(block)
        if slot is None or (slot.verified and not again):
            return 0
        lease = await self._open_block(block, scrub=True)
        if lease is not None:
            lease.release()
        if lease is not None or self._slots.get(block) is not slot:
            self._metrics.scrubbed_blocks.inc()
        return slot.disk_bytes

    def scrubbed(self) -> None:
        """The scrubber has finished a round over all blocks."""
        self._metrics.scrub_rounds.inc()

    async def _open_block(self, block: BlockKey, *, scrub: bool = False) -> FileLease | None:
        slot = self._slots.get(block)
        if slot is None:
            return None
        verify = scrub or self._verify_always or not slot.verified
        if self.work.is_hung:
            return None
        slot.busy += 1
        path = self.directory.path_of(block)
        contents = self.contents if verify and not slot.proved else None
        kind = None if contents is None else contents.kind_for(slot.meta(block))
        content = None if kind is None else kind.begin()
        patience_s = None if scrub else disk_threads.PATIENCE_S + slot.disk_bytes / _SLOWEST_BYTES_PER_S
        try:
            async with asyncio.timeout(patience_s):
                opened = await self.work.run_opening(
                    lambda: OpenFile(
                        *block_io.open_block(path, block, verify, keep_pages=not scrub, content=content),
                        stays_in_memory=self.directory.stays_in_memory,
                    )
                )
        except FileNotFoundError as error:
            self.work.failed("open", error)
            # Another reader may have found this out first; the bytes are given back once.
            if self._slots.get(block) is slot:
                self._forget(block, slot)
                self.budget.give_back(slot.disk_bytes)
            return None
        except BadBlock as error:
            await self._discard(block, slot, error)
            return None
        except OSError as error:
            # An error of the disk does not mean that the block is bad: keep it until the disk works again.
            self.work.open_failed(error)
            return None
        finally:
            slot.busy -= 1
        if contents is not None and kind is not None and content is not None and self._slots.get(block) is slot:
            contents.came(slot.meta(block), kind, content.digest())
            if self._slots.get(block) is not slot:
                # The bytes are not the bucket's, and the block was expelled.
                opened.doom()
                return None
        return self._lease_opened(block, slot, opened, keep=not scrub)

    def _lease_opened(self, block: BlockKey, slot: Slot, opened: OpenFile, *, keep: bool) -> FileLease:
        slot.verified = True
        own = not keep or self._slots.get(block) is not slot or slot.file is not None
        lease = FileLease(opened, slot if own else None)
        if own:
            # The block was discarded meanwhile, or another reader opened it first: this file ends with the lease.
            opened.doom()
        else:
            self._keep_open(block, slot, opened)
        return lease

    async def _discard(self, block: BlockKey, slot: Slot, error: BadBlock) -> None:
        """Drop a bad block: the read becomes a miss, the file is deleted, and the event is counted."""
        if self._slots.get(block) is not slot:
            return
        self._metrics.bad_blocks.inc()
        log.warning("bad block dropped", extra={"object": str(slot.edition.version.ref), "block": block.index,
                                                "error": str(error)})  # fmt: skip
        for report in self.on_bad:
            report(slot.meta(block), str(error))
        self._forget(block, slot)
        with suppress(StoreUnavailable):  # counted and logged; the caller has its miss either way
            await self._unlink([(block, slot)])

    # -- room ---------------------------------------------------------------------------------------------------

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
                self.directory.remove(self.directory.path_of(block))
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
        try:
            async with asyncio.timeout(disk_threads.PATIENCE_S):
                # A thread of an aborted writer may be renaming the same block into place; it is then removed again.
                await self.work.cleaned(meta.key)
                await self.reserve(need, meta)
        except TimeoutError as error:
            raise self.work.write_failed("create", error) from error
        path = self.directory.tmp / f"{block_io.file_name(meta.key)}.{next(self._tmp_numbers)}"
        kind = None if self.contents is None or not hashed else self.contents.kind_for(meta)
        return DiskBlockWriter(self.directory, self.work, self, header, path, kind)

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
