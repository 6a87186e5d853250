"""A queue for each member: one message to it is under way at a time, whatever it is about.

Else a write would cost each member two signed requests, and the hellos would starve. Each kind of notices keeps the
ones that a member lacks, and joins them; this module sends them, the most urgent kind first. A member that does not
confirm a message in time, or cannot be reached, is sent no more: each kind gives up what waits there. Its next hello
restores what has to be restored, since it shows both sides what the member lacks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import FORGET_PATH, ORDER_PATH, READS_PATH
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.cluster.view import View
from outrider.engine.tasks.runtime import Runtime
from outrider.ports import PeerTransport

log = logging.getLogger(__name__)

# A write waits for the first ones. The last ones may be many.
_BY_URGENCY = (FORGET_PATH, READS_PATH, ORDER_PATH)
# A message that was not answered by then is given up.
_PATIENCE_S = 2.0
# While many write at once, messages are sent this far apart, times the members, and no farther apart than the most: to
# all members in the same moments, since a write waits for the last of them. A message takes 0.2 ms of a core: so those
# to all members take a fifth of one.
_APART_S, _APART_MAX_S = 0.001, 0.1
# A connection that was kept may break under the message, and so may the next one that was kept.
_TRIES = 3
_UNREACHABLE = frozenset(("connect", "late"))


class Outgoing(NamedTuple):
    """A message. `received`: called once the member has heeded it. `is_joined`: it has several notices in it, so that
    others are likely to follow soon. `repeats`: it does no harm twice."""

    body: bytes
    received: Callable[[], None]
    is_joined: bool = False
    repeats: bool = True


class Notices(Protocol):
    """The notices of one kind. `path`: where they are sent, see `messages.BY_PATH`."""

    path: str

    def next_for(self, member: Member) -> Outgoing | None:
        """The next message; None: the member lacks nothing."""
        ...

    def gave_up(self, member: Member) -> None:
        """Nothing of what waits is sent to the member, until `Outbox.send` is called again."""
        ...


@dataclass(slots=True)
class _Queue:
    """`member`: as it was when the last notice was queued. `kinds`: those that have notices for it, by path. `due_at`:
    when the message under way is given up."""

    member: Member
    kinds: dict[str, Notices]
    due_at: float
    task: asyncio.Task[None] | None = None


class Outbox:
    """All on the engine's loop. `view`: the members of now."""

    def __init__(self, view: Callable[[], View], transport: PeerTransport, runtime: Runtime) -> None:
        self._view = view
        self._transport = transport
        self._runtime = runtime
        # By the member's name. A queue is there while a task sends what is in it.
        self._queues: dict[str, _Queue] = {}
        self._watch: asyncio.Task[None] | None = None

    def send(self, kind: Notices, members: Iterable[Member]) -> None:
        """Send the members what they lack of this kind."""
        for member in members:
            queue = self._queues.get(member.name)
            if queue is None:
                queue = self._queues[member.name] = _Queue(member, {}, self._due_at())
                queue.task = self._runtime.spawn(self._send_all(queue), f"notices to {member.name}")
            queue.member = member
            queue.kinds[kind.path] = kind
        # One task looks after all messages: a time-out for each would take a fifth of the CPU time of a message.
        if self._queues and self._watch is None:
            self._watch = self._runtime.spawn(self._give_up_late(), "notices that are late")

    async def _send_all(self, queue: _Queue) -> None:
        """One message after the other, until the member lacks nothing."""
        joined = ""
        try:
            while queue.kinds:
                # After joined notices the turn is another kind's: while many write, there are always more to join.
                path = next((path for path in _BY_URGENCY if path in queue.kinds and path != joined), joined)
                message, joined = queue.kinds[path].next_for(queue.member), ""
                queue.due_at = self._due_at()
                if message is None:
                    del queue.kinds[path]
                elif await self._is_received(queue, path, message) and message.is_joined:
                    joined = path
                    apart_s = min(_APART_MAX_S, _APART_S * max(1, len(self._view().answering)))
                    queue.due_at = self._due_at()
                    await self._runtime.sleep(apart_s - self._runtime.clock() % apart_s)
        except Exception:
            # A bug of ours: what cannot be sent must not wait for ever.
            self._give_up(queue, [*queue.kinds], "failed")
            raise
        finally:
            if self._queues.get(queue.member.name) is queue:
                del self._queues[queue.member.name]
            if self._watch is not None and not self._queues:
                self._watch.cancel()
                self._watch = None

    async def _is_received(self, queue: _Queue, path: str, message: Outgoing) -> bool:
        """False: the message was given up."""
        for tries_left in reversed(range(_TRIES if message.repeats else 1)):
            try:
                await self._transport.send(queue.member, path, message.body)
            except PeerFailed as error:
                if error.why != "broke" or not tries_left:
                    # One that refuses a kind may take another: as a member whose list does not have this one yet. A
                    # kept connection that broke once says nothing of the member.
                    is_away = error.why in _UNREACHABLE or (error.why == "broke" and message.repeats)
                    self._give_up(queue, [*queue.kinds] if is_away else [path], error.why)
                    return False
            else:
                message.received()
                return True
        raise AssertionError("the last try returns")

    def _give_up(self, queue: _Queue, paths: Iterable[str], why: str) -> None:
        log.debug("a member did not take notices", extra={"peer": queue.member.name, "why": why})
        for path in paths:
            queue.kinds.pop(path).gave_up(queue.member)

    def _due_at(self) -> float:
        return self._runtime.clock() + _PATIENCE_S

    async def _give_up_late(self) -> None:
        """A message that is late is given up, and all that wait behind it."""
        while self._queues:
            now = self._runtime.clock()
            for queue in [each for each in self._queues.values() if each.due_at <= now]:
                del self._queues[queue.member.name]
                assert queue.task is not None
                queue.task.cancel()
                self._give_up(queue, [*queue.kinds], "late")
            await self._runtime.sleep(min((each.due_at for each in self._queues.values()), default=now) - now)
        self._watch = None
