"""One block on its way in, followed by any number of readers at any offset.

A flight belongs to nobody: readers come and go, and only the task that fills it ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from outrider.core.arrival import Arrival
from outrider.core.blockfile import BlockMeta
from outrider.engine.turns import Turn
from outrider.ports import BlockWriter, Lease


class Flight:
    """One block's arrival, from offset `start` on and then what lies before it; it is read through `lease`."""

    __slots__ = (
        "_end",
        "_error",
        "_has_landed",
        "_waiters",
        "_writer",
        "arrival",
        "head_wanted",
        "meta",
        "on_wait",
        "turn",
    )

    def __init__(self, meta: BlockMeta, start: int = 0) -> None:
        self.meta = meta
        self.arrival = Arrival(meta.extent.length, start)
        self.head_wanted = asyncio.Event()
        """Somebody waits for what lies before `start`, or all the rest is here."""
        self.turn: Turn | None = None
        self.on_wait: list[Callable[[], None]] = []
        """Called each time that somebody is about to wait."""
        self._writer: BlockWriter | None = None
        self._error: Exception | None = None
        self._has_landed = False
        self._end = asyncio.Event()
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def begins_at(self) -> int:
        """The first of the object's bytes that is brought."""
        return self.meta.extent.start + self.arrival.start

    @property
    def awaited(self) -> bool:
        """Somebody waits for what has not come yet."""
        return bool(self._waiters)

    def begin(self, writer: BlockWriter) -> None:
        self._writer = writer

    def advance(self, offset: int, count: int) -> None:
        self.arrival.add(offset, count)
        self._wake()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._end.set()
        self._wake()

    def land(self) -> None:
        """The store has the block."""
        self._has_landed = True
        self._end.set()
        self._wake()

    async def ended(self) -> bool:
        """Wait for the end of the flight, without being in a hurry; True: the store has the block."""
        await self._end.wait()
        return self._has_landed

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def beyond(self, offset: int) -> int:
        """Wait until byte `offset` of the block is here; where the run of bytes that are here ends from there on.

        Raises:
            Signal: why it will never come.
        """
        while (reach := self.arrival.reach(offset)) <= offset:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self.turn is not None:
                self.turn.promote()
            if offset < self.arrival.start:
                self.head_wanted.set()
            for told in self.on_wait:
                told()
            await self._next_step()
        return reach

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
            raise self._error.with_traceback(None)
        return self._writer.lease()
