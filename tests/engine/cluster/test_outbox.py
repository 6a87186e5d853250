"""The queue of each member, whatever becomes of its messages: they are late, lost, heeded without a sign of it, heeded
long after they were given up, or refused."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.core.ahead.hints import Hint
from outrider.core.cluster.forget_numbers import ReceivedForgets
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import Forget, Hello, OrderNotice, ReadsNotice
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.model import ObjectRef
from tests.support.fake_peers import FakeMember, hello_of
from tests.support.members import Node, Time, timed_cluster
from tests.support.trials import rounds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from outrider.core.cluster.messages import Answer, Notice, Question

NAMES = ("m0", "m1", "old")
FATES = ("slow", "hangs", "lost", "after all", "broke", "silent", "refused", "connect")


@dataclass(slots=True)
class Receiver(FakeMember):
    """A member that notes what it received, and when it found that it missed a write."""

    clock: Time = field(default_factory=Time)
    numbers: ReceivedForgets = field(default_factory=ReceivedForgets)
    forgot_at: dict[int, float] = field(default_factory=dict)
    gap_at: float = 0.0
    kinds: list[type] = field(default_factory=list)
    """Those of all messages but hellos, in their order."""

    async def answer(self, message: Hello | Notice | Question) -> Hello | Answer | None:
        now = self.clock()
        if isinstance(message, Hello):
            self.note(self.numbers.reported(message.sender, message.boot, message.forgets, now))
        else:
            self.kinds.append(type(message))
        if isinstance(message, Forget):
            for number in message.numbers:
                self.forgot_at.setdefault(number, now)
            self.note(self.numbers.received(message.sender, message.boot, message.numbers, now))
        return await FakeMember.answer(self, message)

    def note(self, is_gap: bool) -> None:
        if is_gap or self.numbers.passed(self.clock()):
            self.gap_at = self.clock()


class World:
    """One member that sends, and three that receive, of which one is of 0.2."""

    def __init__(self, node: Node, time: Time) -> None:
        self.node, self.time = node, time
        self.receivers = {name: self.receiver(name) for name in NAMES}
        self.fates: defaultdict[str, deque[str]] = defaultdict(deque)
        self.under_way: Counter[str] = Counter()
        self.later: list[asyncio.Task[None]] = []
        self.forgotten: list[tuple[float, int]] = []
        self.orders = self.reads = 0
        self.began = 0.0
        self.given_up_at: dict[str, float] = {}
        node.wire.way, self._unconfirmed = self.way, node.forgets.on_unconfirmed
        node.forgets.on_unconfirmed = self.gave_up

    def receiver(self, name: str) -> Receiver:
        wire = (1, 1) if name == "old" else (1, 2)
        member = Member(name, f"{name}:9482", "", 2**30, "cluster", wire)
        made = Receiver(replace(hello_of(name), member=member, forgets=0), clock=self.time)
        self.node.wire.services[member.address] = made
        return made

    async def way(self, name: str, arrive: Callable[[], Awaitable[None]]) -> None:
        assert not self.under_way[name], "one message at a time"
        fate = self.fates[name].popleft() if self.fates[name] else ""
        self.under_way[name] += 1
        try:
            if fate == "after all":
                self.later.append(asyncio.ensure_future(self.after_all(arrive)))
            if fate in ("lost", "after all", "stubborn"):
                await asyncio.Event().wait()
            if fate in ("slow", "hangs", "refused", "connect", "broke"):
                await self.time.sleep(0.5 if fate == "hangs" else 0.01)
            if fate in ("broke", "refused", "connect"):
                raise PeerFailed(fate)
            if fate == "bug":
                raise ZeroDivisionError
            await arrive()
            if fate == "silent":
                raise PeerFailed("broke")
        finally:
            self.under_way[name] -= 1
            if fate == "stubborn":
                await self.time.sleep(0.01)

    async def after_all(self, arrive: Callable[[], Awaitable[None]]) -> None:
        await self.time.sleep(3.1)
        await arrive()

    # -- acts ---------------------------------------------------------------------------------------------------------

    async def forget(self) -> None:
        began, number = self.time(), self.node.forgets.last + 1
        there = [member.name for member in self.node.view().answering]
        await self.node.forgets.forget([ObjectRef("train", str(number))])
        self.forgotten.append((began, number))
        if self.time() - began < 0.25:
            for name in there:
                is_given_up = self.given_up_at.get(name, 0.0) >= began
                assert is_given_up or number in self.receivers[name].forgot_at, "before the write goes on"

    def gave_up(self, member: Member) -> None:
        self.given_up_at[member.name] = self.time()
        self._unconfirmed(member)

    def order(self) -> None:
        ref = ObjectRef("train", f"{self.orders}.tar")
        self.orders += 1
        self.node.plans.announce("client", [ref], start=0, total=1, hint=Hint())

    def read(self) -> None:
        self.reads += 1
        self.node.reads_sender.opened("reader", ObjectRef("train", f"{self.reads}"), 1)

    # -- afterwards ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        for receiver in self.receivers.values():
            receiver.note(False)
            for began, number in self.forgotten:
                is_received = number in receiver.forgot_at
                assert is_received or receiver.gap_at > began, f"{receiver.mine.sender} never learns of {number}"
            orders = [message.number for message in receiver.orders]
            assert [*dict.fromkeys(orders)] == [*range(1, self.orders + 1)], "each, in this order"
            reads = [read.ref.key for message in receiver.reads for read in message.reads]
            assert len(reads) == len({*reads}), "a read that came twice looks like two"


async def play(node: Node, time: Time, acts: list[tuple[str, str]]) -> None:
    world = World(node, time)
    node.members.ready()
    await node.list(["a", *NAMES])
    greets = asyncio.ensure_future(node.greets())
    writes = []
    for act, which in acts:
        if act == "forget":
            writes.append(asyncio.ensure_future(world.forget()))
        elif act == "wait":
            await time.sleep(0.02 if which in NAMES[:1] else 0.6)
        elif act in ("order", "read"):
            getattr(world, act)()
        else:
            world.fates[which].append(act)
        await asyncio.sleep(0)
    await asyncio.gather(*writes)
    world.fates.clear()
    # Until each member has been greeted twice: by the second hello, a number that is missing is lost.
    await time.sleep(16)
    await asyncio.gather(*world.later)
    greets.cancel()
    world.check()


ACTS = st.one_of(
    st.tuples(st.sampled_from(("forget", "order", "read", "wait")), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from(FATES), st.sampled_from(NAMES)),
)


@settings(max_examples=rounds(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ACTS, max_size=30))
def test_each_member_learns_of_each_notice_in_order_and_of_a_write_before_it_goes_on(
    acts: list[tuple[str, str]],
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="outrider-outbox-"))

    async def run() -> None:
        with timed_cluster(folder, "a", policy="epoch") as (time, nodes):
            await time.run(play(nodes["a"], time, acts))
            await time.run(nodes.settle())

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def sent(root: Path, script: Callable[[World], Awaitable[None]]) -> World:
    """The world after a script in which nobody greets anybody."""
    with timed_cluster(root, "a", policy="epoch") as (time, nodes):
        world = World(nodes["a"], time)
        nodes["a"].members.ready()
        await nodes["a"].list(["a", *NAMES])
        await time.run(script(world))  # type: ignore[arg-type]
        await time.run(nodes.settle())
    return world


async def test_a_write_goes_before_orders_that_wait(tmp_path: Path) -> None:
    async def script(world: World) -> None:
        world.fates["m0"].append("slow")
        for _ in range(3):
            world.order()
        await world.time.sleep(0)
        await world.forget()
        await world.time.sleep(1)

    world = await sent(tmp_path, script)
    assert world.receivers["m0"].kinds == [OrderNotice, Forget, OrderNotice, OrderNotice]


async def test_a_notice_of_reads_that_breaks_takes_no_write_with_it(tmp_path: Path) -> None:
    """It is sent once, and the connection that was kept breaks, as it does after a pause: the member is not away."""

    async def script(world: World) -> None:
        world.fates["m0"].append("broke")
        world.read()
        await world.time.sleep(0.155)
        assert world.under_way["m0"]
        await world.forget()
        assert [*world.receivers["m0"].forgot_at] == [1]

    await sent(tmp_path, script)


async def test_orders_and_reads_go_while_many_write(tmp_path: Path) -> None:
    async def script(world: World) -> None:
        async def write() -> None:
            for _ in range(20):
                await world.forget()
                await world.time.sleep(0.003)

        world.fates["m0"].extend(["slow"] * 1000)
        writers = [asyncio.ensure_future(write()) for _ in range(16)]
        await world.time.sleep(0.02)
        world.order()
        world.read()
        await asyncio.gather(*writers)

    kinds = (await sent(tmp_path, script)).receivers["m0"].kinds
    assert set(kinds[: len(kinds) // 2]) == {Forget, OrderNotice, ReadsNotice}


@pytest.mark.parametrize("fate", ["refused", "connect", "broke"])
async def test_a_member_that_refuses_orders_learns_of_writes_and_one_that_is_away_is_sent_nothing(
    fate: str, tmp_path: Path
) -> None:
    """The list of one that refuses may not have this member yet. The orders are sent after its next hello."""

    async def script(world: World) -> None:
        world.fates["m0"].extend([fate] * (3 if fate == "broke" else 1))
        world.order()
        world.order()
        await world.time.sleep(0)
        await world.forget()
        assert not world.receivers["m0"].orders
        await world.time.sleep(1)
        await world.node.greet("m0:9482")
        await world.time.sleep(1)

    world = await sent(tmp_path, script)
    assert [*world.receivers["m0"].forgot_at] == ([1] if fate == "refused" else [])
    assert [message.number for message in world.receivers["m0"].orders] == [1, 2]
    assert ("m0" in world.given_up_at) == (fate != "refused")


async def test_nothing_runs_once_all_is_confirmed(tmp_path: Path) -> None:
    async def script(world: World) -> None:
        await world.forget()
        world.began = world.time()

    world = await sent(tmp_path, script)
    assert world.time() == world.began


async def test_a_message_that_follows_one_that_is_late_at_once_is_looked_after_too(tmp_path: Path) -> None:
    """Also while the connection of the one before is still being closed."""

    async def script(world: World) -> None:
        world.fates["m0"].extend(["stubborn", "lost"])
        world.began = world.time()
        await world.forget()
        await world.time.sleep(world.began + 2.005 - world.time())
        assert world.given_up_at["m0"] == world.began + 2
        world.order()
        await world.time.sleep(6)
        await world.node.greet("m0:9482")
        await world.time.sleep(1)

    world = await sent(tmp_path, script)
    assert [message.number for message in world.receivers["m0"].orders] == [1]


async def test_all_that_waits_behind_a_message_that_is_late_is_given_up_with_it(tmp_path: Path) -> None:
    """Two seconds after that was sent: so long a member may not know of a write although it answers hellos."""

    async def script(world: World) -> None:
        world.fates["m0"].append("lost")
        world.began = world.time()
        world.order()
        await world.time.sleep(1.5)
        await world.forget()
        await world.time.sleep(5)
        await world.forget()

    world = await sent(tmp_path, script)
    assert world.given_up_at["m0"] - world.began == 2
    assert [*world.receivers["m0"].forgot_at] == [2], "a hello shows that the first one was missed"


async def test_each_message_has_two_seconds_of_its_own(tmp_path: Path) -> None:
    async def script(world: World) -> None:
        world.fates["m0"].extend(["hangs"] * 6)
        for _ in range(6):
            world.order()
        await world.time.sleep(4)

    world = await sent(tmp_path, script)
    assert [message.number for message in world.receivers["m0"].orders] == [1, 2, 3, 4, 5, 6]


async def test_a_member_that_is_slow_gets_the_newest_reads(tmp_path: Path) -> None:
    async def script(world: World) -> None:
        world.fates["m0"].append("hangs")
        for _ in range(3):
            world.read()
            await world.time.sleep(0.2)
        await world.time.sleep(1)

    world = await sent(tmp_path, script)
    reads = {
        name: [read.ref.key for message in each.reads for read in message.reads]
        for name, each in world.receivers.items()
    }
    assert reads == {"m0": ["1", "3"], "m1": ["1", "2", "3"], "old": ["1", "2", "3"]}


async def test_a_bug_of_ours_gives_up_what_waits(tmp_path: Path) -> None:
    worlds = []

    async def script(world: World) -> None:
        worlds.append(world)
        world.fates["m0"].append("bug")
        await world.forget()
        assert world.time() == world.given_up_at["m0"]
        await world.time.sleep(1)
        await world.forget()

    with pytest.raises(ZeroDivisionError):
        await sent(tmp_path, script)
    assert [*worlds[0].receivers["m0"].forgot_at] == [2]
