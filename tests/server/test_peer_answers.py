"""Answers between members: what is believed of one, and what is left when the other side fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from outrider.adapters.cluster.peer_client import PeerClient
from outrider.core.auth.peer_signature import PROOF, proof_of
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import (
    BODY_BYTES_MAX,
    FORGET_PATH,
    Forget,
    forget_body,
)
from outrider.core.cluster.peer_messages import Confirmed, PeerFailed, PeerRead
from outrider.core.cluster.wire_forms import encode
from outrider.core.model import Extent, ObjectVersion
from tests.server.test_peer_port import LARGE, REF, SIZES, member_with, read_whole, why
from tests.support.fake_peers import SECRET, Side, hello_of, peer_wire
from tests.support.fakes import pieces_of, ramp


@SIZES
async def test_another_member_at_the_address_is_not_believed(size: int) -> None:
    service = member_with(ramp(size))
    async with peer_wire(service) as wire:
        other = replace(wire.member, name="other")
        assert await why(wire, size, other) == "refused"
        wire.owner.calls_itself = "third"
        assert await why(wire, size) == "garbage"
        with pytest.raises(PeerFailed, match="another member"):
            await wire.client.send(wire.member, FORGET_PATH, forget_body(Forget("edge", 1, 1, ("bucket",))))
        for service.status in (404, 503):
            assert await why(wire, size) == "garbage"


@SIZES
@pytest.mark.parametrize("at", ["head", "body"])
async def test_a_member_that_dies_under_a_read_has_failed(at: str, size: int) -> None:
    service = member_with(ramp(size))
    gate = asyncio.Event()
    if at == "head":
        service.gate = gate
    else:
        service.body_gate = gate
    async with peer_wire(service) as wire:
        reading = asyncio.create_task(why(wire, size))
        while not service.asked or (at == "body" and not wire.edge.metrics.total("outrider_peer_bytes_total")):
            await asyncio.sleep(0)
        for each in list(wire.server.connections):
            assert each.transport is not None
            each.transport.abort()
        assert await reading == "broke"
        gate.set()
        await wire.server.idle()
        assert await read_whole(wire, size) == ramp(size)


@SIZES
async def test_an_error_of_the_service_is_no_answer(size: int, caplog: pytest.LogCaptureFixture) -> None:
    service = member_with(ramp(size))

    async def fails(read: PeerRead, sender: str) -> None:
        raise ZeroDivisionError

    service_of: object = type("Failing", (), {"read": staticmethod(fails), "answer": service.answer})()
    async with peer_wire(service_of) as wire:  # type: ignore[arg-type]  # it fails before that matters
        assert await why(wire, size) == "status"
        await wire.server.idle()
    assert "request of a member failed" in caplog.text


GREETING = encode(hello_of("owner"))
KNOWN_VERSION = Confirmed(ObjectVersion(REF, '"etag"', 10 * LARGE), 0.0)
KNOWN_LINE = "x-outrider-known: eyJldGFnIjoiXCJldGFnXCIiLCJzaXplIjoxMDQ4NTc2MCwiYWdlIjowLCJzZXR0bGVkIjpmYWxzZX0="
FROM_OWNER = "x-outrider-from: owner"


def span(size: int) -> str:
    return f"content-range: bytes 0-{size - 1}/{10 * LARGE}"


@asynccontextmanager
async def stub(
    lines: list[str], body: bytes = b"", asked: list[bytes] | None = None, secret: str = SECRET,
    but: Callable[[str], str] = lambda line: line,
) -> AsyncIterator[Member]:  # fmt: skip
    """A server that answers each request so. Their heads are added to `asked`. `secret`: the key that it knows. `but`
    changes lines once the answer is proved."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if asked is not None:
            asked.append(head)
        authorization = next(line for line in head.decode().split("\r\n") if line.startswith("authorization:"))
        covered = body if head.startswith(b"POST") else b""
        answered = [(name, value) for name, _, value in (line.partition(": ") for line in lines[1:])]
        status = int(lines[0].split()[1]) if " " in lines[0] else 0
        proof = proof_of(authorization.partition(": ")[2], [secret], status, answered, covered)
        proved = [*map(but, lines), *([f"{PROOF}: {proof}"] if status else [])]
        writer.write("\r\n".join([*proved, "", ""]).encode("latin-1") + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield Member("owner", f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "", 0, "cluster")


@asynccontextmanager
async def edge_client() -> AsyncIterator[PeerClient]:
    edge = Side("edge")
    client = PeerClient(edge.requester, lambda: edge.secrets, edge.metrics, edge.clock, boot=1)
    await client.open()
    try:
        yield client
    finally:
        await client.close()


async def outcome(member: Member, size: int) -> str | bytes:
    """The body; or why there was none that is believed."""
    async with edge_client() as client:
        try:
            async with client.read(member, PeerRead(REF, Extent(0, size), 0, KNOWN_VERSION)) as reply:
                return b"".join([chunk async for chunk in pieces_of(reply)])
        except PeerFailed as failed:
            return failed.why


@SIZES
async def test_an_answer_without_the_key_or_changed_on_its_way_is_not_believed(size: int) -> None:
    def lines(status: int) -> list[str]:
        return [f"HTTP/1.1 {status} x", FROM_OWNER, KNOWN_LINE, span(size), f"content-length: {size}"]

    for status in (206, 404, 412, 503):
        async with stub(lines(status), ramp(size), secret="x" * 32) as member:
            assert await outcome(member, size) == "garbage", status
    for line in ("x-outrider-digest: xxh3:" + "1" * 32, FROM_OWNER):

        def change(each: str, line: str = line) -> str:
            return f"{each}\r\n{line}" if each == span(size) else each

        async with stub(lines(206), ramp(size), but=change) as member:
            assert await outcome(member, size) == "garbage", line
    async with stub(lines(206), ramp(size)) as member:
        assert await outcome(member, size) == ramp(size), "with all proof it is believed, whoever makes it"


async def test_a_hello_of_somebody_without_the_key_is_not_believed() -> None:
    lines = ["HTTP/1.1 200 OK", f"content-length: {len(GREETING)}"]
    async with edge_client() as client, stub(lines, GREETING, secret="x" * 32) as member:
        with pytest.raises(PeerFailed, match="no proof"):
            await client.hello(member.address, hello_of("edge"))


UNPROVED = [
    (["HTTP/1.1 200 OK", "content-type: text/html"], "garbage"), (["HTTP/1.1 206 x", KNOWN_LINE], "garbage"),
    (["HTTP/1.1 206 x", FROM_OWNER, FROM_OWNER, KNOWN_LINE], "garbage"),
    (["HTTP/1.1 302 Found", "location: http://127.0.0.1:1/", FROM_OWNER], "status"),
    (["HTTP/1.1 401 x", FROM_OWNER], "status"), (["HTTP/1.1 404 x"], "garbage"),
    (["HTTP/1.1 404 x", FROM_OWNER], "absent"), (["HTTP/1.1 503 x", FROM_OWNER], "busy"),
    (["HTTP/1.1 500 x", FROM_OWNER], "status"), (["HTTP/1.1 204 x", FROM_OWNER], "status"),
    (["HTTP/1.1 412 x", FROM_OWNER], "changed"), (["HTTP/1.1 412 x"], "garbage"), (["HTTP/1.1 403 x"], "refused"),
    (["hello"], "garbage"),
]  # fmt: skip


@SIZES
async def test_an_answer_without_proof_is_not_believed(size: int) -> None:
    """`tests/unit/cluster/test_peer_wire.py` has the fields that must fit."""
    for head, meant in UNPROVED:
        has_body = head[0] not in ("hello", "HTTP/1.1 204 x")
        lines = [*head, span(size), f"content-length: {size}"] if has_body else head
        async with stub(lines, ramp(size) if has_body else b"") as member:
            assert await outcome(member, size) == meant, head


@SIZES
async def test_a_body_of_another_length_is_not_believed(size: int) -> None:
    lines = ["HTTP/1.1 206 x", FROM_OWNER, KNOWN_LINE, span(size)]
    for length in ([], [f"content-length: {size - 1}"], [f"content-length: {size + 1}"]):
        async with stub([*lines, *length], ramp(size)) as member:
            assert await outcome(member, size) == "garbage", length
    async with stub([*lines, f"content-length: {size}"], ramp(size - 1)) as member:
        assert await outcome(member, size) == "broke"


async def test_a_head_that_is_too_long_is_garbage_and_asked_for_once() -> None:
    asked: list[bytes] = []
    async with stub(["HTTP/1.1 206 x", FROM_OWNER, "x: " + "y" * 100_000], asked=asked) as member:
        assert await outcome(member, LARGE) == "garbage"
    assert len(asked) == 1


NO_HELLO = [
    (["HTTP/1.1 200 OK"], b"{}", "garbage"), (["HTTP/1.1 200 OK"], GREETING[:-1], "garbage"),
    (["HTTP/1.1 200 OK"], GREETING + b" " * BODY_BYTES_MAX, "garbage"), (["HTTP/1.1 201 OK"], GREETING, "status"),
    (["HTTP/1.1 302 x", "location: http://127.0.0.1:1/"], GREETING, "status"), (["HTTP/1.1 403 x"], b"", "refused"),
    (["HTTP/1.1 503 x"], b"", "busy"),
]  # fmt: skip


async def test_a_hello_that_is_none_is_not_believed() -> None:
    async with edge_client() as client:
        async with stub(["HTTP/1.1 200 OK", f"content-length: {len(GREETING)}"], GREETING) as member:
            assert await client.hello(member.address, hello_of("edge")) == hello_of("owner")
        cases = [([*lines, f"content-length: {len(body)}"], body, why) for lines, body, why in NO_HELLO]
        for lines, body, why in (*cases, (["HTTP/1.1 200 OK", "content-length: 9999"], GREETING, "broke")):
            async with stub(lines, body) as member:
                with pytest.raises(PeerFailed) as failed:
                    await client.hello(member.address, hello_of("edge"))
                assert failed.value.why == why, lines
