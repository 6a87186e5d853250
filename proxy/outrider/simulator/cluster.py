"""Many nodes around one bucket in virtual time: as one cache, each node by itself, or past all caches.

Each node is a `SimProxy` with a planner of its own, as each server has. A block that another node owns (`Ring`) is
asked of its owner over the links, and kept near where `NearBlocks` has room. Blocks that a node owns come from the
bucket, in one flight for all nodes. Links and the bucket are pipes, which bytes pass in whole blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from outrider.core.ahead.prefetch_pause import PrefetchPause
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.near_blocks import NearBlocks
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import notice_interval_s
from outrider.core.cluster.ownership import Ring
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.simulator.run import EpochResult, Machine, Mark, SimProxy, read_all
from outrider.simulator.scenarios import JobSpec
from outrider.simulator.world import (
    AWAITED,
    PREFETCHED,
    Act,
    Pipe,
    PipeLoad,
    SimFill,
    SimObject,
    SimOrigin,
    Timeline,
    Urgency,
)

Way = Literal["cluster", "by itself", "direct"]
WAYS: tuple[Way, ...] = ("cluster", "by itself", "direct")

# A request to a peer and the first byte of its reply, within a data centre.
_PEER_LATENCY_S = 0.001


@dataclass(frozen=True, slots=True)
class SimNodes:
    """`count` equal nodes. `machine` is one of them; its `origin_bytes_s` is what the bucket gives all nodes together.
    `link_bytes_s`: what a node's link takes, each way. `connection_bytes_s`: what one GET gets from the bucket.
    `buffered_blocks`: what a loader holds beside the block that is consumed."""

    count: int
    machine: Machine
    link_bytes_s: float
    connection_bytes_s: float
    buffered_blocks: int = 2


@dataclass(slots=True)
class ClusterEpoch:
    """One epoch of the job. `ideal_s`: the time that the accelerators need for its data. `peer_bytes` went from node
    to node. Bytes count for all nodes."""

    way: Way
    read: EpochResult
    ideal_s: float
    peer_bytes: int = 0

    @property
    def utilisation(self) -> float:
        """The part of the epoch's time for which the accelerators compute."""
        return self.ideal_s / self.read.took_s

    @property
    def peer_traffic(self) -> float:
        """Bytes between nodes, as a part of the dataset."""
        return self.peer_bytes / self.read.dataset_bytes


class ClusterSimulation:
    """A job on many nodes. The readers of the job are dealt to the nodes in equal runs, as ranks are."""

    def __init__(self, nodes: SimNodes, way: Way, job: JobSpec) -> None:
        self.nodes = nodes
        self.way = way
        self.job = job
        self.time = Timeline()
        self.bucket = Pipe(self.time, nodes.machine.origin_bytes_s)
        self.layout = BlockLayout("simulated", nodes.machine.block_bytes)
        self.objects: dict[ObjectRef, SimObject] = {}
        for index in range(job.shards.count):
            ref = ObjectRef(job.shards.bucket, job.shards.key(index))
            self.objects[ref] = SimObject.of(ref, job.shards.size, self.layout)
        names = [f"node-{number:04d}" for number in range(nodes.count)]
        self._ring = Ring(Member(name, name, "", nodes.machine.capacity_bytes, "simulated") for name in names)
        self._owners: dict[ObjectRef, list[SimNode]] = {}
        self.members = {name: SimNode(self, name) for name in names}
        self.epochs: list[ClusterEpoch] = []
        self.is_over = False
        """The job has ended. Bytes on their way still arrive; nothing else is begun."""

    def run(self) -> list[ClusterEpoch]:
        self.time.at(self.job.start_s, self._begin)
        self.time.run()
        return self.epochs

    def owner(self, of: SimObject, index: int) -> SimNode:
        owners = self._owners.get(of.ref)
        if owners is None:
            owners = [self.members[self._ring.owner(of.ref, each).name] for each in range(len(of.blocks))]
            self._owners[of.ref] = owners
        return owners[index]

    @property
    def peer_bytes(self) -> int:
        return sum(node.given_bytes for node in self.members.values())

    @property
    def wasted_bytes(self) -> int:
        return sum(node.wasted_bytes for node in self.members.values())

    def _begin(self) -> None:
        job = self.job
        lists = job.order(len(self.epochs))
        read_bytes = sum(map(len, lists)) * job.shards.size
        row = EpochResult(job.name, len(self.epochs) + 1, job.shards.count * job.shards.size)
        epoch = ClusterEpoch(self.way, row, read_bytes / len(lists) / job.reader_bytes_s)
        self.epochs.append(epoch)
        before, peer_bytes = self._mark, self.peer_bytes
        reading = len(lists)

        def ended() -> None:
            nonlocal reading
            reading -= 1
            if not reading:
                self._end(epoch, before, peer_bytes)

        members = list(self.members.values())
        for number, part in enumerate(lists):
            node = members[number * len(members) // len(lists)]
            shards = [self.objects[ObjectRef(job.shards.bucket, job.shards.key(index))] for index in part]
            if job.announced and part:
                self._announce(node, [of.ref for of in shards])
            buffer = Buffer(self.time, job.reader_bytes_s, self.nodes.buffered_blocks)
            if self.way == "direct":
                _DirectReader(node, shards, buffer, row, ended)
            else:
                read_all(node, node.client, iter(shards), buffer.take, row, partial(buffer.emptied, ended))

    def _announce(self, node: SimNode, refs: Sequence[ObjectRef]) -> None:
        """As `engine.ahead.plans_across_members`: a client of this node announces its order, which reaches all
        members."""
        for member in self.members.values() if self.way == "cluster" else (node,):
            if member.planner is not None:
                member.planner.announced(node.client, refs, self.time.now, on_peer=member is not node)

    @property
    def _mark(self) -> Mark:
        return self.time.now, self.bucket.sent_bytes, self.wasted_bytes

    def _end(self, epoch: ClusterEpoch, before: Mark, peer_bytes: int) -> None:
        epoch.read.count(before, self._mark)
        epoch.peer_bytes = self.peer_bytes - peer_bytes
        if len(self.epochs) < self.job.epochs:
            self._begin()
        else:
            self.is_over = True


class SimNode(SimProxy):
    """A node: a proxy with a link each way. `received_bytes` came in from the bucket and from peers, `given_bytes` went
    to peers, and `peer_bytes` came from them."""

    def __init__(self, cluster: ClusterSimulation, name: str) -> None:
        self.cluster = cluster
        self.name = self.client = name
        self.into = Pipe(cluster.time, cluster.nodes.link_bytes_s)
        self.out = Pipe(cluster.time, cluster.nodes.link_bytes_s)
        self.peer_bytes = 0
        self._pause = PrefetchPause()
        self.origin: _NodeOrigin
        policy = "none" if cluster.way == "direct" else "epoch"
        super().__init__(cluster.nodes.machine, policy, cluster.time, cluster.objects)
        self._mine: dict[ObjectRef, int] = {}
        # Reads of this node's clients that were not reported to the others: client, object, size and time.
        self._unreported: list[tuple[str, ObjectRef, int, float]] = []
        if self.planner is not None and cluster.way == "cluster":
            self.planner.join(self._note_read, self._mine_of, self._near_bytes)

    @property
    def received_bytes(self) -> int:
        return self.into.sent_bytes

    @property
    def given_bytes(self) -> int:
        return self.out.sent_bytes

    def _evicts(self, policy: EvictionPolicy) -> EvictionPolicy:
        if self.cluster.way != "cluster":
            return policy
        self._near = NearBlocks(policy, self._is_near, self._size_of)
        return self._near

    def _size_of(self, version: ObjectVersion, index: int) -> int:
        return self.layout.extent(index, version.size).length

    def _near_bytes(self) -> int:
        return self._near.bytes

    def _is_near(self, version: ObjectVersion, index: int) -> bool:
        return self.cluster.owner(self.cluster.objects[version.ref], index) is not self

    def _origin(self) -> _NodeOrigin:
        return _NodeOrigin(self)

    def _mine_of(self, ref: ObjectRef, blocks: int) -> int:
        """See `Planner.join`."""
        bits = self._mine.get(ref)
        if bits is None:
            of = self.cluster.objects[ref]
            bits = sum(1 << index for index in range(len(of.blocks)) if self.cluster.owner(of, index) is self)
            self._mine[ref] = bits
        return bits & ((1 << blocks) - 1)

    def _note_read(self, client: str, ref: ObjectRef, size: int) -> None:
        """As `engine.cluster.reads_sender` does."""
        if not self._unreported:
            self.time.at(self.time.now + notice_interval_s(len(self.cluster.members) - 1), self._report_reads)
        self._unreported.append((client, ref, size, self.time.now))

    def _report_reads(self) -> None:
        reads, self._unreported = self._unreported, []
        if self.planner is None or self.cluster.is_over:
            return
        for node in self.cluster.members.values():
            if node is not self and node.planner is not None:
                for client, ref, size, at in reads:
                    node.planner.opened_on_peer(self.name, client, ref, size, self.planner.readers, at)
                node.prefetch()

    def prefetch(self) -> None:
        if self.time.now >= self._pause.until and not self.cluster.is_over:
            super().prefetch()

    def _next_step(self) -> None:
        # A search that goes on after the job would take most of the time of a simulation.
        if not self.cluster.is_over:
            super()._next_step()

    def landed(self, fill: SimFill) -> None:
        if fill.urgency[0] == PREFETCHED:
            self._pause.succeeded()
        self.prefetch()

    def refused(self, fill: SimFill) -> None:
        """A prefetched block has no room here."""
        self._refused(fill)

    def rest(self) -> None:
        self._pause.failed(self.time.now)


class _NodeOrigin(SimOrigin):
    """Blocks for one node: those that it owns come from the bucket, the others from their owners. All come in over the
    node's link. Where each node is by itself, it owns all."""

    def __init__(self, node: SimNode) -> None:
        super().__init__(
            node.time, node.store, node.cluster.bucket, node.cluster.nodes.machine.latency_s,
            landed=node.landed, refused=node.refused, idle=node.prefetch,
        )  # fmt: skip
        self._node = node
        self._cluster = node.cluster

    def _owner(self, fill: SimFill) -> SimNode:
        if self._cluster.way != "cluster":
            return self._node
        return self._cluster.owner(fill.of, fill.index)

    def _begin(self, fill: SimFill) -> None:
        owner = self._owner(fill)
        if owner is self._node:
            super()._begin(fill)
            return
        # The room is taken before the request is sent: no byte comes that has no place.
        if not self._store.reserve(fill.block, fill.of.version, fill.length):
            if fill.urgency[0] == PREFETCHED:
                del self._fills[fill.block]
                self._refused(fill)
                self._node.rest()
                return
            fill.relayed = True
        self._time.at(self._time.now + _PEER_LATENCY_S, lambda: owner.origin.give(fill, self._node))

    def _promote(self, fill: SimFill, urgency: Urgency) -> None:
        owner = self._owner(fill)
        if owner is self._node:
            super()._promote(fill, urgency)
            return
        fill.urgency = urgency
        if owner.origin.flight(fill.block) is not None:
            owner.origin.ask(fill.of, fill.index, urgency)

    def give(self, fill: SimFill, to: SimNode) -> None:
        """This node is asked for a block that it owns: it is cached, on its way, or to be fetched."""
        if self._store.has(fill.block):
            self._give(fill, to)
        else:
            self.ask(fill.of, fill.index, fill.urgency, lambda: self._give(fill, to))

    def _give(self, fill: SimFill, to: SimNode) -> None:
        self._store.use(fill.block)
        release: Act = lambda: self._store.release(fill.block)  # noqa: E731
        self._node.out.add(PipeLoad(
            fill.length, fill.urgency,
            lambda out: self._time.not_before(out, lambda: to.origin.receive(fill)), release,
        ))  # fmt: skip

    def receive(self, fill: SimFill) -> None:
        """The block has left its owner."""
        self._node.peer_bytes += fill.length
        self._come_in(fill, self._time.now)

    def _sent(self, fill: SimFill, out: float) -> None:
        began = self._time.now
        at_connection = began + fill.length / self._cluster.nodes.connection_bytes_s
        self._time.at(out + self._latency_s, lambda: self._come_in(fill, at_connection + self._latency_s))

    def _come_in(self, fill: SimFill, not_before: float) -> None:
        self._node.into.add(PipeLoad(
            fill.length, fill.urgency,
            lambda out: self._time.not_before(max(out, not_before), lambda: self._land(fill)),
        ))  # fmt: skip


class Buffer:
    """Blocks that a data loader has received, and its accelerator consumes at `bytes_s`. The loader goes on while at
    most `blocks` of them are left."""

    def __init__(self, time: Timeline, bytes_s: float, blocks: int) -> None:
        self._time = time
        self._bytes_s = bytes_s
        # When each of the last blocks is consumed, and the one that is consumed now.
        self._ends: deque[float] = deque([time.now] * (blocks + 1), maxlen=blocks + 1)

    def take(self, length: int, then: Act) -> None:
        """A block has come. `then` is called once the loader goes on."""
        self._ends.append(max(self._time.now, self._ends[-1]) + length / self._bytes_s)
        self._time.at(max(self._time.now, self._ends[0]), then)

    def emptied(self, then: Act) -> None:
        """`then` is called once all is consumed."""
        self._time.at(max(self._time.now, self._ends[-1]), then)


class _DirectReader:
    """A reader that has one connection to the bucket, and a GET for each shard."""

    def __init__(self, node: SimNode, shards: Sequence[SimObject], buffer: Buffer, row: EpochResult, then: Act) -> None:
        self._node = node
        self._time = node.time
        # The length of each block, and whether a GET begins with it.
        self._blocks = iter([(length, index == 0) for of in shards for index, (_, length) in enumerate(of.blocks)])
        self._buffer = buffer
        self._then = then
        row.opened += len(shards)
        self._next()

    def _next(self) -> None:
        length, is_first = next(self._blocks, (0, False))
        if not length:
            self._buffer.emptied(self._then)
            return
        nodes, urgency = self._node.cluster.nodes, (AWAITED, self._time.now)
        late_s = nodes.machine.latency_s if is_first else 0.0

        def sent(out: float) -> None:
            not_before = self._time.now + length / nodes.connection_bytes_s + late_s
            self._time.at(out + late_s, lambda: come_in(not_before))

        def come_in(not_before: float) -> None:
            def last(out: float) -> None:
                self._time.at(max(out, not_before), lambda: self._buffer.take(length, self._next))

            self._node.into.add(PipeLoad(length, urgency, last))

        self._node.cluster.bucket.add(PipeLoad(length, urgency, sent))
