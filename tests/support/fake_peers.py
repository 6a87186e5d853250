"""Peers: `FakePeers` at the port of the engine, and a real wire between two sides (`peer_wire`)."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from outrider.adapters.cluster.peer_client import PeerClient
from outrider.adapters.origin.receivers import Receivers
from outrider.adapters.process.listening import bind
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import (
    BY_PATH,
    Answer,
    Command,
    CommandAnswer,
    DatasetShare,
    DatasetShares,
    Forget,
    Hello,
    ListedPage,
    ListRequest,
    Notice,
    OrderNotice,
    Question,
    ReadsNotice,
    SharesRequest,
)
from outrider.core.cluster.peer_messages import NOT_STATED, Confirmed, PeerChanged, PeerFailed, PeerRead, Sending
from outrider.core.cluster.peer_wire import Requester
from outrider.core.cluster.replay_guard import ReplayGuard
from outrider.core.cluster.wire_forms import decode
from outrider.core.errors import S3Error, Signal
from outrider.core.model import Extent, Headers, ObjectRef, ObjectVersion
from outrider.engine.cluster.peer_service import PeerReadAnswer
from outrider.engine.read.body_pieces import Body, EarlyPiece, FilePiece, Piece
from outrider.http.peer.handler import Gatekeeper, PeerEngine, PeerHandler
from outrider.http.peer.server import PeerServer
from outrider.http.wire.acceptor import Listener
from outrider.metrics import Metrics
from outrider.ports import A, ByteSink
from tests.support.fakes import FakeClock


class Answering(Protocol):
    """As `http.peer.handler.PeerEngine`."""

    async def read(self, read: PeerRead, sender: str) -> PeerReadAnswer: ...

    async def answer(self, message: Hello | Notice | Question) -> Hello | Answer | None: ...


@dataclass(slots=True)
class PeerFault:
    """A fault of the reads that it matches, `times` times (None: always).

    `why`: no reply, but this failure. `gate`: the head waits for the event. `body_gate`: the body waits for it, after
    `gate_after` bytes. `break_after`: the body breaks off after this many bytes. `turn`: the byte of the body at this
    place has a wrong bit. `digest`: the reply says this one.
    """

    times: int | None = 1
    member: str | None = None
    key: str | None = None
    why: str | None = None
    gate: asyncio.Event | None = None
    body_gate: asyncio.Event | None = None
    gate_after: int = 0
    break_after: int | None = None
    turn: int | None = None
    digest: str | None = None

    def take(self, member: str, read: PeerRead) -> bool:
        if self.times == 0 or self.member not in (None, member) or self.key not in (None, read.ref.key):
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(slots=True)
class FakePeerReply:
    """A reply while its context is open."""

    confirmed: Confirmed
    extent: Extent | None
    digest: str
    pieces: AsyncGenerator[bytes, None]
    sending: Sending = NOT_STATED
    rest: bytes = b""
    in_thread: bool = True

    async def some(self) -> bytes:
        return await anext(self.pieces, b"")

    async def receive(self, count: int, sink: ByteSink, received: Callable[[int], None]) -> None:
        left, piece = count, b""
        try:
            while left:
                self.rest = self.rest or await anext(self.pieces, b"")
                if not self.rest:
                    raise PeerFailed("broke", "the body was shorter than it said")
                piece, self.rest = self.rest[:left], self.rest[left:]
                sink.write(memoryview(piece))
                left -= len(piece)
                if left:
                    received(len(piece))
        finally:
            sink.ended()
        if piece:
            received(len(piece))


@dataclass(slots=True)
class FakePeers:
    """`ports.PeerTransport` in memory. `name`: the member that asks. `services`: the members by their address; an
    address without one cannot be reached. The knobs may be changed at any time."""

    name: str = "edge"
    services: dict[str, Answering] = field(default_factory=dict)
    chunk_bytes: int = 1000
    faults: list[PeerFault] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)
    """Addresses at which nothing is answered, ever: reads, hellos and forgets hang."""
    reads: list[tuple[str, PeerRead]] = field(default_factory=list)
    """All reads in the order in which they were asked, with the member's name."""
    hellos: list[str] = field(default_factory=list)
    """The addresses to which a hello was sent."""
    forgets: list[tuple[str, Forget]] = field(default_factory=list)
    forgets_way: Callable[[str], Awaitable[None]] | None = None
    """Called with the member's name before a forget arrives there: it may wait, or raise PeerFailed."""
    way: Callable[[str, Callable[[], Awaitable[None]]], Awaitable[None]] | None = None
    """Called with the member's name and the arrival of a notice there, which it may await at any time, or never."""
    reads_notices: list[tuple[str, ReadsNotice]] = field(default_factory=list)
    commands: list[tuple[str, Command]] = field(default_factory=list)
    orders: list[tuple[str, OrderNotice]] = field(default_factory=list)
    shares_asked: list[str] = field(default_factory=list)
    """The members that were asked for their shares of the datasets."""
    body_bytes: int = 0
    under_way: int = 0

    @asynccontextmanager
    async def read(self, member: Member, read: PeerRead) -> AsyncIterator[FakePeerReply]:
        self.reads.append((member.name, read))
        fault = next((fault for fault in self.faults if fault.take(member.name, read)), None) or PeerFault()
        self.under_way += 1
        try:
            if fault.gate is not None:
                await fault.gate.wait()
            if fault.why is not None:
                raise PeerChanged if fault.why == "changed" else PeerFailed(fault.why)
            service = await self._service(member.address)
            try:
                answer = await service.read(read, self.name)
            except (Signal, S3Error, OSError):
                # As the port answers.
                answer = PeerReadAnswer(404)
            async with aclosing(self._body(answer, fault)) as pieces:
                yield _reply(read, answer, pieces, fault)
        finally:
            self.under_way -= 1

    async def hello(self, address: str, mine: Hello, name: str = "") -> Hello:
        self.hellos.append(address)
        service = await self._service(address)
        if name and isinstance(service, FakeMember) and service.mine.member.name != name:
            raise PeerFailed("refused")
        answer = await service.answer(mine)
        assert isinstance(answer, Hello)
        return answer

    async def send(self, member: Member, path: str, body: bytes) -> None:
        match message := decode(BY_PATH[path], body):
            case Forget():
                self.forgets.append((member.name, message))
                if self.forgets_way is not None:
                    await self.forgets_way(member.name)
            case ReadsNotice():
                self.reads_notices.append((member.name, message))
            case OrderNotice():
                self.orders.append((member.name, message))

        async def arrive() -> None:
            await (await self._service(member.address)).answer(message)

        await (arrive() if self.way is None else self.way(member.name, arrive))

    async def request(self, member: Member, question: Question, answer: type[A]) -> A:
        if isinstance(question, Command):
            self.commands.append((member.name, question))
        elif isinstance(question, SharesRequest):
            self.shares_asked.append(member.name)
        found = await (await self._service(member.address)).answer(question)
        assert isinstance(found, answer)
        return found

    async def _service(self, address: str) -> Answering:
        await asyncio.sleep(0)
        if address in self.silent:
            await asyncio.Event().wait()
        if address not in self.services:
            raise PeerFailed("connect")
        return self.services[address]

    async def _body(self, answer: PeerReadAnswer, fault: PeerFault) -> AsyncGenerator[bytes, None]:
        if answer.body is None:
            return
        position = 0
        async with aclosing(answer.body) as body:
            async for piece in _cut_on_error(body):
                # A view: what is left of megabytes would be copied for each kilobyte.
                data = memoryview(_bytes_of(piece))
                while data:
                    count = await self._next_bytes(fault, position, len(data))
                    chunk, data = bytearray(data[:count]), data[count:]
                    if fault.turn is not None and position <= fault.turn < position + count:
                        chunk[fault.turn - position] ^= 1
                    position += count
                    self.body_bytes += count
                    yield bytes(chunk)
                    await asyncio.sleep(0)
        if answer.extent is None or position < answer.extent.length:
            raise PeerFailed("broke", "the body was shorter than it said")

    async def _next_bytes(self, fault: PeerFault, position: int, count: int) -> int:
        """How many of the next `count` bytes come at once."""
        count = min(self.chunk_bytes, count)
        if fault.break_after is not None:
            count = min(count, fault.break_after - position)
            if count <= 0:
                raise PeerFailed("broke", "the fake broke off")
        if fault.body_gate is not None:
            if position >= fault.gate_after:
                await fault.body_gate.wait()
            else:
                count = min(count, fault.gate_after - position)
        return count


async def _cut_on_error(body: Body) -> AsyncGenerator[Piece, None]:
    """As the port, which cuts the connection when a body fails."""
    try:
        async for piece in body:
            yield piece
    except Exception as error:
        raise PeerFailed("broke", type(error).__name__) from error


def _reply(
    read: PeerRead, answer: PeerReadAnswer, pieces: AsyncGenerator[bytes, None], fault: PeerFault
) -> FakePeerReply:
    """As the real client has it. Raises PeerFailed."""
    if answer.status == 412:
        raise PeerChanged
    if answer.status in (404, 503):
        raise PeerFailed("absent" if answer.status == 404 else "busy")
    assert answer.status in (200, 206), answer.status
    confirmed = answer.confirmed
    assert confirmed is not None
    known = read.known
    if answer.status == 200 and read.extent is not None and not read.only_if_cached:
        assert known is None
        assert read.extent.start >= confirmed.version.size
    if known is not None and answer.status != 200:
        assert (confirmed.version.etag, confirmed.version.size) == (known.version.etag, known.version.size)
        confirmed = replace(confirmed, version=known.version)
    digest = answer.digest if fault.digest is None else fault.digest
    return FakePeerReply(confirmed, answer.extent, digest, pieces, answer.sending)


def _bytes_of(piece: Piece) -> bytes:
    if isinstance(piece, FilePiece):
        data = os.pread(piece.fd, piece.count, piece.offset)
        piece.sent = len(data)
        return data
    return bytes(piece.data if isinstance(piece, EarlyPiece) else piece)


@dataclass(slots=True)
class FakeMember:
    """A member that answers from memory, and never asks a bucket. `age_s` is that of all answers."""

    mine: Hello
    objects: dict[ObjectRef, tuple[ObjectVersion, bytes]] = field(default_factory=dict)
    age_s: float = 0.0
    digest: str = ""
    status: int | None = None
    """This status for each read."""
    asked: list[tuple[str, PeerRead]] = field(default_factory=list)
    """All reads, with the name of the member that asked."""
    met: list[Hello] = field(default_factory=list)
    forgets: list[Forget] = field(default_factory=list)
    reads: list[ReadsNotice] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    command_answer: CommandAnswer = field(default_factory=CommandAnswer)
    """The answer to each command."""
    orders: list[OrderNotice] = field(default_factory=list)
    has: Sequence[DatasetShare] = ()
    """Its shares of the datasets."""
    lists: list[ListRequest] = field(default_factory=list)
    gate: asyncio.Event | None = None
    """The answer waits for it."""
    body_gate: asyncio.Event | None = None
    """The body waits for it before its last byte."""
    short_by: int = 0
    """The body ends so many bytes too early."""

    def put(self, ref: ObjectRef, data: bytes, etag: str = '"etag"', headers: Headers = ()) -> ObjectVersion:
        version = ObjectVersion(ref, etag, len(data), headers)
        self.objects[ref] = version, data
        return version

    async def read(self, read: PeerRead, sender: str) -> PeerReadAnswer:
        self.asked.append((sender, read))
        if self.gate is not None:
            await self.gate.wait()
        if self.status is not None:
            return PeerReadAnswer(self.status)
        if read.ref not in self.objects:
            return PeerReadAnswer(404)
        version, data = self.objects[read.ref]
        confirmed = Confirmed(version, self.age_s, is_settled=True)
        known = read.known
        is_known = known is not None and (known.version.etag, known.version.size) == (version.etag, version.size)
        if known is not None and not is_known:
            return PeerReadAnswer(412)
        if read.extent is None or read.extent.start >= version.size:
            return PeerReadAnswer(200, confirmed)
        extent = Extent(read.extent.start, min(read.extent.stop, version.size))
        return PeerReadAnswer(206, confirmed, extent, self.digest, self._pieces(data[extent.start : extent.stop]))

    async def _pieces(self, data: bytes) -> AsyncGenerator[Piece, None]:
        data = data[: len(data) - self.short_by]
        if self.body_gate is not None:
            yield data[:-1]
            await self.body_gate.wait()
            data = data[-1:]
        yield data

    async def answer(self, message: Hello | Notice | Question) -> Hello | Answer | None:
        match message:
            case Hello():
                self.met.append(message)
                return self.mine
            case ReadsNotice():
                self.reads.append(message)
            case OrderNotice():
                self.orders.append(message)
            case Forget():
                self.forgets.append(message)
            case Command():
                self.commands.append(message)
                return self.command_answer
            case SharesRequest():
                return DatasetShares(tuple(self.has))
            case ListRequest():
                self.lists.append(message)
                if self.gate is not None:
                    await self.gate.wait()
                return ListedPage(packed=b"page")
        return None


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

    def requester(self) -> Requester:
        return Requester(self.calls_itself or self.name, self.ring, self.cluster_id, self.hops, self.wire)

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
        service, gatekeeper, owner.requester, owner.members.__contains__, owner.metrics, reads_max=reads_max
    )
    server = PeerServer(handler)
    client = PeerClient(
        edge.requester, lambda: edge.secrets, edge.metrics, edge.clock, boot=1, tls=lambda: edge.tls,
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
