"""Replies whose head aiohttp's parser refuses, from a server that sends given bytes: read as S3 clients read them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.core.errors import OriginBroke
from outrider.metrics import Metrics
from outrider.ports import OriginRequest
from tests.contract.http_origins import Scripted, listening, opened
from tests.support.fakes import RAMP, pieces_of, reply_to

ODD = (
    b"HTTP/1.1 200 OK\r\nx-amz-meta-a/b: 1\r\nETag: \"e\"\r\nx-amz-meta-(c): two\r\nx-amz-meta-d e: 3\r\n"
    b"x-nul: a\x00b\r\nContent-Length: %d\r\nContent-Length: %d\r\n\r\n"
)  # fmt: skip
PLAIN = b"HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: %d\r\n\r\n"  # fmt: skip


@asynccontextmanager
async def asking(scripted: Scripted, metrics: Metrics | None = None) -> AsyncIterator[HttpOrigin]:
    async with listening(scripted.serve) as port, opened(port, metrics=metrics, read_timeout_s=20) as origin:
        yield origin


async def ask(origin: HttpOrigin, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    async with reply_to(origin, OriginRequest(method, "b", "k")) as reply, aclosing(pieces_of(reply)) as chunks:
        body = b"".join([chunk async for chunk in chunks])
        return reply.status, dict(reply.headers), body


@pytest.mark.parametrize("pieces", [0, 1, 7])
async def test_odd_headers_are_passed_on_and_counted_and_the_connection_is_used_again(pieces: int) -> None:
    metrics = Metrics()
    size = 300_000 if pieces == 0 else 300
    scripted = Scripted([ODD % (size, size) + RAMP[:size], PLAIN % 5 + b"plain", ODD % (0, 0)], pieces)
    async with asking(scripted, metrics) as origin:
        status, headers, body = await ask(origin)
        assert (status, body) == (200, RAMP[:size])
        assert headers == {
            "x-amz-meta-a/b": "1", "etag": '"e"', "x-amz-meta-(c)": "two", "x-nul": "a b", "content-length": str(size)
        }  # fmt: skip
        assert await ask(origin) == (200, {"etag": '"e"', "content-length": "5"}, b"plain")
        assert (await ask(origin))[2] == b""
        assert scripted.connections == 1
    assert metrics.value("outrider_origin_oddities_total", kind="header_malformed") == 2


async def test_a_head_request_is_answered_with_odd_headers() -> None:
    async with asking(Scripted([ODD % (9, 9), PLAIN % 5])) as origin:
        status, headers, body = await ask(origin, "HEAD")
        assert (status, headers["content-length"], headers["x-amz-meta-a/b"], body) == (200, "9", "1", b"")
        assert (await ask(origin, "HEAD"))[1]["content-length"] == "5"


@pytest.mark.parametrize(
    ("reply", "body"),
    [
        (b"HTTP/1.1 200 OK\r\na/b: 1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            b"hello",
        ),
        (b"HTTP/1.1 200 OK\r\na/b: 1\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\na/b: 1\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\na/b: 1\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 2000 + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200 OK\r\na: %b\r\nContent-Length: 5\r\n\r\nhello" % (b"x" * 40_000), b"hello"),
        (b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello", b"hello"),
    ],
    ids=range(8),
)
@pytest.mark.parametrize("pieces", [0, 3])
async def test_the_body_ends_where_the_framing_says(reply: bytes, body: bytes, pieces: int) -> None:
    async with asking(Scripted([reply], pieces and max(pieces, len(reply) // 40), closes=True)) as origin:
        status, headers, got = await ask(origin)
        assert (status, got) == (200, body)
        assert headers.get("content-length") in (None, str(len(body)))


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "Content-Length headers differ"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello", "Content-Length header is no number"),
        (b"HTTP/1.1 200 OK\r\na/b: %b\r\nsecret: s\r\n\r\n" % (b"x" * 70_000), "a head of more than 65536 bytes"),
        (b"HTTP/2 200 OK\r\na/b: 1\r\n\r\n", "Bad status line"),
        (b"HTTP/1.1 200 OK\r\na/b: 1\r\nTransfer-Encoding: chunked\r\n\r\nsecret\r\n", "chunk size"),
    ],
    ids=range(5),
)
@pytest.mark.parametrize("pieces", [0, 1000])
async def test_a_head_that_stays_unreadable_is_an_error_that_says_why(reply: bytes, why: str, pieces: int) -> None:
    async with asking(Scripted([reply], pieces, closes=True)) as origin:
        with pytest.raises(OriginBroke, match=why) as broke:
            await ask(origin)
    assert "secret" not in str(broke.value)


@pytest.mark.parametrize("cut", [40, -1])
async def test_a_reply_that_breaks_off_is_never_whole(cut: int) -> None:
    async with asking(Scripted([(ODD % (50, 50) + RAMP[:50])[:cut]], closes=True)) as origin:
        with pytest.raises(OriginBroke):
            await ask(origin)


@pytest.mark.parametrize(
    "lines",
    [b"x-amz-meta-a/b: 1\r\nset: a\rset-cookie: b\r\n", b"no field\r\nx-b: 2\r\n", b"content-length: 5\r\n",
     b"x-nul: a\0b\r\n", b"x-folded: a\r\n b\r\n", b"x-a : 1\r\n"],
)  # fmt: skip
async def test_threads_read_an_odd_head_as_the_event_loop_does(lines: bytes) -> None:
    odd = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 5\r\n' + lines + b"\r\nabcde"

    async def answer(origin: HttpOrigin, *, bulk: bool) -> object:
        try:
            async with (
                reply_to(origin, OriginRequest("GET", "b", "k", bulk=bulk)) as reply,
                aclosing(pieces_of(reply)) as chunks,
            ):
                return reply.status, reply.headers, b"".join([chunk async for chunk in chunks])
        except OriginBroke:
            return "broke"

    scripted = Scripted([odd] * 3)
    async with asking(scripted) as origin:
        usual = await answer(origin, bulk=False)
        assert await answer(origin, bulk=True) == usual
        assert len(scripted.replies) == 1, "asked once"
