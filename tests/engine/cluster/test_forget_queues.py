"""A queue of forgets for each member: writes that come together cost a member few messages, and a slow member keeps no
other one waiting."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import Answer, Hello, Notice, Question
from outrider.core.cluster.peer_messages import PeerRead
from outrider.core.model import ObjectRef
from outrider.engine.cluster.peer_service import PeerReadAnswer, PeerService
from tests.engine.cluster.test_late_forgets import forgets, known_to_all, never, to
from tests.engine.cluster.test_writes import write
from tests.support.fake_peers import FakeMember, hello_of
from tests.support.fakes import RAMP
from tests.support.members import Cluster, Node, Time, cluster, joined_by, timed_cluster

MEMBERS, WRITES = 50, 32
OLD, NEW = RAMP[:1000], RAMP[:2000]


@dataclass
class SlowAnswers:
    """A member that answers hellos once the gate is open. It heeds them at once."""

    member: PeerService
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, read: PeerRead, sender: str) -> PeerReadAnswer:
        return await self.member.read(read, sender)

    async def answer(self, message: Hello | Notice | Question) -> Hello | Answer | None:
        answer = await self.member.answer(message)
        if isinstance(message, Hello):
            await self.gate.wait()
        return answer


async def puts(node: Node, keys: list[str]) -> None:
    await asyncio.gather(*(write(node, "PUT", f"/train/{key}", NEW) for key in keys))


async def test_writes_that_come_together_cost_each_member_few_messages(tmp_path: Path) -> None:
    time, keys = Time(), [f"{number}.tar" for number in range(WRITES)]
    with cluster(tmp_path, "a", clock=time, sleep=time.sleep) as nodes:
        node = nodes["a"]
        await time.run(joined_by(node, MEMBERS))
        await time.run(puts(node, keys))
        sent = Counter(name for name, _ in node.wire.forgets)
        assert len(sent) == MEMBERS
        assert max(sent.values()) <= 6, "2 x 32 forgets"
        for service in node.wire.services.values():
            if isinstance(service, FakeMember):
                numbers = [number for message in service.forgets for number in message.numbers]
                assert numbers == [*range(1, 2 * WRITES + 1)]
                forgotten = {name for message in service.forgets for name in message.names}
                assert forgotten == {ObjectRef("train", key) for key in keys}
        assert forgets(node) == {"acknowledged": 2 * WRITES * MEMBERS, "late": 0, "unacknowledged": 0}


async def test_while_many_write_the_messages_to_a_member_are_apart_and_alone_they_are_not(tmp_path: Path) -> None:
    """Else each answer of a member would be followed by a message with the few forgets of that moment."""
    with timed_cluster(tmp_path, "a") as (time, nodes):
        node = nodes["a"]
        await time.run(joined_by(node, MEMBERS))

        async def takes_5_ms(_: str) -> None:
            await time.sleep(0.005)

        node.wire.forgets_way = takes_5_ms

        async def after(seconds: float, key: str) -> None:
            await time.sleep(seconds)
            await write(node, "PUT", f"/train/{key}", NEW)

        async def many() -> None:
            await asyncio.gather(*(after(0.002 * number, f"{number}.tar") for number in range(100)))

        began = time()
        await time.run(many())
        sent = Counter(name for name, _ in node.wire.forgets)
        assert max(sent.values()) <= 3 + (time() - began) / 0.05, "200 forgets, and 5 ms for a message"
        assert forgets(node) == {"acknowledged": 200 * MEMBERS, "late": 0, "unacknowledged": 0}
        await time.until(time() + 1)
        for _ in range(2):
            began = time()
            await time.run(write(node, "PUT", "/train/alone", NEW))
            assert time() - began == pytest.approx(0.01)
        await time.run(nodes.settle())


async def test_one_message_to_a_member_is_under_way_at_a_time_and_no_hello_waits_for_it(tmp_path: Path) -> None:
    with timed_cluster(tmp_path) as (time, nodes):
        late, writer, third = await time.run(known_to_all(nodes, time))
        writer.wire.forgets_way = to(late.name, never)
        await time.run(puts(writer, [f"{number}" for number in range(WRITES)]))
        sent = Counter(name for name, _ in writer.wire.forgets)
        assert sent[late.name] == 1
        await time.run(writer.members.greet(writer.membership.view.alive[late.name]))
        assert {*writer.membership.view.alive} == {late.name, third.name}
        await time.run(nodes.settle())


@pytest.mark.parametrize("freshness", ["immutable", "ttl:60"])
async def test_a_slow_member_keeps_no_other_one_waiting(freshness: str, tmp_path: Path) -> None:
    """Each write that follows a message that hangs is known to the third member before its client has the answer."""
    with timed_cluster(tmp_path, freshness=freshness) as (time, nodes):
        late, writer, third = await time.run(known_to_all(nodes, time))
        gate = asyncio.Event()

        async def waits() -> None:
            await gate.wait()

        writer.wire.forgets_way = to(late.name, waits)
        for size in (1001, 1002, 1003):
            await time.run(write(writer, "PUT", body=RAMP[:size]))
            assert await time.run(third.get()) == RAMP[:size]
        assert await time.run(late.get()) == OLD
        await time.until(time() + 0.1)
        gate.set()
        await time.turns()
        assert await time.run(late.get()) == RAMP[:1003]
        assert forgets(writer) == {"acknowledged": 6, "late": 6, "unacknowledged": 0}
        assert late.engine.metrics.value("outrider_peer_forgets_total", result="received") == 2
        assert late.engine.metrics.value("outrider_peer_forgets_total", result="missed") == 0
        await time.run(nodes.settle())


async def test_forgets_that_wait_behind_one_that_is_given_up_are_reported_by_a_hello_after_it(tmp_path: Path) -> None:
    """Also where a hello is under way by then, which has an older number."""
    with timed_cluster(tmp_path, freshness="immutable") as (time, nodes):
        late, writer, _ = await time.run(known_to_all(nodes, time))
        greets = asyncio.create_task(writer.greets())
        writer.wire.forgets_way = to(late.name, never)
        began = time()
        await time.run(write(writer, "PUT", "/train/other", NEW))
        await time.until(began + 1.3)
        # The hello arrives, and its answer takes a while.
        answers = SlowAnswers(late.service)
        writer.wire.services[late.address] = answers
        writer.members.failed(late.membership.view.me, "connect")
        await time.until(began + 1.7)
        writing = asyncio.create_task(write(writer, "PUT", body=NEW))
        await time.until(began + 1.9)
        assert await time.run(late.get()) == OLD, "after the gap that the hello reported"
        await time.until(began + 2.3)
        assert writing.done()
        answers.gate.set()
        await time.until(began + 4)
        assert await time.run(late.get()) == NEW
        assert forgets(writer)["unacknowledged"] == 4
        greets.cancel()
        await time.run(nodes.settle())


async def test_forgets_that_wait_go_where_the_member_is_by_then(tmp_path: Path) -> None:
    with timed_cluster(tmp_path) as (time, nodes):
        moved, writer, _ = await time.run(known_to_all(nodes, time))
        gate = asyncio.Event()

        async def breaks() -> None:
            await gate.wait()

        writer.wire.forgets_way = to(moved.name, breaks)
        await time.run(write(writer, "PUT", body=NEW))
        hello = replace(moved.members.mine(), boot=2)
        new = writer.wire.services["new:1"] = FakeMember(hello)
        writer.membership.answered("new:1", hello, time(), 0.0)
        await time.run(write(writer, "PUT", body=RAMP[:3000]))
        gate.set()
        await time.turns()
        assert [message.numbers for message in new.forgets] == [range(2, 5)]
        await time.run(nodes.settle())


async def sent_to(nodes: Cluster, time: Time, member: Member, names: list[list[str]], unknown: int = -1) -> FakeMember:
    """The forgets of one node that came at once, while the first one was under way. The member does not answer as the
    one of number `unknown` is sent."""
    node = nodes["a"]
    service = node.wire.services[member.address] = FakeMember(replace(hello_of(member.name), member=member, forgets=0))
    node.members.ready()
    await node.list(["a", member.name])
    forgetting = []
    for number, some in enumerate(names):
        if number == unknown:
            node.membership.unanswered(member.address, time())
        forgetting.append(asyncio.ensure_future(node.forgets.forget(some, in_doubt="doubt" in some)))
        await asyncio.sleep(0)
        if number == unknown:
            await node.greet(member.address)
    await asyncio.gather(*forgetting)
    return service


MEMBER = Member("m", "m:9482", "", 1, "cluster")


async def numbers_of(tmp_path: Path, names: list[list[str]], unknown: int = -1, member: Member = MEMBER) -> list[range]:
    with timed_cluster(tmp_path, "a") as (time, nodes):
        gate = asyncio.Event()

        async def waits(_: str) -> None:
            await gate.wait()

        nodes["a"].wire.forgets_way = waits
        work = asyncio.ensure_future(sent_to(nodes, time, member, names, unknown))
        await time.turns()
        gate.set()
        service = await time.run(asyncio.wait_for(work, 60))
        return [message.numbers for message in service.forgets]


async def test_a_member_of_0_2_gets_each_forget_by_itself_and_misses_none(tmp_path: Path) -> None:
    """It knows of one number in a message, and would take the others for lost."""
    names = [["x"], ["y"], ["z"]]
    old = replace(MEMBER, wire=(1, 1))
    assert await numbers_of(tmp_path, names, member=old) == [range(1, 2), range(2, 3), range(3, 4)]
    assert await numbers_of(tmp_path / "new", names) == [range(1, 2), range(2, 4)]


async def test_a_message_never_spans_a_forget_that_was_not_for_the_member(tmp_path: Path) -> None:
    """Else the member would not notice the gap."""
    assert await numbers_of(tmp_path, [["w"], ["x"], ["y"], ["z"]], unknown=2) == [
        range(1, 2),
        range(2, 3),
        range(4, 5),
    ]


async def test_forgets_in_doubt_and_others_are_not_merged(tmp_path: Path) -> None:
    names = [["w"], ["x"], ["doubt"], ["y"]]
    assert await numbers_of(tmp_path, names) == [range(1, 2), range(2, 3), range(3, 4), range(4, 5)]


async def test_a_message_has_a_thousand_names_at_most(tmp_path: Path) -> None:
    """A write of more names, a DeleteObjects, has a message of its own."""
    keys = [f"k{number}" for number in range(600)]
    names = [["w"], keys, ["x"], keys, ["y"], [*keys, *(f"l{key}" for key in keys)], ["z"]]
    spans = await numbers_of(tmp_path, names)
    assert spans == [range(1, 2), range(2, 4), range(4, 6), range(6, 7), range(7, 8)]
