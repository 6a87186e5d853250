"""Members whose links go down: each on a host of its own, behind one switch. No message says so: packets stay away."""

from __future__ import annotations

import contextlib
import itertools
import random
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.namespaces import Switch, are_here
from tests.support.nodes import Node, Nodes, until
from tests.support.rawhttp import Answer, ask
from tests.support.simulator import Simulator
from tests.trust.cluster import of_peer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.bucket import Bucket

pytestmark = pytest.mark.skipif(not are_here(), reason="needs root, ip and tc")

NAME = "cut-off"
# Bodies of this size are received in threads, smaller ones on the loop.
BLOCK = 256 * 1024
HOSTS = ("node-1", "node-2", "node-3", "node-4")


@dataclass(slots=True)
class World:
    client: Any
    switch: Switch
    simulator: Simulator
    nodes: Nodes
    rng: random.Random

    @contextlib.contextmanager
    def without(self, host: str) -> Iterator[None]:
        """The link of `host` is down."""
        self.switch.cut(host)
        try:
            yield
        finally:
            self.switch.mend(host)
            self.nodes.wait_for_all()

    @contextlib.contextmanager
    def parted(self, some: Sequence[str], others: Sequence[str]) -> Iterator[None]:
        """Two sides that do not see each other, and both see the bucket."""
        self.switch.part(some, others)
        try:
            yield
        finally:
            self.switch.meet(some, others)
            self.nodes.wait_for_all()

    def put(self, key: str) -> bytes:
        """A new object of one block, written past all members."""
        data = self.rng.randbytes(BLOCK)
        self.client.put_object(Bucket=NAME, Key=key, Body=data)
        return data


@pytest.fixture(scope="module")
def world(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Four members. The last one believes a version for an instant only, the others for an hour."""
    bucket.make_bucket(NAME)
    with ExitStack() as stack:
        client = bucket.client()
        stack.callback(client.close)
        switch = stack.enter_context(Switch(("bucket", *HOSTS)))
        simulator = stack.enter_context(
            Simulator(bucket.address, listen=switch.address("bucket"), inside=lambda: switch.inside("bucket"))
        )
        nodes = Nodes(
            bucket, tmp_path_factory.mktemp("nodes"), len(HOSTS), origin=simulator.endpoint, switch=switch,
            block_size=str(BLOCK), freshness="ttl:3600", prefetch="off",
        )  # fmt: skip
        nodes[3].argv += ["--freshness", "ttl:0.2"]
        yield World(client, switch, simulator, stack.enter_context(nodes), random.Random(3))


def get(node: Node, key: str) -> bytes:
    """The body of an answer that is no error."""
    answer = _asked(node, "GET", key)
    assert answer.status == 200, answer
    return answer.body


def put(node: Node, key: str, body: bytes) -> None:
    assert _asked(node, "PUT", key, (("content-length", str(len(body))),), body).status == 200


def _asked(
    node: Node, method: str, key: str, headers: tuple[tuple[str, str], ...] = (), body: bytes = b""
) -> Answer:  # fmt: skip
    with node.inside():
        return ask(node.address, method, f"/{NAME}/{key}", headers, body)


def test_a_link_that_goes_down_is_waited_for_once(world: World) -> None:
    """Each object is one block, so that each read could wait by itself."""
    edge, away = world.nodes[0], "node-2"
    objects = {f"down/{number}": world.put(f"down/{number}") for number in range(36)}
    keys = iter(objects)

    def read(count: int) -> None:
        for key in itertools.islice(keys, count):
            assert get(edge, key) == objects[key]

    read(12)
    assert of_peer(edge, away, "requests") > 0, "the edge has connections to the member"
    failed = of_peer(edge, away, "failures")
    with world.without(away):
        read(12)
        assert of_peer(edge, away, "failures") - failed <= 1
        assert away not in edge.alive()
        asked = of_peer(edge, away, "requests")
        read(12)
        again = of_peer(edge, away, "failures") - failed, of_peer(edge, away, "requests")
        assert again == (1, asked), "it was asked again"


def test_writes_on_both_sides_of_a_partition(world: World) -> None:
    """No read and no write fails. A member that believes for an instant only sees the writes of the other side
    meanwhile. The others see them once the sides meet, long before they would ask the bucket by themselves."""
    nodes, sides = world.nodes, (HOSTS[:2], HOSTS[2:])
    keys = [f"both/{number}" for number in range(12)]
    old = {key: world.put(key) for key in keys}
    for node in nodes.all:
        assert {key: get(node, key) for key in keys} == old
    with world.parted(*sides):
        new = {key: world.rng.randbytes(BLOCK) for key in keys}
        for number, key in enumerate(keys):
            put(nodes[0 if number % 2 else 2], key, new[key])
        for node in nodes.all:
            for key in keys:
                assert get(node, key) in (old[key], new[key])
        until(lambda: all(get(nodes[3], key) == new[key] for key in keys), "the other side's writes, after the ttl")
        stale = sum(get(nodes[1], key) == old[key] for key in keys)
        assert stale == len(keys) // 2, "the other side's writes are not known here"
        for node in nodes.all:
            side = set(sides[node in nodes.all[2:]])
            node.wait_until(lambda node=node, side=side: node.alive() == side, "the other side, which is to be away")  # type: ignore[misc]
    for node in nodes.all:
        # A number that is missing may be under way: it is waited for, and then all that is older is stale.
        until(lambda node=node: all(get(node, key) == new[key] for key in keys), f"{node.name}, which is to see all")
