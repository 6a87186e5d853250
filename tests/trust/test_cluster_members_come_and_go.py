"""Members that stop, come back, join, and change their keys and certificates, while clients read."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.conditions import Fault, FaultKind
from tests.support.nodes import Node, Nodes, until
from tests.support.rawhttp import RawConnection, ask, request
from tests.support.simulator import Simulator
from tests.trust.cluster import metric, of_peer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.bucket import Bucket

NAME = "changing"
# Bodies of this size are received in threads, smaller ones on the loop.
BLOCK = 256 * 1024
COUNT = 16

_OTHER_VERSION = """
import sys
from outrider.core.cluster import member
member.WIRE_VERSIONS = {versions}
member.Member.__init__.__defaults__ = ({versions},)
from outrider.__main__ import main
main()
"""


@dataclass(slots=True)
class World:
    client: Any
    simulator: Simulator
    nodes: Nodes
    rng: random.Random

    def put(self, key: str) -> bytes:
        """A new object of one block, written past all members."""
        data = self.rng.randbytes(BLOCK)
        self.client.put_object(Bucket=NAME, Key=key, Body=data)
        return data

    def held(self, prefix: str) -> dict[str, bytes]:
        """New objects that the members hold together."""
        objects = {f"{prefix}/{number}": self.put(f"{prefix}/{number}") for number in range(COUNT)}
        for number, key in enumerate(objects):
            assert get(self.nodes[number % len(self.nodes.running)], key) == objects[key]
        for node in self.nodes.running:
            node.settle()
        self.simulator.reset()
        return objects

    def fetched(self) -> int:
        """Bytes from the bucket since the objects were held."""
        return self.simulator.counts().body_bytes


@pytest.fixture(scope="module")
def world(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three members, which believe a version for an hour, and a fourth that is not listed and does not run."""
    bucket.make_bucket(NAME)
    with ExitStack() as stack:
        client = bucket.client()
        stack.callback(client.close)
        simulator = stack.enter_context(Simulator(bucket.address))
        nodes = Nodes(
            bucket, tmp_path_factory.mktemp("nodes"), 4, origin=simulator.endpoint, quick_hellos=True,
            block_size=str(BLOCK), freshness="ttl:3600", prefetch="off",
        )  # fmt: skip
        stack.callback(nodes.stop)
        nodes.list_members(nodes.all[:3])
        nodes.start(nodes.all[:3])
        yield World(client, simulator, nodes, random.Random(5))


@pytest.fixture
def fourth(world: World) -> Iterator[Node]:
    """A node that nobody has seen before. It is neither listed nor running yet."""
    node = world.nodes[3]
    command, forked = node.argv, node.forked
    node.name = f"fourth-{world.rng.randrange(10**9)}"
    node.argv = replaced(command, "--peer-name", node.name)
    yield node
    node.argv, node.forked = command, forked
    world.nodes.list_members(world.nodes.all[:3])
    if node.is_started:
        node.stop()
    shutil.rmtree(node.cache_dir, ignore_errors=True)
    world.nodes.wait_for_all()


def get(node: Node, key: str) -> bytes:
    answer = ask(node.address, "GET", f"/{NAME}/{key}")
    assert answer.status == 200, answer
    return answer.body


def put(node: Node, key: str, data: bytes) -> None:
    answer = ask(node.address, "PUT", f"/{NAME}/{key}", (("content-length", str(len(data))),), data)
    assert answer.status == 200, answer


def is_left_out(node: Node, name: str, why: str) -> bool:
    found = [member for member in node.cluster["members"] if member["name"] == name]
    return [(member["state"], member["why"]) for member in found] == [("left_out", why)]


def faults_of(nodes: list[Node]) -> int:
    """How many reads of other members failed, at all of the nodes."""
    return sum(member.get("failures") or 0 for node in nodes for member in node.cluster["members"])


def owner_of(requester: Node, key: str) -> str:
    with urllib.request.urlopen(f"{requester.admin}/cluster/who?object=s3://{NAME}/{key}", timeout=60) as answer:
        return str(json.load(answer)["owners"][0]["owners"][0])


def replaced(words: Sequence[str], flag: str, value: str) -> list[str]:
    """A command line whose flag has another value."""
    at = words.index(flag) + 1
    return [*words[:at], value, *words[at + 1 :]]


def test_a_rolling_restart(world: World) -> None:
    """No read fails. The bytes that members have fetched stay where they are: the bucket is only asked for those of a
    member that is away at the time, less than all. A member that is back asks its stand-ins for the blocks that came
    meanwhile."""
    objects = world.held("rolling")
    missed: dict[str, bytes] = {}
    for victim in world.nodes.running:
        others = [node for node in world.nodes.running if node is not victim]
        assert victim.stop() == 0
        for number, key in enumerate(objects):
            assert get(others[number % 2], key) == objects[key]
        new = {key: world.put(key) for key in (f"rolling/{victim.name}/{number}" for number in range(8))}
        new = {key: data for key, data in new.items() if owner_of(others[0], key) == victim.name}
        for node in (*others, victim):
            if node is victim:
                fetched = world.fetched()
                victim.start()
                world.nodes.wait_for_all()
            assert {key: get(node, key) for key in new} == new
        assert world.fetched() == fetched, "the stand-in has them"
        missed |= new
    assert missed
    assert world.fetched() <= (COUNT + len(missed)) * BLOCK
    world.simulator.reset()
    for node in world.nodes.running:
        assert {key: get(node, key) for key in objects} == objects
    assert world.fetched() == 0, "all is on some disk"


@pytest.mark.parametrize(("versions", "is_understood"), [((1, 1), True), ((1, 3), True), ((3, 3), False)])
def test_a_member_that_speaks_another_version_of_the_wire(
    world: World, fourth: Node, versions: tuple[int, int], is_understood: bool
) -> None:  # fmt: skip
    """One that speaks this version, too, is a member as any other. One that does not is left out, with the
    reason."""
    objects = world.held("version-{}-{}".format(*versions))
    fourth.argv = [sys.executable, "-c", _OTHER_VERSION.format(versions=versions), *fourth.argv[3:]]
    fourth.forked = False
    world.nodes.list_members([*world.nodes.running, fourth])
    fourth.start()
    if is_understood:
        world.nodes.wait_for_all()
    else:
        for node in world.nodes.all[:3]:
            until(lambda node=node: is_left_out(node, fourth.name, "wire version: 3 to 3"), "a member left out")
    faults = faults_of(world.nodes.running)
    for node in world.nodes.running:
        assert {key: get(node, key) for key in objects} == objects
    assert faults_of(world.nodes.running) == faults
    asked = of_peer(world.nodes[0], fourth.name, "requests") + (of_peer(fourth, "node-1", "requests") or 0)
    assert (asked > 0) == is_understood
    assert (world.fetched() == 0) == is_understood
    if not is_understood:
        return
    new = {key: world.rng.randbytes(BLOCK) for key in objects}
    with ThreadPoolExecutor(COUNT) as pool:
        list(pool.map(lambda key: put(world.nodes[0], key, new[key]), new))
    assert {key: get(fourth, key) for key in new} == new
    received = metric(fourth, "outrider_peer_forgets_total", result="received")
    assert received == 2 * COUNT if versions == (1, 1) else received <= 2 * COUNT, "one message for each write"


def test_a_member_that_comes_back_with_an_old_disk(world: World) -> None:
    """It missed the writes, and was not notified of them. No node gives an old version: neither what the member has on
    its disk, nor what it knew."""
    old = world.held("old")
    back, writer, reader = world.nodes[1], world.nodes[0], world.nodes[2]
    assert {key: get(back, key) for key in old} == old
    back.stop()
    new = {key: world.rng.randbytes(BLOCK) for key in old}
    for key, data in new.items():
        put(writer, key, data)
    back.start()
    world.nodes.wait_for_all()
    for node in (back, reader, writer):
        assert {key: get(node, key) for key in new} == new


def test_a_member_that_joins_amid_an_epoch(world: World, fourth: Node) -> None:
    """Its blocks are on the disks of those that owned them before, which are asked for them: the bucket is not."""
    # With sixteen objects, one run in a hundred gives the fourth member none.
    objects = world.held("join") | world.held("more") | world.held("most")
    half = list(objects)[: COUNT // 2]
    for key in half:
        assert get(world.nodes[0], key) == objects[key]
    world.nodes.list_members([*world.nodes.running, fourth])
    fourth.start()
    world.nodes.wait_for_all()
    owners = world.nodes.all[:3]
    until(lambda: all(any(owner_of(node, key) == fourth.name for key in objects) for node in owners), "a new owner")
    for node in (fourth, *world.nodes.all[:3]):
        assert {key: get(node, key) for key in objects} == objects
    assert world.fetched() == 0


def test_another_member_takes_the_address_of_one(world: World, fourth: Node) -> None:
    """As a pod does. The list says who is to answer there: another one that does is left out, and asked for nothing."""
    objects = world.held("address")
    gone, others = world.nodes[1], (world.nodes[0], world.nodes[2])
    gone.stop()
    fourth.argv = replaced(fourth.argv, "--peer-listen", gone.peer_address)
    fourth.start()
    for node in others:
        until(lambda node=node: is_left_out(node, fourth.name, f"name: {gone.name}"), "a member left out")
        assert {key: get(node, key) for key in objects} == objects
    assert sum(member["bytes_out"] or 0 for member in fourth.cluster["members"]) == 0
    fourth.stop()
    gone.start()
    world.nodes.wait_for_all()


def test_a_member_that_is_stopped(world: World) -> None:
    """It says that it leaves, sends what it is asked for to the end, and no read fails."""
    edge, leaving = world.nodes[0], world.nodes[1]
    objects = world.held("stop")
    keys = (f"slow/{number}" for number in itertools.count())
    slow = next(key for key in keys if world.put(key) and owner_of(edge, key) == leaving.name)
    data = world.client.get_object(Bucket=NAME, Key=slow)["Body"].read()
    faults = faults_of([edge, world.nodes[2]])
    world.simulator.conditions.faults = [Fault(FaultKind.STALL, path_contains=slow, after_bytes=BLOCK // 2)]
    with RawConnection(edge.address) as connection:
        connection.send(request("GET", f"/{NAME}/{slow}"))
        reply = connection.read_head()
        begun = reply.read(BLOCK // 4)
        leaving.send(signal.SIGTERM)
        until(lambda: of_peer(edge, leaving.name, "is_leaving"), "the goodbye")
        for node in (edge, world.nodes[2]):
            assert {key: get(node, key) for key in objects} == objects
        world.simulator.release()
        assert begun + reply.read() == data
    assert leaving.wait() == 0
    assert faults_of([edge, world.nodes[2]]) == faults
    leaving.start()
    world.nodes.wait_for_all()
