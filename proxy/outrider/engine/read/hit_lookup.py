"""The lookup of hits: reads whose version is fresh and whose blocks are all here. They need no question to the origin,
and no wait."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from outrider.core.block_layout import BlockLayout
from outrider.core.model import BlockKey, Extent, ObjectRef
from outrider.engine.read.version_cache import Known, VersionCache
from outrider.pagecache import read_in_memory
from outrider.ports import BlockStore, Clock, Lease, OpenBlock

# A read over more blocks than this is so long that the slow path costs nothing beside it.
_BLOCKS_MAX = 64
# As `BlockKey(...)`, in half the time.
_block_key: Callable[[tuple[bytes, int]], BlockKey] = partial(tuple.__new__, BlockKey)

Piece = tuple[Lease, int, int, int]
"""A leased block, the descriptor of its file, an offset in that file, and how many bytes to send from there."""


@dataclass(frozen=True, slots=True)
class Lent:
    """A block whose file another process may read for as long as `known` is current. `extent`: of the object."""

    known: Known
    extent: Extent
    lease: Lease


class HitLookup:
    """Only reads, and keeps nothing."""

    def __init__(self, layout: BlockLayout, versions: VersionCache, store: BlockStore, clock: Clock) -> None:
        self._layout = layout
        self._versions = versions
        self.known: Callable[[ObjectRef], Known | None] = versions.look
        """The version to answer from; None: the origin has to be asked first."""
        self._store = store
        self._clock = clock

    @property
    def changes(self) -> int:
        """See `VersionCache.changes`."""
        return self._versions.changes

    def is_current(self, known: Known) -> bool:
        """Whether the version cache would give the same answer again. False may also mean: look it up again."""
        return known.changes == self._versions.changes and self._clock() < known.until

    def open_file(self, known: Known, now: float, start: int, stop: int) -> tuple[OpenBlock, int] | None:
        """The file with these bytes of the object, and the offset of the first one in it; see `BlockStore.open_file`.
        `now`: by the clock of the engine.

        None: `known` is not current, or the bytes are not in one open file. Then `known`, `is_current` and `pieces` may
        find them all the same.
        """
        if known.changes != self._versions.changes or now >= known.until:
            return None
        block_bytes = self._layout.block_bytes
        index, inside = divmod(start, block_bytes)
        if inside + stop - start > block_bytes:
            return None
        file = self._store.open_file(_block_key((known.version_id, index)))
        return None if file is None else (file, file.payload_offset + inside)

    def lend_at_once(self, known: Known, start: int) -> Lent | None:
        """The block with the byte `start` of the object, if that takes no wait for the disk. The caller releases
        the lease, once the other process has the descriptor."""
        index = start // self._layout.block_bytes
        block = BlockKey(known.version_id, index)
        lease = self._store.lease_at_once(block)
        if lease is None and self._store.verify_at_once(block):
            lease = self._store.lease_at_once(block)
        return self._lent(known, index, lease)

    async def lend(self, known: Known, start: int) -> Lent | None:
        """As `lend_at_once`; it waits until the block is verified. None: it is not here, or no longer the right one."""
        index = start // self._layout.block_bytes
        lent = self._lent(known, index, await self._store.lease(BlockKey(known.version_id, index)))
        if lent is None:
            return None
        now_known = self.known(known.version.ref)
        if now_known is None or now_known.version_id != known.version_id:
            lent.lease.release()
            return None
        return Lent(now_known, lent.extent, lent.lease)

    def _lent(self, known: Known, index: int, lease: Lease | None) -> Lent | None:
        if lease is None:
            return None
        if lease.block.is_remote:
            # A call on it may hang, and would hang the other process.
            lease.release()
            return None
        self._store.lent(BlockKey(known.version_id, index))
        return Lent(known, self._layout.extent(index, known.version.size), lease)

    def read_by_loan(self, known: Known, start: int) -> None:
        """Another process has read the byte `start` by a descriptor that it was lent."""
        self._store.lent(BlockKey(known.version_id, start // self._layout.block_bytes))

    def pieces(self, known: Known, extent: Extent, at_most: int) -> list[Piece] | None:
        """The first bytes of `extent`, `at_most` so many, if all its blocks are here. The caller releases the leases.

        None: a block is missing, or its file is not open.
        """
        # Not by the layout's methods: each hit would pay some 80 ns for each call.
        block_bytes = self._layout.block_bytes
        first, inside = divmod(extent.start, block_bytes)
        last = (extent.stop - 1) // block_bytes
        if last == first:
            lease = self._store.lease_at_once(BlockKey(known.version_id, first))
            if lease is None:
                return None
            block = lease.block
            return [(lease, block.fd, block.payload_offset + inside, min(at_most, extent.length))]
        if not self._are_here(known, first, last):
            return None
        pieces: list[Piece] = []
        start, stop = extent.start, min(extent.stop, extent.start + at_most)
        while start < stop:
            index, inside = divmod(start, block_bytes)
            lease = self._store.lease_at_once(BlockKey(known.version_id, index))
            if lease is None:
                for taken, *_ in pieces:
                    taken.release()
                return None
            length = min(block_bytes - inside, stop - start)
            block = lease.block
            pieces.append((lease, block.fd, block.payload_offset + inside, length))
            start += length
        return pieces

    def is_here(self, known: Known, start: int, stop: int) -> bool:
        """Whether all blocks of these bytes are here, be they verified or not."""
        if start == stop:
            return True
        first, last = start // self._layout.block_bytes, (stop - 1) // self._layout.block_bytes
        if first == last:
            return self._store.has(_block_key((known.version_id, first)))
        return self._are_here(known, first, last)

    def read_into(self, known: Known, start: int, into: memoryview) -> bool:
        """Read the bytes of the object from `start` on, if they lie in one block and that takes no wait. Returns
        whether it did. False: the version may be another one now, the block is not here or not verified, its pages are
        not in memory, or the disk fails."""
        stop, now = start + len(into), self._clock()
        try:
            found = self.open_file(known, now, start, stop)
            if found is not None:
                file, offset = found
                return read_in_memory(file.fd, offset, into, stays=file.stays_in_memory)
            index, inside = divmod(start, self._layout.block_bytes)
            if not self.is_current(known) or inside + len(into) > self._layout.block_bytes:
                return False
            lease = self._store.lease_at_once(_block_key((known.version_id, index)))
            if lease is None:
                return False
            try:
                block = lease.block
                return read_in_memory(block.fd, block.payload_offset + inside, into, stays=block.stays_in_memory)
            finally:
                lease.release()
        except OSError:
            return False

    def page_in(self, known: Known, extent: Extent) -> Callable[[], None] | None:
        """As `BlockStore.page_in`, for an extent that lies in one block. None: it spans several blocks, or paging in
        would not help."""
        index, inside = divmod(extent.start, self._layout.block_bytes)
        if inside + extent.length > self._layout.block_bytes:
            return None
        return self._store.page_in(BlockKey(known.version_id, index), inside, extent.length)

    def prepare(self, known: Known, extent: Extent) -> bool | Callable[[], Coroutine[Any, Any, None]]:
        """Verify the block of an extent that lies in one block, so that `pieces` finds it. True: it is ready now. A
        coroutine: see `BlockStore.prepare`. False: neither helps."""
        index, inside = divmod(extent.start, self._layout.block_bytes)
        if inside + extent.length > self._layout.block_bytes:
            return False
        block = BlockKey(known.version_id, index)
        return self._store.verify_at_once(block) or self._store.prepare(block) or False

    def _are_here(self, known: Known, first: int, last: int) -> bool:
        if last - first >= _BLOCKS_MAX:
            return False
        return all(self._store.has(BlockKey(known.version_id, index)) for index in range(first, last + 1))
