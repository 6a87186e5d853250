"""Fakes at the ports of the engine: origin, clock, tasks, plans."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from outrider.core.ahead.hint_messages import PlanProgress
from outrider.core.errors import OriginBroke
from outrider.core.model import Headers, ObjectRef
from outrider.engine.fill.patience import Patience
from outrider.ports import Buffer, ByteSink, Origin, OriginReply, OriginRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from outrider.core.ahead.hints import Hint
    from outrider.core.model import ObjectRef


def ramp(count: int, start: int = 0) -> bytes:
    """Bytes that show their offset: 251 is prime, so a shift by any number of blocks shows. `start`: the first
    offset."""
    period = bytes((start + i) % 251 for i in range(251))
    return (period * (count // 251 + 1))[:count]


RAMP = ramp(2 * 1024 * 1024)


class FakeClock:
    """Seconds, moved by the test alone."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def no_wait_patience() -> Patience:
    """As many retries as the real patience makes, without waiting."""

    async def at_once(_: float) -> None:
        await asyncio.sleep(0)

    return Patience(sleep=at_once, chance=lambda: 0.0)


class AtOnce(ThreadPoolExecutor):
    """Runs submitted work at once. The same script then always takes the same course, so that Hypothesis can shrink
    it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it is the caller's, as with threads
            future.set_exception(error)
        return future


async def no_patience_ends(seconds: float) -> None:
    """A sleep that ends before its time, but for a wait for something that comes (`wait_for_transfer`)."""
    await (asyncio.Event().wait() if seconds == 1.0 else asyncio.sleep(0))


class FakeTasks:
    """Owns the background work of an engine under test; `settle` waits for all of it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.failures: list[BaseException] = []

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    async def settle(self) -> None:
        """Raises the error with which a task ended: background work must not fail."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self.failures:
            raise self.failures[0]

    async def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Stored:
    """One version in the fake; `etag` None: the origin sends none."""

    data: bytes
    etag: str | None
    headers: Headers = ()


@dataclass(slots=True)
class Fault:
    """A fault of the requests that it matches, `times` times (None: always).

    `status`: this answer instead of the object, with `headers`. `while_`: only then. `break_after`: the body breaks off
    after this many bytes, as with a broken connection. `refuse`: no reply at all. `bug`: an error that no origin may
    raise, at once or after `break_after`. `gate`: the head waits for the event. `body_gate`: the body waits for
    it, after `gate_after` bytes. `shift`: the 206 brings, and names, bytes that lie this much further on.
    """

    times: int | None = 1
    method: str | None = None
    key: str | None = None
    from_byte: int | None = None
    """Where the range that is asked for begins; None: any."""
    status: int | None = None
    body: bytes = b"<Error><Code>Fake</Code></Error>"
    break_after: int | None = None
    refuse: bool = False
    bug: Exception | None = None
    gate: asyncio.Event | None = None
    answer_first: bool = False
    """With `gate`: the reply is made before the wait, so it has the object's state of that moment."""
    body_gate: asyncio.Event | None = None
    gate_after: int = 0
    shift: int = 0
    headers: Headers = ()
    while_: Callable[[], bool] | None = None

    def take(self, request: OriginRequest) -> bool:
        if self.while_ is not None and not self.while_():
            return False
        if self.times == 0 or self.method not in (None, request.method) or self.key not in (None, request.key):
            return False
        extent = dict(request.headers).get("range", "")
        if self.from_byte is not None and not extent.startswith(f"bytes={self.from_byte}-"):
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(slots=True)
class Turned:
    """One bit of the byte at `offset` turns, in the next `times` replies that bring it. `by`: the bit, which is another
    one in each reply unless `same`."""

    offset: int
    times: int
    same: bool = False
    by: int = 1

    def on_the_way(self, data: bytes, start: int) -> bytes:
        if self.times == 0 or not start <= self.offset < start + len(data):
            return data
        self.times -= 1
        at, by = self.offset - start, self.by
        if not self.same:
            self.by = by << 1 if by < 128 else 1
        return data[:at] + bytes([data[at] ^ by]) + data[at + 1 :]


@dataclass(slots=True)
class FakeReply:
    """A reply until `close`."""

    status: int
    headers: Headers
    content_length: int | None
    body: bytes
    fault: Fault | None
    origin: FakeOrigin
    position: int = 0
    rest: Buffer = b""
    is_open: bool = True
    in_thread: bool = False

    async def receive(self, count: int, sink: ByteSink, received: Callable[[int], None]) -> None:
        self.origin.received += 1
        left, piece = count, memoryview(b"")
        try:
            while left:
                self.rest = self.rest or await self.some()
                if not self.rest:
                    raise OriginBroke("the body was shorter than it said")
                piece, self.rest = memoryview(self.rest)[:left], self.rest[left:]
                sink.write(piece)
                left -= len(piece)
                if left:
                    received(len(piece))
        finally:
            sink.ended()
        if piece:
            received(len(piece))

    def give_up(self, cause: str) -> None:
        self.origin.given_up.append(cause)

    def close(self) -> None:
        self.origin.under_way -= self.is_open
        self.is_open = False

    async def some(self) -> Buffer:
        begin, fault = self.position, self.fault
        if begin:
            await asyncio.sleep(0)
        if self.body and fault is not None and fault.break_after is not None and begin >= fault.break_after:
            raise fault.bug or OriginBroke("the fake broke off")
        stop = min(begin + self.origin.chunk_bytes, len(self.body))
        if fault is not None and fault.break_after is not None:
            stop = min(stop, fault.break_after)
        if fault is not None and fault.body_gate is not None and begin < len(self.body):
            if begin >= fault.gate_after:
                await fault.body_gate.wait()
            else:
                stop = min(stop, fault.gate_after)
        self.origin.body_bytes += stop - begin
        self.position = stop
        return self.body[begin:stop]


@dataclass(slots=True)
class FakeOrigin:
    """`ports.Origin` in memory. The knobs may be changed at any time; `log` is all requests in the order in which they
    came."""

    endpoint: str = "http://fake"
    chunk_bytes: int = 1000
    ignore_range: bool = False
    ignore_if_match: bool = False
    weak_etags: bool = False
    no_etags: bool = False
    no_length: bool = False
    range_bytes_max: int = 2**63
    turned: dict[ObjectRef, Turned] = field(default_factory=dict)
    """Objects of which a bit turns on the way."""
    faults: list[Fault] = field(default_factory=list)
    objects: dict[ObjectRef, Stored] = field(default_factory=dict)
    log: list[OriginRequest] = field(default_factory=list)
    body_bytes: int = 0
    given_up: list[str] = field(default_factory=list)
    """The causes for which replies were given up."""
    under_way: int = 0
    received: int = 0
    """How many parts of bodies were received as by a thread."""
    on_write: Callable[[OriginRequest], None] | None = None
    """Called when a write has been carried out, before its reply."""

    def put(self, ref: ObjectRef, data: bytes, headers: Headers = ()) -> str:
        """Write to the origin past the proxy; returns the ETag."""
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        self.objects[ref] = Stored(data, etag, headers)
        return etag

    def delete(self, ref: ObjectRef) -> None:
        self.objects.pop(ref, None)

    def count(self, method: str | None = None) -> int:
        return sum(method in (None, request.method) for request in self.log)

    @property
    def ranges(self) -> list[str]:
        """The Range header of each GET, in order."""
        return [dict(request.headers).get("range", "") for request in self.log if request.method == "GET"]

    async def ask(self, request: OriginRequest) -> FakeReply:
        self.log.append(request)
        fault = next((fault for fault in self.faults if fault.take(request)), None)
        self.under_way += 1
        try:
            reply = await self._reply(request, fault)
        except BaseException:
            self.under_way -= 1
            raise
        reply.in_thread = request.bulk
        return reply

    async def _reply(self, request: OriginRequest, fault: Fault | None) -> FakeReply:
        body = await _read(request)
        early: FakeReply | None = None
        if fault is not None:
            if fault.bug is not None and fault.break_after is None:
                raise fault.bug
            if fault.gate is not None:
                if fault.answer_first:
                    early = self._answer(request, body, fault)
                await fault.gate.wait()
            if fault.refuse:
                raise OriginBroke("the fake refused")
            if fault.status is not None:
                headers = (("content-type", "application/xml"), *fault.headers)
                error = b"" if request.method == "HEAD" else fault.body
                return FakeReply(fault.status, headers, len(error), error, fault, self)
        await asyncio.sleep(0)
        return early or self._answer(request, body, fault)

    def _answer(self, request: OriginRequest, body: bytes | None, fault: Fault | None) -> FakeReply:
        assert request.bucket is not None
        ref = ObjectRef(request.bucket, request.key)
        if request.method in ("GET", "HEAD"):
            return self._read(request, ref, fault)
        if request.method == "PUT":
            etag = self.put(ref, body or b"")
            headers: Headers = (("etag", etag),)
        elif request.method == "DELETE":
            self.delete(ref)
            headers = ()
        else:
            headers = ()
        if self.on_write is not None:
            self.on_write(request)
        return FakeReply(204 if request.method == "DELETE" else 200, headers, 0, b"", fault, self)

    def _read(self, request: OriginRequest, ref: ObjectRef, fault: Fault | None) -> FakeReply:
        given = dict(request.headers)
        stored = self.objects.get(ref)
        if stored is None:
            return self._refusal(request, 404, b"<Error><Code>NoSuchKey</Code></Error>", fault)
        wanted = given.get("if-match")
        if wanted is not None and wanted != stored.etag and not self.ignore_if_match:
            return self._refusal(request, 412, b"<Error><Code>PreconditionFailed</Code></Error>", fault)
        headers = self._headers(stored)
        if stored.etag is not None and given.get("if-none-match") == stored.etag:
            return FakeReply(304, headers, None, b"", fault, self)
        size = len(stored.data)
        status, start, stop = 200, 0, size
        if "range" in given and not self.ignore_range:
            first, last = given["range"].removeprefix("bytes=").split("-")
            start, stop = (
                (int(first), min(int(last) + 1, size) if last else size) if first else (size - int(last), size)
            )
            start = max(0, start) + (0 if fault is None else fault.shift)
            if start >= stop:
                return self._refusal(request, 416, b"<Error><Code>InvalidRange</Code></Error>", fault)
            status, stop = 206, min(stop, start + self.range_bytes_max)
            headers = tuple(pair for pair in headers if not pair[0].startswith("x-amz-checksum-"))
            headers += (("content-range", f"bytes {start}-{stop - 1}/{size}"),)
        data = stored.data[start:stop]
        if (turned := self.turned.get(ref)) is not None and request.method == "GET":
            data = turned.on_the_way(data, start)
        length = None if self.no_length else len(data)
        if length is not None:
            headers += (("content-length", str(length)),)
        return FakeReply(status, headers, length, b"" if request.method == "HEAD" else data, fault, self)

    def _headers(self, stored: Stored) -> Headers:
        headers: Headers = (*stored.headers, ("accept-ranges", "bytes"))
        if stored.etag is None or self.no_etags:
            return headers
        return (*headers, ("etag", f"W/{stored.etag}" if self.weak_etags else stored.etag))

    def _refusal(self, request: OriginRequest, status: int, body: bytes, fault: Fault | None) -> FakeReply:
        body = b"" if request.method == "HEAD" else body
        return FakeReply(status, (("content-type", "application/xml"),), len(body), body, fault, self)


async def _read(request: OriginRequest) -> bytes | None:
    """The body of the request. As with a real connection, a body that fails or is too short does not arrive whole."""
    if request.body is None:
        return None
    body = bytearray()
    try:
        async for piece in request.body:
            body += piece
    except Exception as error:
        raise OriginBroke("the request's body broke") from error
    if request.body_bytes is not None and len(body) != request.body_bytes:
        raise OriginBroke("the request's body has another length than it said")
    return bytes(body)


DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Piece:
    """One call of `announce`."""

    client: str
    urls: tuple[str, ...]
    start: int
    total: int | None


@dataclass(slots=True)
class RecordedPlans:
    """The proxy's loop calls it, a test's thread reads it."""

    pieces: list[Piece] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def announce(self, client: str, refs: Sequence[ObjectRef], *, start: int, total: int | None, hint: Hint) -> None:
        with self._changed:
            self.pieces.append(Piece(client, tuple(map(str, refs)), start, total))
            self._changed.notify_all()

    def withdraw(self, hint: Hint, others: Iterable[Hint]) -> int:
        return 0

    async def progress(self, hint: Hint) -> PlanProgress:
        return PlanProgress()

    @property
    def urls(self) -> list[str]:
        """All URLs, in the order in which they were announced."""
        return [url for piece in self.pieces for url in piece.urls]

    def wait(self, until: Callable[[RecordedPlans], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: until(self), DEADLINE_S), self.pieces


class Body(Protocol):
    async def some(self) -> Buffer: ...


@asynccontextmanager
async def reply_to(origin: Origin, request: OriginRequest) -> AsyncIterator[OriginReply]:
    """The reply, which is closed at the end of the context."""
    reply = await origin.ask(request)
    try:
        yield reply
    finally:
        reply.close()


async def pieces_of(reply: Body) -> AsyncGenerator[bytes, None]:
    """The body as it arrives."""
    while piece := await reply.some():
        yield bytes(piece)
