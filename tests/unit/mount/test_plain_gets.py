"""The plain GETs of a mount, before a server that replies with any bytes in any pieces."""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.adapters.origin import connector
from outrider.adapters.origin.endpoint import Endpoint
from outrider.adapters.process.system import new_event_loop
from outrider.mount.listed import FileVersion
from outrider.mount.plain_gets import PlainGets
from outrider.mount.target import Target
from tests.support.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

BODY = bytes(range(100))
OK = b'HTTP/1.1 200 OK\r\netag: "v1"\r\ncontent-length: 100\r\n\r\n' + BODY
PART = b'HTTP/1.1 206 Partial Content\r\nETag: "v1"\r\nContent-Range: bytes 40-59/100\r\nContent-Length: 20\r\n\r\n'
REFUSED = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"


class Server:
    """Replies to each request with the next of `replies`, in their pieces, and closes instead of an empty reply."""

    def __init__(self, replies: Sequence[Sequence[bytes]]) -> None:
        self.replies = list(replies)
        self.asked: list[bytes] = []
        self.connections = 0
        self.writer: asyncio.StreamWriter | None = None
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writer = writer
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                self.asked.append(await reader.readuntil(b"\r\n\r\n"))
                pieces = self.replies.pop(0)
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0)
                if not any(pieces):
                    break
        self.left.set()
        writer.close()


@asynccontextmanager
async def before(
    *replies: Sequence[bytes], clock: FakeClock | None = None, **settings: float
) -> AsyncIterator[tuple[PlainGets, Server]]:
    server = Server(replies)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    endpoint = Endpoint.at(f"http://127.0.0.1:{port}", "eu-west-1")
    gets = PlainGets(endpoint, "pets", connections=2, **{"reply_s": 60.0, **settings}, clock=clock or time.monotonic)
    try:
        yield gets, server
    finally:
        gets.close()
        listening.close()


async def whole(gets: PlainGets, size: int = 100, etag: str = "v1") -> Target:
    target = Target(size)
    await gets.fill(target, "a b/c", 0, FileVersion(size, etag, is_settled=True))
    return target


async def part(gets: PlainGets) -> Target:
    target = Target(20)
    await gets.fill(target, "c", 40, FileVersion(100, "v1", is_settled=True))
    return target


@pytest.mark.parametrize(("day", "is_taken"), [("Thu, 01 Jan 2026", True), ("Fri, 02 Jan 2026", False)])
async def test_a_reply_with_another_date_is_left_to_a_closer_look(day: str, is_taken: bool) -> None:
    reply = OK.replace(b"\r\n\r\n", f"\r\nLast-Modified: {day} 00:00:00 GMT\r\n\r\n".encode(), 1)
    async with before([reply]) as (gets, _):
        target = Target(100)
        await gets.fill(target, "c", 0, FileVersion(100, "v1", is_settled=True, seconds=1_767_225_600))
    assert (target.room == 0) is is_taken


async def test_a_connection_serves_one_read_after_the_other() -> None:
    async with before([OK], [PART + BODY[40:60]], [OK]) as (gets, server):
        assert bytes((await whole(gets)).bytes) == BODY
        assert bytes((await part(gets)).bytes) == BODY[40:60]
        assert (await whole(gets)).room == 0
    host = server.asked[0].split(b"\r\n")[1]
    assert server.asked[:2] == [
        b"GET /pets/a%20b/c HTTP/1.1\r\n" + host + b"\r\n\r\n",
        b"GET /pets/c HTTP/1.1\r\n" + host + b"\r\nRange: bytes=40-59\r\n\r\n",
    ]
    assert server.connections == 1


@pytest.mark.parametrize(
    ("ask", "reply"),
    [
        (whole, OK.replace(b"v1", b"v2")),
        (whole, OK.replace(b'etag: "v1"\r\n', b"")),
        (whole, OK.replace(b"length: 100", b"length: 101") + b"x"),
        (whole, OK.replace(b"length: 100", b"length: 99")),
        (whole, OK.replace(b"content-length: 100", b"transfer-encoding: chunked")),
        (whole, OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")),
        (whole, OK.replace(b"200", b"206")),
        (whole, OK.replace(b"200", b"503")),
        (whole, OK.replace(b"HTTP/1.1", b"HTTP/1.0")),
        (whole, OK + b"x"),
        (whole, b"x" * 20_000),
        (whole, b""),
        (part, PART.replace(b"206", b"200") + BODY[40:60]),
        (part, PART.replace(b"40-59", b"41-60") + BODY[41:61]),
        (part, PART.replace(b"Content-Range", b"Content-Rage") + BODY[40:60]),
        (part, PART.replace(b"/100", b"/101") + BODY[40:60]),
        (part, PART.replace(b"/100", b"/*") + BODY[40:60]),
    ],
)  # fmt: skip
async def test_what_is_unusual_is_left_to_the_other_client(ask: Callable[[PlainGets], object], reply: bytes) -> None:
    async with before([reply], [OK]) as (gets, server):
        target = await ask(gets)  # type: ignore[misc]  # of `whole` and `part`
        assert target.received == 0
        # The next one is not answered by what is left of this one.
        assert bytes((await whole(gets)).bytes) == BODY
        assert server.connections == 2


def test_a_long_reply_that_nobody_wants_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with before([OK.replace(b"v1", b"v2") + bytes(8_000_000)], [OK]) as (gets, server):
            assert (await whole(gets)).received == 0
            await server.left.wait()
            assert bytes((await whole(gets)).bytes) == BODY

    # The mount's own loop reads a socket several times in one turn.
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(go())
    assert not caplog.records


@pytest.mark.parametrize("url", ["http://[::1]", "http://[::1]:9000", "http://proxy", "http://proxy:9000/path/"])
def test_any_endpoint_is_taken(url: str) -> None:
    PlainGets(Endpoint.at(url, "eu-west-1"), "pets", connections=2, reply_s=60.0)


async def test_a_body_that_breaks_off_is_left_where_it_broke() -> None:
    async with before([OK[:-30]]) as (gets, server):
        reading = asyncio.create_task(whole(gets))
        while not server.asked:
            await asyncio.sleep(0)
        assert server.writer is not None
        server.writer.close()
        target = await reading
        assert bytes(target.bytes[: target.received]) == BODY[:70]


async def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    async with before([OK], [OK]) as (gets, server):
        assert (await whole(gets)).room == 0
        assert server.writer is not None
        server.writer.write(OK.replace(BODY, bytes(100)))
        await server.left.wait()
        assert bytes((await whole(gets)).bytes) == BODY
        assert server.connections == 2


async def test_a_proxy_that_says_nothing_is_left_to_the_other_client() -> None:
    async with before([OK[:-30]], reply_s=0.05) as (gets, server):
        target = await whole(gets)
        assert bytes(target.bytes[: target.received]) == BODY[: target.received]
        assert target.room
        await server.left.wait()


async def test_a_read_that_is_given_up_takes_its_connection_with_it() -> None:
    async with before([OK[:-30]], [OK]) as (gets, server):
        reading = asyncio.create_task(whole(gets))
        while not server.asked:
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await server.left.wait()
        assert bytes((await whole(gets)).bytes) == BODY
        assert server.connections == 2


@pytest.mark.parametrize("etag", ['W/"v1"', "v1", '"v1" '])
async def test_etags_are_compared_as_the_other_client_does(etag: str) -> None:
    reply = OK.replace(b'"v1"', etag.encode())
    async with before([reply]) as (gets, _):
        assert bytes((await whole(gets, etag=etag.strip().strip('"'))).bytes) == BODY


async def test_bytes_that_are_stored_encoded_are_taken_as_they_are() -> None:
    async with before([OK.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")]) as (gets, _):
        assert bytes((await whole(gets)).bytes) == BODY


async def test_a_proxy_that_refuses_is_asked_ever_less_often() -> None:
    clock, asked = FakeClock(), []
    async with before(*[[REFUSED]] * 3, clock=clock) as (gets, server):
        for _ in range(300):
            assert (await whole(gets)).received == 0
            asked.append(len(server.asked))
            clock.advance(1.0)
    assert (asked[59], asked[60], asked[179], asked[180], asked[299]) == (1, 2, 2, 3, 3)


async def test_reads_that_are_refused_together_are_one_refusal() -> None:
    clock = FakeClock()
    async with before([REFUSED], [REFUSED], [OK], clock=clock) as (gets, _):
        await asyncio.gather(whole(gets), whole(gets))
        clock.advance(60.0)
        assert (await whole(gets)).received == 100


async def test_a_read_that_comes_again_ends_the_doubling() -> None:
    clock = FakeClock()
    async with before([REFUSED], [OK], [REFUSED], [OK], clock=clock) as (gets, _):
        for came in (0, 100, 0, 100):
            assert (await whole(gets)).received == came
            clock.advance(60.0)


async def test_what_is_served_past_the_cache_is_asked_for_by_the_other_client() -> None:
    """It has a signature, with which the cache may answer."""
    past = OK.replace(b"\r\n\r\n", b"\r\nX-Cache: BYPASS\r\n\r\n")
    async with before([past], [OK]) as (gets, server):
        assert bytes((await whole(gets)).bytes) == BODY
        assert (await whole(gets)).received == 0
        assert len(server.asked) == 1


async def test_an_address_that_does_not_answer_is_left_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    async def silent(*_: object, **__: object) -> None:
        tried.append(1)
        raise TimeoutError

    monkeypatch.setattr(connector, "start_connection", silent)
    clock = FakeClock()
    gets = PlainGets(Endpoint.at("http://127.0.0.1:1", "r"), "pets", connections=2, reply_s=60.0, clock=clock)
    for count in (1, 1, 2):
        assert (await whole(gets)).received == 0
        assert len(tried) == count
        clock.advance(30.0)


async def test_a_connection_without_requests_is_closed() -> None:
    async with before([OK], idle_s=0.01) as (gets, server):
        assert (await whole(gets)).room == 0
        await server.left.wait()


async def test_a_version_without_an_etag_is_left_to_the_other_client() -> None:
    async with before([OK]) as (gets, server):
        assert (await whole(gets, etag="")).received == 0
        assert server.connections == 0


async def test_more_reads_than_connections_are_left_to_the_other_client() -> None:
    async with before([OK], [OK], [OK]) as (gets, _):
        assert sorted(target.received for target in await asyncio.gather(*(whole(gets) for _ in range(3)))) == [
            0,
            100,
            100,
        ]


async def test_nobody_answers() -> None:
    gets = PlainGets(Endpoint.at("http://127.0.0.1:1", "eu-west-1"), "pets", connections=2, reply_s=1.0)
    assert (await whole(gets)).received == 0


@given(data=st.data(), cuts=st.lists(st.integers(0, len(OK)), max_size=6))
def test_however_a_reply_is_cut_no_byte_is_wrong(data: st.DataObject, cuts: list[int]) -> None:
    flips = data.draw(st.lists(st.tuples(st.integers(0, len(OK) - len(BODY) - 1), st.integers(0, 255)), max_size=2))
    reply = bytearray(OK)
    for place, value in flips:
        reply[place] = value
    pieces = [bytes(reply[first:last]) for first, last in pairwise([0, *sorted(cuts), len(reply)])]

    async def go() -> Target:
        async with before(pieces, reply_s=0.1) as (gets, _):
            return await whole(gets)

    target = asyncio.run(go())
    assert bytes(target.bytes[: target.received]) == BODY[: target.received]
