"""The contract of `PeerTransport`: client and port on loopback, and the fake in memory, with the same member."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import (
    FORGET_PATH,
    ORDER_PATH,
    READS_PATH,
    BegunRead,
    Command,
    CommandAnswer,
    DatasetShare,
    DatasetShares,
    Forget,
    Hello,
    OrderNotice,
    ReadsNotice,
    SharesRequest,
    forget_body,
    reads_body,
)
from outrider.core.cluster.peer_messages import Confirmed, PeerChanged, PeerFailed, PeerRead, ReadClass
from outrider.core.cluster.wire_forms import encode
from outrider.core.model import Extent, Headers, ObjectRef, ObjectVersion
from outrider.ports import ByteSink, PeerReply, PeerTransport
from tests.support.fake_peers import FakeMember, FakePeers, hello_of, peer_wire
from tests.support.fakes import pieces_of, ramp

SMALL, LARGE = 1000, 3 * 1024 * 1024
REF = ObjectRef("bucket", "a/../b //%2F+ü\udcff")
HEADERS: Headers = (("content-type", "x/y"), ("x-amz-meta-a", "ü \udcfe"), ("x-amz-meta-a", "twice"))
MINE = hello_of("edge")


class Wire:
    """A transport, and the member at its other end."""

    def __init__(self, transport: PeerTransport, member: Member, service: FakeMember) -> None:
        self.transport = transport
        self.member = member
        self.service = service

    async def read(self, read: PeerRead) -> tuple[Confirmed, Extent | None, str, bytes]:
        async with self.transport.read(self.member, read) as reply:
            data = b"".join([chunk async for chunk in pieces_of(reply)])
            return reply.confirmed, reply.extent, reply.digest, data

    async def why(self, read: PeerRead) -> str:
        with pytest.raises(PeerFailed) as failed:
            await self.read(read)
        return failed.value.why


@pytest.fixture(params=["wire", pytest.param("fake", marks=pytest.mark.one_python)])
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    service = FakeMember(hello_of("owner"))
    async with AsyncExitStack() as stack:
        if request.param == "wire":
            both = await stack.enter_async_context(peer_wire(service))
            yield Wire(both.client, both.member, service)
        else:
            member = Member("owner", "owner:1", "", 0, "cluster")
            yield Wire(FakePeers(services={"owner:1": service}), member, service)


class Sink(ByteSink):
    """Takes bytes from a thread."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends = 0
        self.error: Exception | None = None

    is_awaited = True

    def write(self, data: memoryview) -> None:
        if self.error is not None:
            raise self.error
        self.data += data

    def check(self) -> None:
        pass

    def ended(self) -> None:
        self.ends += 1


async def received(reply: PeerReply, count: int, sink: Sink) -> int:
    counts: list[int] = []
    await reply.receive(count, sink, counts.append)
    return sum(counts)


@pytest.fixture(params=[SMALL, LARGE])
def size(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


async def test_an_unknown_version_comes_with_its_headers_and_the_bytes(wire: Wire, size: int) -> None:
    version = wire.service.put(REF, ramp(size), headers=HEADERS)
    wire.service.age_s, wire.service.digest = 2.5, "xxh3:00112233445566ff"
    read = PeerRead(REF, Extent(0, size), 0, None, ReadClass.NEXT)
    confirmed, extent, digest, data = await wire.read(read)
    assert confirmed == Confirmed(version, 2.5, is_settled=True)
    assert confirmed.version.headers == HEADERS
    assert (extent, digest, data) == (Extent(0, size), "xxh3:00112233445566ff", ramp(size))
    assert wire.service.asked == [("edge", read)]


async def test_the_bytes_of_an_unknown_version_end_with_the_object(wire: Wire, size: int) -> None:
    wire.service.put(REF, ramp(size))
    _, extent, _, data = await wire.read(PeerRead(REF, Extent(0, 10 * size)))
    assert (extent, data) == (Extent(0, size), ramp(size))


async def test_past_the_end_the_version_comes_alone(wire: Wire) -> None:
    version = wire.service.put(REF, b"")
    assert await wire.read(PeerRead(REF, Extent(0, 100))) == (Confirmed(version, 0.0, is_settled=True), None, "", b"")


async def test_bytes_of_a_known_version(wire: Wire, size: int) -> None:
    wire.service.put(REF, ramp(2 * size))
    known = Confirmed(ObjectVersion(REF, '"etag"', 2 * size, (("x-amz-meta-mine", "1"),), whole_headers=True), 3.25)
    read = PeerRead(REF, Extent(size, 2 * size), 1, known, ReadClass.AHEAD, only_if_cached=True, whole_headers=True)
    wire.service.age_s = 1.0
    confirmed, extent, _, data = await wire.read(read)
    assert confirmed == Confirmed(known.version, 1.0, is_settled=True)
    assert confirmed.version.headers == known.version.headers
    assert (extent, data) == (Extent(size, 2 * size), ramp(size, size))
    assert wire.service.asked == [("edge", read)]
    assert wire.service.asked[0][1].known == known


async def test_a_version_is_asked_for_alone(wire: Wire) -> None:
    version = wire.service.put(REF, ramp(SMALL), headers=HEADERS)
    assert await wire.read(PeerRead(REF, None)) == (Confirmed(version, 0.0, is_settled=True), None, "", b"")


@pytest.mark.parametrize("change", [{"etag": '"other"'}, {"size": LARGE + 1}])
async def test_another_version_than_the_known_one_is_reported(wire: Wire, change: dict[str, object]) -> None:
    version = wire.service.put(REF, ramp(LARGE))
    known = Confirmed(replace(version, **change), 0.0)  # type: ignore[arg-type]  # of one field
    for stop in (SMALL, LARGE):
        with pytest.raises(PeerChanged):
            await wire.read(PeerRead(REF, Extent(0, stop), 0, known))


@pytest.mark.parametrize("stop", [None, SMALL, LARGE])
async def test_absent_and_busy_are_reported(wire: Wire, stop: int | None) -> None:
    read = PeerRead(REF, None if stop is None else Extent(0, stop))
    assert await wire.why(read) == "absent"
    wire.service.status = 503
    assert await wire.why(read) == "busy"


async def test_a_body_is_received_into_sinks_one_part_after_the_other(wire: Wire) -> None:
    wire.service.put(REF, ramp(LARGE))
    sinks = [Sink(), Sink()]
    async with wire.transport.read(wire.member, PeerRead(REF, Extent(0, LARGE))) as reply:
        assert await received(reply, 1_000_001, sinks[0]) == 1_000_001
        assert await received(reply, LARGE - 1_000_001, sinks[1]) == LARGE - 1_000_001
    assert bytes(sinks[0].data + sinks[1].data) == ramp(LARGE)
    assert [sink.ends for sink in sinks] == [1, 1]


async def test_the_error_of_a_sink_is_raised(wire: Wire) -> None:
    wire.service.put(REF, ramp(LARGE))
    sink = Sink()
    sink.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        async with wire.transport.read(wire.member, PeerRead(REF, Extent(0, LARGE))) as reply:
            await received(reply, LARGE, sink)
    assert sink.ends == 1
    assert (await wire.read(PeerRead(REF, Extent(0, LARGE))))[3] == ramp(LARGE)


@pytest.mark.parametrize("how", ["chunks", "receive"])
async def test_a_body_that_ends_too_early_is_broken(how: str, wire: Wire, size: int) -> None:
    wire.service.put(REF, ramp(size))
    wire.service.short_by = 1
    sink = Sink()

    async def take() -> None:
        async with wire.transport.read(wire.member, PeerRead(REF, Extent(0, size))) as reply:
            if how == "receive" and reply.in_thread:
                await received(reply, size, sink)
            async for chunk in pieces_of(reply):
                sink.data += chunk

    with pytest.raises(PeerFailed) as failed:
        await take()
    assert failed.value.why == "broke"
    assert ramp(size).startswith(bytes(sink.data))


async def test_a_reply_may_be_left_in_mid_body(wire: Wire, size: int) -> None:
    wire.service.put(REF, ramp(size))
    wire.service.body_gate = asyncio.Event()
    for _ in range(3):
        async with wire.transport.read(wire.member, PeerRead(REF, Extent(0, size))) as reply:
            chunks = pieces_of(reply)
            assert ramp(size).startswith(await anext(chunks))
            await chunks.aclose()
    wire.service.body_gate.set()
    assert (await wire.read(PeerRead(REF, Extent(0, size))))[3] == ramp(size)


async def test_a_hello_is_answered_by_a_hello(wire: Wire) -> None:
    theirs: Hello = await wire.transport.hello(wire.member.address, MINE)
    assert theirs == wire.service.mine
    assert wire.service.met == [MINE]


async def test_a_hello_is_refused_by_another_member_than_it_is_for(wire: Wire) -> None:
    assert await wire.transport.hello(wire.member.address, MINE, "owner") == wire.service.mine
    with pytest.raises(PeerFailed) as failed:
        await wire.transport.hello(wire.member.address, MINE, "other")
    assert failed.value.why == "refused"
    assert wire.service.met == [MINE]


async def test_a_forget_has_arrived_when_it_returns(wire: Wire) -> None:
    message = Forget("edge", 7, 4, (REF, "whole-bucket", ObjectRef("b", "k")), in_doubt=True)
    await wire.transport.send(wire.member, FORGET_PATH, forget_body(message))
    assert wire.service.forgets == [message]


async def test_reads_are_passed_on(wire: Wire) -> None:
    message = ReadsNotice(
        "edge", 3, (BegunRead("10.0.0.1", REF, 5, 0.25), BegunRead("10.0.0.2", ObjectRef("b", "é"), 0, 0.0))
    )
    await wire.transport.send(wire.member, READS_PATH, reads_body(message))
    assert wire.service.reads == [message]


async def test_a_command_is_answered_with_the_progress_of_the_part(wire: Wire) -> None:
    command = Command("edge", "put", "warm", "AKEY", "mine \u00e9", b"s3://b/\xc3\xa9\n\xff", 2.5e6, 1.5e9)
    wire.service.command_answer = CommandAnswer({"state": "running", "bytes": {"wanted": 5}})
    assert await wire.transport.request(wire.member, command, CommandAnswer) == wire.service.command_answer
    assert wire.service.commands == [command]
    wire.service.command_answer = CommandAnswer(error="no", code="InsufficientStorage")
    assert (
        await wire.transport.request(wire.member, replace(command, verb="get", body=b""), CommandAnswer)
        == wire.service.command_answer
    )


async def test_an_order_is_passed_on(wire: Wire) -> None:
    message = OrderNotice("edge", 7, 3, 2, "10.0.0.1", (REF, ObjectRef("b", "é")), 4, 9)
    await wire.transport.send(wire.member, ORDER_PATH, encode(message))
    assert wire.service.orders == [message]


async def test_nobody_at_the_address(wire: Wire) -> None:
    gone = replace(wire.member, address="127.0.0.1:1")
    for call in (
        wire.transport.hello(gone.address, MINE),
        wire.transport.send(gone, FORGET_PATH, forget_body(Forget("edge", 1, 1, ("b",)))),
    ):
        with pytest.raises(PeerFailed) as failed:
            await call
        assert failed.value.why == "connect"
    for stop in (SMALL, LARGE):
        with pytest.raises(PeerFailed) as failed:
            async with wire.transport.read(gone, PeerRead(REF, Extent(0, stop))):
                pass
        assert failed.value.why == "connect"


async def test_a_member_reports_what_it_has_of_each_dataset(wire: Wire) -> None:
    wire.service.has = (DatasetShare("b", "train-{}.tar", 3, 300, 200, 50), DatasetShare("b", "\udc80", 0, 0, 1, 0))
    assert (
        await wire.transport.request(wire.member, SharesRequest("edge"), DatasetShares)
    ).datasets == wire.service.has
