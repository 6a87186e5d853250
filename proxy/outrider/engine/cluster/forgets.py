"""Forgets: a write through any member makes all members that answer forget the name, before it is sent and after its
answer.

Each member has a queue, and one message to it is under way at a time: forgets that are queued meanwhile go in one
message. Else a write would cost each member two signed requests, and the hellos would starve.

Forgets are numbered. A member that notices a gap missed a write, so that each version that it knows of is looked up
again. A write goes on without a member that has not confirmed it in time. Such a member may serve the old version to
its own clients until the message comes, or until a hello shows it the gap. A member that cannot be reached is
bounded by the time to live of versions, and notices the gap once it is reached again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outrider.core.cluster.forget_numbers import ReceivedForgets
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import FORGET_PATH, FORGETS_MERGED_WIRE, Forget, Hello, forget_body
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.cluster.view import View
from outrider.engine.listing.list_cache import ListCache
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.tasks.runtime import Runtime, within
from outrider.metrics import Metrics
from outrider.ports import Name, PeerTransport

log = logging.getLogger(__name__)

WAIT_S = 0.25
"""A write waits no longer for the members."""
# A message that was not answered by then is given up.
_PATIENCE_S = 2.0
# While many write at once, messages are sent this far apart, times the members, and no farther apart than the most: to
# all members in the same moments, since a write waits for the last of them. A message takes 0.25 ms of a core: so those
# to all members take a quarter of one.
_APART_S, _APART_MAX_S = 0.001, 0.1
# Names in one message, unless one write has more: the receiver forgets them in a few milliseconds.
_NAMES_MAX = 1000
# A connection that was kept may break under the message, and so may the next one that was kept.
_TRIES = 3


class Beliefs:
    """The parts of a node that believe something about names, and can be made to forget it."""

    def __init__(self, versions: VersionCache, list_cache: ListCache) -> None:
        self._versions = versions
        self._list_cache = list_cache

    def forget(self, names: Sequence[Name], *, in_doubt: bool) -> None:
        for name in names:
            if in_doubt:
                self._versions.doubt(name)
            elif isinstance(name, str):
                self._versions.forget_bucket(name)
            else:
                self._versions.forget(name)
            self._list_cache.forget(name)

    def forget_all(self) -> None:
        """Writes were missed."""
        self._versions.forget_all()
        self._list_cache.forget_all()


@dataclass(slots=True)
class _Queued:
    """A forget that some members have not confirmed. `queued_at`: monotonic seconds. `unsettled`: how many members have
    neither confirmed it nor were given up. `settled`: set when none is left."""

    number: int
    names: Sequence[Name]
    in_doubt: bool
    queued_at: float
    unsettled: int
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    def settle(self) -> None:
        self.unsettled -= 1
        if not self.unsettled:
            self.settled.set()


@dataclass(slots=True)
class _Queue:
    """The forgets that a member has not confirmed, those of the message under way included. `member`: as it was when
    the last one was queued."""

    member: Member
    forgets: deque[_Queued] = field(default_factory=deque)

    def batch(self) -> Sequence[_Queued]:
        """Those that go in the next message: the numbers of a message have no gap. A member of 0.2 takes one at a
        time."""
        names_max = _NAMES_MAX if self.member.wire[1] >= FORGETS_MERGED_WIRE else 1
        first, names = self.forgets[0], 0
        batch: list[_Queued] = []
        for each in self.forgets:
            names += len(each.names)
            follows = each.number == first.number + len(batch) and each.in_doubt == first.in_doubt
            if batch and (names > names_max or not follows):
                break
            batch.append(each)
        return batch


class ForgetQueues:
    """Sends forgets to all members that answer, and receives theirs."""

    def __init__(
        self, boot: int, view: Callable[[], View], transport: PeerTransport, beliefs: Beliefs, runtime: Runtime,
        metrics: Metrics,
    ) -> None:  # fmt: skip
        """`boot`: see `Hello`. `view`: the members of now."""
        self._boot = boot
        self._view = view
        self._transport = transport
        self._beliefs = beliefs
        self._runtime = runtime
        self._metrics = metrics
        self.last = 0
        """The number of the last forget that was sent, the same one for all members. The first one has number 1."""
        # By the member's name. A queue is there while a task sends what is in it.
        self._queues: dict[str, _Queue] = {}
        self._received = ReceivedForgets()
        self._looks = False
        self.on_unconfirmed: Callable[[Member], None] = lambda member: None
        """Called with a member that did not confirm a forget: a hello shows it the gap."""

    # -- sent ---------------------------------------------------------------------------------------------------------

    async def forget(self, names: Sequence[Name], *, in_doubt: bool = False) -> None:
        """Make all members that answer forget the names. Returns when they have, or after a while. `in_doubt`: see
        `Forget`."""
        if not names:
            return
        # Also where nobody answers: a member that comes back notices the gap.
        self.last += 1
        members = self._view().answering
        if not members:
            return
        queued = _Queued(self.last, names, in_doubt, self._runtime.clock(), len(members))
        for member in members:
            queue = self._queues.get(member.name)
            if queue is None:
                queue = self._queues[member.name] = _Queue(member)
                self._runtime.spawn(self._send_all(queue), f"forgets to {member.name}")
            queue.member = member
            queue.forgets.append(queued)
        await within(asyncio.ensure_future(queued.settled.wait()), WAIT_S, self._runtime)

    async def _send_all(self, queue: _Queue) -> None:
        """One message after the other, until the queue is empty or a message is given up."""
        try:
            while queue.forgets:
                batch = queue.batch()
                await self._send(queue.member, batch)
                late = sum(self._runtime.clock() - each.queued_at > WAIT_S for each in batch)
                self._metrics.peers.forgets.labels("late").inc(late)
                self._metrics.peers.forgets.labels("acknowledged").inc(len(batch) - late)
                for _ in batch:
                    queue.forgets.popleft().settle()
                if len(batch) > 1:
                    apart_s = min(_APART_MAX_S, _APART_S * max(1, len(self._view().answering)))
                    await self._runtime.sleep(apart_s - self._runtime.clock() % apart_s)
        except PeerFailed as error:
            log.debug("a member did not acknowledge a forget", extra={"peer": queue.member.name, "error": repr(error)})
            self.on_unconfirmed(queue.member)
        finally:
            # All that are queued are given up with it: the hello states the last number.
            del self._queues[queue.member.name]
            self._metrics.peers.forgets.labels("unacknowledged").inc(len(queue.forgets))
            for each in queue.forgets:
                each.settle()

    async def _send(self, member: Member, batch: Sequence[_Queued]) -> None:
        """Raises PeerFailed."""
        first, last = batch[0], batch[-1]
        names = tuple(dict.fromkeys(name for each in batch for name in each.names))
        message = Forget(
            self._view().me.name, self._boot, last.number, names, first.in_doubt,
            None if first is last else first.number,
        )  # fmt: skip
        sending = asyncio.ensure_future(self._delivered(member, forget_body(message)))
        if not await within(sending, _PATIENCE_S, self._runtime):
            raise PeerFailed("late")
        sending.result()

    async def _delivered(self, member: Member, body: bytes) -> None:
        """Raises PeerFailed."""
        for tries_left in reversed(range(_TRIES)):
            try:
                await self._transport.send(member, FORGET_PATH, body)
            except PeerFailed as error:
                if error.why != "broke" or not tries_left:
                    raise
            else:
                return

    # -- received -----------------------------------------------------------------------------------------------------

    def on_forget(self, message: Forget, *, counts: bool = True) -> None:
        """A member is about to write, or has written. `counts`: its numbers are heeded, see `Membership.counts`; the
        names are forgotten in any case."""
        self._beliefs.forget(message.names, in_doubt=message.in_doubt)
        self._metrics.peers.forgets.labels("received").inc()
        if counts:
            is_gap = self._received.received(message.sender, message.boot, message.numbers, self._runtime.clock())
            self._heed(message.sender, is_gap=is_gap)

    def on_hello(self, hello: Hello) -> None:
        """A member reports the number of its last forget."""
        is_gap = self._received.reported(hello.sender, hello.boot, hello.forgets, self._runtime.clock())
        self._heed(hello.sender, is_gap=is_gap)

    def _heed(self, sender: str, *, is_gap: bool) -> None:
        if is_gap:
            self._missed(sender)
        if self._received.due_at is not None and not self._looks:
            self._looks = True
            self._runtime.spawn(self._look_again(), "missing forgets")

    async def _look_again(self) -> None:
        try:
            while (due_at := self._received.due_at) is not None:
                await self._runtime.sleep(max(0.0, due_at - self._runtime.clock()))
                if self._received.passed(self._runtime.clock()):
                    self._missed("")
        finally:
            self._looks = False

    def _missed(self, sender: str) -> None:
        self._metrics.peers.forgets.labels("missed").inc()
        log.info("writes of a member may have been missed", extra={"peer": sender})
        self._beliefs.forget_all()
