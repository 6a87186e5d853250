"""A member that hangs costs one time-out; one that is busy is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.adapters.disk.leases import FileLease
from outrider.core.cluster.messages import ListedPage, ListRequest
from outrider.core.cluster.peer_messages import PeerFailed, PeerRead, ReadClass
from outrider.core.errors import SlowDown
from outrider.core.model import BlockKey, Extent, ObjectRef
from outrider.engine.cluster.member_pages import PagesOfMembers
from tests.support.engine import BLOCK, REF, slot_of
from tests.support.fake_peers import PeerFault
from tests.support.fakes import RAMP, Fault
from tests.support.members import Cluster, Node, Time, cluster

DATA = RAMP[: 3 * BLOCK]


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def nodes(time: Time, tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, clock=time, sleep=time.sleep) as made:
        yield made


async def begun(nodes: Cluster) -> tuple[Node, Node]:
    """The owner of the object, which has it, and a member that does not."""
    nodes.origin.put(REF, DATA[:1000])
    await nodes.meet()
    owner, (edge, _) = nodes.owner_of(), nodes.others_of()
    await owner.get()
    return owner, edge


async def test_an_owner_that_hangs_is_left_within_a_second_and_not_asked_again(time: Time, nodes: Cluster) -> None:
    owner, edge = await time.run(begun(nodes))
    edge.wire.silent.add(owner.address)
    began = time()
    assert await time.run(edge.get()) == DATA[:1000]
    assert time() - began <= 0.95
    edge.wire.reads.clear()
    for _ in range(5):
        assert await time.run(edge.get()) == DATA[:1000]
    assert owner.name not in {name for name, _ in edge.wire.reads}
    assert not edge.membership.view.alive.keys() & {owner.name}


async def test_a_member_that_was_only_late_is_back_after_a_second_or_two(time: Time, nodes: Cluster) -> None:
    owner, edge = await time.run(begun(nodes))
    greeting = asyncio.ensure_future(edge.greets())
    await time.until(time() + 1.5)  # all were greeted, and are again after five seconds
    edge.wire.silent.add(owner.address)
    assert await time.run(edge.get()) == DATA[:1000]
    assert owner.name not in edge.membership.view.alive
    edge.wire.silent.clear()
    await time.until(time() + 2.1)
    assert owner.name in edge.membership.view.alive
    greeting.cancel()
    await asyncio.wait([greeting])


async def test_an_owner_that_hangs_amid_a_body_costs_one_pause(time: Time, nodes: Cluster) -> None:
    owner, edge = await time.run(begun(nodes))
    never = asyncio.Event()
    edge.wire.faults.append(PeerFault(member=owner.name, body_gate=never, gate_after=400))

    async def silence() -> None:
        edge.wire.silent.add(owner.address)

    reading = asyncio.ensure_future(edge.get())
    await time.turns()
    await silence()
    began = time()
    assert await time.run(asyncio.wait_for(asyncio.shield(reading), None)) == DATA[:1000]
    assert time() - began <= 0.95


async def test_an_owner_that_answers_hellos_is_waited_for_until_the_deadline(time: Time, nodes: Cluster) -> None:
    owner, edge = await time.run(begun(nodes))
    gate = asyncio.Event()
    edge.wire.faults.append(PeerFault(member=owner.name, gate=gate))
    asked = nodes.origin.count()
    reading = asyncio.ensure_future(edge.get())
    await time.until(time() + 4.8)
    assert not reading.done()
    gate.set()
    assert await time.run(asyncio.wait_for(reading, None)) == DATA[:1000]
    assert nodes.origin.count() == asked


async def test_an_owner_that_answers_hellos_and_no_read_costs_one_wait(time: Time, nodes: Cluster) -> None:
    """It is requested again after half a minute, and after a minute."""
    owner, edge = await time.run(begun(nodes))
    names = (ObjectRef("train", f"{number}.tar") for number in range(1000))
    refs = [ref for ref in names if owner.owns(ref)][:5]
    for ref in refs:
        nodes.origin.put(ref, DATA[:1000])
        await time.run(owner.get(ref))
    edge.wire.faults.append(PeerFault(None, owner.name, gate=asyncio.Event()))
    waits = []
    for ref, pause_s in zip(refs, (0.0, 10.0, 30.0, 10.0, 60.0), strict=True):
        await time.until(time() + pause_s)
        edge.members.health.bucket.replied(0.1, time())
        began = time()
        assert await time.run(asyncio.wait_for(edge.get(ref), 60)) == DATA[:1000]
        waits.append(time() - began > 1)
        assert time() - began < 2.3
    assert waits == [True, False, True, False, True]


async def test_the_bucket_is_measured_by_first_bytes_that_waited_for_it_alone(time: Time, nodes: Cluster) -> None:
    owner, edge = await time.run(begun(nodes))
    bucket = edge.members.health.bucket
    await time.run(edge.engine.reads.head(REF, {}))
    edge.wire.silent.add(owner.address)
    assert await time.run(edge.get()) == DATA[:1000]
    assert bucket.first_byte_s(time()) == 1.0, "the wait for the owner is none for the bucket"
    ref = nodes.ref_owned_by(edge.name)
    nodes.origin.put(ref, DATA[:BLOCK])
    await time.run(edge.engine.reads.head(ref, {}))
    nodes.origin.faults.append(Fault(method="GET", gate=(gate := asyncio.Event())))
    reading = asyncio.ensure_future(edge.get(ref))
    await time.until(time() + 0.3)
    gate.set()
    assert await time.run(asyncio.wait_for(reading, 60)) == DATA[:BLOCK]
    assert bucket.first_byte_s(time()) == pytest.approx(0.3, abs=0.05)


async def test_the_reads_of_a_dead_member_end_together(time: Time, nodes: Cluster) -> None:
    _, edge = await time.run(begun(nodes))
    nodes.origin.put(REF, DATA)
    edge.engine.versions.forget(REF)
    edge.wire.silent.update(node.address for node in nodes if node is not edge)
    began = time()
    assert await time.run(edge.get()) == DATA
    assert time() - began <= 2.0


async def test_a_block_that_was_asked_for_ahead_becomes_demand_at_its_owner(time: Time, nodes: Cluster) -> None:
    await time.run(nodes.meet())
    ref = nodes.ref_owned_by("b", 1)
    nodes.origin.put(ref, DATA)
    edge = nodes["a"]
    await time.run(edge.engine.reads.head(ref, {}))
    version = edge.engine.versions.fresh(ref)
    assert version is not None
    nodes.origin.faults.append(Fault(method="GET", gate=(gate := asyncio.Event())))
    edge.wire.reads.clear()
    edge.engine.fills.fill(version, [1])
    await time.until(time() + 0.25)
    assert [read.read_class for _, read in edge.wire.reads] == [ReadClass.AHEAD]
    reading = asyncio.ensure_future(edge.engine.range(BLOCK, 2 * BLOCK, ref))
    await time.until(time() + 0.25)
    assert [read.read_class for _, read in edge.wire.reads] == [ReadClass.AHEAD, ReadClass.DEMAND]
    key = edge.engine.layout.key(version, 1)
    flight = nodes["b"].engine.flights.get(key)
    assert flight is not None
    assert flight.slot is not None
    assert flight.slot.demand
    gate.set()
    assert await time.run(asyncio.wait_for(reading, None)) == DATA[BLOCK : 2 * BLOCK]


async def test_an_owner_whose_disk_hangs_costs_one_short_wait(
    monkeypatch: pytest.MonkeyPatch, time: Time, nodes: Cluster
) -> None:
    """Its loop answers hellos, and says that the disk does not answer: another member stands in."""
    owner, edge = await time.run(begun(nodes))
    names = (ObjectRef("train", f"{number}.tar") for number in range(1000))
    refs = [ref for ref in names if owner.owns(ref)][:8]
    for ref in refs:
        nodes.origin.put(ref, DATA[:1000])
        await time.run(owner.get(ref))
    await time.run(nodes.settle())
    store, gate = owner.engine.store, asyncio.Event()
    lease = store.lease

    async def hangs(block: BlockKey) -> FileLease | None:
        await gate.wait()
        return await lease(block)

    monkeypatch.setattr(store, "lease_open", lambda block: None)
    monkeypatch.setattr(store, "lease", hangs)
    began = time()
    assert await time.run(edge.get(refs[0])) == DATA[:1000]
    assert time() - began <= 0.5
    # A peer that asks before it has noticed the hang is refused at once.
    with pytest.raises(SlowDown):
        await owner.service.read(PeerRead(refs[1], Extent(0, 1000)), edge.name)
    await time.until(time() + 0.5)
    assert [owner.name in node.membership.view.alive for node in nodes.others_of()] == [False, False]
    edge.wire.reads.clear()
    began = time()
    for ref in refs[1:6]:
        assert await time.run(edge.get(ref)) == DATA[:1000]
    assert time() - began < 0.1
    assert owner.name not in {name for name, _ in edge.wire.reads}
    gate.set()
    await time.until(time() + 0.5)
    assert [owner.name in node.membership.view.alive for node in nodes.others_of()] == [True, True]
    assert await edge.cache_of(refs[7]) == "PEER"
    assert store.leases() == 0


async def test_a_peer_that_leaves_as_its_block_is_opened_leaves_no_lease(
    monkeypatch: pytest.MonkeyPatch, time: Time, nodes: Cluster
) -> None:
    """A block with a lease is never evicted."""
    owner, edge = await time.run(begun(nodes))
    await time.run(nodes.settle())
    store = owner.engine.store
    lease = store.lease

    async def leaves(block: BlockKey) -> FileLease | None:
        opened = await lease(block)
        reading.cancel()
        return opened

    monkeypatch.setattr(store, "lease_open", lambda block: None)
    monkeypatch.setattr(store, "lease", leaves)
    reading = asyncio.ensure_future(owner.service.read(PeerRead(REF, Extent(0, 1000)), edge.name))
    with pytest.raises(asyncio.CancelledError):
        await time.run(asyncio.wait_for(reading, None))
    await time.turns()
    assert not any(slot_of(store, block).in_use for block in store.present())


async def test_an_owner_that_waits_for_the_bucket_is_not_slow(time: Time, nodes: Cluster) -> None:
    """It answers hellos, and the bytes would come no sooner by another way."""
    owner, edge = await time.run(begun(nodes))
    edge.members.health.bucket.flowed(10**9, 1.0, time())
    ref = nodes.ref_owned_by(owner.name)
    nodes.origin.put(ref, DATA[:BLOCK])
    nodes.origin.faults.append(Fault(body_gate=(gate := asyncio.Event()), gate_after=400))
    asked = nodes.origin.count()
    reading = asyncio.ensure_future(edge.get(ref))
    await time.until(time() + 4)
    assert not reading.done()
    gate.set()
    assert await time.run(asyncio.wait_for(reading, None)) == DATA[:BLOCK]
    assert nodes.origin.count() == asked + 1
    assert edge.members.health.of(owner.name).may_request(time())


@pytest.mark.parametrize(("on_disk", "within_s"), [(True, 0.7), (False, 6.0)])
async def test_an_owner_whose_body_does_not_go_on_is_slow(
    on_disk: bool, within_s: float, time: Time, nodes: Cluster
) -> None:
    """It answers hellos, so its link may be one that large packets do not pass. If it has the block it waits for
    nobody, and is left at once."""
    owner, edge = await time.run(begun(nodes))
    if on_disk:
        await time.run(nodes.settle())
    edge.members.health.bucket.flowed(10**9, 1.0, time())
    edge.wire.faults.append(PeerFault(member=owner.name, body_gate=asyncio.Event(), gate_after=400))
    began = time()
    assert await time.run(asyncio.wait_for(edge.get(), 60)) == DATA[:1000]
    assert time() - began < within_s
    assert edge.members.health.of(owner.name).is_left_out(time())


async def test_a_member_whose_bytes_come_while_it_is_greeted_is_not_lost(time: Time, nodes: Cluster) -> None:
    """It is as slow to answer a hello: all of its machine is busy."""
    owner, edge = await time.run(begun(nodes))
    gate = asyncio.Event()
    edge.wire.faults.append(PeerFault(member=owner.name, body_gate=gate, gate_after=400))
    reading = asyncio.ensure_future(edge.get())
    await time.turns()
    edge.wire.silent.add(owner.address)
    greeted = edge.wire.hellos.count(owner.address)
    while edge.wire.hellos.count(owner.address) == greeted:
        await time.until(time() + 0.05)
    gate.set()
    assert await asyncio.wait_for(reading, 60) == DATA[:1000]
    await time.until(time() + 0.5)
    assert owner.name in edge.membership.view.alive


async def test_a_read_that_fails_as_it_is_given_up_leaves_its_task_uncancelled(tmp_path: Path) -> None:
    with cluster(tmp_path, "ab") as nodes:
        await nodes.meet()
        read = nodes["a"].reads.requests.begin(nodes["b"].membership.view.me)

        async def reply() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise PeerFailed("broke") from None

        async def reads() -> int:
            with pytest.raises(PeerFailed):
                await read.awaited(reply())
            task = asyncio.current_task()
            return -1 if task is None else task.cancelling()

        task = asyncio.ensure_future(reads())
        await asyncio.sleep(0)
        read.end(PeerFailed("slow"))
        assert await task == 0
        nodes["a"].reads.requests.over(read)
        await nodes.settle()


A_LIST = (REF.bucket, (("list-type", "2"), ("prefix", REF.key)))


async def test_an_owner_that_waits_long_for_a_list_is_waited_for_and_no_worse_for_blocks(
    time: Time, nodes: Cluster
) -> None:
    owner, edge = await time.run(begun(nodes))
    gate = asyncio.Event()

    async def late(_: ListRequest) -> ListedPage:
        await gate.wait()
        return ListedPage(packed=b"page")

    owner.service.list_page = late
    pages = PagesOfMembers(edge.reads, edge.wire)
    member = pages.owner(A_LIST)
    assert member is not None
    assert (member.name, pages.owner(A_LIST)) == (owner.name, member)
    asking = asyncio.ensure_future(pages.page(member, A_LIST))
    await time.until(time() + 20)
    assert not asking.done()
    gate.set()
    assert await time.run(asyncio.wait_for(asking, None)) == ListedPage(packed=b"page")
    assert edge.members.health.of(owner.name).may_request(time())


async def test_an_owner_that_hangs_costs_a_list_one_pause(time: Time, nodes: Cluster) -> None:
    owner, edge = await time.run(begun(nodes))
    edge.wire.silent.add(owner.address)
    pages, began = PagesOfMembers(edge.reads, edge.wire), time()
    member = pages.owner(A_LIST)
    assert member is not None
    assert await time.run(pages.page(member, A_LIST)) is None
    assert time() - began <= 0.95
    assert owner.name not in edge.membership.view.alive
    left = pages.owner(A_LIST)
    assert left is None or left.name != owner.name


async def test_an_owner_that_fails_at_lists_is_asked_for_none_for_a_while_and_is_no_worse_for_blocks(
    time: Time, nodes: Cluster
) -> None:
    owner, edge = await time.run(begun(nodes))
    pages = PagesOfMembers(edge.reads, edge.wire)
    member = pages.owner(A_LIST)
    assert member is not None
    for why in ("busy", "late", "garbage", "late"):

        async def fail(_: ListRequest, why: str = why) -> ListedPage:
            raise PeerFailed(why)

        owner.service.list_page = fail
        assert await time.run(pages.page(member, A_LIST)) is None
        assert (pages.owner(A_LIST) == member) == (why == "busy")
    assert edge.members.health.of(owner.name).may_request(time())
    time.advance(30)
    assert pages.owner(A_LIST) == member


async def test_a_list_of_which_the_owner_had_no_page_is_requested_of_the_bucket_for_a_minute(
    time: Time, nodes: Cluster
) -> None:
    """As a page that is not to be kept, of which the owner would ask the bucket in vain each time."""
    owner, edge = await time.run(begun(nodes))

    async def none(_: ListRequest) -> ListedPage:
        return ListedPage()

    owner.service.list_page = none
    pages = PagesOfMembers(edge.reads, edge.wire)
    member = pages.owner(A_LIST)
    assert member is not None
    assert await time.run(pages.page(member, A_LIST)) is None
    assert pages.owner(A_LIST) is None
    assert pages.owner((A_LIST[0], (*A_LIST[1], ("start-after", "x")))) == member
    time.advance(60)
    assert pages.owner(A_LIST) == member


async def test_an_owner_that_fails_at_blocks_is_left_out_whatever_lists_it_has(time: Time, nodes: Cluster) -> None:
    owner, edge = await time.run(begun(nodes))

    async def page(_: ListRequest) -> ListedPage:
        return ListedPage(packed=b"page")

    owner.service.list_page = page
    pages = PagesOfMembers(edge.reads, edge.wire)
    member = pages.owner(A_LIST)
    assert member is not None
    edge.wire.faults.append(PeerFault(times=3, member=owner.name, why="broke"))
    for _ in range(3):
        edge.engine.versions.forget(REF)
        assert await time.run(edge.get()) == DATA[:1000]
        assert await time.run(pages.page(member, A_LIST)) is not None
    assert not edge.members.health.of(owner.name).may_request(time())


async def test_a_member_of_an_earlier_release_is_asked_for_no_list(time: Time, nodes: Cluster) -> None:
    owner, edge = await time.run(begun(nodes))
    mine = owner.membership.view.me
    owner.membership.view = replace(owner.membership.view, me=replace(mine, wire=(1, 1)))
    await time.run(nodes.meet())
    assert PagesOfMembers(edge.reads, edge.wire).owner(A_LIST) is None
