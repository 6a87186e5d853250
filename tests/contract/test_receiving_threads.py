"""Faults of the threads that receive bodies: each ends its own body, and leaves no descriptor or thread behind."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from outrider.adapters.origin import body_sender, bulk_client, bulk_reply
from outrider.adapters.origin.bulk_client import BulkClient
from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.core.errors import OriginBroke, StoreUnavailable
from outrider.core.model import Headers
from outrider.metrics import Metrics
from outrider.ports import Buffer, ByteSink, OriginRequest
from tests.contract.http_origins import Scripted, listening, opened
from tests.contract.test_odd_heads import PLAIN
from tests.support.fakes import RAMP, pieces_of, reply_to

DATA = RAMP[:200_000]
REPLY = PLAIN % len(DATA) + DATA


class Kept(ByteSink):
    """Keeps what comes."""

    is_awaited = True

    def __init__(self) -> None:
        self.data = bytearray()
        self.times_ended = 0

    def write(self, data: memoryview) -> None:
        self.data += data

    def check(self) -> None:
        pass

    def ended(self) -> None:
        self.times_ended += 1


class Bug(Kept):
    def write(self, data: memoryview) -> None:
        raise ZeroDivisionError


class Hung(Kept):
    """A disk that does not answer before `answer`."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.answer = threading.Event(), threading.Event()

    def write(self, data: memoryview) -> None:
        self.began.set()
        assert self.answer.wait(60)
        super().write(data)

    def check(self) -> None:
        if self.began.is_set() and not self.answer.is_set():
            raise StoreUnavailable("no answer")


class World:
    """An origin that threads receive from. `threads`: how many."""

    def __init__(self, scripted: Scripted, origin: HttpOrigin, metrics: Metrics, threads: int) -> None:
        client = origin._client
        assert client is not None
        self.scripted = scripted
        self.origin = origin
        self.metrics = metrics
        self.client: BulkClient = client.bulk
        self._count = threads
        self.files = files()

    async def receive(self, sink: ByteSink, headers: Headers = ()) -> None:
        async with reply_to(self.origin, OriginRequest("GET", "b", "k", headers=headers, bulk=True)) as reply:
            if reply.in_thread:
                counts: list[int] = []
                await reply.receive(len(DATA), sink, counts.append)
                assert sum(counts) == len(DATA)
            else:
                async for piece in pieces_of(reply):
                    sink.write(memoryview(piece))

    def free_threads(self) -> int:
        return self.client._free

    async def nothing_is_left(self) -> None:
        """The next body is received by a thread; and no more files are open than at the beginning."""
        await until(lambda: self.free_threads() == self._count)
        assert self.client.threads.receiving == 0
        self.scripted.replies.append(REPLY)
        sink = Kept()
        await self.receive(sink)
        assert sink.data == DATA
        assert len(self.client.idle) == 1, "received by a thread"
        started = [thread for thread in threading.enumerate() if thread.name.startswith("outrider-receive")]
        assert len(started) <= self._count
        self.client.idle.close()
        await until(lambda: files() <= self.files)
        assert not self.scripted.replies


@asynccontextmanager
async def world_of(*replies: bytes, threads: int = 2) -> AsyncIterator[World]:
    scripted, metrics = Scripted(replies), Metrics()
    async with (
        listening(scripted.serve) as port,
        opened(port, metrics=metrics, connections=8, threads=threads) as origin,
    ):
        yield World(scripted, origin, metrics, threads)


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def until(come: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not come():
            await asyncio.sleep(0)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that hangs is found at once, and not waited for."""
    monkeypatch.setattr(bulk_reply, "_CHECK_S", 0.001)
    monkeypatch.setattr(bulk_reply, "_ABORT_S", 0.001)


async def test_an_error_that_nobody_expects_ends_one_body() -> None:
    async with world_of(*[REPLY] * 5) as world:
        for _ in range(5):
            sink = Bug()
            with pytest.raises(ZeroDivisionError):
                await world.receive(sink)
            assert sink.times_ended == 1
        await world.nothing_is_left()


async def test_a_header_that_cannot_be_written_is_a_request_that_failed_for_good() -> None:
    async with world_of() as world:
        for _ in range(5):
            with pytest.raises(OriginBroke) as raised:
                await world.receive(Kept(), (("if-match", "a\nb"),))
            assert raised.value.lasting
        assert world.metrics.value("outrider_origin_requests_total", method="GET", status="none") == 5
        await world.nothing_is_left()


EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n"


@pytest.mark.parametrize("interim", [b"HTTP/1.1 100 Continue\r\n\r\n", EARLY_HINTS, b"HTTP/1.1 102 \r\n\r\n" * 2])
async def test_the_reply_is_the_one_behind_interim_heads(interim: bytes) -> None:
    async with world_of(interim + REPLY) as world:
        sink = Kept()
        await world.receive(sink)
        assert sink.data == DATA
        await world.nothing_is_left()


async def test_a_head_behind_an_interim_one_is_looked_at_as_any() -> None:
    """`http.client` would take the first of two lengths."""
    odd = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"
    async with world_of(odd, odd) as world:
        with pytest.raises(OriginBroke, match="Content-Length headers differ"):
            await world.receive(Kept())


@pytest.mark.parametrize("value", ["\xa0v\xa0", "v\u2028", "\x85"])
async def test_header_values_keep_the_white_space_of_other_scripts(value: str) -> None:
    """As by the other client, and as the bucket has them."""
    reply = b"HTTP/1.1 200 OK\r\nx-amz-meta-a: %b \t\r\nContent-Length: 0\r\n\r\n" % value.encode()
    async with world_of(reply, reply) as world:
        for bulk in (True, False):
            async with reply_to(world.origin, OriginRequest("GET", "b", "k", bulk=bulk)) as answer:
                assert dict(answer.headers)["x-amz-meta-a"] == value


@pytest.mark.usefixtures("soon")
async def test_a_disk_that_hangs_ends_the_body_and_its_thread_comes_back_when_it_answers() -> None:
    async with world_of(REPLY) as world:
        sink = Hung()
        with pytest.raises(StoreUnavailable):
            await world.receive(sink)
        assert sink.times_ended == 0, "it is in use"
        assert world.free_threads() == 1
        sink.answer.set()
        await until(lambda: sink.times_ended == 1)
        await world.nothing_is_left()


@pytest.mark.usefixtures("soon")
async def test_while_all_threads_hang_bodies_are_received_without_them() -> None:
    async with world_of(REPLY, REPLY, REPLY, threads=2) as world:
        hung = [Hung(), Hung()]
        for each in hung:
            with pytest.raises(StoreUnavailable):
                await world.receive(each)
        sink = Kept()
        async with asyncio.timeout(60):
            await world.receive(sink)
        assert sink.data == DATA
        for each in hung:
            each.answer.set()
        await until(lambda: all(each.times_ended == 1 for each in hung))
        # The other client's connection, and the server's end of it.
        world.files += 2
        await world.nothing_is_left()


async def test_a_second_cancellation_while_the_thread_ends_leaves_nothing_behind() -> None:
    async with world_of(REPLY) as world:
        sink = Hung()
        receiving = asyncio.ensure_future(world.receive(sink))
        await until(sink.began.is_set)
        receiving.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not receiving.done(), "it waits for the thread"
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        assert sink.times_ended == 0, "it is in use"
        sink.answer.set()
        await until(lambda: sink.times_ended == 1)
        await world.nothing_is_left()


def no_thread_starts(patch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", refuse)


async def test_where_no_thread_can_be_started_the_request_goes_another_way() -> None:
    async with world_of(REPLY) as world:
        with pytest.MonkeyPatch.context() as patch:
            no_thread_starts(patch)
            async with (
                reply_to(world.origin, OriginRequest("GET", "b", "k", bulk=True)) as reply,
                aclosing(pieces_of(reply)) as chunks,
            ):
                assert b"".join([chunk async for chunk in chunks]) == DATA
        world.files += 2
        # The refused work is still queued: it must send nothing once a thread comes.
        await world.nothing_is_left()
        assert world.scripted.connections == 2


async def test_where_no_thread_can_be_started_for_a_body_it_breaks_off() -> None:
    async with world_of(REPLY) as world:
        sink, over = Kept(), threading.Event()
        async with reply_to(world.origin, OriginRequest("GET", "b", "k", bulk=True)) as reply:
            # The only thread there is, and it is taken.
            await until(lambda: world.client.threads.pool._idle_semaphore._value == 1)
            world.client.threads.begin(lambda: over.wait(60))
            with pytest.MonkeyPatch.context() as patch:
                no_thread_starts(patch)
                with pytest.raises(OriginBroke):
                    await reply.receive(len(DATA), sink, lambda _: None)
            assert (sink.times_ended, world.client.threads.receiving) == (1, 0)
        over.set()
        await world.nothing_is_left()


GARBAGE = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "noise": bytes(range(256)) * 64,
    "text": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "a status that is none": b"HTTP/1.1 banana OK\r\nContent-Length: 5\r\n\r\nhello",
    "a length that is none": b"HTTP/1.1 206 OK\r\nContent-Length: -5\r\n\r\nhello",
    "nothing": b"",
    "no end of the head": b"HTTP/1.1 206 OK\r\n" + b"x: y\r\n" * 9,
    "a short body": PLAIN % len(DATA) + b"short",
    "broken chunks": b"HTTP/1.1 206 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_is_an_origin_that_broke(garbage: bytes) -> None:
    async with world_of(*[garbage] * 12) as world:
        world.scripted.closes = True
        sinks = []
        while len(world.scripted.replies) > 2:
            sinks.append(Kept())
            with pytest.raises(OriginBroke):
                await world.receive(sinks[-1])
        assert all(len(sink.data) <= 5 and sink.times_ended <= 1 for sink in sinks)
        counted = [
            world.metrics.value("outrider_origin_requests_total", method="GET", status=status)
            for status in ("none", "200", "206")
        ]
        assert sum(counted) == len(sinks)
        world.scripted.replies.clear()
        world.scripted.closes = False
        await world.nothing_is_left()


class Upload:
    """A body on its client's socket."""

    def __init__(self, *pieces: Buffer) -> None:
        self._reads = [[*pieces]] if pieces else []
        self.times_begun = self.times_ended = 0

    def begin(self) -> bool:
        self.times_begun += 1
        return True

    def read(self, beside: int) -> list[Buffer] | None:
        return self._reads.pop() if self._reads else None

    def end(self) -> None:
        self.times_ended += 1


async def test_an_upload_for_which_no_thread_can_be_started_fails_and_gives_its_body_back() -> None:
    async with world_of() as world:
        with pytest.MonkeyPatch.context() as patch:
            no_thread_starts(patch)
            # More often than there are threads that send: each gives its place back.
            for _ in range(bulk_client._SENDERS + 1):
                upload = Upload()
                request = OriginRequest("PUT", "b", "k", body=never(), body_bytes=2**20, body_in_thread=upload)
                with pytest.raises(OriginBroke):
                    async with reply_to(world.origin, request):
                        pass
                assert (upload.times_begun, upload.times_ended) == (1, 1)
        await world.nothing_is_left()


@pytest.mark.parametrize("pieces", [[bytes(2**24)], []], ids=["takes nothing", "does not answer"])
def test_an_upload_to_a_server_that_hangs_is_late(pieces: list[Buffer]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(TimeoutError):
        body_sender.pass_on(Upload(*pieces), lambda: None, ours, timeout_s=0.0)


async def never() -> AsyncIterator[Buffer]:
    raise AssertionError("its thread reads it")
    yield b""
