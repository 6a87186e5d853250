"""The cluster's part of the composition root. Without `--peers` nothing of it is imported.

The parts are made in the order in which the composition root needs them: `Cluster` before the store, `read_from` before
the source of missing blocks, `forget_by` before writes, and `serve` at the end.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from contextlib import AsyncExitStack
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from outrider.adapters.cluster.own_account import own_address, own_name
from outrider.adapters.cluster.peer_client import PeerClient
from outrider.adapters.cluster.peer_key import PeerKey
from outrider.adapters.cluster.peer_tls import PeerTls
from outrider.adapters.cluster.sources import source_of
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.origin.receivers import Receivers, most_receivers
from outrider.adapters.process.file_reload import Sleep
from outrider.adapters.process.system import usable_cores
from outrider.adapters.state import members_file
from outrider.adapters.state.members_file import MembersFile
from outrider.core.ahead.planner import Planner
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.near_blocks import NearBlocks
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.cluster.member import Member
from outrider.core.cluster.membership import Domain, Membership
from outrider.core.cluster.peer_wire import Requester
from outrider.core.cluster.replay_guard import ReplayGuard
from outrider.core.cluster.view import View
from outrider.core.memo import Memo
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.origin.fill_limits import AimdLimit, BackgroundLimit
from outrider.engine.ahead.background_fill import BackgroundFill
from outrider.engine.ahead.cached_across_members import CachedAcrossMembers
from outrider.engine.ahead.plans_across_members import PlansAcrossMembers
from outrider.engine.ahead.prefetch import Prefetch
from outrider.engine.cluster.commands import MemberCommands
from outrider.engine.cluster.forgets import Beliefs, ForgetQueues
from outrider.engine.cluster.member_pages import PagesOfMembers
from outrider.engine.cluster.members import LiveMembers
from outrider.engine.cluster.outbox import Outbox
from outrider.engine.cluster.peer_reader import PeerReads
from outrider.engine.cluster.peer_service import PeerService
from outrider.engine.cluster.reads_sender import ReadsSender
from outrider.engine.fill.block_source import BlockSource
from outrider.engine.fill.content_verification import ContentVerification
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.listing.list_cache import ListCache
from outrider.engine.listing.lists import Lists
from outrider.engine.maintenance.commands_across_members import Together
from outrider.engine.maintenance.pinning import Pinning
from outrider.engine.maintenance.pins_across_members import PinsTogether
from outrider.engine.maintenance.warmup import Book
from outrider.engine.maintenance.warmup_runner import WarmupRunner
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.read.version_lookup import VersionLookup
from outrider.engine.status.block_owners import owners_of
from outrider.engine.status.cluster_map import ClusterMap, own_shares
from outrider.engine.status.cluster_part import ClusterPart
from outrider.engine.tasks.background import Background
from outrider.engine.tasks.runtime import Runtime
from outrider.http.admin.server import Owners
from outrider.http.control.maintenance import MaintenanceCommands
from outrider.http.peer.handler import Gatekeeper, PeerHandler
from outrider.http.peer.server import PeerServer
from outrider.http.wire.acceptor import Listener
from outrider.metrics import Metrics
from outrider.ports import Clock
from outrider.settings import Settings

# Each holds a socket, its duplicate for `sendfile`, and a block. A member of 200 has one of each other one, for hellos,
# and those of the reads. Idle ones make room for more.
_CONNECTIONS_MAX = 512
_READS_MAX = 256
# Blocks are judged anew in such steps when the ring has changed: one takes a few milliseconds.
_JUDGED_AT_ONCE = 500
# Members send each other the bytes of blocks and their digests. The format of their files is each member's own.
_SHARED_FORMAT = 1
# To find a block's owner takes 4 us for 8 members. So many blocks of an object may be fetched ahead because they are
# owned.
_MINE_OBJECTS, _MINE_BLOCKS = 65_536, 512
# A start waits no longer for the members to be known: the ring of one that is alone would own all blocks.
_SETTLE_S = 10.0


class Cluster:
    """The parts of a node that belongs to a cluster."""

    def __init__(
        self, settings: Settings, layout: BlockLayout, capacity_bytes: int, metrics: Metrics, tasks: Background,
        clock: Clock, listens_at: socket.socket, kept_at: Path,
    ) -> None:  # fmt: skip
        """`listens_at`: bound, and not listening yet. `kept_at`: the file with the last good list of members. Raises
        SettingsError."""
        self.socket = listens_at
        self._settings = settings
        self._metrics = metrics
        self._tasks = tasks
        self._layout = layout
        self._runtime = Runtime(tasks.spawn_apart, clock)
        assert settings.peer_key_file is not None, "the settings see to it"
        self._key = PeerKey(settings.peer_key_file)
        self._tls = PeerTls.of(settings)
        port = listens_at.getsockname()[1]
        name = own_name(settings, os.environ, socket.gethostname())
        me = Member(
            name, own_address(settings, port, os.environ), settings.peer_zone or "", capacity_bytes, cluster_id(layout)
        )
        self._boot = time.time_ns()
        self._source = source_of(settings, metrics, port)
        self._membership = Membership(
            me, self._boot, Domain(settings.peer_domain), clock(), members_file.load(kept_at)
        )  # fmt: skip
        tls, most = self._tls, most_receivers(usable_cores(), settings.receivers)
        self._transport = PeerClient(
            self._requester, lambda: self._key.accepted, metrics, time.time, boot=self._boot,
            tls=lambda: None if tls is None else tls.client,
            receivers=Receivers(most, metrics, lambda: tls.trust) if tls is not None and most else None,
        )  # fmt: skip
        self._outbox = Outbox(self.view, self._transport, self._runtime)
        self._commands = MemberCommands(self.view, self._transport, clock)
        self.remote_scheduler = FillScheduler(AimdLimit(settings.fills), BackgroundLimit(settings.fills), clock)
        self.members: LiveMembers
        self.reads: PeerReads
        self.forgets: ForgetQueues
        self.server: PeerServer
        self.part: ClusterPart
        self.owners: Owners
        self.map: ClusterMap
        self._service: PeerService
        # Which blocks of an object this node owns, by object and number of blocks; and the view that it is true for.
        self._mine: Memo[tuple[ObjectRef, int], int] = Memo(_MINE_OBJECTS)
        self._mine_in: View | None = None
        self._near: NearBlocks

    def _requester(self) -> Requester:
        view = self._membership.view
        return Requester(view.me.name, view.ring.digest, view.me.cluster_id)

    # -- the parts that need it ---------------------------------------------------------------------------------------

    def near_first(self, policy: EvictionPolicy) -> EvictionPolicy:
        """The eviction policy of a member."""
        self._near = NearBlocks(policy, self._is_near, self._size_of)
        return self._near

    def _is_near(self, version: ObjectVersion, index: int) -> bool:
        return not self._membership.view.is_mine(version.ref, index)

    def _size_of(self, version: ObjectVersion, index: int) -> int:
        return self._layout.extent(index, version.size).length

    def connect(
        self, store: DiskBlockStore, versions: VersionCache, contents: ContentVerification, list_cache: ListCache
    ) -> None:
        """Makes `members`, `reads` and `forgets`."""
        self.forgets = ForgetQueues(
            self._boot, self.view, self._outbox, Beliefs(versions, list_cache), self._runtime, self._metrics
        )
        first = store.working_disks[0]
        keep = None if self._settings.cache_in_memory else MembersFile(first.directory.members, first.work).save
        self.members = LiveMembers(
            self._membership, self._boot, self._source, self._transport, self.forgets, keep, self._runtime, time.time,
            random.Random().random, self._metrics,  # noqa: S311 - jitter
        )  # fmt: skip
        self.members.on_ring.append(partial(self._judge_soon, store))
        self.reads = PeerReads(
            self.members, self._transport, self._layout, versions, contents, self._runtime, self._metrics
        )

    def serve(
        self, source: BlockSource, versions: VersionCache, store: DiskBlockStore, flights: FlightTable,
        contents: ContentVerification, version_lookup: VersionLookup,
    ) -> None:  # fmt: skip
        """Makes the peer port, which does not listen yet, and the reports of the cluster."""
        contents.questions.ask = version_lookup.with_checksums
        service = self._service = PeerService(
            self._layout, source, versions, store, flights, contents, version_lookup, self.reads, self.members,
            self._metrics, self._runtime,
        )  # fmt: skip
        gatekeeper = Gatekeeper(self._membership.view.me.name, lambda: self._key.accepted, ReplayGuard(), time.time)
        handler = PeerHandler(
            service, gatekeeper, self._requester, lambda name: self.view().is_member(name), self._metrics,
            reads_max=_READS_MAX,
        )  # fmt: skip
        self.server = PeerServer(handler)
        self.part = ClusterPart(
            self.members, self._metrics, self._runtime.clock,
            source=self._settings.peers or "", domain=self._settings.peer_domain, near=self._near_here,
        )  # fmt: skip
        self.owners = partial(
            owners_of, self._layout, lambda: self._membership.view, versions.likely, version_lookup.ask, store.has
        )

    def read_ahead_together(self, planner: Planner, prefetch: Prefetch, blocks_at_once: int) -> None:
        """The planners of all members learn what clients of any member read, and each fetches ahead what it owns."""
        reads_sender = ReadsSender(self.view, self._outbox, self._runtime, lambda: planner.readers)
        planner.join(
            reads_sender.opened, self._mine_of, lambda: self._near.bytes, guessed_max=max(1, blocks_at_once // 2)
        )
        self._service.on_reads = prefetch.on_reads
        own = self._service.own_shares = lambda: own_shares(prefetch.learned(), self._mine_of)
        self.map = ClusterMap(own, lambda: self._membership.view, self._transport, self._runtime.clock)

    def plans_of_all(self, prefetch: Prefetch, fills: BackgroundFill) -> PlansAcrossMembers:
        """Takes the orders that clients announce, and passes them on to all members."""
        here = CachedAcrossMembers(fills, self._commands)
        self._service.look_up_cached = here.answer
        orders = PlansAcrossMembers(prefetch, here, self.view, self._outbox, boot=self._boot)
        self._service.on_orders = orders.on_order
        self.members.on_hello.append(orders.send)
        return orders

    def _mine_of(self, ref: ObjectRef, blocks: int) -> int:
        """See `Planner.join`."""
        view = self._membership.view
        before = self._mine_in
        if before is None or view.ring is not before.ring or view.acting is not before.acting:
            self._mine = Memo(_MINE_OBJECTS)
            self._mine_in = view
        bits = self._mine.get((ref, blocks))
        if bits is None:
            bits = sum(1 << index for index in range(min(blocks, _MINE_BLOCKS)) if view.is_mine(ref, index))
            self._mine.put((ref, blocks), bits)
        return bits

    def view(self) -> View:
        """The members of now."""
        return self._membership.view

    def lists_from(self) -> PagesOfMembers:
        """The pages of LISTs that other members have."""
        return PagesOfMembers(self.reads, self._transport)

    def lists_for(self, lists: Lists) -> None:
        """Other members get pages from `lists`."""
        self._service.list_page = lambda request: lists.for_member(request.bucket, request.query)

    def maintain(self, warmups: Book, runner: WarmupRunner, pinning: Pinning, runtime: Runtime) -> Together:
        """Passes maintenance commands on to the other members."""
        pins = PinsTogether(self._commands, pinning, runtime)
        self.members.on_ring.append(pinning.ring_changed)
        self.members.on_hello.append(pins.learn)
        return Together(self._commands, warmups, runner, runtime, pins)

    def obey(self, commands: MaintenanceCommands) -> None:
        """Maintenance commands of other members are carried out by `commands`."""
        self._service.take_command = commands.command

    def _near_here(self) -> tuple[int, int]:
        return len(self._near), self._near.bytes

    # -- life ---------------------------------------------------------------------------------------------------------

    async def begin(self, stack: AsyncExitStack, sleep: Sleep) -> set[asyncio.Task[None]]:
        """Listen, and get to know the members. Returns the tasks that never end, once it is known who is there.
        `sleep`: between two looks at the files of keys."""
        await self._transport.open()
        stack.push_async_callback(self._transport.close)
        listener = Listener(
            [self.socket], self.server, self._metrics.refused_connections, port="peer",
            connections_max=_CONNECTIONS_MAX, connected=lambda: len(self.server.connections),
            make_room=self.server.make_room,
            tls=None if self._tls is None else self._tls.server,
        )  # fmt: skip
        stack.push_async_callback(self._shut_down, listener)
        endless = {*self.members.start(), self._tasks.spawn(self._key.follow(sleep), "peer key")}
        if self._tls is not None:
            endless.add(self._tasks.spawn(self._tls.follow(sleep), "peer tls"))
        return endless

    async def settled(self) -> None:
        """Returns once the members are known, or after a while: alone, this node would take all blocks for its own."""
        try:
            async with asyncio.timeout(_SETTLE_S):
                await self.members.settled.wait()
        except TimeoutError:
            pass

    async def _shut_down(self, listener: Listener) -> None:
        listener.close()
        self.server.pre_shutdown()
        await self.server.shutdown(1.0)
        listener.abort()

    # -- blocks that have changed hands -------------------------------------------------------------------------------

    def _judge_soon(self, store: DiskBlockStore) -> None:
        self._tasks.spawn_apart(self._judge(store, self._membership.view.ring.digest), "near blocks")

    async def _judge(self, store: DiskBlockStore, ring: str) -> None:
        blocks = store.each()
        while some := list(islice(blocks, _JUDGED_AT_ONCE)):
            if self._membership.view.ring.digest != ring:
                return  # another task judges by the ring of now
            versions = [(block, store.version_of(block)) for block in some]
            self._near.judge([(block, version) for block, version in versions if version is not None])
            await asyncio.sleep(0)


def cluster_id(layout: BlockLayout) -> str:
    """A hash of all that makes blocks the same: members with another one cannot share blocks."""
    text = f"{layout.origin} {layout.block_bytes} {_SHARED_FORMAT}"
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
