"""Reads in a cluster: each block comes from the bucket once, and a peer that fails never fails a read."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.core.cluster.ownership import Ring
from outrider.core.cluster.peer_messages import Confirmed, PeerFailed, PeerRead, ReadClass
from outrider.core.cluster.view import View
from outrider.core.errors import VersionChanged
from outrider.core.model import Extent, ObjectRef, ObjectVersion
from outrider.engine.fill.refused import OriginRefused
from tests.support.engine import BLOCK, REF, as_large, by_threads
from tests.support.fake_peers import PeerFault
from tests.support.fakes import RAMP, Fault, no_patience_ends
from tests.support.members import Cluster, cluster

DATA = RAMP[: 5 * BLOCK + 77]


async def test_all_nodes_together_read_each_block_of_the_bucket_once(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        nodes.origin.put(REF, DATA)
        await nodes.meet()
        for node in nodes:
            assert await node.get() == DATA
        await nodes.settle()
        assert nodes.origin.body_bytes == len(DATA)
        assert [node.duplicates() for node in nodes] == [{}, {}, {}]


@pytest.mark.parametrize("buffer_bytes", [as_large, by_threads])
async def test_readers_of_all_nodes_at_once_share_one_get_of_each_block(buffer_bytes: object, tmp_path: Path) -> None:
    with cluster(tmp_path, buffer_bytes=buffer_bytes) as nodes:
        nodes.origin.put(REF, DATA)
        await nodes.meet()
        assert await asyncio.gather(*(node.get() for node in nodes for _ in range(8))) == [DATA] * 24
        await nodes.settle()
        assert nodes.origin.body_bytes == len(DATA)


@pytest.mark.parametrize("freshness", ["ttl:60", "always"])
@pytest.mark.parametrize("index", range(3))
async def test_first_reads_at_any_offset_share_one_get_of_each_block(
    index: int, freshness: str, tmp_path: Path
) -> None:
    """Nobody knows the object, and a member that does not own the block may be the first that asks about it."""
    with cluster(tmp_path, freshness=freshness) as nodes:
        nodes.origin.put(REF, DATA)
        await nodes.meet()
        start = index * BLOCK + 7
        reads = [node.get(REF, range=f"bytes={start}-") for node in [*nodes.others_of(REF, index), *nodes]]
        assert await asyncio.gather(*reads) == [DATA[start:]] * len(reads)
        await nodes.settle()
        assert nodes.origin.body_bytes <= len(DATA) - index * BLOCK
        assert [node.duplicates() for node in nodes] == [{}, {}, {}]


async def test_members_that_fail_leave_no_cycle(tmp_path: Path) -> None:
    with cluster(tmp_path, "ab") as nodes:
        await nodes.meet()
        ref, edge = nodes.ref_owned_by("b"), nodes["a"]
        version = ObjectVersion(ref, nodes.origin.put(ref, DATA[:BLOCK]), BLOCK)
        edge.wire.faults.append(PeerFault(None, why="busy"))
        gc.disable()
        try:
            block = edge.reads.block(version, 0)
            assert block is not None
            body = block.body(Extent(0, BLOCK), None)
            with suppress(PeerFailed):
                await body.some()
            await body.aclose()
            left = weakref.ref(body)
            del body, block
            assert left() is None
            asked = edge.reads.lookup(ref, None, whole_headers=False, is_ahead=False, only_if_cached=False)
            with pytest.raises(PeerFailed) as failed:
                await asked.__aenter__()
            error = weakref.ref(failed.value)
            del failed, asked
            assert error() is None
        finally:
            gc.enable()


DUPLICATES = [
    (PeerFault(None, why="busy"), {"busy": 1}),
    (PeerFault(None, why="absent"), {"absent": 1}),
    (PeerFault(None, break_after=BLOCK // 3), {"broke": 1}),
    # The process of the owner has gone, and the object has changed: no other member brings these bytes.
    (PeerFault(None, why="connect"), {}),
    (PeerFault(None, why="changed"), {}),
    # Nobody asks it.
    (None, {"left_out": 1}),
]


@pytest.mark.parametrize(("fault", "counted"), DUPLICATES)
async def test_a_block_of_the_bucket_counts_twice_if_a_member_that_owns_it_is_there(
    fault: PeerFault | None, counted: dict[str, int], tmp_path: Path
) -> None:
    with cluster(tmp_path, "ab") as nodes:
        await nodes.meet()
        ref, edge = nodes.ref_owned_by("b"), nodes["a"]
        nodes.origin.put(ref, DATA[:BLOCK])
        await edge.engine.reads.head(ref, {})
        if fault is None:
            edge.members.health.of("b").leave_out(nodes.clock())
        else:
            edge.wire.faults.append(fault)
        assert await edge.get(ref) == DATA[:BLOCK]
        await nodes.settle()
        assert (edge.duplicates(), nodes["b"].duplicates()) == (counted, {})


async def test_a_bucket_that_ignores_ranges_is_asked_once_for_an_unknown_object(tmp_path: Path) -> None:
    with cluster(tmp_path, "ab") as nodes:
        nodes.origin.ignore_range = True
        await nodes.meet()
        ref = nodes.ref_owned_by("b")
        nodes.origin.put(ref, DATA[:BLOCK])
        assert await nodes["a"].get(ref) == DATA[:BLOCK]
        await nodes.settle()
        assert nodes.origin.count("GET") == 1


async def test_an_unknown_object_costs_one_question_of_the_bucket(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        nodes.origin.put(REF, DATA[:1000])
        await nodes.meet()
        for node in [*nodes, *nodes]:
            assert await node.get() == DATA[:1000]
        await nodes.settle()
        assert nodes.origin.count() == 1


async def test_a_get_under_way_brings_a_block_whose_version_a_head_gave_meanwhile(tmp_path: Path) -> None:
    """The question of one member is under way at the owner, and another member asks it for the block that it brings."""
    with cluster(tmp_path, sleep=no_patience_ends) as nodes:
        nodes.origin.put(REF, DATA[:BLOCK])
        await nodes.meet()
        edge, other = nodes.others_of()
        head, get = asyncio.Event(), asyncio.Event()
        nodes.origin.faults += [Fault(method="HEAD", gate=head), Fault(method="GET", gate=get)]
        lookup = asyncio.ensure_future(edge.engine.version_lookup.ask(REF, None))
        await steps_until(lambda: nodes.origin.count() == 1)
        reads = [asyncio.ensure_future(other.get())]
        await steps_until(lambda: nodes.origin.count() == 2)
        head.set()
        await lookup
        reads.append(asyncio.ensure_future(edge.get()))
        await steps_until(lambda: len(edge.wire.reads) == 2)
        for _ in range(100):
            await asyncio.sleep(0)
        get.set()
        assert await asyncio.gather(*reads) == [DATA[:BLOCK]] * 2
        await nodes.settle()
        assert nodes.origin.count() == 2, "a HEAD and a GET"


async def test_a_block_that_the_owner_has_waits_for_no_question(tmp_path: Path) -> None:
    with cluster(tmp_path, sleep=no_patience_ends) as nodes:
        nodes.origin.put(REF, DATA[:BLOCK])
        await nodes.meet()
        owner, (edge, _) = nodes.owner_of(), nodes.others_of()
        await owner.get()
        await edge.engine.reads.head(REF, {})
        await nodes.settle()
        gate = asyncio.Event()
        nodes.origin.faults.append(Fault(method="GET", gate=gate))
        asked = asyncio.ensure_future(owner.engine.version_lookup.ask(REF, 0, by_get=True))
        await steps_until(lambda: nodes.origin.under_way == 1)
        async with asyncio.timeout(60):
            assert await edge.get() == DATA[:BLOCK]
            assert await owner.get() == DATA[:BLOCK]
        assert not asked.done()
        gate.set()
        await asked
        await nodes.settle()


async def steps_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0)


async def test_the_reply_says_that_its_bytes_came_from_a_peer(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        nodes.origin.put(REF, DATA[:1000])
        await nodes.meet()
        owner, (edge, _) = nodes.owner_of(), nodes.others_of()
        assert await owner.cache_of() == "MISS"
        assert await edge.cache_of() == "PEER"
        await nodes.settle()
        assert await edge.cache_of() == "HIT"


async def test_a_version_from_a_peer_is_as_old_as_the_bucket_confirmed_it(tmp_path: Path) -> None:
    with cluster(tmp_path, freshness="ttl:60") as nodes:
        nodes.origin.put(REF, DATA[:1000])
        await nodes.meet()
        owner, (edge, _) = nodes.owner_of(), nodes.others_of()
        await owner.get()
        nodes.clock.advance(40)
        await edge.get()
        await nodes.settle()
        nodes.origin.put(REF, DATA[:2000])
        nodes.clock.advance(19)
        assert await edge.get() == DATA[:1000]
        nodes.clock.advance(2)
        assert await edge.get() == DATA[:2000]


async def test_where_each_read_must_ask_the_edge_asks_the_bucket(tmp_path: Path) -> None:
    with cluster(tmp_path, freshness="always") as nodes:
        nodes.origin.put(REF, DATA[:1000])
        await nodes.meet()
        owner, (edge, _) = nodes.owner_of(), nodes.others_of()
        await owner.get()
        assert await edge.get() == DATA[:1000]
        nodes.origin.put(REF, DATA[:2000])
        assert await edge.get() == DATA[:2000]


async def test_members_that_take_each_other_for_the_owner_answer(tmp_path: Path) -> None:
    """A member that is asked asks none."""
    with cluster(tmp_path, "ab") as nodes:
        nodes.origin.put(REF, DATA)
        await nodes.meet()
        # Each sees a ring in which the other one owns everything.
        for node, other in (("a", "b"), ("b", "a")):
            nodes[node].membership.view = with_all_at(nodes, node, other)
        alone = ObjectRef("train", "alone")
        nodes.origin.put(alone, DATA)
        assert await nodes["a"].get(alone) == DATA
        assert nodes["a"].wire.reads
        assert not nodes["b"].wire.reads
        assert await asyncio.gather(*(node.get() for node in nodes)) == [DATA, DATA]
        await nodes.settle()
        counts = [node.duplicates() for node in nodes]
        assert {why for count in counts for why in count} == {"for_peer"}


async def test_a_read_of_a_peer_waits_for_no_question_to_a_peer(tmp_path: Path) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    with cluster(tmp_path, "ab", sleep=sleep) as nodes:
        nodes.origin.put(REF, DATA[:1000])
        await nodes.meet()
        asks, answers = nodes["a"], nodes["b"]
        for node, other in (("a", "b"), ("b", "a")):
            nodes[node].membership.view = with_all_at(nodes, node, other)
        # The member knows the version, and has a question to the other one under way that brings the block.
        gate = asyncio.Event()
        answers.wire.faults.append(PeerFault(gate=gate))
        question = asyncio.ensure_future(answers.engine.version_lookup.ask(REF, 0))
        await asyncio.sleep(0)
        answers.engine.versions.learn(version_of(nodes), answers.engine.versions.mark())
        assert await asks.get() == DATA[:1000]
        assert not question.done()
        assert 1.0 not in waits
        gate.set()
        await question
        await nodes.settle()


def version_of(nodes: Cluster) -> ObjectVersion:
    return ObjectVersion(REF, nodes.origin.objects[REF].etag or "", 1000, ())


def with_all_at(nodes: Cluster, node: str, owner: str) -> View:
    view = nodes[node].membership.view
    ring = Ring([nodes[owner].membership.view.me])
    return replace(view, ring=ring, acting=ring)


@pytest.fixture
def as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No block is so small that it is held until it is whole."""
    monkeypatch.setattr("outrider.engine.cluster.requested_block._HELD_BYTES_MAX", 0)


FAULTS = [PeerFault(None, why=why) for why in ("connect", "busy", "absent", "refused", "garbage", "changed")]
FAULTS += [PeerFault(None, break_after=0), PeerFault(None, break_after=BLOCK // 3), PeerFault(None, break_after=100)]


@pytest.mark.usefixtures("as_it_comes")
@pytest.mark.parametrize(
    ("fault", "buffer_bytes"),
    [*((fault, as_large) for fault in FAULTS), *((fault, by_threads) for fault in FAULTS if not fault.why)],
    ids=lambda value: (value.why or f"breaks {value.break_after}") if isinstance(value, PeerFault) else None,
)
async def test_a_peer_that_fails_never_fails_a_read(fault: PeerFault, buffer_bytes: object, tmp_path: Path) -> None:
    with cluster(tmp_path, buffer_bytes=buffer_bytes) as nodes:
        nodes.origin.put(REF, DATA)
        await nodes.meet()
        for node in nodes:
            node.wire.faults.append(fault)
        for node in nodes:
            assert await node.get() == DATA
        await nodes.settle()


@pytest.mark.parametrize("buffer_bytes", [as_large, by_threads])
async def test_a_refusal_of_the_bucket_to_the_owner_is_not_the_answer_of_a_known_version(
    buffer_bytes: object, tmp_path: Path
) -> None:
    """No question about the version comes first: the source of the block's bytes asks the bucket itself."""
    with cluster(tmp_path, "ab", buffer_bytes=buffer_bytes) as nodes:
        await nodes.meet()
        ref, edge = nodes.ref_owned_by("b"), nodes["a"]
        nodes.origin.put(ref, DATA[:BLOCK])
        await edge.engine.reads.head(ref, {})
        nodes.origin.log.clear()
        nodes.origin.faults.append(Fault(status=403))
        assert await edge.get(ref) == DATA[:BLOCK]
        await nodes.settle()
        assert nodes.origin.ranges == [f"bytes=0-{BLOCK - 1}"] * 2
        assert edge.duplicates() == {"absent": 1}


@pytest.mark.parametrize("heeds_if_match", [True, False])
async def test_an_object_that_is_overwritten_amid_a_body_gives_one_version_or_a_cut(
    heeds_if_match: bool, tmp_path: Path
) -> None:
    """Each block of another owner. A bucket that ignores If-Match is found out by the ETag of its reply."""
    with cluster(tmp_path) as nodes:
        nodes.origin.ignore_if_match = not heeds_if_match
        nodes.origin.put(REF, DATA)
        await nodes.meet()
        for node in nodes:
            answer = await node.engine.reads.get(REF, {})
            assert answer.body is not None
            async with aclosing(answer.body) as pieces:
                await anext(aiter(pieces))
                nodes.origin.put(REF, bytes(len(DATA)))
                with pytest.raises(VersionChanged):
                    async for _ in pieces:
                        pass
            await nodes.settle()
            nodes.origin.put(REF, DATA)
            nodes.clock.advance(1000)


@pytest.mark.usefixtures("as_it_comes")
async def test_a_body_that_breaks_goes_on_at_its_offset_at_the_stand_in(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        await nodes.meet()
        edge = nodes["a"]
        owners_of = edge.membership.view.acting.owners
        ref = next(
            ref for ref in (ObjectRef("train", f"{i}.tar") for i in range(100)) if owners_of(ref, 1)[2].name == "a"
        )
        nodes.origin.put(ref, DATA)
        await edge.engine.reads.head(ref, {})
        edge.wire.reads.clear()
        edge.wire.faults.append(PeerFault(break_after=BLOCK // 2))
        assert await edge.engine.range(BLOCK, 2 * BLOCK, ref) == DATA[BLOCK : 2 * BLOCK]
        await nodes.settle()
        asked = [(name, read.extent and read.extent.start) for name, read in edge.wire.reads]
        first, second, _ = (member.name for member in owners_of(ref, 1))
        assert asked == [(first, BLOCK), (second, BLOCK + BLOCK // 2)]


async def test_a_client_that_leaves_early_takes_the_block_from_nobody(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        nodes.origin.put(REF, DATA[:BLOCK])
        await nodes.meet()
        owner, (edge, _) = nodes.owner_of(), nodes.others_of()
        nodes.origin.faults.append(Fault(body_gate=(gate := asyncio.Event()), gate_after=1000))
        reading = asyncio.ensure_future(edge.get())
        for _ in range(50):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        gate.set()
        await nodes.settle()
        assert await owner.cache_of() == await edge.cache_of() == "HIT"
        assert nodes.origin.body_bytes == BLOCK


async def test_a_member_that_leaves_early_takes_the_block_from_nobody(tmp_path: Path) -> None:
    """A flight is filled by a task of its own. It fails if that task is cancelled with the reader."""
    with cluster(tmp_path) as nodes:
        nodes.origin.put(REF, DATA[:BLOCK])
        await nodes.meet()
        owner, (edge, _) = nodes.owner_of(), nodes.others_of()
        await edge.engine.reads.head(REF, {})
        version = owner.engine.versions.fresh(REF)
        assert version is not None
        nodes.origin.faults.append(Fault(body_gate=(gate := asyncio.Event()), gate_after=1000))
        answer = await owner.service.read(PeerRead(REF, Extent(0, BLOCK), 0, Confirmed(version, 0.0)), edge.name)
        assert answer.body is not None
        await answer.body.aclose()
        gate.set()
        await nodes.settle()
        assert await owner.cache_of() == "HIT"
        assert nodes.origin.body_bytes == BLOCK


async def test_what_is_fetched_ahead_is_fetched_ahead_at_its_owner(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        await nodes.meet()
        ref = nodes.ref_owned_by("b")
        nodes.origin.put(ref, DATA[:BLOCK])
        edge = nodes["a"]
        version = await edge.engine.fills.opened(ref)
        await nodes.settle()
        assert version.size == BLOCK
        assert {read.read_class for _, read in edge.wire.reads} == {ReadClass.AHEAD}


async def test_a_question_of_the_edge_about_a_missing_object_goes_to_the_bucket(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        await nodes.meet()
        edge = nodes.others_of(ObjectRef("train", "gone"))[0]
        with pytest.raises(OriginRefused):
            await edge.get(ObjectRef("train", "gone"))


@pytest.mark.parametrize("size", [1000, len(DATA)])
async def test_a_new_owner_asks_the_previous_one_before_the_bucket(size: int, tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        for name in "ab":
            nodes[name].members.ready()
            await nodes[name].list("ab")
        await nodes["a"].list("ab")
        refs = [ObjectRef("train", f"{number}.tar") for number in range(6)]
        for ref in refs:
            nodes.origin.put(ref, DATA[:size])
            assert await nodes["a"].get(ref) == DATA[:size]
        await nodes.settle()
        nodes.clock.advance(1)
        asked = nodes.origin.count(), nodes.origin.body_bytes
        await nodes.meet()
        assert any(nodes["c"].owns(ref) for ref in refs)
        # The new owner needs blocks for a peer, and then for itself.
        for name in "bc":
            for ref in refs:
                assert await nodes[name].get(ref) == DATA[:size]
        await nodes.settle()
        assert (nodes.origin.count(), nodes.origin.body_bytes) == asked


@pytest.mark.parametrize("freshness", ["ttl:60", "immutable"])
async def test_a_previous_owner_gives_its_blocks_once_the_bucket_confirmed_their_version(
    freshness: str, tmp_path: Path
) -> None:
    """After each restart of a member, all others take what they know for doubtful. A new process doubts nothing."""
    with cluster(tmp_path, freshness=freshness) as nodes:
        for name in "ab":
            nodes[name].members.ready()
            await nodes[name].list("ab")
        await nodes["a"].list("ab")
        await nodes.settle()
        nodes.clock.advance(1)
        owned = (ObjectRef("train", f"{number}.tar") for number in range(100))
        ring = Ring([node.membership.view.me for node in nodes])
        same, new = [ref for ref in owned if ring.owner(ref, 0).name == "c"][:2]
        for ref in (same, new):
            nodes.origin.put(ref, DATA[:BLOCK])
            await nodes["a"].get(ref)
            await nodes["b"].get(ref)
        await nodes.settle()
        for name in "ab":
            nodes[name].engine.versions.forget_all()
        nodes.origin.put(new, DATA[1 : 1 + BLOCK])
        nodes.clock.advance(1)
        await nodes.meet()
        nodes.origin.log.clear()
        assert await nodes["c"].get(same) == DATA[:BLOCK]
        assert [request.method for request in nodes.origin.log] == ["HEAD"]
        assert await nodes["c"].get(new) == DATA[1 : 1 + BLOCK]
        await nodes.settle()


async def test_members_of_a_young_cluster_are_not_asked_for_what_they_cannot_have(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        await nodes.meet()
        owner = nodes["a"]
        refs = [ref for ref in (ObjectRef("train", f"{number}.tar") for number in range(200)) if owner.owns(ref)]
        for ref in refs:
            nodes.origin.put(ref, DATA[:1000])
            await owner.get(ref)
        asked = [read for _, read in owner.wire.reads if read.only_if_cached]
        # Eight of each of the two others.
        assert len(asked) == 16
        assert len(refs) > 40


async def test_nobody_asks_the_bucket_who_is_only_asked_for_what_it_has(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        nodes.origin.put(REF, DATA)
        await nodes.meet()
        owner = nodes.owner_of()
        await owner.engine.reads.head(REF, {})
        asked = nodes.origin.count()
        version = owner.engine.versions.fresh(REF)
        assert version is not None
        known = Confirmed(version, 0.0)
        for read in (
            PeerRead(REF, Extent(0, BLOCK), 0, known, only_if_cached=True),
            PeerRead(ObjectRef("train", "other"), Extent(0, BLOCK), only_if_cached=True),
        ):
            assert (await owner.service.read(read, "x")).status == 404
        assert nodes.origin.count() == asked
