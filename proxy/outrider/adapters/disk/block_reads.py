"""Reads of the blocks on disk: leases of their files, each of which was verified since the start."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from outrider import pagecache
from outrider.adapters.disk import block_io, disk_threads
from outrider.adapters.disk.block_index import BlockIndex
from outrider.adapters.disk.leases import FileLease, OpenFile, opened_in
from outrider.adapters.disk.slots import VERIFIED, Slot
from outrider.core.cache import block_file
from outrider.core.cache.block_file import BadBlock, BlockMeta
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.model import BlockKey
from outrider.futures import retrieve_failure
from outrider.metrics import Metrics
from outrider.ports import Contents, Lease

log = logging.getLogger(__name__)

# Verifying a block may take this much longer per byte: a large block on a slow disk is no hung disk.
_SLOWEST_BYTES_PER_S = 10e6
# A block up to this size is verified on the loop, if its pages are in memory: the checksum takes less than the hop to a
# thread and back.
_AT_ONCE_BYTES_MAX = 256 * 1024


class BlockReads(BlockIndex):
    """The part of `BlockStore` that reads."""

    def __init__(self, policy: EvictionPolicy, open_files: int, metrics: Metrics, *, verify_always: bool) -> None:
        super().__init__(policy, open_files, verify_always=verify_always)
        self._metrics = metrics
        self.on_bad: list[Callable[[BlockMeta, str], None]] = []
        self.contents: Contents | None = None
        """Gets the content hash of each block that is written, or verified. None: nobody does."""
        self._verifying: dict[BlockKey, asyncio.Task[bool]] = {}

    @abstractmethod
    def _lost(self, block: BlockKey, slot: Slot) -> None:
        """The block's file is gone."""

    @abstractmethod
    def _unread(self, block: BlockKey, slot: Slot, error: OSError) -> None:
        """The disk failed to read the block, which need not be bad."""

    @abstractmethod
    async def _remove(self, block: BlockKey, slot: Slot) -> None:
        """The block is bad. Raises nothing: the reader has its miss either way."""

    # -- leases -------------------------------------------------------------------------------------------------

    async def lease(self, block: BlockKey) -> FileLease | None:
        if (lease := self.lease_open(block)) is not None:
            return lease
        slot = self._slots.get(block)
        if slot is None or slot.disk.work.is_unreachable:
            return None
        if self._is_unverified(slot):
            if not await self._is_verified_now(block):
                return None
            lease = self.lease_open(block)
        if lease is None and (lease := await self._open_block(block)) is not None:
            self._policy.read(block)
            slot.disk.reads += 1
        return lease

    def lease_open(self, block: BlockKey) -> FileLease | None:
        lease = self._lease_now(block)
        if lease is not None:
            self._note_reads()
        return lease

    def lease_at_once(self, block: BlockKey) -> FileLease | None:
        slot = self._slots.get(block)
        file = None if slot is None else slot.file
        return None if file is not None and file.is_remote else self._lease_now(block)

    def _lease_now(self, block: BlockKey) -> FileLease | None:
        slot = self._slots.get(block)
        if slot is None or not slot.verified or self._verify_always or slot.disk.work.is_unreachable:
            return None
        if slot.file is None and (opened := self._opened_at_once(block, slot)) is not None:
            self._keep_open(block, slot, opened)
        if slot.file is None:
            return None
        self._reads.append(block)
        slot.disk.reads += 1
        return FileLease(slot.file)

    def open_file(self, block: BlockKey) -> OpenFile | None:
        # Without a call more than it must: this is the way of a hit.
        slot = self._slots.open.get(block)
        if slot is None or not slot.flags & VERIFIED or self._verify_always or slot.disk.work.is_unreachable:
            return None
        file = slot.file
        if file is None or file.is_remote:
            return None
        self._reads.append(block)
        slot.disk.reads += 1
        return file

    def lent(self, block: BlockKey) -> None:
        slot = self._slots.get(block)
        if slot is not None:
            slot.lent = True
            self._reads.append(block)
            slot.disk.reads += 1

    def _opened_at_once(self, block: BlockKey, slot: Slot) -> OpenFile | None:
        """The file of a verified block, if it can be opened without waiting for the disk.

        Jobs read more small blocks in turn than files may stay open, and a hit that waits for a thread takes six times
        as long.
        """
        directory = slot.disk.directory
        if not directory.can_probe_memory or not self._is_trusted(slot):
            return None
        opened = block_io.open_known_block(directory.raw_path_of(block), block)
        if opened is None:
            return None
        return OpenFile(*opened, stays_in_memory=directory.stays_in_memory)

    def _is_trusted(self, slot: Slot) -> bool:
        return slot.verified and not self._verify_always and not slot.disk.work.is_hung

    def page_in(self, block: BlockKey, start: int, count: int) -> Callable[[], None] | None:
        slot = self._slots.get(block)
        # Where the kernel cannot say what is in memory, paging in would gain nothing.
        if slot is None or not slot.disk.directory.can_probe_memory or not self._is_trusted(slot):
            return None
        return partial(block_io.page_in, slot.disk.directory.raw_path_of(block), start, count)

    async def digest(self, block: BlockKey, lease: Lease) -> str:
        slot = self._slots.get(block)
        if slot is None:
            return ""
        # The header was read when the file was opened, so it is most likely in memory.
        if slot.disk.directory.can_probe_memory:
            header = pagecache.read_known(lease.block.fd, block_file.DIGEST_BYTES)
            return "" if header is None else block_file.digest_of(header)
        file = lease.block
        assert isinstance(file, OpenFile)
        # A lease for the thread: the file must not be closed while it reads.
        file.acquire()
        reading = slot.disk.work.begin(os.pread, file.fd, block_file.DIGEST_BYTES, 0)
        reading.add_done_callback(retrieve_failure)
        reading.add_done_callback(lambda _: file.release())
        try:
            async with asyncio.timeout(disk_threads.PATIENCE_S):
                return block_file.digest_of(await asyncio.shield(reading))
        except OSError:
            return ""

    def doubt(self, block: BlockKey) -> None:
        slot = self._slots.get(block)
        # The file of a block that was expelled is cut on purpose.
        if slot is not None:
            slot.disk.work.failed("send", OSError(errno.EIO, "a block file gave fewer bytes than it has"))
            slot.verified = False
            self._close(block, slot)

    # -- verification -------------------------------------------------------------------------------------------

    def verify_at_once(self, block: BlockKey) -> bool:
        slot = self._slots.get(block)
        if slot is None or slot.disk_bytes > _AT_ONCE_BYTES_MAX or not self._is_unverified(slot):
            return False
        if self.contents is not None and not slot.proved and self.contents.kind_for(slot.meta(block)) is not None:
            return False
        directory = slot.disk.directory
        if not directory.can_probe_memory:
            return False
        opened = block_io.open_verified_block(directory.raw_path_of(block), block, slot.disk_bytes)
        if opened is None:
            return False
        file = OpenFile(*opened, stays_in_memory=directory.stays_in_memory)
        self._lease_opened(block, slot, file, keep=True).release()
        return True

    def prepare(self, block: BlockKey) -> Callable[[], Coroutine[Any, Any, None]] | None:
        slot = self._slots.get(block)
        return None if slot is None or not self._is_unverified(slot) else partial(self._prepare, block)

    async def _prepare(self, block: BlockKey) -> None:
        await self._is_verified_now(block)

    def _is_unverified(self, slot: Slot) -> bool:
        """One verification will do for all reads."""
        return not (slot.verified or self._verify_always or slot.disk.work.is_hung)

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

    # -- files --------------------------------------------------------------------------------------------------

    async def _open_block(self, block: BlockKey, *, scrub: bool = False) -> FileLease | None:
        slot = self._slots.get(block)
        if slot is None:
            return None
        verify = scrub or self._verify_always or not slot.verified
        directory, work = slot.disk.directory, slot.disk.work
        if work.is_hung or work.is_unreachable:
            return None
        slot.busy += 1
        path = directory.path_of(block)
        contents = self.contents if verify and not slot.proved else None
        kind = None if contents is None else contents.kind_for(slot.meta(block))
        content = None if kind is None else kind.begin()
        # The scrubber's as well: the blocks of the other disks come after this one.
        patience_s = disk_threads.PATIENCE_S + slot.disk_bytes / _SLOWEST_BYTES_PER_S
        began = time.perf_counter()
        try:
            async with asyncio.timeout(patience_s):
                opened = await opened_in(
                    work.threads,
                    lambda: OpenFile(
                        *block_io.open_block(path, block, verify, keep_pages=not scrub, content=content),
                        stays_in_memory=directory.stays_in_memory,
                        closers=work.threads if directory.is_remote else None,
                    ),
                )
        except FileNotFoundError as error:
            work.failed("open", error)
            # Another reader may have found this out first; the bytes are given back once.
            if self._slots.get(block) is slot:
                self._lost(block, slot)
            return None
        except BadBlock as error:
            await self._discard(block, slot, error)
            return None
        except OSError as error:
            work.open_failed(error)
            self._unread(block, slot, error)
            return None
        finally:
            slot.busy -= 1
            if not scrub:
                self._metrics.disk_wait_s.inc(time.perf_counter() - began)
        if contents is not None and kind is not None and content is not None and self._slots.get(block) is slot:
            contents.hashed(slot.meta(block), kind, content.digest())
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
        log.warning("bad block dropped", extra={"object": str(slot.version.ref), "block": block.index,
                                                "error": str(error)})  # fmt: skip
        for report in self.on_bad:
            report(slot.meta(block), str(error))
        await self._remove(block, slot)
