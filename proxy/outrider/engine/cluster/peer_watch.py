"""Ends requests to members that miss their deadline, and finds members that hang.

A request that brings nothing for half a second is followed by a hello on another connection. A member that does not
answer it is dead, or unreachable: all requests that wait for it end at once. One that answers has until the deadline of
each request (`core.cluster.peer_health`). The bytes are then received from another source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from outrider.core.cluster.member import Member
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.engine.tasks.runtime import Runtime, within

T = TypeVar("T")

LATE_S = 0.5
"""A member that sends no head, or no further byte, for so long is greeted."""
HELLO_S = 0.25
"""The answer to that hello is waited for no longer."""
_TICK_S = 0.1


class WatchedRead:
    """A read of a member that is under way."""

    def __init__(self, watch: PeerWatch, member: Member) -> None:
        self.member = member
        self._watch = watch
        self._task: asyncio.Task[object] | None = None
        self._ended: PeerFailed | None = None
        self._greeted_from = self._noted_at = self._waits_from = 0.0
        self.has_head = False
        """The head of the reply was received."""
        self.is_on_disk = False
        """The member has the whole block. Otherwise it may wait for the bucket itself."""
        self.on_tick: Callable[[], None] | None = None
        """Called at each look at the reads under way."""

    async def awaited(self, reply: Awaitable[T]) -> T:
        """The result of `reply`. Nothing is noted of the time between two calls, in which the disk or the client is
        waited for.

        Raises:
            PeerFailed: the read was ended meanwhile. Anything that `reply` raises.
        """
        self._noted_at = self._waits_from = self._greeted_from = self._watch.clock()
        self._task = asyncio.current_task()
        try:
            return await reply
        except asyncio.CancelledError:
            if self._ended is None or self._task is None or self._task.uncancel() > 0:
                raise
            raise self._ended from None
        except Exception:
            # It failed while it was cancelled. The task itself is not to end.
            if self._ended is not None and self._task is not None:
                self._task.uncancel()
            raise
        finally:
            self._task = None

    def waited_s(self, now: float) -> float:
        """The seconds of waiting for bytes since the last call, or since the wait began."""
        waited_s, self._noted_at = now - self._noted_at, now
        return waited_s

    def waits_s(self, now: float) -> float:
        """For how long the head, or the next bytes, have been waited for."""
        return now - self._waits_from

    @property
    def is_waiting(self) -> bool:
        return self._task is not None

    def is_due(self, now: float) -> bool:
        """Whether the member is to be greeted."""
        return self._task is not None and now - self._greeted_from >= LATE_S

    def goes_on(self, now: float) -> None:
        """The member answered a hello."""
        self._greeted_from = now

    def end(self, why: PeerFailed) -> None:
        """Give the reply up that is waited for."""
        if self._task is not None and self._ended is None:
            self._ended = why
            self._task.cancel()


class PeerWatch:
    """Owns the task that looks after the reads under way; it runs while there are any."""

    def __init__(
        self, greet: Callable[[Member], Awaitable[None]], lost: Callable[[Member], None],
        missed: Callable[[WatchedRead, float], PeerFailed | None], runtime: Runtime,
    ) -> None:  # fmt: skip
        """`greet` sends a hello, and raises PeerFailed. `lost` is notified of members that are dead. `missed` is called
        for each read that waits, several times a second: the deadline that it missed; None: none."""
        self.clock = runtime.clock
        self._missed = missed
        self._greet = greet
        self._lost = lost
        self._runtime = runtime
        self._reads: set[WatchedRead] = set()
        self._greeted: set[str] = set()
        self._ticking = False

    def begin(self, member: Member) -> WatchedRead:
        """A read begins, until `over`."""
        read = WatchedRead(self, member)
        self._reads.add(read)
        if not self._ticking:
            self._ticking = True
            self._runtime.spawn(self._tick(), "watch over members")
        return read

    def over(self, read: WatchedRead) -> None:
        self._reads.discard(read)

    async def _tick(self) -> None:
        try:
            while self._reads:
                await self._runtime.sleep(_TICK_S)
                self._look(self.clock())
        finally:
            # No `await` since the last look at the reads: one that begins from here on starts another task.
            self._ticking = False

    def _look(self, now: float) -> None:
        for read in list(self._reads):
            if read.on_tick is not None:
                read.on_tick()
            if read.is_waiting and (why := self._missed(read, now)) is not None:
                read.end(why)
            elif read.is_due(now) and read.member.name not in self._greeted:
                self._greeted.add(read.member.name)
                self._runtime.spawn(self._greet_late(read.member), f"hello {read.member.name}")

    async def _greet_late(self, member: Member) -> None:
        try:
            hello = asyncio.ensure_future(self._greet(member))
            answers = await within(hello, HELLO_S, self._runtime) and hello.exception() is None
            now = self.clock()
            late = [read for read in self._reads if read.member.name == member.name and read.is_due(now)]
            # Bytes that were received meanwhile are an answer, too.
            if late and not answers:
                self._lost(member)
            for read in late:
                if answers:
                    read.goes_on(now)
                else:
                    read.end(PeerFailed("late", "neither a reply nor an answer to a hello"))
        finally:
            self._greeted.discard(member.name)
