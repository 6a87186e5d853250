"""A flight: one block on its way in, followed by any number of readers at any offset.

A flight belongs to nobody. Readers come and go; only the fill that brings the block ends the flight.
"""

from __future__ import annotations

import asyncio

from outrider.core.cache.block_file import BlockMeta
from outrider.core.errors import without_traceback
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.engine.fill.patience import Waiters
from outrider.engine.fill.peer_block import PeerBlock
from outrider.ports import BlockWriter, Buffer, Lease


class Flight:
    """The arrival of one block, from offset `start` to its end and then what lies before `start`. Bytes that are on
    disk are read through `lease`; bytes that are not yet are handed out from memory by `bytes_at`.

    Each of its two parts grows from its start: the head `[0, start)` and the tail `[start, length)`. Invariant:
    0 <= head <= start <= tail <= length, and exactly `[0, head)` and `[start, tail)` are on disk.
    """

    __slots__ = (
        "_end",
        "_error",
        "_head",
        "_tail",
        "_unwritten",
        "_waiters",
        "_writer",
        "has_landed",
        "head_wanted",
        "meta",
        "peer",
        "slot",
        "start",
        "waiters",
    )

    def __init__(
        self, meta: BlockMeta, start: int = 0, waiters: Waiters | None = None, peer: PeerBlock | None = None
    ) -> None:
        """`waiters`: those of the whole fill; None: it has no other blocks. `peer`: asked for the block before the
        origin."""
        self.meta = meta
        self.peer = peer
        self.waiters = Waiters() if waiters is None else waiters
        """The readers that follow the flight, or are about to: while there are any, its fill is tried again."""
        assert 0 <= start < meta.extent.length, "it begins within the block"
        self.start = self._tail = start
        self._head = 0
        self.head_wanted = asyncio.Event()
        """A reader waits for what lies before `start`, or all the rest is here."""
        self.slot: FillSlot | None = None
        self._writer: BlockWriter | None = None
        # Bytes that came and are not on disk yet, each piece with its offset in the block.
        self._unwritten: list[tuple[int, Buffer]] = []
        self._error: Exception | None = None
        self.has_landed = False
        """The store has the block, or had it: it may have been evicted since."""
        self._end = asyncio.Event()
        self._waiters: set[asyncio.Future[None]] = set()

    # -- for readers ------------------------------------------------------------------------------------------------

    @property
    def begins_at(self) -> int:
        """The first of the object's bytes that is brought."""
        return self.meta.extent.start + self.start

    @property
    def is_remote(self) -> bool:
        """A peer brings the block, and may have to ask the origin itself. No read on behalf of a peer waits for such a
        flight: two members that each take the other for the owner would wait for each other."""
        return self.peer is not None and self.peer.is_remote

    @property
    def source(self) -> str:
        """The source of the bytes that come now, as `metrics.SOURCES` has it."""
        return "peer" if self.peer is not None and self.peer.gives else "flight"

    def is_awaited(self) -> bool:
        """Whether a reader waits for bytes that have not come yet."""
        return bool(self._waiters)

    async def bytes_at(self, offset: int, *, promotes: bool = True) -> Buffer | None:
        """Wait until byte `offset` of the block is here. Returns bytes from there on that are not on disk yet; None:
        they are on disk, and `reach` says how far. `promotes`: a reader waits, so that the fill becomes demand.

        Raises:
            Signal: why the byte will never come.
        """
        while True:
            # Most readers wait for the piece received last.
            for start, data in reversed(self._unwritten):
                if start == offset:
                    return data
                if start < offset < start + len(data):
                    return memoryview(data)[offset - start :]
            if self.reach(offset) > offset:
                return None
            await self._change(offset, promotes=promotes)

    def reach(self, offset: int) -> int:
        """The end of the bytes that are on disk from `offset` on. A result of `offset` or less: its byte is not."""
        # Behind a complete head the tail follows without a gap.
        return self._tail if offset >= self.start or self._head == self.start else self._head

    def lease(self) -> Lease:
        """Good after the first byte arrived.

        Raises:
            Signal: the flight has failed since, and its file is closed.
        """
        assert self._writer is not None
        if self._error is not None:
            raise without_traceback(self._error)
        return self._writer.lease()

    async def ended(self) -> bool:
        """Wait for the end of the flight, without being in a hurry; True: the store has the block."""
        await self._end.wait()
        return self.has_landed

    @property
    def failure(self) -> Exception | None:
        """Why the flight ended without a block, to be raised; None: it did not."""
        return None if self._error is None else without_traceback(self._error)

    async def _change(self, offset: int, *, promotes: bool) -> None:
        if self._error is not None:
            raise without_traceback(self._error)
        if promotes and self.slot is not None:
            self.slot.promote()
        if offset < self.start:
            self.head_wanted.set()
        # A future for each waiter: a waiter that is cancelled cancels no other.
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    # -- for the fill -----------------------------------------------------------------------------------------------

    @property
    def written_bytes(self) -> int:
        return self._head + self._tail - self.start

    @property
    def is_written(self) -> bool:
        """All its bytes are on disk."""
        return self.written_bytes == self.meta.extent.length

    def begin(self, writer: BlockWriter) -> None:
        """The block has a file, which `writer` writes."""
        self._writer = writer

    def hand_out(self, offset: int, data: Buffer) -> None:
        """These bytes came. Readers get them from memory and do not wait until they are on disk."""
        self._unwritten.append((offset, data))
        if self._waiters:
            self._wake()

    def advance(self, offset: int, count: int) -> None:
        """These bytes are on disk."""
        self._unwritten = [(start, data) for start, data in self._unwritten if not offset <= start < offset + count]
        if offset == self._tail and offset + count <= self.meta.extent.length:
            self._tail += count
        else:
            assert offset == self._head, "each part grows without a gap"
            assert offset + count <= self.start, "no byte comes twice"
            self._head += count
        if self._waiters:
            self._wake()

    def fail(self, error: Exception) -> None:
        self._unwritten = []
        self._error = without_traceback(error)
        self._end.set()
        if self._waiters:
            self._wake()

    def land(self) -> None:
        """The store has the block."""
        self.has_landed = True
        self._end.set()
        if self._waiters:
            self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
