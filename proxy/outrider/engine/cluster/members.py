"""The members of the cluster, as this node sees them: follows the source of members, and greets each of them at regular
intervals.

`core.cluster.membership` decides what follows from lists, hellos and their absence. This module owns the tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from outrider.core.cluster.member import Member
from outrider.core.cluster.membership import Membership
from outrider.core.cluster.messages import Forget, Hello
from outrider.core.cluster.peer_health import PeersHealth
from outrider.core.cluster.view import Change, View
from outrider.engine.cluster.forgets import ForgetQueues
from outrider.engine.tasks.runtime import Runtime, within
from outrider.metrics import Metrics
from outrider.ports import Clock, MemberSource, PeerTransport

log = logging.getLogger(__name__)

HELLO_EVERY_S = 5.0
# The share of that time by which each wait differs: members that started together must not greet all at once.
_JITTER = 0.2
_TICK_S = 1.0
# A member that does not answer for so long is away.
_HELLO_PATIENCE_S = 2.0
# A stop waits no longer for the members to learn of it.
_GOODBYE_S = 0.25
_LEVELS = dict.fromkeys(("away", "left out", "list doubted"), logging.WARNING) | {"name used twice": logging.ERROR}


Keep = Callable[[object], Awaitable[None]]
"""Saves the last good list of members in the cache directory. It never fails."""


class LiveMembers:
    """Owns the tasks of the membership. All on the engine's loop."""

    def __init__(
        self, membership: Membership, boot: int, source: MemberSource, transport: PeerTransport, forgets: ForgetQueues,
        keep: Keep | None, runtime: Runtime, wall_clock: Clock, chance: Callable[[], float], metrics: Metrics,
    ) -> None:  # fmt: skip
        """`boot`: see `Hello`. `keep` None: the cache ends with the process. `chance`: numbers from 0 to 1, for
        jitter."""
        self._membership = membership
        self._boot = boot
        self._source = source
        self._transport = transport
        self._forgets = forgets
        self._keep_list = keep
        self._runtime = runtime
        self._wall_clock = wall_clock
        self._chance = chance
        self._metrics = metrics
        self._greeting: set[str] = set()
        self._leaves = False
        self._due: dict[str, float] = {}
        self.health = PeersHealth()
        self._kept: object = None
        self._is_ready, self._disk_answers = False, True
        self.on_ring: list[Callable[[], None]] = []
        """Called when the ring has changed."""
        self.on_hello: list[Callable[[], None]] = []
        """Called when a member has answered a hello."""
        self._ring = membership.view.ring
        self.settled = asyncio.Event()
        """Set once the members are known; see `Membership.is_settled`."""
        forgets.on_unconfirmed = self._missed_a_forget

    @property
    def view(self) -> View:
        return self._membership.view

    # -- tasks --------------------------------------------------------------------------------------------------------

    def start(self) -> list[asyncio.Task[None]]:
        """Starts the tasks, which end with their group."""
        return [
            self._runtime.spawn(self._follow(), "members: lists"),
            self._runtime.spawn(self._greet_all(), "members: hellos"),
        ]

    async def _follow(self) -> None:
        async with aclosing(self._source.lists()) as lists:
            async for entries in lists:
                self._membership.listed(entries, self._runtime.clock())
                self._changed()
                self._greet_due()

    async def _greet_all(self) -> None:
        while True:
            await self._runtime.sleep(_TICK_S)
            self._membership.passed(self._runtime.clock())
            self._changed()
            self.health.keep({state.member.name for state in self.view.states})
            self._greet_due()
            await self._keep()

    def _greet_due(self) -> None:
        now, addresses = self._runtime.clock(), self._membership.to_greet
        self._due = {address: self._due.get(address, now) for address in addresses}
        for address in addresses:
            if self._due[address] <= now:
                self._greet_soon(address)

    def _greet_soon(self, address: str) -> None:
        if address in self._greeting:
            return
        self._greeting.add(address)
        self._due[address] = self._runtime.clock() + HELLO_EVERY_S * (1 - _JITTER + 2 * _JITTER * self._chance())
        task = self._runtime.spawn(self._greeted(address), f"hello {address}")
        task.add_done_callback(lambda _: self._greeting.discard(address))

    async def _greeted(self, address: str) -> None:
        name = self._membership.name_at(address)
        hello = asyncio.ensure_future(self._transport.hello(address, self.mine(), name))
        if await within(hello, _HELLO_PATIENCE_S, self._runtime) and hello.exception() is None:
            self._answered(address, hello.result())
        else:
            self._membership.unanswered(address, self._runtime.clock())
            self._changed()
            if name and hello.done() and getattr(hello.exception(), "why", "") == "refused":
                # Perhaps another member is there now, which has refused a hello that was not for it.
                self._due[address] = self._runtime.clock()

    async def greet(self, member: Member) -> None:
        """Raises PeerFailed: the member does not answer."""
        self._answered(member.address, await self._transport.hello(member.address, self.mine(), member.name))

    def _answered(self, address: str, hello: Hello) -> None:
        self._membership.answered(address, hello, self._runtime.clock(), self._wall_clock())
        if self._membership.counts(hello.member.name, hello.boot):
            self.health.of(hello.member.name).greeted(hello.boot)
            self._forgets.on_hello(hello)
        self._changed()
        for notify in self.on_hello:
            notify()

    # -- for reads ----------------------------------------------------------------------------------------------------

    def failed(self, member: Member, why: str, *, of_block: bool = True) -> None:
        """A request failed. `of_block` False: one for a LIST, which says nothing of the blocks of the member."""
        self._metrics.peers.failures.labels(why).inc()
        if of_block:
            self.health.of(member.name).failed(why, self._runtime.clock())
        if why in ("connect", "broke"):
            # Most likely it is away; a hello will show it.
            self._greet_soon(member.address)

    def lost(self, member: Member) -> None:
        """The member neither replies nor answers a hello."""
        now = self._runtime.clock()
        self._membership.unanswered(member.address, now)
        # It may only have been late.
        self._due[member.address] = now + _TICK_S
        self._changed()

    def _missed_a_forget(self, member: Member) -> None:
        # The hello states the number of the last forget, so that the member notices the gap; or it shows that the
        # member is away, so that writes do not wait for it. A hello under way states an older number: another one
        # follows it.
        self._due[member.address] = self._runtime.clock()
        self._greet_soon(member.address)

    async def _keep(self) -> None:
        kept = self._membership.kept
        if self._keep_list is not None and kept != self._kept and self._membership.is_settled:
            self._kept = kept
            await self._keep_list(kept)

    def ready(self) -> None:
        """The index of the cache directory was read: this node may be asked. The members learn it at once."""
        self._is_ready = True
        self._greet_at_once()

    def disk_answers(self, answers: bool) -> None:
        """Whether blocks can be read from the disk: while they cannot, a successor acts for this one. The
        members learn of it at once."""
        if self._disk_answers != answers:
            log.log(logging.INFO if answers else logging.WARNING, "cache disk answers", extra={"answers": answers})
            self._disk_answers = answers
            self._greet_at_once()

    def _greet_at_once(self) -> None:
        for address in self._membership.to_greet:
            self._due[address] = self._runtime.clock()
        self._greet_due()

    # -- what others say ----------------------------------------------------------------------------------------------

    def mine(self) -> Hello:
        """This node's account of itself."""
        view = self.view
        return Hello(
            view.me, self._boot, view.ring.digest, self._forgets.last, self._wall_clock(),
            is_ready=self._is_ready and self._disk_answers, is_leaving=self._leaves,
        )  # fmt: skip

    def met(self, theirs: Hello) -> Hello:
        if theirs.member.cluster_id != self.view.me.cluster_id:
            return self.mine()
        if theirs.member.name == self.view.me.name:
            self._membership.met_namesake(theirs, self._runtime.clock())
            self._changed()
        else:
            if theirs.is_leaving:
                self._membership.leaves(theirs.member.name, theirs.boot, self._runtime.clock())
                self._changed()
            if self._membership.counts(theirs.member.name, theirs.boot):
                self._forgets.on_hello(theirs)
            if (address := self._membership.news_from(theirs)) is not None:
                self._greet_soon(address)
        return self.mine()

    def on_forget(self, message: Forget) -> None:
        self._forgets.on_forget(message, counts=self._membership.counts(message.sender, message.boot))

    # -- the end ------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Notify the members that this one is about to stop. Returns soon, whether they answered or not."""
        self._leaves = True
        self._membership.i_leave(self._runtime.clock())
        self._changed()
        if not self.view.alive:
            return
        mine, others = self.mine(), self.view.alive.values()
        hellos = (self._transport.hello(each.address, mine, each.name) for each in others)
        goodbyes = asyncio.gather(*hellos, return_exceptions=True)
        await within(goodbyes, _GOODBYE_S, self._runtime)

    # -- changes ------------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        for change in self._membership.changes():
            _log(change)
        if self._membership.is_settled:
            self.settled.set()
        if self.view.ring is not self._ring:
            self._ring = self.view.ring
            for notify in self.on_ring:
                notify()


def _log(change: Change) -> None:
    level = _LEVELS.get(change.event, logging.INFO)
    log.log(level, "members changed", extra={"change": change.event, "peer": change.name, "detail": change.detail})
