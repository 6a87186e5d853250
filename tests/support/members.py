"""Engines that are the members of one cluster, joined by a wire in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.near_blocks import NearBlocks
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.cluster.member import ListedMember, Member
from outrider.core.cluster.membership import Domain, Membership
from outrider.core.cluster.messages import Hello
from outrider.core.cluster.view import View
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.origin.fill_limits import AimdLimit, BackgroundLimit
from outrider.engine.ahead.cached_across_members import CachedAcrossMembers
from outrider.engine.ahead.plans_across_members import PlansAcrossMembers
from outrider.engine.cluster.commands import MemberCommands
from outrider.engine.cluster.forgets import Beliefs, ForgetQueues
from outrider.engine.cluster.members import LiveMembers
from outrider.engine.cluster.outbox import Outbox
from outrider.engine.cluster.peer_reader import PeerReads
from outrider.engine.cluster.peer_service import PeerService
from outrider.engine.cluster.reads_sender import ReadsSender
from outrider.engine.fill.content_verification import ContentVerification
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.listing.list_cache import ListCache
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.status.cluster_map import ClusterMap, own_shares
from outrider.engine.tasks.runtime import Runtime
from outrider.metrics import Metrics
from tests.support.engine import REF, Engine, engine, taken
from tests.support.event_loops import VirtualTime
from tests.support.fake_peers import Answering, FakeMember, FakePeers
from tests.support.fakes import AtOnce, FakeClock, FakeOrigin

GIB = 2**30


class Time(VirtualTime, FakeClock):
    """Virtual time that a test may also move."""

    def __init__(self) -> None:
        VirtualTime.__init__(self)


@dataclass
class FakeSource:
    """Lists of members, as the test gives them."""

    given: asyncio.Queue[Sequence[ListedMember]] = field(default_factory=asyncio.Queue)

    async def lists(self) -> AsyncGenerator[Sequence[ListedMember], None]:
        while True:
            yield await self.given.get()


class Node:
    """A member, and how its engine joins."""

    def __init__(
        self, name: str, services: dict[str, Answering], clock: FakeClock, boot: int = 1, zone: str = ""
    ) -> None:
        """`zone` empty: the blocks are those of the whole cluster, and otherwise of the zone."""
        self.name = name
        self.address = f"{name}:9482"
        self.clock = clock
        self.boot = boot
        self.wire = FakePeers(name, services)
        self.source = FakeSource()
        me = Member(name, self.address, zone, GIB, "cluster")
        self.membership = Membership(me, boot, Domain.ZONE if zone else Domain.CLUSTER, clock())
        self.engine: Engine
        self.service: PeerService
        self.members: LiveMembers
        self.reads: PeerReads
        self.outbox: Outbox
        self.forgets: ForgetQueues
        self.reads_sender: ReadsSender
        self.plans: PlansAcrossMembers
        self.map: ClusterMap
        self._layout: BlockLayout
        self._metrics: Metrics
        self._runtime: Runtime
        self.remote_scheduler: FillScheduler
        self.near: NearBlocks

    def near_first(self, policy: EvictionPolicy) -> EvictionPolicy:
        self.near = NearBlocks(policy, self._is_near, self._size_of)
        return self.near

    def _size_of(self, version: ObjectVersion, index: int) -> int:
        return self.engine.layout.extent(index, version.size).length

    def _is_near(self, version: ObjectVersion, index: int) -> bool:
        return not self.membership.view.is_mine(version.ref, index)

    def view(self) -> View:
        return self.membership.view

    def begin(self, layout: BlockLayout, runtime: Runtime, metrics: Metrics) -> None:
        self._layout, self._runtime, self._metrics = layout, runtime, metrics
        self.remote_scheduler = FillScheduler(AimdLimit(64), BackgroundLimit(64), self.clock)

    def connect(
        self, store: DiskBlockStore, versions: VersionCache, contents: ContentVerification, list_cache: ListCache
    ) -> None:
        runtime, metrics = self._runtime, self._metrics
        self.outbox = Outbox(self.view, self.wire, runtime)
        self.forgets = ForgetQueues(self.boot, self.view, self.outbox, Beliefs(versions, list_cache), runtime, metrics)
        self.members = LiveMembers(
            self.membership, self.boot, self.source, self.wire, self.forgets, None, runtime, self.clock, lambda: 0.5,
            metrics,
        )  # fmt: skip
        self.reads = PeerReads(self.members, self.wire, self._layout, versions, contents, runtime, metrics)
        self.reads_sender = ReadsSender(self.view, self.outbox, runtime, lambda: self.engine.planner.readers)

    def serve(self, made: Engine) -> None:
        """The engine is there: answer the other members."""
        self.engine = made
        made.contents.questions.ask = made.version_lookup.with_checksums
        self.service = PeerService(
            made.layout, made.source, made.versions, made.store, made.flights, made.contents, made.version_lookup,
            self.reads, self.members, made.metrics, self._runtime,
        )  # fmt: skip
        self.wire.services[self.address] = self.service
        made.planner.join(self.reads_sender.opened, self._mine_of, lambda: self.near.bytes)
        self.service.on_reads = made.prefetch.on_reads
        here = CachedAcrossMembers(made.fills, MemberCommands(self.view, self.wire, self.clock))
        self.service.look_up_cached = here.answer
        own = self.service.own_shares = lambda: own_shares(made.prefetch.learned(), self._mine_of)
        self.map = ClusterMap(own, self.view, self.wire, self.clock)
        self.plans = PlansAcrossMembers(made.prefetch, here, self.view, self.outbox, boot=self.boot)
        self.service.on_orders = self.plans.on_order
        self.members.on_hello.append(self.plans.send)

    def _mine_of(self, ref: ObjectRef, blocks: int) -> int:
        view = self.membership.view
        return sum(1 << index for index in range(blocks) if view.is_mine(ref, index))

    async def list(self, names: Sequence[str]) -> None:
        """The source of members gives this list, and all of it is greeted."""
        self.membership.listed([ListedMember(f"{name}:9482", name) for name in names], self.clock())
        for address in self.membership.to_greet:
            await self.greet(address)

    async def greet(self, address: str) -> None:
        await self.members._greeted(address)

    async def greets(self) -> None:
        """Greets all members whenever that is due, until it is cancelled."""
        tasks = self.members.start()
        try:
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()

    def begin_anew(self) -> None:
        """As another process of this member would."""
        self.boot += 1
        self.members._boot = self.boot

    async def get(self, ref: ObjectRef = REF, **headers: str) -> bytes:
        return await self.engine.get(ref, **headers)

    async def cache_of(self, ref: ObjectRef = REF) -> str:
        """The `x-cache` of a GET."""
        answer = await self.engine.reads.get(ref, {})
        await taken(answer)
        return answer.cache.value

    def duplicates(self) -> dict[str, int]:
        """How many blocks the bucket was asked for twice, by the reason."""
        (family,) = self.engine.metrics.peers.duplicate_fetches.collect()
        return {each.labels["why"]: int(each.value) for each in family.samples if each.name.endswith("_total")}

    def owns(self, ref: ObjectRef = REF, index: int = 0) -> bool:
        return self.membership.view.ring.owner(ref, index).name == self.name


@dataclass
class Cluster:
    """The members, and the bucket that they share."""

    nodes: Mapping[str, Node]
    origin: FakeOrigin
    clock: FakeClock

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    async def meet(self) -> None:
        """All lists name all members, and everybody has greeted everybody."""
        for node in self:
            node.members.ready()
        for node in self:
            await node.list([*self.nodes])
        await self.settle()
        self.clock.advance(0.1)

    async def settle(self) -> None:
        for _ in self.nodes:
            for node in self:
                await node.engine.tasks.settle()

    def owner_of(self, ref: ObjectRef = REF, index: int = 0) -> Node:
        ring = next(iter(self)).membership.view.ring
        return self.nodes[ring.owner(ref, index).name]

    def others_of(self, ref: ObjectRef = REF, index: int = 0) -> list[Node]:
        owner = self.owner_of(ref, index)
        return [node for node in self if node is not owner]

    def ref_owned_by(self, name: str, index: int = 0) -> ObjectRef:
        """An object of which this member owns block `index`."""
        ring = next(iter(self)).membership.view.ring
        return next(
            ref for ref in (ObjectRef("train", f"{i}.tar") for i in range(1000)) if ring.owner(ref, index).name == name
        )


async def joined_by(node: Node, count: int) -> None:
    """The node knows so many other members, which answer from memory."""
    for number in range(count):
        me = Member(f"m{number}", f"m{number}:9482", "", GIB, "cluster")
        node.wire.services[me.address] = FakeMember(Hello(me, 1, "ring", 0, 0.0))
    node.members.ready()
    await node.list([node.name, *(f"m{number}" for number in range(count))])


@contextmanager
def cluster(
    root: Path, names: str = "abc", *, origin: FakeOrigin | None = None, clock: FakeClock | None = None,
    zones: Mapping[str, str] | None = None, **knobs: Any,
) -> Iterator[Cluster]:  # fmt: skip
    """Members by the letters of `names`, which do not know each other yet. `zones`: of the members; None: there are
    none. `knobs`: of each engine; `sleep` takes no time by itself."""
    origin, clock = origin or FakeOrigin(), clock or FakeClock()
    services: dict[str, Answering] = {}
    with ExitStack() as stack:
        nodes = {name: Node(name, services, clock, zone=(zones or {}).get(name, "")) for name in names}
        for node in nodes.values():
            made = engine(root / node.name, origin, clock=clock, join=node, **knobs)
            node.serve(stack.enter_context(made))
            if isinstance(clock, VirtualTime):
                # Virtual time would pass while a thread works.
                node.engine.store.disks[0].work.threads = AtOnce()
        yield Cluster(nodes, origin, clock)


@contextmanager
def timed_cluster(root: Path, names: str = "abc", **knobs: Any) -> Iterator[tuple[Time, Cluster]]:
    """Such members in virtual time."""
    time = Time()
    with cluster(root, names, clock=time, sleep=time.sleep, **knobs) as nodes:
        yield time, nodes
