"""Requests to members: each has a deadline, and a member that hangs is found.

A request that brings nothing for half a second is followed by a hello on another connection. A member that does not
answer it is dead, or unreachable: all requests that wait for it end at once. One that answers has until the deadline of
each request (`core.cluster.peer_health`). The bytes are then received from another source.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from outrider.core.block_layout import BlockLayout
from outrider.core.cluster.member import Member
from outrider.core.cluster.peer_messages import PeerFailed, PeerRead, ReadClass
from outrider.core.model import Extent
from outrider.engine.cluster.members import LiveMembers
from outrider.engine.tasks.runtime import Runtime, within
from outrider.ports import Clock, PeerReply, PeerTransport

log = logging.getLogger(__name__)

T = TypeVar("T")

LATE_S = 0.5
"""A member that sends no head, or no further byte, for so long is greeted."""
HELLO_S = 0.25
"""The answer to that hello is waited for no longer."""
_TICK_S = 0.1


class WatchedRead:
    """A read of a member that is under way."""

    def __init__(self, member: Member, clock: Clock) -> None:
        self.member = member
        self._clock = clock
        self._task: asyncio.Task[object] | None = None
        self._ended: PeerFailed | None = None
        self._greeted_from = self._noted_at = self._waits_from = 0.0
        self.has_head = False
        """The head of the reply was received."""
        self.is_on_disk = False
        """The member has the whole block. Otherwise it may wait for the bucket itself."""
        self.has_deadline = True
        """By what the bucket needs for a body. Otherwise only a member that answers no hello is given up."""
        self.on_tick: Callable[[], None] | None = None
        """Called at each look at the reads under way."""

    async def awaited(self, reply: Awaitable[T]) -> T:
        """The result of `reply`. Nothing is noted of the time between two calls, in which the disk or the client is
        waited for.

        Raises:
            PeerFailed: the read was ended meanwhile. Anything that `reply` raises.
        """
        self.waits_on()
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

    def waits_on(self) -> None:
        """The wait for the next bytes begins."""
        self._noted_at = self._waits_from = self._greeted_from = self._clock()

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


class PeerRequests:
    """Owns the task that looks after the requests under way; it runs while there are any."""

    def __init__(self, members: LiveMembers, transport: PeerTransport, layout: BlockLayout, runtime: Runtime) -> None:
        self.members = members
        self.layout = layout
        self.clock = runtime.clock
        self._transport = transport
        self._runtime = runtime
        self._under_way: set[WatchedRead] = set()
        self._greeted: set[str] = set()
        self._ticking = False

    @asynccontextmanager
    async def opened(
        self, member: Member, read: PeerRead, on_tick: Callable[[], None] | None = None
    ) -> AsyncIterator[tuple[PeerReply, WatchedRead]]:
        """A reply of a member, which is watched. Raises PeerFailed, which is counted; so is one that passes on its way
        out of the context."""
        peer = self.members.health.of(member.name)
        watched = self.begin(member, on_tick)
        sending = self._transport.read(member, read)
        peer.pace.began()
        try:
            reply = await watched.awaited(sending.__aenter__())
            watched.has_head, watched.is_on_disk = True, bool(reply.digest)
            # Only a reply with bytes reports it.
            peer.replied(watched.waits_s(self.clock()), None if reply.extent is None else reply.sending)
            if read.only_if_cached:
                peer.held(True, self.clock())
            try:
                yield reply, watched
            except BaseException as error:
                # The connection is given up, whatever happened.
                await sending.__aexit__(type(error), error, error.__traceback__)
                raise
            await sending.__aexit__(None, None, None)
        except PeerFailed as error:
            if read.only_if_cached and error.why == "absent":
                peer.held(False, self.clock())
            self.members.failed(member, error.why)
            raise
        finally:
            peer.pace.ended()
            self.over(watched)

    def flowed(self, watched: WatchedRead, count: int) -> None:
        """These bytes of a body were received."""
        now = self.clock()
        waited_s = watched.waited_s(now)
        if waited_s > LATE_S and not watched.is_on_disk:
            # The member answered a hello meanwhile. Its wait for the bucket says nothing about its rate.
            waited_s = 0.0
        self.members.health.of(watched.member.name).flowed(count, waited_s, now)

    def promote(self, member: Member, read: PeerRead) -> None:
        """A reader waits now for a block that was requested ahead of readers: its owner gets the request once more, as
        one of a reader, and for a byte alone."""
        assert read.extent is not None
        first = Extent(read.extent.start, read.extent.start + 1)
        read = replace(read, extent=first, read_class=ReadClass.DEMAND)
        self._runtime.spawn(self._promote(member, read), f"promote at {member.name}")

    async def _promote(self, member: Member, read: PeerRead) -> None:
        with suppress(PeerFailed):
            async with self._transport.read(member, read) as reply:
                await reply.some()

    # -- those under way ----------------------------------------------------------------------------------------------

    def begin(self, member: Member, on_tick: Callable[[], None] | None = None) -> WatchedRead:
        """A read begins, until `over`."""
        read = WatchedRead(member, self.clock)
        read.on_tick = on_tick
        self._under_way.add(read)
        if not self._ticking:
            self._ticking = True
            self._runtime.spawn(self._tick(), "watch over members")
        return read

    def over(self, read: WatchedRead) -> None:
        self._under_way.discard(read)

    async def _tick(self) -> None:
        try:
            while self._under_way:
                await self._runtime.sleep(_TICK_S)
                self._look(self.clock())
        finally:
            # No `await` since the last look at the reads: one that begins from here on starts another task.
            self._ticking = False

    def _look(self, now: float) -> None:
        for read in list(self._under_way):
            if read.on_tick is not None:
                read.on_tick()
            if read.is_waiting and read.has_deadline and (why := self._missed(read, now)):
                read.end(PeerFailed(why))
            elif read.is_due(now) and read.member.name not in self._greeted:
                self._greeted.add(read.member.name)
                self._runtime.spawn(self._greet_late(read.member), f"hello {read.member.name}")

    def _missed(self, read: WatchedRead, now: float) -> str:
        """Which deadline `read` missed: the bucket would have brought bytes by now. Empty: it missed none."""
        health, name = self.members.health, read.member.name
        is_on_disk = read.has_head and read.is_on_disk
        if is_on_disk:
            health.of(name).flowed(0, read.waited_s(now), now)
        if not is_on_disk and health.is_late(name, read.waits_s(now), now):
            why = "late"
        elif read.has_head and health.is_slow(name, now, is_on_disk=is_on_disk):
            why = "slow"
        else:
            return ""
        health.of(name).leave_out(now)
        log.info("a member is slower than the bucket", extra={"peer": name, "why": why})
        return why

    async def _greet_late(self, member: Member) -> None:
        try:
            hello = asyncio.ensure_future(self.members.greet(member))
            answers = await within(hello, HELLO_S, self._runtime) and hello.exception() is None
            now = self.clock()
            late = [read for read in self._under_way if read.member.name == member.name and read.is_due(now)]
            # Bytes that were received meanwhile are an answer, too.
            if late and not answers:
                self.members.lost(member)
            for read in late:
                if answers:
                    read.goes_on(now)
                else:
                    read.end(PeerFailed("late", "neither a reply nor an answer to a hello"))
        finally:
            self._greeted.discard(member.name)
