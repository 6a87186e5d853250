"""The block store on local disk: index, budget, leases, eviction. All state lives on the event loop's thread; files are
touched by plain functions (`blockdir`) in the store's own threads.

Order of things, so that a crash leaves orphans and never a dangling or half entry: index after rename, index before
unlink. Budget and free-space floor are taken before a byte is written.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from outrider.adapters import blockdir
from outrider.adapters.blockdir import BlockDir
from outrider.adapters.diskwriter import DiskBlockWriter
from outrider.adapters.leases import Edition, FileLease, OpenFile, Slot, doom_result
from outrider.core import blockfile
from outrider.core.blockfile import BadBlock, BlockMeta
from outrider.core.errors import StoreUnavailable
from outrider.core.eviction import Policy
from outrider.core.model import BlockKey, ObjectRef
from outrider.core.pins import Pins
from outrider.metrics import Metrics
from outrider.ports import Clock, Evicted

log = logging.getLogger(__name__)

T = TypeVar("T")

# Threads only wait for the disk; more than a few do not make one disk faster.
_THREADS = 8
# After the disk failed a write, do not ask it again for this long: reads go on from the origin meanwhile.
_SICK_PAUSE_S = 5.0
_LOG_PAUSE_S = 60.0
# So that a large block may be verified on a slow disk.
_SLOWEST_BYTES_PER_S = 10e6
# Free space is looked at again after this long: each look costs the first byte of a cold read a turn of a thread.
_FREE_KNOWN_S = 1.0
# Reads that the policy hears of late; of more than these it hears of the last.
_READS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """`capacity_bytes` bounds what the store takes, headers and reservations included; `min_free_bytes` what it
    leaves to others on the file system; `open_files` how many idle block files stay open."""

    capacity_bytes: int
    min_free_bytes: int = 0
    open_files: int = 256

    def __post_init__(self) -> None:
        if self.capacity_bytes < 0 or self.min_free_bytes < 0 or self.open_files < 1:
            raise ValueError(f"impossible limits: {self}")


class DiskStore:
    """`BlockStore` in one directory, locked for this process. Rebuilding the index is `recovery`'s work."""

    def __init__(
        self, directory: BlockDir, policy: Policy, limits: Limits, metrics: Metrics, clock: Clock,
        *, verify_always: bool = False, pins: Pins | None = None,
    ) -> None:  # fmt: skip
        """`pins` None: nothing is pinned."""
        self.directory = directory
        self._pins = Pins(int, lambda version: b"") if pins is None else pins
        self._policy = policy
        self._limits = limits
        self._metrics = metrics
        self.clock = clock
        self._verify_always = verify_always
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="outrider-disk")
        self._slots: dict[BlockKey, Slot] = {}
        self._editions: dict[bytes, Edition] = {}
        self._open: OrderedDict[BlockKey, None] = OrderedDict()
        self._used_bytes = 0
        # Reserved and maybe not yet on disk: free space that statvfs still shows but that is spoken for.
        self._pending_bytes = 0
        self._tmp_numbers = count()
        # Blocks read since the policy was last told: it lives on one thread, hits may come from several.
        self._reads: deque[BlockKey] = deque()
        # The last look at the free space: when, what it showed beyond the floor and all that was spoken for, and what
        # was reserved since.
        self._looked_at = float("-inf")
        self._free_beyond_floor = 0
        self._reserved_since_look = 0
        self._sick_until = 0.0
        self._hung_until = 0.0
        self._log_after: dict[str, float] = {}
        # Until the scan knows what lies in the directory, nothing is admitted: the budget could not be kept.
        self.admitting = True
        # False: a file lies there that the next start would not know of without a scan.
        self.whole = True
        self._making_room = asyncio.Lock()
        # To be dropped once nobody reads them.
        self._doomed: dict[BlockKey, None] = {}
        self.removals = 0
        self.on_bad: list[Callable[[BlockMeta, str], None]] = []
        self._leaving: set[asyncio.Future[list[int | OSError]]] = set()
        self._cleaning: set[asyncio.Task[None]] = set()
        metrics.store_capacity_bytes.set(limits.capacity_bytes)

    @property
    def used_bytes(self) -> int:
        """Bytes that count against the budget: blocks, reservations, and files that the scan has yet to read."""
        return self._used_bytes

    @property
    def capacity_bytes(self) -> int:
        return self._limits.capacity_bytes

    @property
    def room_bytes(self) -> int:
        return max(0, self._limits.capacity_bytes - self._used_bytes)

    def __len__(self) -> int:
        return len(self._slots)

    def has(self, block: BlockKey) -> bool:
        return block in self._slots

    def blocks(self) -> list[BlockMeta]:
        """All blocks, first victim first; those that the policy does not rank come last."""
        self._note_reads()
        ranked = dict.fromkeys(self._policy.victims())
        ranked.update(dict.fromkeys(self._slots))
        return [self._slots[block].meta(block) for block in ranked if block in self._slots]

    def leases(self) -> int:
        """How many reads are under way of the blocks that are here."""
        return sum(slot.file.leases for slot in self._slots.values() if slot.file is not None)

    def present(self) -> list[BlockKey]:
        return list(self._slots)

    def blocks_of(self, wanted: Callable[[ObjectRef], bool]) -> list[BlockKey]:
        """All blocks of the objects that are `wanted`, whatever their version."""
        judged: dict[ObjectRef, bool] = {}
        found = []
        for block, slot in self._slots.items():
            ref = slot.edition.version.ref
            if (its := judged.get(ref)) is None:
                its = judged[ref] = wanted(ref)
            if its:
                found.append(block)
        return found

    def is_verified(self, block: BlockKey) -> bool:
        slot = self._slots.get(block)
        return slot is not None and slot.verified

    def unverified(self) -> list[BlockKey]:
        return [block for block, slot in self._slots.items() if not slot.verified]

    # -- reading ------------------------------------------------------------------------------------------------

    def lease_open(self, block: BlockKey) -> FileLease | None:
        lease = self.lease_at_once(block)
        if lease is not None:
            self._note_reads()
        return lease

    def lease_at_once(self, block: BlockKey) -> FileLease | None:
        slot = self._slots.get(block)
        if slot is None or not slot.verified or self._verify_always:
            return None
        file = slot.file
        lease = None if file is None else FileLease.try_take(file)
        if lease is not None:
            self._reads.append(block)
            if len(self._reads) >= _READS_MAX:
                self._reads.popleft()
        return lease

    def _note_reads(self) -> None:
        """Tell the policy, on its own thread, what was read since it was last told."""
        while self._reads:
            block = self._reads.popleft()
            if block in self._slots:
                self._policy.read(block)
            if block in self._open:
                self._open.move_to_end(block)

    async def lease(self, block: BlockKey) -> FileLease | None:
        if (lease := self.lease_open(block)) is None and (lease := await self._opened(block)) is not None:
            self._policy.read(block)
        return lease

    def doubt(self, block: BlockKey) -> None:
        self.trouble("send", OSError(errno.EIO, "a block file gave fewer bytes than it has"))
        slot = self._slots.get(block)
        if slot is not None:
            slot.verified = False
            self._close(block, slot)

    async def verify(self, block: BlockKey, *, again: bool = True) -> int:
        """The scrubber's look at a block, to the policy no read; how many bytes it has. 0: it is gone, or was verified
        before and `again` is False."""
        slot = self._slots.get(block)
        if slot is None or (slot.verified and not again):
            return 0
        lease = await self._opened(block, scrub=True)
        if lease is not None:
            lease.release()
        if lease is not None or self._slots.get(block) is not slot:
            self._metrics.scrubbed_blocks.inc()
        return slot.disk_bytes

    def scrubbed(self) -> None:
        """The scrubber has been through all blocks."""
        self._metrics.scrub_rounds.inc()

    async def _opened(self, block: BlockKey, *, scrub: bool = False) -> FileLease | None:
        slot = self._slots.get(block)
        if slot is None:
            return None
        verify = scrub or self._verify_always or not slot.verified
        if self.clock() < self._hung_until:
            return None
        slot.busy += 1
        path = self.directory.path_of(block)
        patience_s = None if scrub else blockdir.PATIENCE_S + slot.disk_bytes / _SLOWEST_BYTES_PER_S
        try:
            async with asyncio.timeout(patience_s):
                opened = await self._run_opening(
                    lambda: OpenFile(*blockdir.open_block(path, block, verify, keep_pages=not scrub))
                )
        except FileNotFoundError as error:
            self.trouble("open", error)
            # Another reader may have found out first; the bytes are given back once.
            if self._slots.get(block) is slot:
                self._forget(block, slot)
                self._release_bytes(slot.disk_bytes)
            return None
        except BadBlock as error:
            await self._discard(block, slot, error)
            return None
        except OSError as error:
            # The disk's trouble is no proof against the block: keep it for when the disk is well again.
            if isinstance(error, TimeoutError):
                # The others need not wait as long to find out.
                self._hung_until = self.clock() + _SICK_PAUSE_S
            self.trouble("open", error)
            return None
        finally:
            slot.busy -= 1
        return self._lease_opened(block, slot, opened, keep=not scrub)

    def _lease_opened(self, block: BlockKey, slot: Slot, opened: OpenFile, *, keep: bool) -> FileLease:
        slot.verified = True
        own = not keep or self._slots.get(block) is not slot or slot.file is not None
        lease = FileLease(opened, slot if own else None)
        if own:
            # Discarded meanwhile, or another reader opened it first: ours lives as long as this lease.
            opened.doom()
        else:
            self._keep_open(block, slot, opened)
        return lease

    def _keep_open(self, block: BlockKey, slot: Slot, opened: OpenFile) -> None:
        slot.file = opened
        self._open[block] = None
        self._open.move_to_end(block)
        spare = len(self._open) - self._limits.open_files
        for oldest in list(self._open)[: max(0, spare)]:
            idle = self._slots[oldest]
            assert idle.file is not None
            if idle.file.leases == 0:
                self._close(oldest, idle)

    def _close(self, block: BlockKey, slot: Slot) -> None:
        self._open.pop(block, None)
        if slot.file is not None:
            slot.file.doom()
            slot.file = None

    async def _discard(self, block: BlockKey, slot: Slot, error: BadBlock) -> None:
        """A bad block is a miss, a deletion and a count."""
        if self._slots.get(block) is not slot:
            return
        self._metrics.bad_blocks.inc()
        log.warning("bad block dropped", extra={"object": str(slot.edition.version.ref), "block": block.index,
                                                "error": str(error)})  # fmt: skip
        for told in self.on_bad:
            told(slot.meta(block), str(error))
        self._forget(block, slot)
        with suppress(StoreUnavailable):  # counted and logged; the caller has its miss either way
            await self._unlink([(block, slot)])

    def _forget(self, block: BlockKey, slot: Slot) -> None:
        if self._slots.get(block) is slot:
            del self._slots[block]
            slot.edition.blocks -= 1
            if slot.edition.blocks == 0 and self._editions.get(block.version_id) is slot.edition:
                del self._editions[block.version_id]
            self._policy.removed(block)
            self.removals += 1
            self._close(block, slot)
            self._metrics.store_blocks.set(len(self._slots))

    # -- room ---------------------------------------------------------------------------------------------------

    async def reserve(self, need: int, meta: BlockMeta | None = None) -> None:
        """Take `need` bytes of the budget for that block; victims are off the disk when this returns.

        Raises:
            StoreUnavailable: nothing more may go, or the disk is sick.
        """
        if not self.admitting:
            raise StoreUnavailable("the directory is being scanned")
        if self.clock() < self._sick_until:
            raise StoreUnavailable("the disk failed a moment ago")
        # One at a time: two that looked at the same full budget would each evict for both.
        async with self._making_room:
            await self._make_room(need, meta)
            self._use(need)
            self._pending_bytes += need

    async def _make_room(self, need: int, meta: BlockMeta | None) -> None:
        if self._leaving:
            # Their room is not free yet; and a block that is written anew must not be unlinked by an old order.
            await asyncio.wait(self._leaving)
        if self._free_is_known(need):
            over = self._used_bytes + need - self._limits.capacity_bytes
        else:
            over = await self._looked_over(need)
        self._note_reads()
        incoming = (None, None) if meta is None else (meta.key, meta.version)
        victims, enough = self._victims(over, self._policy.victims(*incoming))
        if not enough and meta is not None and self._pins.holds(meta.key.version_id):
            # Its room is reserved: what the policy would keep goes as well.
            victims, enough = self._victims(over, self._all())
        if not enough:
            raise StoreUnavailable("no block may go")
        await self._evict(victims)

    def _free_is_known(self, need: int) -> bool:
        """Whether the last look at the free space still tells that there is enough of it: it was a moment ago, and what
        was reserved since fits in beside as much again for others."""
        self._reserved_since_look += need
        fresh = self.clock() - self._looked_at < _FREE_KNOWN_S
        return fresh and 2 * self._reserved_since_look < self._free_beyond_floor

    async def _looked_over(self, need: int) -> int:
        """By how many bytes budget or floor are exceeded with `need` more, after a look at the file system."""
        pending = self._pending_bytes
        try:
            free = await self.run(self.directory.free_bytes)
        except OSError as error:
            raise self._sick("statvfs", error) from error
        # What was written since the look at the free space is no longer pending: count the larger of the two.
        spoken_for = max(pending, self._pending_bytes)
        self._looked_at, self._reserved_since_look = self.clock(), need
        self._free_beyond_floor = free - self._limits.min_free_bytes - spoken_for
        return max(self._used_bytes + need - self._limits.capacity_bytes, need - self._free_beyond_floor)

    def unreserve(self, need: int) -> None:
        """Give back a reservation that no file stands for."""
        self._pending_bytes -= need
        self._release_bytes(need)

    def _victims(self, over: int, order: Iterable[BlockKey]) -> tuple[list[tuple[BlockKey, Slot]], bool]:
        """The first blocks of `order` that together take `over` bytes, and whether there were as many."""
        chosen: list[tuple[BlockKey, Slot]] = []
        for block in order:
            if over <= 0:
                break
            slot = self._slots[block]
            if not slot.in_use and not self._pins.holds(block.version_id):
                chosen.append((block, slot))
                over -= slot.disk_bytes
        return chosen, over <= 0

    async def most_bytes(self) -> int:
        """How much of the cache could be filled, as far as budget and file system go now."""
        free = await self.run(self.directory.free_bytes)
        on_disk = self._used_bytes - self._pending_bytes
        return max(0, min(self._limits.capacity_bytes, on_disk + free - self._limits.min_free_bytes))

    async def drop(self, blocks: Iterable[BlockKey]) -> Evicted:
        """Evict these now; those that are being read go once they are released, as `sweep` finds out.

        Raises StoreUnavailable: a file would not go.
        """
        going: list[tuple[BlockKey, Slot]] = []
        held = later = 0
        for block in blocks:
            slot = self._slots.get(block)
            if slot is None:
                continue
            if self._pins.holds(block.version_id):
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

    async def sweep(self) -> None:
        """Drop what was being read when it was to be dropped."""
        if self._doomed:
            doomed, self._doomed = self._doomed, {}
            with suppress(StoreUnavailable):  # counted and logged
                await self.drop(doomed)

    async def _evict(self, victims: Sequence[tuple[BlockKey, Slot]]) -> None:
        # No await between the choice and these lines: nobody has begun to read a victim.
        for block, slot in victims:
            self._forget(block, slot)
        self._metrics.evicted_blocks.inc(len(victims))
        await self._unlink(victims)

    async def _unlink(self, gone: Sequence[tuple[BlockKey, Slot]]) -> None:
        """Unlink blocks that the index has forgotten already.

        Raises:
            StoreUnavailable: a file would not go; it keeps its place in the budget until the next start's scan.
        """
        if not gone:
            return

        def unlink() -> list[int | OSError]:
            results: list[int | OSError] = []
            for block, slot in gone:
                try:
                    self.directory.remove(self.directory.path_of(block))
                    results.append(slot.disk_bytes)
                except OSError as error:
                    results.append(error)
            return results

        # Shielded: a client that leaves must not make the budget forget bytes that are still there.
        try:
            async with asyncio.timeout(blockdir.PATIENCE_S):
                results = await asyncio.shield(self._counted_unlink(unlink))
        except TimeoutError as error:
            raise self._sick("unlink", error) from error
        for result in results:
            if isinstance(result, OSError):
                self.whole = False
                raise self._sick("unlink", result) from result

    def _counted_unlink(self, unlink: Callable[[], list[int | OSError]]) -> asyncio.Future[list[int | OSError]]:
        future = asyncio.get_running_loop().run_in_executor(self._threads, unlink)
        self._leaving.add(future)
        future.add_done_callback(self._left)
        return future

    def _left(self, done: asyncio.Future[list[int | OSError]]) -> None:
        self._leaving.discard(done)
        self._release_bytes(sum(result for result in done.result() if isinstance(result, int)))

    def _use(self, amount: int) -> None:
        self._used_bytes += amount
        self._metrics.store_bytes.set(self._used_bytes)

    def _release_bytes(self, amount: int) -> None:
        self._used_bytes -= amount
        assert self._used_bytes >= 0
        self._metrics.store_bytes.set(self._used_bytes)

    # -- writing ------------------------------------------------------------------------------------------------

    async def create(self, meta: BlockMeta) -> DiskBlockWriter:
        need = blockfile.disk_bytes(meta)
        if blockfile.header_bytes(meta) > blockfile.HEADER_BYTES_MAX:
            raise StoreUnavailable("the object's metadata is too long for a block header")
        try:
            async with asyncio.timeout(blockdir.PATIENCE_S):
                return await self._begun(meta, need)
        except TimeoutError as error:
            raise self._sick("create", error) from error

    async def _begun(self, meta: BlockMeta, need: int) -> DiskBlockWriter:
        await self.reserve(need, meta)
        path = self.directory.tmp / f"{blockdir.file_name(meta.key)}.{next(self._tmp_numbers)}"
        try:
            file = await self._run_opening(
                lambda: OpenFile(self.directory.create(path), blockfile.header_bytes(meta)),
                undo=lambda: self.directory.remove(path),
            )
        except OSError as error:
            self.unreserve(need)
            raise self._sick("create", error) from error
        except BaseException:
            self.unreserve(need)
            raise
        return DiskBlockWriter(self, meta, path, need, file)

    def landed(self, meta: BlockMeta, disk_bytes: int, file: OpenFile) -> None:
        """A block was renamed into place: from reservation to index."""
        self._pending_bytes -= disk_bytes
        block = meta.key
        if (old := self._slots.get(block)) is not None:
            # The rename replaced its file.
            self._forget(block, old)
            self._release_bytes(old.disk_bytes)
        self._pins.came(meta.version, block.version_id)
        self._keep_open(*self._enter(block, meta, disk_bytes, verified=True), file)

    def _enter(self, block: BlockKey, meta: BlockMeta, disk_bytes: int, *, verified: bool) -> tuple[BlockKey, Slot]:
        """Index a block that is in nobody's place; its key, as it is kept."""
        edition = self._editions.get(block.version_id)
        if edition is None or not edition.fits(meta):
            edition = self._editions[block.version_id] = Edition(meta, block.version_id, disk_bytes)
        edition.blocks += 1
        block = BlockKey(edition.version_id, block.index)
        slot = self._slots[block] = Slot(edition, disk_bytes, verified=verified)
        self._policy.added(block, edition.version)
        self._metrics.store_blocks.set(len(self._slots))
        return block, slot

    # -- recovery -----------------------------------------------------------------------------------------------

    def count_found(self, disk_bytes: int) -> None:
        """A file that the scan has seen takes its place in the budget before it is known what it holds."""
        self._use(disk_bytes)

    def adopt(self, meta: BlockMeta, disk_bytes: int) -> bool:
        """Index a counted file, to be verified at its first use; False if the index has that block already."""
        block = meta.key
        if block in self._slots:
            # Written anew since the scan began: the rename replaced the file that the scan counted.
            self._release_bytes(disk_bytes)
            return False
        self._enter(block, meta, disk_bytes, verified=False)
        return True

    def uncount_found(self, disk_bytes: int) -> None:
        self._release_bytes(disk_bytes)

    async def trim(self) -> None:
        """Evict down to the budget, for a directory that was filled under a larger one."""
        over = self._used_bytes - self._limits.capacity_bytes
        if over <= 0:
            return
        # The budget is hard: what the policy would keep goes as well, after all that it would not.
        victims, _ = self._victims(over, self._all())
        with suppress(StoreUnavailable):  # counted and logged
            await self._evict(victims)

    def _all(self) -> list[BlockKey]:
        """First those that the policy lets go."""
        return list(dict.fromkeys([*self._policy.victims(), *self._slots]))

    # -- the disk's troubles ------------------------------------------------------------------------------------

    def trouble(self, act: str, error: OSError) -> None:
        """Count it, and log it once a minute for each kind of act."""
        self._metrics.store_errors.labels(act).inc()
        now = self.clock()
        if now >= self._log_after.get(act, 0.0):
            self._log_after[act] = now + _LOG_PAUSE_S
            log.warning("cache disk trouble", extra={"act": act, "error": str(error), "served": "from the origin"})

    def _sick(self, act: str, error: OSError) -> StoreUnavailable:
        self.trouble(act, error)
        self._sick_until = self.clock() + _SICK_PAUSE_S
        return StoreUnavailable(f"{act}: {error}")

    def write_failed(self, act: str, error: OSError) -> StoreUnavailable:
        return self._sick(act, error)

    async def waited_for(self, cleaning: Coroutine[Any, Any, None]) -> None:
        """Wait for the end of that, unless the disk does not answer: then it ends when that does, and whoever waits,
        with a turn that others want, goes on."""
        task = asyncio.create_task(cleaning, name="clean up")
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)
        await asyncio.wait([task], timeout=blockdir.PATIENCE_S)

    async def run(self, work: Callable[..., T], *args: object) -> T:
        """Blocking file work in the store's own threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    async def _run_opening(self, work: Callable[[], OpenFile], undo: Callable[[], None] | None = None) -> OpenFile:
        """Run `work` in a thread; if the caller is cancelled meanwhile, the file that it opens is closed again, and
        `undo` called in a thread."""

        def give_up(done: asyncio.Future[OpenFile]) -> None:
            doom_result(done)
            if undo is not None:
                with suppress(RuntimeError):  # the store is closed; the next start sweeps `tmp`
                    self._threads.submit(undo)

        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(give_up)
            raise

    @property
    def threads(self) -> ThreadPoolExecutor:
        return self._threads

    def close(self) -> None:
        """Close all files and let the directory go. Nobody may read or write any more."""
        for block, slot in list(self._slots.items()):
            self._close(block, slot)
        self._threads.shutdown(wait=True)
        self.directory.close()
