"""Reports to the other members which objects clients of this node read, so that their planners know it.

A member learns of each read, and not only of blocks that it owns: a hit at the edge asks no owner. The reads of a while
go in one message. They are hints: one that is lost makes a prediction worse, and breaks nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import READS_MAX, READS_PATH, BegunRead, ReadsNotice, notice_interval_s, reads_body
from outrider.core.cluster.view import View
from outrider.core.model import ObjectRef
from outrider.engine.cluster.outbox import Outbox, Outgoing
from outrider.engine.tasks.runtime import Runtime


class ReadsSender:
    """All on the engine's loop. `readers`: how many clients of this node read at a time."""

    path = READS_PATH

    def __init__(
        self, view: Callable[[], View], outbox: Outbox, runtime: Runtime, readers: Callable[[], int]
    ) -> None:  # fmt: skip
        self._view = view
        self._outbox = outbox
        self._runtime = runtime
        self._readers = readers
        # Reader, object, size and time. A planner takes 30 to 100 us for a read: more than these a second, of many
        # nodes, would take most of a core. The newest ones help most.
        self._unsent: deque[tuple[str, ObjectRef, int, float]] = deque(maxlen=READS_MAX)
        self._is_sending = False
        # The last message, by the members that lack it.
        self._bodies: dict[str, bytes] = {}

    def opened(self, reader: str, ref: ObjectRef, size: int) -> None:
        """A client of this node began to read the object."""
        if not self._view().alive:
            return
        self._unsent.append((reader, ref, size, self._runtime.clock()))
        if not self._is_sending:
            self._is_sending = True
            self._runtime.spawn(self._send_later(), "report reads to members")

    async def _send_later(self) -> None:
        try:
            while self._unsent:
                await self._runtime.sleep(notice_interval_s(len(self._view().alive)))
                self._send_all()
        finally:
            self._is_sending = False

    def _send_all(self) -> None:
        now, view = self._runtime.clock(), self._view()
        reads = tuple(BegunRead(reader, ref, size, max(0.0, now - at)) for reader, ref, size, at in self._unsent)
        self._unsent.clear()
        body = reads_body(ReadsNotice(view.me.name, self._readers(), reads))
        self._bodies = dict.fromkeys(view.alive, body)
        self._outbox.send(self, view.alive.values())

    def next_for(self, member: Member) -> Outgoing | None:
        """See `outbox.Notices`."""
        body = self._bodies.pop(member.name, None)
        return None if body is None else Outgoing(body, lambda: None, repeats=False)

    def gave_up(self, member: Member) -> None:
        """See `outbox.Notices`. The next message takes the place of this one."""
