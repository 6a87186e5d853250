"""The peer port: who is let in, how many, and what is left when a member goes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise

import pytest

from outrider.core.auth.peer_signature import SKEW_S, key_name, signed
from outrider.core.auth.sigv4 import Credentials, SigningKeys, sign_headers
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import (
    BODY_BYTES_MAX,
    COMMAND_PATH,
    FORGET_PATH,
    HELLO_PATH,
    LIST_PATH,
    ORDER_PATH,
    READS_PATH,
    SHARES_PATH,
    Command,
    CommandAnswer,
    DatasetShares,
    Forget,
    ListRequest,
    OrderNotice,
    ReadsNotice,
    SharesRequest,
    forget_body,
    reads_body,
)
from outrider.core.cluster.peer_messages import Confirmed, PeerFailed, PeerRead
from outrider.core.cluster.peer_wire import FIELD_BYTES_MAX, PEER, SEQUENCE
from outrider.core.cluster.wire_forms import encode
from outrider.core.model import Extent, ObjectRef
from outrider.engine.cluster.peer_service import PeerReadAnswer
from outrider.engine.read.body_pieces import Body, Piece
from outrider.http.wire import bounded_head, sender
from tests.support.fake_peers import NOW_S, SECRET, FakeMember, PeerWire, Side, hello_of, peer_wire
from tests.support.fakes import pieces_of, ramp

SMALL, LARGE = 1000, 1024 * 1024
REF = ObjectRef("bucket", "key")
NO_BODY = sha256(b"").hexdigest()
NEW_SECRET = "n" * 32
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE])


@pytest.fixture(autouse=True)
def patient_with_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.adapters.cluster.peer_client._CONNECT_TIMEOUT_S", 30.0)


def member_with(data: bytes) -> FakeMember:
    service = FakeMember(hello_of("owner"))
    service.put(REF, data)
    return service


async def read_whole(wire: PeerWire, size: int, member: Member | None = None) -> bytes:
    async with wire.client.read(member or wire.member, PeerRead(REF, Extent(0, size))) as reply:
        return b"".join([chunk async for chunk in pieces_of(reply)])


async def why(wire: PeerWire, size: int, member: Member | None = None) -> str:
    with pytest.raises(PeerFailed) as failed:
        await read_whole(wire, size, member)
    return failed.value.why


# -- who is let in --------------------------------------------------------------------------------------------------

PEER_FIELDS = "v=1;from=edge;ring=ring;cluster=cluster;hops=1;class=demand;only-if-here=0;checksums=0;block=0"

OF_A_STRANGER = PEER_FIELDS.replace("from=edge", "from=else")
LATER_FIELDS = PEER_FIELDS.replace("v=1", "v=9")
COMMAND = encode(Command("edge", "put", "warm", "", "w", b"s3://bucket/"))
HELLO = encode(hello_of("edge"))
FORGET = forget_body(Forget("edge", 1, 1, ("b",)))


@dataclass(slots=True)
class Raw:
    """Requests as bytes: by default a read that is answered. The fields may be changed, before and after it is
    signed."""

    address: str
    method: str = "GET"
    path: str = "/bucket/key"
    body: bytes = b""
    secret: str = SECRET
    now: float = NOW_S
    number: int = 0

    def headers(self, **changes: str) -> dict[str, str]:
        self.number += 1
        fields = {PEER: PEER_FIELDS, SEQUENCE: f"1.{self.number}"}
        if self.method == "GET":
            fields["range"] = "bytes=0-9"
        return fields | {name.replace("_", "-"): value for name, value in changes.items()}

    def signed(self, headers: dict[str, str]) -> dict[str, str]:
        body_hash = sha256(self.body).hexdigest()
        return signed(
            self.method, self.address, self.path, headers, body_hash, self.secret, self.now, SigningKeys()
        )  # fmt: skip

    async def ask(self, headers: dict[str, str]) -> int:
        """The status of the answer."""
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if self.body:
            lines.append(f"content-length: {len(self.body)}")
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + self.body)
        try:
            line = await reader.readline()
            return int(line.split(b" ")[1])
        finally:
            writer.close()


@asynccontextmanager
async def asked_raw() -> AsyncIterator[tuple[Raw, PeerWire, FakeMember]]:
    service = member_with(ramp(SMALL))
    async with peer_wire(service) as wire:
        yield Raw(wire.member.address), wire, service


REASONS = (
    "unsigned", "key", "signature", "clock", "replay", "hops", "garbage", "wire", "cluster", "too large", "busy",
    "receiver", "stranger",
)  # fmt: skip


def refusals(wire: PeerWire) -> dict[str, float]:
    return {reason: count for reason in REASONS if (count := wire.owner.refused(reason))}


def unsigned(raw: Raw) -> dict[str, str]:
    return raw.headers() | {"host": raw.address}


def of_a_tenant(raw: Raw) -> dict[str, str]:
    headers = raw.headers()
    credentials = Credentials("AKIATENANT", "a tenant's secret")
    return headers | {"host": raw.address} | sign_headers(
        method="GET", host=raw.address, path=raw.path, query=(), headers=headers, payload_hash=NO_BODY,
        credentials=credentials, region="us-east-1", now=NOW_S, keys=SigningKeys(),
    )  # fmt: skip


def with_the_key_of_another_cluster(raw: Raw) -> dict[str, str]:
    raw.secret = "x" * 32
    return raw.signed(raw.headers())


def with_another_key_of_that_name(raw: Raw) -> dict[str, str]:
    good, raw.secret = raw.signed(raw.headers()), "x" * 32
    bad = raw.signed(raw.headers())
    name = good["authorization"].split("=")[1].split("/")[0]
    bad["authorization"] = bad["authorization"].replace(bad["authorization"].split("=")[1].split("/")[0], name)
    return bad


def moved_in_time(by_s: float) -> Callable[[Raw], dict[str, str]]:
    def old(raw: Raw) -> dict[str, str]:
        raw.now += by_s
        return raw.signed(raw.headers())

    return old


def changed(**changes: str) -> Callable[[Raw], dict[str, str]]:
    """A header is changed, or added, after the signature."""

    def change(raw: Raw) -> dict[str, str]:
        return raw.signed(raw.headers()) | {name.replace("_", "-"): value for name, value in changes.items()}

    return change


def saying(**changes: str) -> Callable[[Raw], dict[str, str]]:
    """A header that is under the signature."""

    def say(raw: Raw) -> dict[str, str]:
        return raw.signed(raw.headers(**changes))

    return say


def by(
    method: str, path: str = "/bucket/key", body: bytes = b"", **changes: str
) -> Callable[[Raw], dict[str, str]]:  # fmt: skip
    def ask(raw: Raw) -> dict[str, str]:
        raw.method, raw.path, raw.body = method, path, body
        return raw.signed(raw.headers(**changes))

    return ask


def with_an_unsigned_range(raw: Raw) -> dict[str, str]:
    headers = raw.headers()
    asked = headers.pop("range")
    return raw.signed(headers) | {"range": asked}


def with_a_signed_query(raw: Raw) -> dict[str, str]:
    headers = raw.headers()
    signature = sign_headers(
        method="GET", host=raw.address, path=raw.path, query=(("acl", ""),), headers=headers, payload_hash=NO_BODY,
        credentials=Credentials(key_name(SECRET), SECRET), region="cluster", now=NOW_S, keys=SigningKeys(),
        service="outrider",
    )  # fmt: skip
    raw.path += "?acl"
    return headers | signature | {"host": raw.address}


def with_another_body(raw: Raw) -> dict[str, str]:
    raw.method, raw.path, raw.body = "POST", HELLO_PATH, b"{}"
    headers = raw.signed(raw.headers())
    raw.body = b"[]"
    return headers


@pytest.mark.parametrize(
    ("headers_of", "status", "reason"),
    [
        (unsigned, 403, "unsigned"),
        (of_a_tenant, 403, "signature"),
        (with_the_key_of_another_cluster, 403, "key"),
        (with_another_key_of_that_name, 403, "signature"),
        (moved_in_time(-SKEW_S - 1), 403, "clock"),
        (moved_in_time(SKEW_S + 1), 403, "clock"),
        (changed(range="bytes=0-10"), 403, "signature"),
        (changed(**{PEER: PEER_FIELDS.replace("hops=1", "hops=2")}), 403, "signature"),
        (changed(**{"x-outrider-later": "slipped-in"}), 403, "signature"),
        (changed(authorization="AWS4-HMAC-SHA256 x"), 403, "signature"),
        (with_another_body, 403, "signature"),
        (saying(**{PEER: PEER_FIELDS.replace("hops=1", "hops=2")}), 400, "hops"),
        (saying(**{PEER: PEER_FIELDS.replace("hops=1", "hops=0")}), 400, "hops"),
        (saying(**{PEER: f"{PEER_FIELDS};to=third"}), 403, "receiver"),
        (by("POST", HELLO_PATH, HELLO, **{PEER: f"{PEER_FIELDS};to=third"}), 403, "receiver"),
        (by("POST", COMMAND_PATH, COMMAND.replace(b"edge", b"else"), **{PEER: OF_A_STRANGER}), 403, "stranger"),
        (by("POST", READS_PATH, reads_body(ReadsNotice("else", 1, ())), **{PEER: OF_A_STRANGER}), 403, "stranger"),
        (by("POST", ORDER_PATH, encode(OrderNotice("else", 1, 1, 1, "")), **{PEER: OF_A_STRANGER}), 403, "stranger"),
        (saying(**{PEER: PEER_FIELDS.replace("cluster=cluster", "cluster=other")}), 421, "cluster"),
        (saying(**{PEER: LATER_FIELDS}), 400, "wire"),
        (by("POST", FORGET_PATH, FORGET, **{PEER: LATER_FIELDS}), 400, "wire"),
        (saying(**{PEER: ""}), 400, "garbage"),
        (by("DELETE"), 400, "garbage"),
        (by("GET", "/bucket/key", b"a body"), 400, "garbage"),
        (with_a_signed_query, 403, "signature"),
        (with_an_unsigned_range, 403, "signature"),
        (by("POST", "/-/other"), 400, "garbage"),
        (by("POST", HELLO_PATH, b"{}"), 400, "garbage"),
        (by("POST", HELLO_PATH, encode(hello_of("other"))), 400, "garbage"),
        (by("POST", FORGET_PATH, forget_body(Forget("other", 1, 1, ("b",)))), 400, "garbage"),
        (by("POST", READS_PATH, reads_body(ReadsNotice("other", 1, ()))), 400, "garbage"),
        (by("POST", COMMAND_PATH, encode(Command("other", "put", "warm", "", "w"))), 400, "garbage"),
        (by("POST", COMMAND_PATH, encode(Command("edge", "put", "stall", "", "w"))), 400, "garbage"),
        (by("POST", COMMAND_PATH, COMMAND, **{PEER: LATER_FIELDS}), 400, "wire"),
        (by("POST", SHARES_PATH, encode(SharesRequest("other"))), 400, "garbage"),
        (by("POST", LIST_PATH, encode(ListRequest("other", "b", ()))), 400, "garbage"),
        (by("POST", ORDER_PATH, encode(OrderNotice("other", 1, 1, 1, ""))), 400, "garbage"),
        (by("POST", FORGET_PATH, b" " * (BODY_BYTES_MAX + 1)), 400, "too large"),
    ],
)
async def test_a_request_that_is_none_of_a_member_is_refused_and_counted(
    headers_of: Callable[[Raw], dict[str, str]], status: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with asked_raw() as (raw, wire, service):
        good = Raw(raw.address, number=1000)
        assert await good.ask(good.signed(good.headers())) == 206
        service.asked.clear()
        headers = headers_of(raw)
        assert await raw.ask(headers) == status
        assert refusals(wire) == {reason: 1}
        recorded = service.reads, service.commands, service.orders, service.lists
        assert (service.asked, service.met, service.forgets, *recorded) == ([],) * 7
        signature = headers.get("authorization", "").rpartition("Signature=")[2] or "no signature"
        for text in (wire.owner.metrics.text().decode(), *(str(vars(record)) for record in caplog.records)):
            assert SECRET not in text
            assert signature not in text
        assert await good.ask(good.signed(good.headers())) == 206


async def test_a_member_of_a_later_version_is_greeted() -> None:
    """By its hello this one learns which versions it speaks."""
    async with asked_raw() as (raw, wire, service):
        hello = encode(hello_of("edge"))
        assert await raw.ask(by("POST", HELLO_PATH, hello, **{PEER: LATER_FIELDS})(raw)) == 200
        assert [each.member.name for each in service.met] == ["edge"]
        assert not refusals(wire)


async def test_an_older_member_is_asked_in_its_own_version() -> None:
    service = member_with(ramp(SMALL))
    async with peer_wire(service, edge=Side("edge", wire=3)) as wire:
        assert await read_whole(wire, SMALL) == ramp(SMALL)
        await wire.client.send(wire.member, FORGET_PATH, forget_body(Forget("edge", 1, 1, ("b",))))
        assert (len(service.forgets), refusals(wire)) == (1, {})
        both = replace(wire.member, wire=(1, 3))
        assert await why(wire, SMALL, both) == "refused", "it is asked in the newest version that both speak"


async def test_clocks_may_differ_by_minutes() -> None:
    for by_s in (-SKEW_S + 1, SKEW_S - 1):
        async with asked_raw() as (raw, _, _):
            assert await raw.ask(moved_in_time(by_s)(raw)) == 206


async def test_a_recorded_request_is_refused_by_each_other_member_and_by_the_same_one() -> None:
    """Each kind of request is replayed. Only the first hello to an address names no receiver: nobody is known there."""
    async with (
        peer_wire(member_with(ramp(SMALL))) as wire, peer_wire(member_with(ramp(SMALL)), owner=Side("third")) as third,
        recorded(wire.port) as (port, requests),
    ):  # fmt: skip
        member, client = replace(wire.member, address=f"127.0.0.1:{port}"), wire.client
        assert await read_whole(wire, SMALL, member) == ramp(SMALL)
        await client.hello(member.address, hello_of("edge"), member.name)
        await client.send(member, FORGET_PATH, forget_body(Forget("edge", 1, 1, ("b",))))
        await client.send(member, READS_PATH, reads_body(ReadsNotice("edge", 1, ())))
        await client.request(
            member, Command("edge", "put", "evict", "a-tenant", "e", b"s3://bucket/key"), CommandAnswer
        )
        await client.request(member, SharesRequest("edge"), DatasetShares)
        await client.send(member, ORDER_PATH, encode(OrderNotice("edge", 1, 1, 1, "")))
        assert len(requests) == 7
        for request in requests:
            assert await answered(third.port, request) == 403
            assert await answered(wire.port, request) == 403
        assert (refusals(third), refusals(wire)) == ({"receiver": 7}, {"replay": 7})


@asynccontextmanager
async def recorded(port: int) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A relay before the port, at a port of its own, and the requests that came through it. Each has a connection."""
    requests: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        lengths = [line for line in request.lower().splitlines() if line.startswith(b"content-length:")]
        request += await reader.readexactly(sum(int(line.partition(b":")[2]) for line in lengths))
        requests.append(request)
        inside, outside = await asyncio.open_connection("127.0.0.1", port)
        outside.write(request.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
        writer.write(await inside.read())
        for each in (writer, outside):
            each.close()

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], requests


async def answered(port: int, request: bytes) -> int:
    """The status of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    line = await reader.readline()
    writer.close()
    return int(line.split(b" ")[1])


async def test_a_forget_of_a_member_that_no_list_has_yet_is_heeded() -> None:
    """A write must not be lost since a list is late. It costs questions alone."""
    async with asked_raw() as (raw, wire, service):
        body = forget_body(Forget("else", 1, 1, ("b",)))
        ask = by("POST", FORGET_PATH, body, **{PEER: OF_A_STRANGER})
        assert await raw.ask(ask(raw)) == 200
        assert ([each.sender for each in service.forgets], refusals(wire)) == (["else"], {})


async def test_a_member_that_no_list_has_yet_gets_pages_of_lists_as_it_gets_blocks() -> None:
    async with asked_raw() as (raw, wire, service):
        ask = by("POST", LIST_PATH, encode(ListRequest("else", "b", ())), **{PEER: OF_A_STRANGER})
        assert await raw.ask(ask(raw)) == 200
        assert ([each.sender for each in service.lists], refusals(wire)) == (["else"], {})


async def test_a_read_of_a_stranger_is_in_no_statistics_of_members() -> None:
    async with asked_raw() as (raw, wire, _):
        for name, ring in (("else", "other"), ("edge", "other")):
            fields = PEER_FIELDS.replace("from=edge", f"from={name}").replace("ring=ring", f"ring={ring}")
            assert await raw.ask(raw.signed(raw.headers(**{PEER: fields}))) == 206
        await wire.server.idle()
        value = wire.owner.metrics.value
        assert value("outrider_peer_ring_disagreements_total") == 1
        sent = {
            name: value("outrider_peer_bytes_total", peer=name, direction="out") for name in ("else", "edge", "other")
        }
        assert sent == {"else": 0, "edge": 10, "other": 10}


async def test_bytes_that_are_no_http_are_refused() -> None:
    async with asked_raw() as (raw, wire, _):
        assert await Raw(raw.address, method="G T").ask({"host": "x"}) == 400
        assert refusals(wire) == {"garbage": 1}


async def test_the_send_buffer_of_a_nearby_member_is_larger_than_that_of_a_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sender, "_NEAR_S", 60.0)
    async with peer_wire(member_with(ramp(SMALL))) as wire:
        await read_whole(wire, SMALL)
        (held,) = wire.server.connections
        with socket.socket() as usual:
            # The kernel may allow less than that.
            usual.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * sender._NEAR_BUFFER_BYTES)
            wanted = usual.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert held.transport is not None
        assert held.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == wanted


async def test_a_head_without_an_end_or_that_takes_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = 3 * (b"x-a: " + b"b" * 60_000 + b"\r\n")
    for timeout_s, more in ((1e6, endless), (0.01, b"")):
        monkeypatch.setattr(bounded_head, "HEAD_TIMEOUT_S", timeout_s)
        async with asked_raw() as (_, wire, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", wire.port)
            writer.write(b"GET /bucket/key HTTP/1.1\r\n" + more)
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()


async def test_the_key_is_changed_in_three_steps_without_a_refusal() -> None:
    async with peer_wire(member_with(ramp(SMALL))) as wire:
        steps = [[SECRET], [SECRET, NEW_SECRET], [NEW_SECRET, SECRET], [NEW_SECRET]]
        for before, after in pairwise(steps):
            for wire.owner.secrets, wire.edge.secrets in ((before, before), (after, before), (before, after)):
                assert await read_whole(wire, SMALL) == ramp(SMALL)
        assert refusals(wire) == {}
        wire.owner.secrets, wire.edge.secrets = [NEW_SECRET], [SECRET]
        assert await why(wire, SMALL) == "refused"
        assert refusals(wire) == {"key": 1}


async def test_refusals_of_the_port_are_failures_of_the_peer() -> None:
    service = member_with(ramp(SMALL))
    async with peer_wire(service) as wire:
        wire.edge.hops = 2
        assert await why(wire, SMALL) == "refused"
        wire.edge.hops, wire.edge.cluster_id = 1, "other"
        assert await why(wire, SMALL) == "refused"
        with pytest.raises(PeerFailed, match="421"):
            await wire.client.send(wire.member, FORGET_PATH, forget_body(Forget("edge", 1, 1, ("bucket",))))
        assert refusals(wire) == {"hops": 1, "cluster": 2}
        assert await wire.client.hello(wire.member.address, hello_of("edge")) == service.mine, "all are greeted"


# -- limits -----------------------------------------------------------------------------------------------------------


@SIZES
async def test_reads_beyond_the_limit_are_refused_as_busy(size: int) -> None:
    service = member_with(ramp(size))
    service.body_gate = asyncio.Event()
    async with peer_wire(service, reads_max=1) as wire:
        async with wire.client.read(wire.member, PeerRead(REF, Extent(0, size))) as reply:
            assert await why(wire, size) == "busy"
            assert await wire.client.hello(wire.member.address, hello_of("edge")) == service.mine
            await wire.client.send(wire.member, FORGET_PATH, forget_body(Forget("edge", 1, 1, ("bucket",))))
            service.body_gate.set()
            assert b"".join([chunk async for chunk in pieces_of(reply)]) == ramp(size)
        await wire.server.idle()
        assert await read_whole(wire, size) == ramp(size)
        assert refusals(wire) == {"busy": 1}


async def test_reads_of_a_peer_are_limited() -> None:
    async with peer_wire(member_with(ramp(SMALL)), reads_per_peer=1) as wire:
        async with wire.client.read(wire.member, PeerRead(REF, Extent(0, SMALL))):
            assert await why(wire, SMALL) == "busy"
        assert await read_whole(wire, SMALL) == ramp(SMALL)


async def test_a_large_body_never_waits_for_a_thread() -> None:
    service = member_with(ramp(LARGE))
    service.body_gate = asyncio.Event()
    async with peer_wire(service, threads=1) as wire:
        async with wire.client.read(wire.member, PeerRead(REF, Extent(0, LARGE))) as reply:
            service.body_gate = None
            assert await read_whole(wire, LARGE) == ramp(LARGE)
            assert reply.extent == Extent(0, LARGE)
        assert await read_whole(wire, LARGE) == ramp(LARGE)


async def test_a_version_of_as_many_headers_as_s3_allows_is_requested_and_stated() -> None:
    service = FakeMember(hello_of("owner"))
    version = service.put(REF, ramp(SMALL), headers=tuple((f"x-amz-meta-{index:x}", "") for index in range(700)))
    async with peer_wire(service) as wire:
        for known in (None, Confirmed(version, 0.0)):
            async with wire.client.read(wire.member, PeerRead(REF, Extent(0, SMALL), 0, known)) as reply:
                assert reply.confirmed.version.headers == version.headers
                assert b"".join([chunk async for chunk in pieces_of(reply)]) == ramp(SMALL)
        assert service.asked[1][1].known == Confirmed(version, 0.0)


class Closing:
    """A body that records that it was closed."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self.is_closed = False

    def __aiter__(self) -> AsyncIterator[Piece]:
        return aiter(self._body)

    async def aclose(self) -> None:
        self.is_closed = True
        await self._body.aclose()


class ClosingMember(FakeMember):
    body: Closing

    async def read(self, read: PeerRead, sender: str) -> PeerReadAnswer:
        answer = await FakeMember.read(self, read, sender)
        assert answer.body is not None
        self.body = Closing(answer.body)
        return replace(answer, body=self.body)


async def test_a_version_of_more_headers_than_fit_is_absent() -> None:
    service = ClosingMember(hello_of("owner"))
    service.put(REF, ramp(SMALL), headers=(("x-amz-meta-a", "v" * FIELD_BYTES_MAX),))
    async with peer_wire(service) as wire:
        assert await why(wire, SMALL) == "absent"
        await wire.server.idle()
        assert service.body.is_closed


# -- what is left ----------------------------------------------------------------------------------------------------


@SIZES
async def test_a_member_that_leaves_ends_the_work_for_it(size: int) -> None:
    service = member_with(ramp(size))
    service.gate = asyncio.Event()
    async with peer_wire(service) as wire:
        reading = asyncio.create_task(read_whole(wire, size))
        while not service.asked:
            await asyncio.sleep(0)
        assert wire.server.in_flight == 1
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await wire.server.idle()
        assert wire.server.in_flight == 0


async def test_bytes_are_counted_on_both_sides_by_peer() -> None:
    async with peer_wire(member_with(ramp(SMALL))) as wire:
        await read_whole(wire, SMALL)
        await wire.server.idle()
        assert wire.edge.metrics.value("outrider_peer_bytes_total", peer="owner", direction="in") == SMALL
        assert wire.owner.metrics.value("outrider_peer_bytes_total", peer="edge", direction="out") == SMALL
        assert wire.edge.metrics.value("outrider_peer_requests_total", peer="owner", result="ok") == 1
        assert wire.edge.metrics.value("outrider_origin_bytes_total") == 0
        assert await why(wire, SMALL, replace(wire.member, address="127.0.0.1:1")) == "connect"
        assert wire.edge.metrics.value("outrider_peer_requests_total", peer="owner", result="connect") == 1


# -- a stop ------------------------------------------------------------------------------------------------------------
