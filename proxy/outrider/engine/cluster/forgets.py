"""Forgets: a write through any member makes all members that answer forget the name, before it is sent and after its
answer.

The messages of a member are numbered. A member that notices a gap missed a write, so that each version that it knows of
is asked about again. A write goes on without a member that has not confirmed its message in time. Such a member may
serve the old version to its own clients until the message comes, or until a hello tells it of the gap. A member that
cannot be reached is bounded by the time to live of versions, and notices the gap once it is reached again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.core.cluster.forget_numbers import ReceivedForgets, SentForgets
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import Forget, Hello
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.cluster.view import View
from outrider.engine.tasks.runtime import Runtime, within
from outrider.metrics import Metrics
from outrider.ports import Name, PeerTransport

log = logging.getLogger(__name__)

WAIT_S = 0.25
"""A write waits no longer for the members."""
# A message that was not answered by then is given up.
_PATIENCE_S = 2.0
# A connection that was kept may break under the message, and so may the next one that was kept.
_TRIES = 3


class Forgetter(Protocol):
    """The parts of this node that hold beliefs about names."""

    def forget(self, names: Sequence[Name], *, in_doubt: bool) -> None: ...

    def forget_all(self) -> None:
        """Writes were missed."""
        ...


@dataclass(frozen=True, slots=True)
class Sender:
    """This process, as its forgets name it. `view`: the members of now."""

    name: str
    boot: int
    view: Callable[[], View]


class Forgets:
    """Sends forgets to all members that answer, and receives theirs."""

    def __init__(
        self, sender: Sender, transport: PeerTransport, forgetter: Forgetter, runtime: Runtime, metrics: Metrics
    ) -> None:  # fmt: skip
        self._sender = sender
        self._transport = transport
        self._forgetter = forgetter
        self._runtime = runtime
        self._metrics = metrics
        self._sent = SentForgets()
        self._received = ReceivedForgets()
        self._looks = False
        self.unheard: Callable[[Member], None] = lambda member: None
        """Called with a member that did not confirm a forget: a hello tells it of the gap."""

    # -- sent ---------------------------------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """The number of the last forget that was sent."""
        return self._sent.last

    async def tell(self, names: Sequence[Name], *, in_doubt: bool = False) -> None:
        """Make all members that answer forget the names. Returns when they have, or after a while. `in_doubt`: see
        `Forget`."""
        if not names:
            return
        # Also where nobody answers: a member that comes back notices the gap.
        message = Forget(self._sender.name, self._sender.boot, self._sent.next(), tuple(names), in_doubt)
        members = self._sender.view().answering
        if not members:
            return
        acknowledged = asyncio.Event()
        left = len(members)

        def done(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                acknowledged.set()

        for member in members:
            task = self._runtime.spawn(self._send(member, message), f"forget at {member.name}")
            task.add_done_callback(done)
        await within(asyncio.ensure_future(acknowledged.wait()), WAIT_S, self._runtime)

    async def _send(self, member: Member, message: Forget) -> None:
        began = self._runtime.clock()
        try:
            sending = asyncio.ensure_future(self._delivered(member, message))
            if not await within(sending, _PATIENCE_S, self._runtime):
                raise PeerFailed("late")
            sending.result()
        except (PeerFailed, asyncio.CancelledError) as error:
            self._metrics.peers.forgets.labels("unacknowledged").inc()
            log.debug("a member did not acknowledge a forget", extra={"peer": member.name, "error": repr(error)})
            if isinstance(error, asyncio.CancelledError):
                raise
            self.unheard(member)
        else:
            is_late = self._runtime.clock() - began > WAIT_S
            self._metrics.peers.forgets.labels("late" if is_late else "acknowledged").inc()

    async def _delivered(self, member: Member, message: Forget) -> None:
        """Raises PeerFailed."""
        for tries_left in reversed(range(_TRIES)):
            try:
                await self._transport.forget(member, message)
            except PeerFailed as error:
                if error.why != "broke" or not tries_left:
                    raise
            else:
                return

    # -- received -----------------------------------------------------------------------------------------------------

    def told(self, message: Forget, *, counts: bool = True) -> None:
        """A member is about to write, or has written. `counts`: its numbers are heeded, see `Membership.counts`; the
        names are forgotten in any case."""
        self._forgetter.forget(message.names, in_doubt=message.in_doubt)
        self._metrics.peers.forgets.labels("received").inc()
        if not counts:
            return
        self._heed(
            message.sender,
            is_gap=self._received.came(message.sender, message.boot, message.number, self._runtime.clock()),
        )

    def heard(self, hello: Hello) -> None:
        """A member told the number of its last forget."""
        name = hello.member.name
        self._heed(
            name, is_gap=self._received.told(name, hello.boot, hello.forgets, self._runtime.clock())
        )  # fmt: skip

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
        self._forgetter.forget_all()
