"""A real peer port and real clients of it, on loopback, with a service that the test chooses."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from outrider.adapters.cluster.peer_client import PeerClient
from outrider.adapters.origin.receivers import Receivers
from outrider.adapters.process.listening import bind
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import Hello
from outrider.core.cluster.peer_wire import Asker
from outrider.core.cluster.replay_guard import ReplayGuard
from outrider.http.peer.handler import Gatekeeper, PeerEngine, PeerHandler
from outrider.http.peer.server import PeerServer
from outrider.http.wire.acceptor import Listener
from outrider.metrics import Metrics
from tests.support.fakes import FakeClock

SECRET = "s" * 32
NOW_S = 1_800_000_000.0


@dataclass(slots=True)
class Side:
    """One end of the wire; its knobs may be changed at any time."""

    name: str
    secrets: list[str] = field(default_factory=lambda: [SECRET])
    ring: str = "ring"
    cluster_id: str = "cluster"
    hops: int = 1
    wire: int = 1
    clock: FakeClock = field(default_factory=lambda: FakeClock(NOW_S))
    metrics: Metrics = field(default_factory=Metrics)
    tls: ssl.SSLContext | None = None
    members: set[str] = field(default_factory=lambda: {"edge"})
    """The names in its list."""
    calls_itself: str = ""
    """In its answers; empty: its name."""

    def asker(self) -> Asker:
        return Asker(self.calls_itself or self.name, self.ring, self.cluster_id, self.hops, self.wire)

    def refused(self, why: str) -> float:
        return self.metrics.value("outrider_peer_refused_total", why=why)


def hello_of(name: str, address: str = "127.0.0.1:1") -> Hello:
    return Hello(Member(name, address, "zone", 10**12, "cluster"), 7, "ring", 3, NOW_S)


@dataclass(slots=True)
class PeerWire:
    """The member `owner` listens at `member.address`, and `edge` asks it by `client`."""

    owner: Side
    edge: Side
    client: PeerClient
    member: Member
    server: PeerServer
    listener: Listener

    @property
    def port(self) -> int:
        return int(self.member.address.rpartition(":")[2])


@asynccontextmanager
async def peer_wire(
    service: PeerEngine, *, owner: Side | None = None, edge: Side | None = None, reads_max: int = 64,
    connections_max: int = 64, reads_per_peer: int = 64, client_reads_max: int = 64, threads: int = 64,
    handshake_timeout_s: float = 5.0, receivers: Receivers | None = None,
) -> AsyncIterator[PeerWire]:  # fmt: skip
    owner, edge = owner or Side("owner"), edge or Side("edge")
    gatekeeper = Gatekeeper(owner.name, lambda: owner.secrets, ReplayGuard(), owner.clock)
    handler = PeerHandler(
        service, gatekeeper, owner.asker, owner.members.__contains__, owner.metrics, reads_max=reads_max
    )
    server = PeerServer(handler)
    client = PeerClient(
        edge.asker, lambda: edge.secrets, edge.metrics, edge.clock, boot=1, tls=lambda: edge.tls,
        reads_per_peer=reads_per_peer, reads_max=client_reads_max, threads=threads, receivers=receivers,
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        listener = Listener(
            [bind("127.0.0.1", 0)], server, owner.metrics.refused_connections, port="peer",
            connections_max=connections_max, connected=lambda: len(server.connections), make_room=server.make_room,
            tls=owner.tls,
            handshake_timeout_s=handshake_timeout_s,
        )  # fmt: skip
        stack.callback(listener.abort)
        stack.push_async_callback(server.shutdown, 1.0)
        stack.callback(listener.close)
        await client.open()
        stack.push_async_callback(client.close)
        address = f"127.0.0.1:{listener.number}"
        yield PeerWire(owner, edge, client, Member(owner.name, address, "", 0, owner.cluster_id), server, listener)
