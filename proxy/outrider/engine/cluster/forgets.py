"""Forgets: a write through any member makes all members that answer forget the name, before it is sent and after its
answer. Forgets that are queued while a message is under way go in the next one.

Forgets are numbered. A member that notices a gap missed a write, so that each version that it knows of is looked up
again. A write goes on without a member that has not confirmed it in time. Such a member may serve the old version to
its own clients until the message comes, or until a hello shows it the gap. A member that cannot be reached is
bounded by the time to live of versions, and notices the gap once it is reached again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from outrider.core.cluster.forget_numbers import ReceivedForgets
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import FORGET_PATH, FORGETS_MERGED_WIRE, Forget, Hello, forget_body
from outrider.core.cluster.view import View
from outrider.engine.cluster.outbox import Outbox, Outgoing
from outrider.engine.listing.list_cache import ListCache
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.tasks.runtime import Runtime, within
from outrider.metrics import Metrics
from outrider.ports import Name

log = logging.getLogger(__name__)

WAIT_S = 0.25
"""A write waits no longer for the members."""
# Names in one message, unless one write has more: the receiver forgets them in a few milliseconds.
_NAMES_MAX = 1000


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


class ForgetQueues:
    """Sends forgets to all members that answer, and receives theirs."""

    path = FORGET_PATH

    def __init__(
        self, boot: int, view: Callable[[], View], outbox: Outbox, beliefs: Beliefs, runtime: Runtime,
        metrics: Metrics,
    ) -> None:  # fmt: skip
        """`boot`: see `Hello`. `view`: the members of now."""
        self._boot = boot
        self._view = view
        self._outbox = outbox
        self._beliefs = beliefs
        self._runtime = runtime
        self._metrics = metrics
        self._late, self._acknowledged = (metrics.peers.forgets.labels(result) for result in ("late", "acknowledged"))
        self.last = 0
        """The number of the last forget that was sent, the same one for all members. The first one has number 1."""
        # By the member's name: the forgets that it has not confirmed, those of the message under way included.
        self._waiting: defaultdict[str, deque[_Queued]] = defaultdict(deque)
        # The numbers of the last message that was written, and the message.
        self._last_body = (0, 0), b""
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
            self._waiting[member.name].append(queued)
        self._outbox.send(self, members)
        await within(asyncio.ensure_future(queued.settled.wait()), WAIT_S, self._runtime)

    def next_for(self, member: Member) -> Outgoing | None:
        """See `outbox.Notices`. The numbers of a message have no gap. A member of 0.2 takes one at a time."""
        waiting = self._waiting.get(member.name)
        if not waiting:
            return None
        names_max = _NAMES_MAX if member.wire[1] >= FORGETS_MERGED_WIRE else 1
        first, names = waiting[0], 0
        batch: list[_Queued] = []
        for each in waiting:
            names += len(each.names)
            follows = each.number == first.number + len(batch) and each.in_doubt == first.in_doubt
            if batch and (names > names_max or not follows):
                break
            batch.append(each)
        return Outgoing(self._body(batch), partial(self._confirmed, member.name, batch), is_joined=len(batch) > 1)

    def _body(self, batch: Sequence[_Queued]) -> bytes:
        """The same message goes to most members."""
        first, last = batch[0], batch[-1]
        if self._last_body[0] != (first.number, last.number):
            names = tuple(dict.fromkeys(name for each in batch for name in each.names))
            message = Forget(
                self._view().me.name, self._boot, last.number, names, first.in_doubt,
                None if first is last else first.number,
            )  # fmt: skip
            self._last_body = (first.number, last.number), forget_body(message)
        return self._last_body[1]

    def _confirmed(self, name: str, batch: Sequence[_Queued]) -> None:
        late = sum(self._runtime.clock() - each.queued_at > WAIT_S for each in batch)
        self._late.inc(late)
        self._acknowledged.inc(len(batch) - late)
        waiting = self._waiting[name]
        for _ in batch:
            waiting.popleft().settle()
        if not waiting:
            del self._waiting[name]

    def gave_up(self, member: Member) -> None:
        """See `outbox.Notices`. The hello that follows states the last number."""
        waiting = self._waiting.pop(member.name, ())
        if waiting:
            self.on_unconfirmed(member)
            self._metrics.peers.forgets.labels("unacknowledged").inc(len(waiting))
        for each in waiting:
            each.settle()

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
