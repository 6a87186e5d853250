"""Lists that hold two processes of one name, or members of another cluster: no member doubts its versions for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.core.cluster.member import ListedMember, Member
from outrider.core.cluster.messages import Forget, Hello
from tests.support.engine import REF
from tests.support.fake_peers import FakeMember
from tests.support.fakes import RAMP
from tests.support.members import GIB, Cluster, Node, Time, timed_cluster

ROUNDS = 5


def process(name: str, address: str, boot: int, cluster_id: str = "cluster") -> FakeMember:
    return FakeMember(Hello(Member(name, address, "", GIB, cluster_id), boot, "", 0, 0.0))


@asynccontextmanager
async def knowing(tmp_path: Path) -> AsyncIterator[tuple[Cluster, Node, Time]]:
    """A node that knows the version of an object, which never ends by itself."""
    with timed_cluster(tmp_path, "abc", freshness="immutable") as (time, nodes):
        nodes.origin.put(REF, RAMP[:1000])
        await time.run(nodes.meet())
        for node in nodes:
            assert await time.run(node.get()) == RAMP[:1000]
        yield nodes, nodes["a"], time


async def greets(node: Node, nodes: Cluster, *others: FakeMember) -> None:
    """A list without names holds all of them. They greet the node, and it greets them."""
    entries = [
        *(ListedMember(each.address) for each in nodes),
        *(ListedMember(each.mine.member.address) for each in others),
    ]
    node.membership.listed(entries, nodes.clock())
    for other in others:
        node.wire.services[other.mine.member.address] = other
    for other in others:
        await node.service.answer(other.mine)
    for address in node.membership.to_greet:
        await node.greet(address)


def missed(node: Node) -> float:
    return node.engine.metrics.value("outrider_peer_forgets_total", result="missed")


async def writes(other: FakeMember, *to: Node) -> None:
    """It notifies its own members of a write, and those of `to`."""
    number = other.mine.forgets + 1
    other.mine = replace(other.mine, forgets=number)
    for node in to:
        await node.service.answer(Forget(other.mine.member.name, other.mine.boot, number, ("another-bucket",)))


@pytest.mark.parametrize("boot", [0, 2])
@pytest.mark.parametrize("name", ["a", "b"])
async def test_a_name_that_is_used_twice_is_said_once_and_costs_no_questions(
    name: str, boot: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other process of the name began before the member, or after it."""
    caplog.set_level(logging.ERROR)
    async with knowing(tmp_path) as (nodes, node, time):
        other = process(name, "other:9482", boot)
        for _ in range(ROUNDS):
            await time.run(greets(node, nodes, other))
            await writes(other, node)
            await time.until(time() + 5)
        assert missed(node) <= 1, "its numbers began without this node"
        await time.run(node.get())
        before = nodes.origin.count(), missed(node)
        for _ in range(ROUNDS):
            await time.run(greets(node, nodes, other))
            if name == "a" or boot == 0:
                await writes(other)  # the number is missing, of a process that is left out
            await writes(other, node)
            await time.until(time() + 5)
            assert await time.run(node.get()) == RAMP[:1000]
        assert (nodes.origin.count(), missed(node)) == before
        assert [*node.membership.view.names_used_twice] == [name]
        (said,) = [vars(record) for record in caplog.records if record.message == "members changed"]
        assert (said["levelname"], said["change"], said["peer"]) == ("ERROR", "name used twice", name)


@pytest.mark.parametrize(("cluster_id", "is_said"), [("cluster", True), ("another", False)])
async def test_a_node_that_others_refuse_for_its_name_learns_it_from_their_greetings(
    cluster_id: str, is_said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It began first: a member that has met the others refuses it, whatever it asks."""
    caplog.set_level(logging.ERROR)
    async with knowing(tmp_path) as (_, node, time):
        for _ in range(ROUNDS):
            await node.service.answer(process("a", "other:9482", 2, cluster_id).mine)
            await time.until(time() + 5)
        assert ("a" in node.membership.view.names_used_twice) is is_said
        said = [vars(record)["detail"] for record in caplog.records if record.message == "members changed"]
        assert said == ["other:9482 and a:9482: give each its own --peer-name"] * is_said


@pytest.mark.parametrize("name", ["a", "b", "z"])
async def test_a_member_of_another_cluster_costs_no_questions(name: str, tmp_path: Path) -> None:
    """It notifies its own members alone of its writes."""
    async with knowing(tmp_path) as (nodes, node, time):
        other = process(name, "other:9482", 2, "another")
        before = nodes.origin.count()
        for _ in range(ROUNDS):
            await time.run(greets(node, nodes, other))
            await writes(other)
            await time.until(time() + 5)
            assert await time.run(node.get()) == RAMP[:1000]
        assert (nodes.origin.count(), missed(node)) == (before, 0)
        assert [left.name for left in node.membership.view.left_out] == [name]
        assert node.members.health.of("b").may_request(time())


async def test_a_write_of_a_member_that_has_just_joined_is_received_and_its_gaps_are_seen(tmp_path: Path) -> None:
    """Before any list has it: the names are forgotten at once, and a number that is missing is noticed."""
    with timed_cluster(tmp_path, "a", freshness="immutable") as (time, nodes):
        node = nodes["a"]
        nodes.origin.put(REF, RAMP[:1000])
        assert await time.run(node.get()) == RAMP[:1000]
        nodes.origin.put(REF, RAMP[:2000])
        await node.service.answer(Forget("n", 5, 1, (REF,)))
        assert await time.run(node.get()) == RAMP[:2000]
        await node.service.answer(replace(process("n", "new:9482", 5).mine, forgets=2))
        await time.until(time() + 1)
        assert missed(node) == 1


async def test_another_member_at_an_address_is_known_after_two_hellos(tmp_path: Path) -> None:
    """The first one is for the member that was there, and is refused."""
    async with knowing(tmp_path) as (_, node, time):
        greets = asyncio.create_task(node.greets())
        await time.until(time() + 1.5)  # all were greeted, and are again after five seconds
        taken_over = process("z", "b:9482", 7)
        node.wire.services["b:9482"] = taken_over
        await time.run(node.greet("b:9482"))
        assert taken_over.met == []
        assert not node.membership.name_at("b:9482")
        await time.until(time() + 1.1)
        assert [hello.member.name for hello in taken_over.met] == ["a"], "it is greeted at once"
        greets.cancel()
        assert [left.why for left in node.membership.view.left_out] == ["name"]
