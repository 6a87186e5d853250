"""One block on its way in, followed by any number of readers at any offset.

A flight belongs to nobody: readers come and go, and only the task that fills it ends it.
"""

from __future__ import annotations

import asyncio

from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.partial_block import PartialBlock
from outrider.core.errors import like
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.ports import BlockWriter, Buffer, Lease


class Flight:
    """One block's arrival, from offset `start` on and then what lies before it; it is read through `lease`."""

    __slots__ = (
        "_early",
        "_end",
        "_error",
        "_waiters",
        "_writer",
        "has_landed",
        "head_wanted",
        "meta",
        "partial",
        "slot",
    )

    def __init__(self, meta: BlockMeta, start: int = 0) -> None:
        self.meta = meta
        self.partial = PartialBlock(meta.extent.length, start)
        self.head_wanted = asyncio.Event()
        """Somebody waits for what lies before `start`, or all the rest is here."""
        self.slot: FillSlot | None = None
        self._writer: BlockWriter | None = None
        # What came and is not on disk yet: where it lies in the block, and the bytes.
        self._early: list[tuple[int, Buffer]] = []
        self._error: Exception | None = None
        self.has_landed = False
        """The store has it, or had it: it may have been evicted since."""
        self._end = asyncio.Event()
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def begins_at(self) -> int:
        """The first of the object's bytes that is brought."""
        return self.meta.extent.start + self.partial.start

    @property
    def awaited(self) -> bool:
        """Somebody waits for what has not come yet."""
        return bool(self._waiters)

    def begin(self, writer: BlockWriter) -> None:
        self._writer = writer

    def hand_out(self, offset: int, data: Buffer) -> None:
        """These bytes came: who waits for them need not wait until they are on disk."""
        self._early.append((offset, data))
        self._wake()

    def advance(self, offset: int, count: int) -> None:
        self._early = [(start, data) for start, data in self._early if not offset <= start < offset + count]
        self.partial.add(offset, count)
        self._wake()

    def fail(self, error: Exception) -> None:
        self._early = []
        self._error = like(error)
        self._end.set()
        self._wake()

    def land(self) -> None:
        """The store has the block."""
        self.has_landed = True
        self._end.set()
        self._wake()

    async def ended(self) -> bool:
        """Wait for the end of the flight, without being in a hurry; True: the store has the block."""
        await self._end.wait()
        return self.has_landed

    @property
    def failure(self) -> Exception | None:
        """Why it ended without a block, to be raised; None: it did not."""
        return None if self._error is None else like(self._error)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def come(self, offset: int) -> Buffer | None:
        """Wait until byte `offset` of the block is here. What came from there on and is not on disk yet; None: it is,
        and `partial` tells how far.

        Raises:
            Signal: why it will never come.
        """
        while self.partial.reach(offset) <= offset:
            for start, data in self._early:
                if start <= offset < start + len(data):
                    return memoryview(data)[offset - start :]
            await self._change(offset)
        return None

    async def _change(self, offset: int) -> None:
        if self._error is not None:
            raise like(self._error)
        if self.slot is not None:
            self.slot.promote()
        if offset < self.partial.start:
            self.head_wanted.set()
        await self._next_step()

    async def _next_step(self) -> None:
        # A future of one's own: a waiter that is cancelled takes nobody with it.
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def lease(self) -> Lease:
        """Good after the first byte arrived.

        Raises:
            Signal: the flight has failed since, and its file is closed.
        """
        assert self._writer is not None
        if self._error is not None:
            raise like(self._error)
        return self._writer.lease()
