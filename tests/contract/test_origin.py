"""The contract of `ports.Origin`, for the fake of the engine's tests and for the real client before SeaweedFS.

Both must pass, so the fake behaves as the real client does."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import cast

import pytest

from outrider.adapters.origin import bulk_reply
from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.adapters.origin.http_reply import ReceivedReply
from outrider.core.auth.sigv4 import Credentials
from outrider.core.errors import OriginBroke, StoreUnavailable
from outrider.core.model import Headers
from outrider.core.s3.ranges import parse_content_range
from outrider.metrics import Metrics
from outrider.ports import ByteSink, Origin, OriginReply, OriginRequest, Place
from tests.support.bucket import REGION, Bucket
from tests.support.conditions import Fault as Conditions
from tests.support.conditions import FaultKind
from tests.support.fakes import RAMP, FakeOrigin, Fault, pieces_of, reply_to
from tests.support.simulator import Simulator
from tests.support.tls import Certificate, TlsFront

pytestmark = pytest.mark.lowest

NAME = "contract-origin"
DATA = RAMP[:300_000]
_numbers = count()


class Keys:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def current(self) -> Credentials:
        return Credentials(self._bucket.access_key, self._bucket.secret_key, None)

    async def renew(self, refused: Credentials) -> bool:
        return False


class InThreads:
    """An origin of which each body is received by a thread."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin

    @property
    def endpoint(self) -> str:
        return self._origin.endpoint

    async def ask(self, request: OriginRequest) -> OriginReply:
        return await self._origin.ask(replace(request, bulk=request.method == "GET"))


class Sink(ByteSink):
    """Keeps what comes. `fail_after`: the call of `write` that fails, from 0."""

    is_awaited = True

    def __init__(self, fail_after: int = -1) -> None:
        self.data = bytearray()
        self._fail_after = fail_after
        self.calls = 0
        self.is_over = False

    def write(self, data: memoryview) -> None:
        if self.calls == self._fail_after:
            raise StoreUnavailable("no room")
        self.calls += 1
        assert not self.is_over
        self.data += data

    def check(self) -> None:
        pass

    def ended(self) -> None:
        assert not self.is_over, "once"
        self.is_over = True


class Placed(Sink):
    """A sink with a place where another process may write. With `fail_after` nobody may."""

    def __init__(self, fail_after: int = -1) -> None:
        super().__init__(fail_after)
        self.file = os.memfd_create("sink")
        self._takes_none = os.open("/dev/null", os.O_RDONLY)
        self.count = self.count_written = 0

    def __del__(self) -> None:
        os.close(self.file)
        os.close(self._takes_none)

    def write(self, data: memoryview) -> None:
        super().write(data)
        self.count += os.pwrite(self.file, data, self.count)

    def place(self, count: int) -> Place:
        return Place(self.file if self._fail_after < 0 else self._takes_none, self.count)

    def written(self, count: int, disk_s: float) -> None:
        assert disk_s >= 0.0
        assert not self.is_over
        self.data += os.pread(self.file, count, self.count)
        self.count += count
        self.count_written += count

    def refused(self, error: OSError) -> None:
        assert error.errno == errno.EBADF
        raise StoreUnavailable("no room")


class World:
    """An origin, and the controls that make it break off after some bytes, or answer with a status."""

    def __init__(
        self, origin: Origin, break_after: Callable[[int], None], answer: Callable[[int], None], nowhere: Origin,
        sink: type[Sink] = Sink,
    ) -> None:  # fmt: skip
        self.origin = origin
        self.break_after = break_after
        self.answer = answer
        self.nowhere = nowhere
        self.sink = sink

    async def ask(self, method: str, key: str, *headers: tuple[str, str]) -> tuple[int, dict[str, str], bytes]:
        async with reply_to(self.origin, OriginRequest(method, NAME, key, headers=headers)) as reply:
            if reply.status in (200, 206) and reply.content_length and reply.in_thread:
                body = await received(reply, reply.content_length, self.sink)
            else:
                async with aclosing(pieces_of(reply)) as chunks:
                    body = b"".join([chunk async for chunk in chunks])
            return reply.status, dict(reply.headers), body

    async def put(self, key: str, data: bytes, *headers: tuple[str, str]) -> str:
        request = OriginRequest("PUT", NAME, key, headers=headers, body=pieces(data), body_bytes=len(data))
        async with reply_to(self.origin, request) as reply:
            assert reply.status == 200
            return dict(reply.headers)["etag"]


async def received(reply: OriginReply, length: int, sink_of: type[Sink] = Sink) -> bytes:
    """The body, received in two parts."""
    data = b""
    for part in (length // 3, length - length // 3):
        sink, reported = sink_of(), 0

        def report(count: int, sink: Sink = sink) -> None:
            nonlocal reported
            reported += count
            assert len(sink.data) >= reported

        await reply.receive(part, sink, report)
        assert (reported, len(sink.data), sink.is_over) == (part, part, True)
        data += sink.data
    return data


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 65_536):
        yield data[at : at + 65_536]


@asynccontextmanager
async def http_world(
    bucket: Bucket, simulator: Simulator, *, in_threads: bool, endpoint: str = "", sink: type[Sink] = Sink,
    metrics: Metrics | None = None,
) -> AsyncIterator[World]:  # fmt: skip
    """`endpoint` of the simulator; empty: its own."""
    bucket.make_bucket(NAME)

    def origin(endpoint: str) -> HttpOrigin:
        return HttpOrigin(endpoint, REGION, Keys(bucket), metrics or Metrics(), time.time, connections=8, receivers=1)

    real, nowhere = origin(endpoint or simulator.endpoint), origin("http://127.0.0.1:9")
    await real.open()
    await nowhere.open()

    def break_after(count: int) -> None:
        simulator.conditions.faults = [Conditions(FaultKind.TRUNCATE, after_bytes=count)]

    def answer(status: int) -> None:
        simulator.conditions.faults = [Conditions(FaultKind.STATUS, status=status)]

    try:
        reading: tuple[Origin, Origin] = (InThreads(real), InThreads(nowhere)) if in_threads else (real, nowhere)
        yield World(reading[0], break_after, answer, reading[1], sink)
    finally:
        await real.close()
        await nowhere.close()


@asynccontextmanager
async def fake_world() -> AsyncIterator[World]:
    fake = FakeOrigin(chunk_bytes=65_536)

    def break_after(count: int) -> None:
        fake.faults = [Fault(break_after=count)]

    def answer(status: int) -> None:
        fake.faults = [Fault(status=status)]

    yield World(fake, break_after, answer, FakeOrigin(faults=[Fault(times=None, refuse=True)]))


@pytest.fixture(params=["fake", "http", "threads", "receivers"])
async def world(
    request: pytest.FixtureRequest, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    if request.param == "fake":
        async with fake_world() as world:
            yield world
        return
    bucket, simulator = request.getfixturevalue("bucket"), request.getfixturevalue("simulator")
    if request.param == "receivers":
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.authority))
        with TlsFront(("127.0.0.1", simulator.port), certificate) as front:
            async with http_world(bucket, simulator, in_threads=True, endpoint=front.endpoint, sink=Placed) as world:
                yield world
    else:
        async with http_world(bucket, simulator, in_threads=request.param == "threads") as world:
            yield world


@pytest.fixture
def key() -> str:
    return f"k{next(_numbers)}/a b+c&ключ"


async def test_a_get_returns_the_bytes_of_the_put_with_a_strong_etag_and_length(world: World, key: str) -> None:
    etag = await world.put(key, DATA)
    status, headers, body = await world.ask("GET", key)
    assert (status, body, headers["etag"], headers["content-length"]) == (200, DATA, etag, str(len(DATA)))
    assert etag.startswith('"')


@pytest.mark.parametrize(("method", "length"), [("GET", 1000), ("HEAD", 1000)])
async def test_the_content_length_is_that_of_the_body_a_get_would_have(
    method: str, length: int, world: World, key: str
) -> None:
    await world.put(key, DATA[:length])
    async with reply_to(world.origin, OriginRequest(method, NAME, key)) as reply:
        assert (reply.status, reply.content_length) == (200, length)
        got = b"".join([chunk async for chunk in pieces_of(reply)])
    assert got == (DATA[:length] if method == "GET" else b"")


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [("bytes=0-0", 0, 1), ("bytes=100-199999", 100, 200_000), ("bytes=299999-", 299_999, 300_000),
     ("bytes=200000-900000", 200_000, 300_000), ("bytes=-5", 299_995, 300_000)],
)  # fmt: skip
async def test_a_range_is_a_206_with_a_content_range(
    header: str, start: int, stop: int, world: World, key: str
) -> None:
    await world.put(key, DATA)
    status, headers, body = await world.ask("GET", key, ("range", header))
    found = parse_content_range(headers["content-range"])
    assert found is not None
    assert (status, body, found[0].start, found[0].stop, found[1]) == (206, DATA[start:stop], start, stop, len(DATA))


@pytest.mark.parametrize("size", [0, 5])
async def test_a_range_beyond_the_object_is_a_416(size: int, world: World, key: str) -> None:
    await world.put(key, DATA[:size])
    assert (await world.ask("GET", key, ("range", "bytes=5-9")))[0] == 416


async def test_an_empty_object_is_a_200_without_bytes(world: World, key: str) -> None:
    await world.put(key, b"")
    status, headers, body = await world.ask("GET", key)
    assert (status, body, headers["content-length"]) == (200, b"", "0")


async def test_a_missing_key_is_a_404_with_a_body_for_a_get_and_none_for_a_head(world: World, key: str) -> None:
    status, _, body = await world.ask("GET", key)
    assert (status, b"NoSuchKey" in body) == (404, True)
    assert (await world.ask("HEAD", key))[::2] == (404, b"")


async def test_if_match_holds_or_is_a_412(world: World, key: str) -> None:
    etag = await world.put(key, DATA)
    old: Headers = (("range", "bytes=5-9"), ("if-match", etag))
    assert (await world.ask("GET", key, *old))[::2] == (206, DATA[5:10])
    await world.put(key, DATA[1:])
    assert (await world.ask("GET", key, *old))[0] == 412


async def test_if_none_match_is_a_304_until_the_version_moved(world: World, key: str) -> None:
    etag = await world.put(key, DATA)
    known: Headers = (("range", "bytes=0-9"), ("if-none-match", etag))
    assert (await world.ask("GET", key, *known))[::2] == (304, b"")
    await world.put(key, DATA[1:])
    status, headers, body = await world.ask("GET", key, *known)
    assert (status, body) == (206, DATA[1:11])
    assert headers["etag"] != etag


async def test_a_deleted_object_is_gone(world: World, key: str) -> None:
    await world.put(key, DATA)
    assert (await world.ask("DELETE", key))[0] == 204
    assert (await world.ask("GET", key))[0] == 404


@pytest.mark.parametrize("after", [1, 100_000, 299_999])
async def test_a_body_that_ends_early_is_never_taken_for_whole(after: int, world: World, key: str) -> None:
    await world.put(key, DATA)
    world.break_after(after)
    got = bytearray()

    async def take() -> None:
        async with reply_to(world.origin, OriginRequest("GET", NAME, key)) as reply:
            async for chunk in pieces_of(reply):
                got.extend(chunk)

    with pytest.raises(OriginBroke):
        await take()
    assert bytes(got) == DATA[: len(got)]
    assert len(got) <= after


@pytest.mark.parametrize("after", [1, 100_000, 299_999])
async def test_a_body_that_ends_early_is_never_received_whole(after: int, world: World, key: str) -> None:
    await world.put(key, DATA)
    world.break_after(after)
    sink = world.sink()

    async def take() -> None:
        async with reply_to(world.origin, OriginRequest("GET", NAME, key, bulk=True)) as reply:
            await reply.receive(len(DATA), sink, lambda _: None)

    with pytest.raises(OriginBroke):
        await take()
    assert bytes(sink.data) == DATA[: len(sink.data)]
    assert len(sink.data) <= after


async def test_a_sink_that_fails_ends_the_body_with_its_own_error(world: World, key: str) -> None:
    await world.put(key, DATA)

    async def take() -> None:
        async with reply_to(world.origin, OriginRequest("GET", NAME, key, bulk=True)) as reply:
            await reply.receive(len(DATA), world.sink(fail_after=1), lambda _: None)

    for _ in range(12):  # more than there are connections
        with pytest.raises(StoreUnavailable):
            await take()
    assert (await world.ask("GET", key))[2] == DATA


async def test_the_last_bytes_are_reported_once_nothing_writes_any_more(
    bucket: Bucket, simulator: Simulator, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread has written all, and has not ended yet."""
    written, may_end, run = threading.Event(), threading.Event(), bulk_reply.Receiving.run

    def late(receiving: bulk_reply.Receiving) -> None:
        run(receiving)
        written.set()
        may_end.wait(60)

    monkeypatch.setattr(bulk_reply.Receiving, "run", late)
    async with http_world(bucket, simulator, in_threads=True) as world:
        await world.put(key, DATA)
        async with reply_to(world.origin, OriginRequest("GET", NAME, key, bulk=True)) as reply:
            sink, counts = Sink(), list[int]()
            receiving = asyncio.ensure_future(reply.receive(len(DATA), sink, counts.append))
            await asyncio.sleep(0)  # its first step begins the thread
            assert written.wait(60)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not counts, "the sink is in use"
            may_end.set()
            await receiving
            assert (sum(counts), sink.is_over) == (len(DATA), True)


def _set(begun: asyncio.Event, _: int) -> None:
    begun.set()


async def test_a_body_that_is_given_up_writes_nothing_more(world: World, key: str) -> None:
    await world.put(key, DATA)
    for _ in range(12):
        sink = world.sink()
        async with reply_to(world.origin, OriginRequest("GET", NAME, key, bulk=True)) as reply:
            begun = asyncio.Event()
            receiving = asyncio.ensure_future(reply.receive(len(DATA), sink, partial(_set, begun)))
            await begun.wait()
            receiving.cancel()
            await asyncio.wait([receiving])
            length = len(sink.data)
        assert len(sink.data) == length
    assert (await world.ask("GET", key))[2] == DATA


async def test_a_status_of_the_origin_is_a_reply_like_any_other(world: World, key: str) -> None:
    world.answer(503)
    status, _, body = await world.ask("GET", key)
    assert status == 503
    assert b"<Error>" in body


async def test_no_reply_at_all_is_an_origin_that_broke(world: World, key: str) -> None:
    with pytest.raises(OriginBroke):
        async with reply_to(world.nowhere, OriginRequest("GET", NAME, key)):
            pass


async def test_a_reply_that_is_left_halfway_does_no_harm_to_the_next(world: World, key: str) -> None:
    await world.put(key, DATA)
    for _ in range(12):  # more replies than there are connections
        async with reply_to(world.origin, OriginRequest("GET", NAME, key)) as reply:
            chunks = pieces_of(reply)
            assert DATA.startswith(await anext(chunks))
            await chunks.aclose()
    assert (await world.ask("GET", key))[2] == DATA


@pytest.mark.parametrize("sent", [0, 1000, 299_999])
async def test_a_request_whose_body_fails_stores_nothing(sent: int, world: World, key: str) -> None:
    async def failing() -> AsyncIterator[bytes]:
        if sent:
            yield DATA[:sent]
        raise ValueError("the client left")

    request = OriginRequest("PUT", NAME, key, body=failing(), body_bytes=len(DATA))
    status = None
    try:
        async with asyncio.timeout(60), reply_to(world.origin, request) as reply:
            status = reply.status
    except OriginBroke:
        pass
    assert status is None or status >= 400
    assert (await world.ask("HEAD", key))[0] == 404


async def test_the_origins_name_is_its_endpoint(world: World) -> None:
    assert world.origin.endpoint.startswith(("http://", "https://"))
    assert not world.origin.endpoint.endswith("/")


@pytest.mark.parametrize("in_threads", [False, True])
async def test_what_came_of_a_reply_that_is_given_up_is_counted(
    in_threads: bool, bucket: Bucket, simulator: Simulator, key: str
) -> None:
    metrics = Metrics()
    async with http_world(bucket, simulator, in_threads=in_threads, metrics=metrics) as world:
        await world.put(key, DATA[:60_000])
        origin = world.origin
        counted = partial(metrics.value, "outrider_duplicate_origin_bytes_total", cause="hedge")
        async with reply_to(origin, OriginRequest("GET", NAME, key)) as reply:
            inner = cast("ReceivedReply", reply)
            async with asyncio.timeout(60):
                # The head came with some of the body, which http.client may have buffered.
                while inner._unread_bytes() < 40_000:
                    await asyncio.sleep(0)
            reply.give_up("hedge")
        assert 40_000 <= counted() <= 60_000
        before = counted()
        async with reply_to(origin, OriginRequest("GET", NAME, key, bulk=True)) as reply:
            assert await received(reply, 60_000) == DATA[:60_000]
            reply.give_up("hedge")
        assert counted() == before
