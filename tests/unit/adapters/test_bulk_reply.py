"""A body that is read in chunks comes with its head, or by reads that grow where the line is fast."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast

import pytest

from outrider.adapters.origin.blocking_connection import BlockingConnection
from outrider.adapters.origin.bulk_reply import READ_BYTES_FIRST, BodyThreads, BulkReply
from outrider.core.errors import OriginBroke
from outrider.metrics import Metrics
from tests.support.fakes import RAMP, pieces_of

T = TypeVar("T")

_KIB = 2**10
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


class Threads(BodyThreads):
    """It does the work at once, and counts it. `kept`: connections that may be used again."""

    buffer_bytes = 512 * _KIB

    def __init__(self) -> None:
        super().__init__(1, "none")
        self.hops = 0
        self.kept = 0

    def begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        self.hops += 1
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            done.set_result(work())
        except OriginBroke as error:
            done.set_exception(error)
        return done


class Line:
    """A socket on which the body comes at `pace` bytes a read, or as many as are asked for (None). `asked`: how many
    those were."""

    def __init__(self, head: bytes, body: bytes, pace: int | None = None) -> None:
        self.head = head
        self.body = body
        self.pace = pace
        self.asked: list[int] = []

    def settimeout(self, _: object) -> None: ...

    def setsockopt(self, *_: object) -> None: ...

    def sendall(self, _: bytes) -> None: ...

    def recv(self, count: int) -> bytes:
        if head := self.head:
            self.head = b""
            return head
        self.asked.append(count)
        piece = self.body[: min(count, self.pace or count)]
        self.body = self.body[len(piece) :]
        return piece


def reply_on(line: object, threads: Threads, *, holds: bool = False) -> BulkReply:
    connection = BlockingConnection(cast(Any, line))
    connection.ask(b"", 1.0, small_bytes=64 * _KIB if holds else 0)

    def over() -> None:
        threads.kept += connection.is_read and connection.reader.keeps

    return BulkReply(threads, connection, Metrics(), over)


async def chunks_of(reply: BulkReply) -> list[bytes]:
    async with aclosing(pieces_of(reply)) as chunks:
        return [bytes(chunk) async for chunk in chunks]


async def test_reads_grow_while_they_are_filled() -> None:
    body = RAMP[: 1600 * _KIB]
    line, threads = Line(HEAD % len(body), body), Threads()
    chunks = await chunks_of(reply_on(line, threads))
    assert b"".join(chunks) == body
    assert [asked // _KIB for asked in line.asked] == [64, 128, 256, 512, 512, 128]
    assert threads.hops == len(line.asked)


async def test_reads_do_not_grow_where_fewer_bytes_are_here() -> None:
    body = RAMP[:100_000]
    line = Line(HEAD % len(body), body, pace=10_000)
    assert b"".join(await chunks_of(reply_on(line, Threads()))) == body
    assert max(line.asked) == READ_BYTES_FIRST


async def test_bytes_that_came_with_the_head_cost_no_change_of_thread() -> None:
    body = RAMP[:100_000]
    line, threads = Line(HEAD % len(body) + body[:10_000], body[10_000:]), Threads()
    chunks = await chunks_of(reply_on(line, threads))
    assert [len(chunk) for chunk in chunks] == [10_000, 64 * _KIB, 90_000 - 64 * _KIB]
    assert threads.hops == 2


async def test_a_small_body_is_received_with_its_head() -> None:
    near, far = socket.socketpair()
    with near, far:
        # Fewer bytes than any socket holds.
        far.sendall(HEAD % 20_000 + RAMP[:20_000])
        threads = Threads()
        reply = reply_on(near, threads, holds=True)
        assert reply.content_length == 20_000
        assert b"".join(await chunks_of(reply)) == RAMP[:20_000]
        reply.close()
        assert (threads.hops, threads.kept) == (0, 1)


async def test_a_small_body_that_stops_does_not_hold_its_head_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.adapters.origin.blocking_connection._SMALL_WAIT_S", 0.0)
    near, far = socket.socketpair()
    with near, far:
        far.sendall(HEAD % 20_000 + RAMP[:9_000])
        threads = Threads()
        reply = reply_on(near, threads, holds=True)
        async with aclosing(pieces_of(reply)) as chunks:
            assert await anext(chunks) == RAMP[:9_000]
            assert threads.hops == 0
            far.sendall(RAMP[9_000:20_000])
            assert b"".join([bytes(chunk) async for chunk in chunks]) == RAMP[9_000:20_000]
        reply.close()
        assert threads.kept == 1


async def test_a_small_body_that_breaks_is_broken_for_its_reader() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.sendall(HEAD % 20_000 + RAMP[:9_000])
        far.shutdown(socket.SHUT_WR)
        reply = reply_on(near, Threads(), holds=True)
        async with aclosing(pieces_of(reply)) as chunks:
            assert await anext(chunks) == RAMP[:9_000]
            with pytest.raises(OriginBroke):
                await anext(chunks)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "body",
    [
        b"2\r\nhe\r\n003;a=b\r\nllo\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\nx-trailer: 1\r\n\r\n",
        b"A\r\nhellohello\r\n0\n\n",
    ],
)
async def test_a_body_in_chunks_is_whole_with_its_last_line(body: bytes) -> None:
    reply, threads = reply_on(Line(CHUNKED, body), Threads()), Threads()
    assert b"".join(await chunks_of(reply)) in (b"hello", b"hellohello")
    reply = reply_on(Line(CHUNKED, body[:-2]), threads)
    with pytest.raises(OriginBroke):
        await chunks_of(reply)


@pytest.mark.parametrize(
    "body",
    [b"2\r\nheXX3\r\nllo\r\n0\r\n\r\n", b"3\r\nhe\r\n2\r\nllo\r\n0\r\n\r\n",
     b"1\r\nhello\r\n0\r\n\r\n", b"+5\r\nhello\r\n0\r\n\r\n",
     b"0x5\r\nhello\r\n0\r\n\r\n", b"-5\r\nhello\r\n0\r\n\r\n", b"\r\n0\r\n\r\n", b"5\r\nhello0\r\n\r\n",
     b"1_0\r\nhello\r\n0\r\n\r\n", b"5" * 70_000],
)  # fmt: skip
async def test_a_body_in_chunks_of_other_lengths_than_they_say_is_broken(body: bytes) -> None:
    with pytest.raises(OriginBroke):
        await chunks_of(reply_on(Line(CHUNKED, body), Threads()))
