"""An order that a client gives one member reaches all: each fetches what it owns, and takes it back with the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from outrider.core.ahead.hint_messages import PlanProgress
from outrider.core.ahead.hints import Hint
from outrider.core.cluster.messages import OrderNotice
from outrider.core.model import BlockKey, Extent, ObjectRef
from tests.support.engine import BLOCK
from tests.support.fakes import ramp
from tests.support.members import Cluster, Node, Time, timed_cluster

REFS = [ObjectRef("train", f"{number:06d}.tar") for number in range(24)]
CLIENT = "10.0.0.1"


@contextmanager
def members(root: Path, blocks: int = 1, *, zones: Mapping[str, str] | None = None) -> Iterator[tuple[Time, Cluster]]:
    """`blocks`: of each object. `zones`: see `cluster`."""
    with timed_cluster(root, policy="epoch", zones=zones) as (time, nodes):
        for ref in REFS:
            nodes.origin.put(ref, ramp(blocks * BLOCK))
        yield time, nodes


def announce(node: Node, refs: list[ObjectRef] = REFS, start: int = 0, hint: Hint | None = None) -> Hint:
    hint = hint or Hint()
    node.plans.announce(CLIENT, refs, start=start, total=len(REFS), hint=hint)
    return hint


def notices(node: Node, by: Node) -> list[OrderNotice]:
    """The messages that `node` sent to `by`."""
    return [message for name, message in node.wire.orders if name == by.name]


def expected(node: Node, client: str) -> list[ObjectRef]:
    """The objects that the planner of `node` expects this client to read, in order."""
    dataset, _ = node.engine.planner.registry.item(REFS[0])
    job = dataset.jobs.get(client)
    epochs = [] if job is None else [epoch for epoch in job.epochs if epoch.announced]
    keys = dataset.names.keys
    return [ObjectRef("train", keys[index]) for epoch in epochs for index in epoch.agenda if epoch.unread(index)]


def here(node: Node) -> set[tuple[ObjectRef, int]]:
    """The blocks on disk."""
    layout, versions = node.engine.layout, node.engine.versions
    known = ((ref, versions.stale(ref)) for ref in REFS)
    return {
        (ref, index) for ref, version in known if version is not None for index in range(layout.count(version.size))
        if node.engine.store.has(BlockKey(layout.version_id(version), index))
    }  # fmt: skip


async def drop(node: Node, *, near: bool = False) -> None:
    """Drop all blocks, or those that others own."""
    store = node.engine.store
    found = [(key, store.version_of(key)) for key in store.present()]
    await store.drop(
        [key for key, version in found if version is not None and not (near and node.owns(version.ref, key.index))]
    )


@pytest.mark.parametrize("blocks", [1, 4])
async def test_all_members_learn_of_an_order_and_fetch_what_they_own_alone(blocks: int, tmp_path: Path) -> None:
    with members(tmp_path, blocks) as (time, nodes):
        await time.run(nodes.meet())
        edge, *others = nodes
        announce(edge)
        await time.until(time() + 0.5)
        for other in others:
            assert expected(other, f"{edge.name}/{CLIENT}") == REFS
            owned = {(ref, index) for ref in REFS for index in range(blocks) if other.owns(ref, index)}
            assert here(other) <= owned
            # Before the first sizes are known, an object may as well have one block.
            assert {(ref, index) for ref, index in owned - here(other) if index == 0 or ref in REFS[3:]} == set()
            assert not other.wire.orders, "it does not pass on what a member passed on"
        assert {other.owns(ref) for other in others for ref in REFS} == {True, False}


async def test_a_plans_progress_counts_what_all_members_have(tmp_path: Path) -> None:
    """An object is here once each of its blocks is somewhere. A member that does not answer has nothing."""
    with members(tmp_path) as (time, nodes):
        for ref in REFS[::2]:
            nodes.origin.put(ref, ramp(3 * BLOCK))
        await time.run(nodes.meet())
        edge, other, _ = nodes
        hint = announce(edge)
        await time.until(time() + 0.5)
        for node in nodes:
            for ref in REFS:
                await time.run(node.get(ref))
            await time.run(nodes.settle())
        for node in nodes:
            await time.run(drop(node, near=True))
        assert await time.run(edge.plans.progress(hint)) == PlanProgress(told=len(REFS), here=len(REFS))
        assert (await time.run(edge.engine.prefetch.progress(hint))).here < len(REFS)
        del edge.wire.services[other.address]
        without = [
            ref for number, ref in enumerate(REFS)
            if any(other.owns(ref, index) for index in range(1 if number % 2 else 3))
        ]  # fmt: skip
        here = len(REFS) - len(without)
        assert 0 < here < len(REFS)
        progress = PlanProgress(told=len(REFS), here=here, left=len(without))
        assert await time.run(edge.plans.progress(hint)) == progress
        edge.wire.services[other.address] = other.service
        await time.run(drop(other))
        progress = await time.run(edge.plans.progress(hint))
        assert (progress.here, progress.left) == (here, len(without))


async def test_an_order_is_withdrawn_everywhere(tmp_path: Path) -> None:
    with members(tmp_path) as (time, nodes):
        await time.run(nodes.meet())
        edge, *others = nodes
        first, second = announce(edge, REFS[:12]), announce(edge, REFS[12:], 12)
        await time.until(time() + 0.5)
        edge.plans.withdraw(first, [second])
        await time.until(time() + 0.5)
        for other in others:
            assert expected(other, f"{edge.name}/{CLIENT}") == REFS[12:]
        edge.plans.withdraw(second, [])
        await time.until(time() + 0.5)
        for other in others:
            assert expected(other, f"{edge.name}/{CLIENT}") == []


async def test_a_member_that_missed_an_order_is_sent_it_again(tmp_path: Path) -> None:
    with members(tmp_path) as (time, nodes):
        await time.run(nodes.meet())
        edge, away, other = nodes
        service = edge.wire.services.pop(away.address)
        hint = announce(edge, REFS[:12])
        announce(edge, REFS[12:], 12, hint)
        await time.until(time() + 0.5)
        assert expected(other, f"{edge.name}/{CLIENT}") == REFS
        assert expected(away, f"{edge.name}/{CLIENT}") == []
        edge.wire.services[away.address] = service
        await time.run(nodes.meet())
        await time.until(time() + 0.5)
        assert expected(away, f"{edge.name}/{CLIENT}") == REFS
        assert [message.number for message in notices(edge, other)] == [1, 2], "once"


async def test_a_member_that_begins_anew_is_sent_what_still_counts(tmp_path: Path) -> None:
    with members(tmp_path) as (time, nodes):
        await time.run(nodes.meet())
        edge, anew, _ = nodes
        gone, kept = announce(edge, REFS[:6]), announce(edge, REFS[6:12], 6)
        read = announce(edge, REFS[12:18], 12)
        await time.until(time() + 0.5)
        edge.plans.withdraw(gone, [kept, read])
        for ref in REFS[12:18]:
            edge.engine.planner.requested(CLIENT, ref, BLOCK, Extent(0, BLOCK), time())
        await time.until(time() + 0.5)
        before = len(notices(edge, anew))
        anew.begin_anew()
        await time.run(nodes.meet())
        await time.until(time() + 0.5)
        again = notices(edge, anew)[before:]
        assert [list(message.refs) for message in again if not message.is_withdrawn] == [REFS[6:12]]


async def test_an_epoch_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    with members(tmp_path) as (time, nodes):
        edge, *_ = nodes
        hint = announce(edge, REFS)
        announce(edge, REFS[::-1], hint=hint)
        await time.run(nodes.meet())
        await time.until(time() + 0.5)
        for name in "bc":
            assert [list(message.refs) for message in notices(edge, nodes[name])] == [REFS[::-1]]


async def test_a_message_that_comes_twice_counts_once(tmp_path: Path) -> None:
    with members(tmp_path) as (time, nodes):
        await time.run(nodes.meet())
        node = nodes["a"]
        first = OrderNotice("b", 1, 1, 1, CLIENT, tuple(REFS[:12]), 0, len(REFS))
        withdrawn = OrderNotice("b", 1, 2, 1, CLIENT, is_withdrawn=True)
        for message in (first, withdrawn, first):
            node.plans.on_order(message)
        assert expected(node, f"b/{CLIENT}") == []
        node.plans.on_order(OrderNotice("b", 2, 1, 1, CLIENT, tuple(REFS[:12]), 0, len(REFS)))
        assert expected(node, f"b/{CLIENT}") == REFS[:12], "another process of the member"


async def test_the_plans_of_an_ended_process_are_not_withdrawn_with_those_of_the_next(tmp_path: Path) -> None:
    with members(tmp_path) as (time, nodes):
        await time.run(nodes.meet())
        node = nodes["a"]
        node.plans.on_order(OrderNotice("b", 1, 1, 1, CLIENT, tuple(REFS[:12]), 0, len(REFS)))
        node.plans.on_order(OrderNotice("b", 2, 1, 1, CLIENT, tuple(REFS[12:]), 12, len(REFS)))
        node.plans.on_order(OrderNotice("b", 2, 2, 1, CLIENT, is_withdrawn=True))
        assert expected(node, f"b/{CLIENT}") == REFS[:12]


async def test_a_member_with_a_cache_of_its_own_is_sent_no_order(tmp_path: Path) -> None:
    """One of another zone."""
    with members(tmp_path, zones={"a": "1", "b": "2", "c": "1"}) as (time, nodes):
        await time.run(nodes.meet())
        edge, elsewhere, other = nodes
        announce(edge)
        await time.until(time() + 0.5)
        assert notices(edge, other)
        assert not notices(edge, elsewhere)
