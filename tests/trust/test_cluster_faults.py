"""Members that die, hang, lie or fail, as real processes. A client sees the object's bytes, or a visible break where no
other answer would be right; and the bucket is asked no more often than the fault demands."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support.nodes import until
from tests.support.weather import Fault, FaultKind
from tests.trust.cluster import BLOCK, Reading, World, body, is_get, metric, of_peer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket
    from tests.support.nodes import Node
    from tests.support.weather import Request


@pytest.fixture(scope="module")
def running(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(bucket, tmp_path_factory.mktemp("cluster")) as world:
        yield world


@pytest.fixture
def world(running: World) -> World:
    running.calm()
    return running


def held(key: str, block: int = 0, after_bytes: int = BLOCK // 2) -> Fault:
    """The bucket's answer stops amid a block, until it is released."""

    def is_its(request: Request) -> bool:
        return is_get(request, key, block)

    return Fault(FaultKind.STALL, when=is_its, after_bytes=after_bytes)


# -- 1, 2: the owner dies or hangs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_the_owner_is_gone_amid_a_body(world: World, number: signal.Signals) -> None:
    """The bytes go on from the stand-in at the offset where they stopped. The owner is not asked again until it is
    back: the reads of its other blocks cost nothing."""
    edge, owner, stand_in, _ = world.nodes.all
    stored = world.put_owned([edge], [owner, stand_in], [edge])
    others = [world.put_owned([owner, stand_in], [owner, stand_in]) for _ in range(4)]
    with world.weather(world.simulator, held(stored.key, block=1)), Reading(edge, stored.key) as reading:
        reading.read(BLOCK + BLOCK // 4)
        owner.send(number)
        if number is signal.SIGKILL:
            owner.wait()
        assert reading.rest() == stored.data
    assert world.wanted_bytes(stored.key, 1) <= 2 * BLOCK, "by the owner, and by the one after it"
    assert len(world.asked(stand_in, stored.key, by=edge)) == 1
    until(lambda: owner.name not in edge.alive(), "the owner seen as away")
    asked = len(world.asked(owner))
    for other in others:
        assert body(edge, other.key) == other.data
    assert len(world.asked(owner)) == asked
    if number is signal.SIGKILL:
        owner.start()
    else:
        owner.send(signal.SIGCONT)
    world.nodes.wait_for_all()
    last = world.put_owned([owner])
    assert body(edge, last.key) == last.data
    assert len(world.asked(owner, last.key)) == 1, "it is asked again"


# -- 6: the source of members fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["empty", "halved", "away"])
def test_a_list_that_nobody_can_mean(world: World, fault: str) -> None:
    """Nothing changes: all members stay, and each block has the owner that it had."""
    nodes = world.nodes
    doubts = {node: doubted_lists(node) for node in nodes.all}
    if fault == "away":
        nodes.members.unlink()
    else:
        nodes.list_members([] if fault == "empty" else nodes.all[:1])
    for node in nodes.all:
        node.wait_until(lambda node=node: doubted_lists(node) > doubts[node], "the list that nobody believes")  # type: ignore[misc]
    for owner in nodes.all:
        stored = world.put_owned([owner], [owner])
        for node in nodes.all:
            assert body(node, stored.key) == stored.data
        assert [world.wanted_bytes(stored.key, block) for block in range(2)] == [BLOCK, BLOCK]
        assert owner.alive() == {node.name for node in nodes.all}
    # A machine that is listed and does not answer shows that this list was read.
    nodes.list_members(nodes.all, f"127.0.0.1:1 name={fault}")
    for node in nodes.all:
        node.wait_until(lambda node=node: of_peer(node, fault, "state") == "away", "the next list")  # type: ignore[misc]


def doubted_lists(node: Node) -> float:
    doubted = [line for line in node.lines("members changed") if line["change"] == "list doubted"]
    return len(doubted) + metric(node, "outrider_peer_source_failures_total")


# -- 9, 13: one block, many readers ------------------------------------------------------------------------------------


def test_clients_that_leave_a_cold_owner(world: World) -> None:
    """The block warms all the same, by one GET."""
    edge, owner, *rest = world.nodes.all
    stored = world.put_owned([owner])
    with world.weather(world.simulator, held(stored.key)):
        for _ in range(3):
            with Reading(edge, stored.key) as reading:
                reading.read(BLOCK // 4)
        edge.wait_until(lambda: edge.status()["requests"] == 0, "the clients gone")
    world.settle()
    for node in (owner, edge, *rest):
        assert body(node, stored.key) == stored.data
    assert len(world.gets(stored.key)) == 1


def test_64_readers_of_a_cold_block_on_all_nodes(world: World) -> None:
    """The bucket is asked once for all of them."""
    nodes, readers = world.nodes.all, 16
    stored = world.put_owned([nodes[1]])
    with ThreadPoolExecutor(len(nodes) * readers) as pool:
        with world.weather(world.simulator, Fault(FaultKind.LATE, when=lambda request: is_get(request, stored.key))):
            reads = [pool.submit(body, node, stored.key) for node in nodes for _ in range(readers)]
            for node in nodes:
                node.wait_until(lambda node=node: node.status()["requests"] == readers, "all readers wait")  # type: ignore[misc]
        assert all(read.result() == stored.data for read in reads)
    assert len(world.gets(stored.key)) == 1
