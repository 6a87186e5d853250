"""Members that die, hang, lie or fail, as real processes. A client sees the object's bytes, or a visible break where no
other answer would be right; and the bucket is asked no more often than the fault demands."""

from __future__ import annotations

import http.client
import resource
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from outrider.core.auth import peer_signature
from outrider.core.auth.sigv4 import SigningKeys
from tests.support.conditions import Fault, FaultKind
from tests.support.nodes import until
from tests.support.rawhttp import RawConnection
from tests.support.tenants import answer_to, wire
from tests.trust.cluster import (
    BLOCK,
    NAME,
    STRANGER,
    TENANT,
    WAIT_S,
    Reading,
    Stored,
    World,
    body,
    get,
    is_get,
    metric,
    of_peer,
    put,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.conditions import Request
    from tests.support.nodes import Node


@pytest.fixture(scope="module")
def running(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(bucket, tmp_path_factory.mktemp("cluster")) as world:
        yield world


@pytest.fixture
def world(running: World) -> World:
    running.calm()
    return running


def held(key: str, block: int = 0, after_bytes: int = BLOCK // 2) -> Fault:
    """The bucket's answer stops amid a block, until it is released.

    The first of the bytes before reaches readers for sure."""

    def is_its(request: Request) -> bool:
        return is_get(request, key, block)

    return Fault(FaultKind.STALL, when=is_its, after_bytes=after_bytes)


# -- 1, 2: the owner dies or hangs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_the_owner_is_gone_amid_a_body(world: World, number: signal.Signals) -> None:
    """The bytes go on from the stand-in at the offset where they stopped. The owner is not asked again until it is
    back: the reads of its other blocks cost nothing."""
    edge, owner, stand_in, _ = world.nodes.all
    stored = world.put_owned([edge], [owner, stand_in], [edge])
    others = [world.put_owned([owner, stand_in], [owner, stand_in]) for _ in range(4)]
    with world.conditions(world.simulator, held(stored.key, block=1)), Reading(edge, stored.key) as reading:
        reading.read(BLOCK + 1)
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
    assert world.asked(owner, last.key), "it is asked again"


# -- 4: each believes that the other owns it ---------------------------------------------------------------------------


def test_lists_that_differ(bucket: Bucket, tmp_path: Path) -> None:
    """Each of two members is listed as tiny in its own file, so both ask the other for all. Both answer from the bucket
    what the other asks for, and nobody asks on."""
    world = World(bucket, tmp_path, count=2)
    for node in world.nodes.all:
        own_list = tmp_path / f"members-of-{node.name}"
        sizes = {one: "1" if one is node else "1TiB" for one in world.nodes.all}
        own_list.write_text("".join(f"{one.advertised_address} name={one.name} weight={sizes[one]}\n" for one in sizes))
        node.argv[node.argv.index(f"file:{world.nodes.members}")] = f"file:{own_list}"
    with world, ThreadPoolExecutor(4) as readers:
        stored = [world.put(blocks=2) for _ in range(2)]
        reads = [(readers.submit(body, node, one.key), one) for one in stored for node in world.nodes.all]
        assert all(read.result(timeout=60) == one.data for read, one in reads)
        for asking, asked in (world.nodes.all, world.nodes.all[::-1]):
            assert world.asked(asked, by=asking), "it believes that the other one owns the blocks"
            assert metric(asking, "outrider_peer_ring_disagreements_total") > 0
        # Each member asks once, and once more where a slow machine sent second requests.
        assert all(world.wanted_bytes(one.key, block) <= 4 * BLOCK for one in stored for block in range(2))


# -- 6: the source of members fails -----------------------------------------------------------------------------------


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


# -- 9, 13: one block, many readers -----------------------------------------------------------------------------------


def test_clients_that_leave_a_cold_owner(world: World) -> None:
    """The block warms all the same, by one GET."""
    edge, owner, *rest = world.nodes.all
    stored = world.put_owned([owner])
    with world.conditions(world.simulator, held(stored.key)):
        for _ in range(3):
            with Reading(edge, stored.key) as reading:
                reading.read(1)
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
        with world.conditions(world.simulator, Fault(FaultKind.LATE, when=lambda request: is_get(request, stored.key))):
            reads = [pool.submit(body, node, stored.key) for node in nodes for _ in range(readers)]
            for node in nodes:
                node.wait_until(lambda node=node: node.status()["requests"] == readers, "all readers wait")  # type: ignore[misc]
        assert all(read.result() == stored.data for read in reads)
    assert len(world.gets(stored.key)) == 1


# -- 12, 14: bytes that are not those of the bucket, or cannot be kept ------------------------------------------------


@pytest.mark.parametrize("through", ["a member", "the bucket"])
def test_an_object_is_overwritten_while_members_stream_it(world: World, through: str) -> None:
    """An answer has the bytes of one version, or is cut. After a write through a member all nodes read the new one; one
    that waited longer for the members promises nothing."""
    nodes = world.nodes.all
    stored = world.put_owned(*([node] for node in nodes))
    with ExitStack() as stack:
        stack.enter_context(world.conditions(world.simulator, held(stored.key, block=2)))
        readings = [stack.enter_context(Reading(node, stored.key)) for node in nodes]
        for reading in readings:
            reading.read(2 * BLOCK + 1)
        if through == "a member":
            new = Stored(stored.key, world.rng.randbytes(len(stored.data)))
            began = time.perf_counter()
            assert put(nodes[0], new) == 200
            is_announced = time.perf_counter() - began < WAIT_S
        else:
            new, is_announced = world.overwrite(stored), False
        world.simulator.release()
        for reading in readings:
            assert outcome(reading) in (stored.data, "cut")
    for node in nodes:
        assert body(node, stored.key) in ((new.data,) if is_announced else (stored.data, new.data))


def outcome(reading: Reading) -> bytes | str:
    try:
        return reading.rest()
    except (http.client.IncompleteRead, ConnectionError):
        return "cut"


@pytest.mark.parametrize("where", ["on the disk", "between"])
def test_a_bit_turns_at_the_owner_or_between(world: World, where: str) -> None:
    """The block does not have its digest: the client's body is cut. The next read is of the bytes that the bucket has,
    and nobody keeps the wrong ones."""
    edge, owner, other, _ = world.nodes.all
    before = set(owner.cache_dir.rglob("*"))
    stored = world.put_owned([owner])
    assert body(owner, stored.key) == stored.data
    owner.settle()
    turned = Fault(FaultKind.TURN, when=lambda request: is_get(request, stored.key), after_bytes=BLOCK // 2)
    if where == "on the disk":
        (path,) = [path for path in set(owner.cache_dir.rglob("*")) - before if path.stat().st_size > BLOCK]
        with path.open("r+b") as file:
            file.seek(BLOCK // 2)
            byte = file.read(1)
            file.seek(BLOCK // 2)
            file.write(bytes([byte[0] ^ 1]))
    with world.conditions(world.links[owner.name], *([turned] if where == "between" else [])):
        with Reading(edge, stored.key) as reading:
            assert outcome(reading) in (stored.data, "cut")
        assert body(edge, stored.key) == stored.data
    assert metric(edge, "outrider_peer_failures_total", why="digest") >= 1
    assert body(edge, stored.key) == stored.data
    if where == "between":
        assert body(other, stored.key) == stored.data


def test_the_owners_disk_takes_nothing(world: World) -> None:
    """Its fills fail, and it passes on what comes from the bucket."""
    edge, owner, *_ = world.nodes.all
    usual = resource.prlimit(owner.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(owner.pid, resource.RLIMIT_FSIZE, (BLOCK // 4, usual[1]))
    try:
        for _ in range(3):
            stored = world.put_owned([owner], [owner])
            assert body(edge, stored.key) == body(owner, stored.key) == stored.data
    finally:
        resource.prlimit(owner.pid, resource.RLIMIT_FSIZE, usual)
    assert owner.lines("the disk does not take blocks") or metric(owner, "outrider_relays_total") > 0


# -- 16: a member that says no, or is slow ----------------------------------------------------------------------------


def test_a_member_that_is_always_busy(world: World) -> None:
    """Its blocks come from the stand-in. It is no dead member: it is asked again."""
    edge, owner, stand_in, _ = world.nodes.all
    busy = Fault(FaultKind.STATUS, times=None, when=lambda request: is_get(request), status=503)
    with world.conditions(world.links[owner.name], busy):
        for _ in range(3):
            stored = world.put_owned([owner, stand_in], [owner, stand_in])
            assert body(edge, stored.key) == stored.data
            assert [world.wanted_bytes(stored.key, block) for block in range(2)] == [BLOCK, BLOCK]
    # After three failures in a row it may be left out for a second.
    asked = len(world.asked(owner, by=edge))
    assert asked >= 3
    edge.wait_until(
        lambda: body(edge, world.put_owned([owner]).key) and len(world.asked(owner, by=edge)) > asked, "asked again"
    )


def test_a_member_that_is_slower_than_the_bucket(world: World) -> None:
    """It is left amid the body, and not asked for a while."""
    edge, owner, stand_in, _ = world.nodes.all
    link = world.links[owner.name].conditions
    try:
        # A bucket whose rate is known, once its bodies were waited for long enough, and a member at a tenth of it.
        world.simulator.conditions.connection_bytes_s, link.connection_bytes_s = 10e6, 1e6
        for _ in range(8):
            assert body(edge, world.put_owned([edge]).key)
        edge.wait_until(
            lambda: (
                body(edge, world.put_owned([owner, stand_in]).key) and of_peer(edge, owner.name, "state") == "left_out"
            ),
            "a slow member left out",
        )
        asked = len(world.asked(owner))
        for _ in range(3):
            stored = world.put_owned([owner, stand_in], [owner, stand_in])
            assert body(edge, stored.key) == stored.data
        assert len(world.asked(owner)) == asked
    finally:
        world.simulator.conditions.connection_bytes_s = link.connection_bytes_s = None
        # It forgets that the member was slow.
        edge.stop()


# -- 10, 11: keys and grants ------------------------------------------------------------------------------------------


def test_the_buckets_keys_of_the_owner_are_refused(world: World) -> None:
    edge, owner, *_ = world.nodes.all
    name, usual = "AWS_SECRET_ACCESS_KEY", owner.environment["AWS_SECRET_ACCESS_KEY"]
    owner.stop()
    owner.environment[name] = "expired"
    try:
        world.calm()
        stored = world.put_owned([owner], [owner])
        assert get(owner, stored.key).status == 403
        assert body(edge, stored.key) == stored.data
        assert world.asked(owner, stored.key, by=edge)
    finally:
        owner.environment[name] = usual
        owner.stop()


@pytest.mark.parametrize("foreign", ["another key", "another cluster"])
def test_a_node_that_is_no_member(world: World, foreign: str, tmp_path: Path) -> None:
    """It reads from the bucket, and gets nothing from the members, nor they from it."""
    *members, alien = world.nodes.all
    alien.stop()
    usual = list(alien.argv)
    if foreign == "another key":
        key = tmp_path / "key"
        key.write_text("another key, of as many bytes as it takes\n")
        key.chmod(0o600)
        alien.argv += ["--peer-key-file", str(key)]
    else:
        alien.argv += ["--block-size", str(2 * BLOCK)]
    try:
        alien.start()
        for node in members:
            node.wait_until(lambda node=node: alien.name not in node.alive(), "a node that is no member")  # type: ignore[misc]
        stored = world.put(4)
        for node in world.nodes.all:
            assert body(node, stored.key) == stored.data
        assert [world.wanted_bytes(stored.key, block) for block in range(4)] == [2 * BLOCK] * 4 or (
            sum(world.wanted_bytes(stored.key, block) for block in range(4)) == 2 * len(stored.data)
        )
        assert not any(world.asked(node, stored.key, by=alien) for node in members)
        assert not world.asked(alien)
        if foreign == "another key":
            assert sum(metric(node, "outrider_peer_refused_total", why="key") for node in members) > 0
    finally:
        alien.argv = usual
        alien.stop()


def test_a_request_that_was_overheard_or_forged(world: World) -> None:
    """The peer port answers each signed request once, and nothing else."""
    edge, owner, *_ = world.nodes.all
    stored = world.put_owned([owner])
    assert body(edge, stored.key) == stored.data
    (overheard,) = world.asked(owner, stored.key)
    sent = dict(overheard.headers)
    forged = {
        "replay": sent,
        "unsigned": {name: value for name, value in sent.items() if name != "authorization"},
        "signature": sent | {"range": "bytes=0-1"},
        "key": sent | {"authorization": sent["authorization"].replace("Credential=", "Credential=A")},
    }
    address = ("127.0.0.1", world.links[owner.name].port)
    for why, headers in forged.items():
        refused = metric(owner, "outrider_peer_refused_total", why=why)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        with RawConnection(address) as connection:
            connection.send(f"GET {overheard.path} HTTP/1.1\r\n{lines}\r\n".encode())
            answer = connection.read_answer()
        assert (answer.status, answer.body) == (403, b"")
        assert metric(owner, "outrider_peer_refused_total", why=why) == refused + 1


def test_what_a_client_says_of_peers_is_ignored(world: World) -> None:
    """Its `x-outrider-*` headers reach neither a member nor the bucket, and change no answer."""
    edge, owner, *_ = world.nodes.all
    stored = world.put_owned([owner])
    assert body(edge, stored.key) == stored.data
    (sent,) = world.asked(owner, stored.key)
    theirs = {name: value for name, value in sent.headers.items() if name.startswith("x-outrider-")}
    assert theirs
    other = world.put_owned([owner], [edge])
    for key, data in ((stored.key, stored.data), (other.key, other.data)):
        answer = get(edge, key, None, **theirs, **{"x-outrider-hops": "1"})
        assert (answer.status, answer.body) == (200, data)
    mine = Stored("written/with-headers", b"x" * 100)
    assert put(edge, mine, **theirs) == 200
    assert not any(name.startswith("x-outrider-") for request in world.simulator.log() for name in request.headers)
    for request in world.asked(owner):
        assert request.headers["x-outrider-seq"] != theirs["x-outrider-seq"] or request == sent


def test_a_tenant_without_a_grant(world: World) -> None:
    """It is refused by each member, whichever of them holds the object, and whatever it sends. No member is asked in
    its name. Its key opens no peer port."""
    nodes, (edge, owner, *_) = world.nodes.all, world.nodes.all
    stored = world.put_owned([owner], [edge])
    assert body(edge, stored.key) == stored.data
    (read,) = world.asked(owner, stored.key)
    theirs = {name: value for name, value in read.headers.items() if name.startswith("x-outrider-")}
    world.settle()
    reads = [len(world.gets(stored.key)), *(len(world.asked(node, stored.key)) for node in nodes)]
    for node in nodes:
        for keys in (STRANGER, (TENANT[0], "a wrong secret")):
            for method in ("GET", "HEAD"):
                for headers in ({}, theirs):
                    assert get(node, stored.key, None, keys, method, **headers).status == 403
        order = f"s3://{NAME}/{stored.key}".encode()
        for folder in ("warm", "pin", "evict", "verify"):
            assert answer_to(node, wire(node, STRANGER, "PUT", f"/_outrider/{folder}/theirs", (), order)).status == 403
    assert reads == [len(world.gets(stored.key)), *(len(world.asked(node, stored.key)) for node in nodes)]
    with RawConnection(edge.address) as connection:
        for keys, status in ((TENANT, 200), (TENANT, 200), (STRANGER, 403), (TENANT, 200)):
            connection.send(wire(edge, keys, "GET", f"/{NAME}/{stored.key}"))
            assert connection.read_answer().status == status
    refused = metric(owner, "outrider_peer_refused_total", why="key")
    port = world.links[owner.name].port
    fields = theirs | {"range": f"bytes=0-{BLOCK - 1}"}
    signature = sha256().hexdigest(), TENANT[1], time.time(), SigningKeys()
    fields = peer_signature.signed("GET", f"127.0.0.1:{port}", read.path, fields, *signature)
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with RawConnection(("127.0.0.1", port)) as connection:
        connection.send(f"GET {read.path} HTTP/1.1\r\n{lines}\r\n".encode())
        assert connection.read_answer().status == 403
    assert metric(owner, "outrider_peer_refused_total", why="key") == refused + 1
    assert get(owner, "strange/absent", None, STRANGER).status == 404, "it may ask for its own"
    for node in nodes:
        assert body(node, stored.key) == stored.data
