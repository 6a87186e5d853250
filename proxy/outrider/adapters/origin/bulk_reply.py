"""A reply whose body a thread receives: the thread puts it where it belongs, and the event loop hears how far it is."""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from outrider.adapters.origin.blocking_exchange import Exchange, NoThread, Response, described
from outrider.adapters.origin.http_reply import Counts, Reply
from outrider.core.errors import OriginBroke
from outrider.ports import ByteSink

T = TypeVar("T")

_READ_BYTES_MIN = 16 * 1024
READ_BYTES_FIRST = 64 * 1024
# A read of the socket returns once the asked bytes are here: fewer are asked for on a slow line, so that a reader gets
# bytes every few milliseconds.
_READ_SLOW_S, _READ_FAST_S = 0.006, 0.002
# A reader that waits is told of new bytes after this time, or after so many: each time costs the loop some 50 us, and
# wakes a thread that takes the GIL.
_TELL_S, _TELL_BYTES = 0.005, 1024 * 1024
# After such a silence the sink is asked whether it is what hangs.
_CHECK_S = 1.0
# The thread of a body that is given up ends at once, unless the disk does not answer.
_ABORT_S = 10.0


class Client(Protocol):
    """The owner of the threads and connections, as far as a reply needs it."""

    receiving: int
    """Bodies that are being received."""

    @property
    def buffer_bytes(self) -> int: ...

    def begin(self, work: Callable[[], T]) -> asyncio.Future[T]: ...

    def give_back(self) -> None: ...

    def keep(self, key: tuple[str, str], connection: http.client.HTTPConnection) -> None: ...


class BulkReply(Reply):
    """A reply whose body a thread receives."""

    def __init__(
        self, client: Client, key: tuple[str, str], exchange: Exchange, response: Response,
        counts: Counts,
    ) -> None:  # fmt: skip
        self._client = client
        self._key = key
        self._exchange = exchange
        self._response = response
        self._length = response.length
        self._close_if_whole()
        self._under_way: asyncio.Future[Any] | None = None
        self._closed = False
        self._read_bytes = READ_BYTES_FIRST
        headers = tuple(
            (name.lower(), value.encode("latin-1", "replace").decode("utf-8", "surrogateescape").strip(" \t"))
            for name, value in response.getheaders()
        )
        super().__init__(counts, response.status, headers)

    @property
    def _told_length(self) -> int | None:
        return self._length

    async def _some(self) -> bytes:
        chunk = await self._read_some()
        if not chunk and self._response.length:
            self._broke()
            raise OriginBroke("the body was shorter than it said")
        if not chunk or self._response.isclosed():
            self._whole()
        self._came(len(chunk))
        return chunk

    async def _read_some(self) -> bytes:
        if self._response.isclosed():
            return b""
        if held := self._response.take_held():
            # They came with the head: no thread is asked.
            self._close_if_whole()
            return held
        # One read of the socket: it returns what is here. Each costs two changes of thread.
        asked_bytes = self._read_bytes
        reading = self._begin(lambda: self._response.read1(asked_bytes))
        self._under_way = reading
        try:
            chunk = await asyncio.shield(reading)
            if len(chunk) == asked_bytes:
                self._read_bytes = min(self._client.buffer_bytes, 2 * asked_bytes)
            self._close_if_whole()
            return chunk
        except asyncio.CancelledError:
            self._exchange.abort()
            raise
        except (OSError, http.client.HTTPException) as error:
            self._broke()
            raise OriginBroke(described(error)) from error

    def _close_if_whole(self) -> None:
        # `http.client` does so in some of its ways to read, not in `read1`, nor for a body without a byte.
        if self._response.length == 0:
            self._response.close()

    def _begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Raises OriginBroke: there is no thread, and the rest has to be asked for another way."""
        try:
            return self._client.begin(work)
        except NoThread as error:
            self._broke()
            raise OriginBroke(f"no thread: {error}") from error

    async def receive(self, count: int, sink: ByteSink) -> AsyncGenerator[int, None]:
        receiving = Receiving(self._response, count, sink, self._client.buffer_bytes, self._read_bytes)
        try:
            under_way = self._under_way = self._begin(receiving.run)
        except OriginBroke:
            sink.ended()
            raise
        self._client.receiving += 1
        under_way.add_done_callback(receiving.tell)
        told = 0
        try:
            while not under_way.done():
                try:
                    async with asyncio.timeout(_CHECK_S):
                        await receiving.news()
                except TimeoutError:
                    sink.check()
                # The last bytes are told once the thread has ended, and with it the use of the sink.
                received = receiving.received
                if received < count and (came := received - told):
                    told += came
                    self._came(came)
                    yield came
            if self._response.isclosed():
                self._whole()
        finally:
            try:
                if not under_way.done():
                    self._exchange.abort()
                    # The sink may be closed afterwards: the thread must not use it any more.
                    await asyncio.wait([under_way], timeout=_ABORT_S)
            finally:
                self._client.receiving -= 1
                self._read_bytes = receiving.read_bytes
                if under_way.done():
                    _over(under_way, sink)
                else:
                    under_way.add_done_callback(partial(_over, sink=sink))
        if came := receiving.received - told:
            self._came(came)
            yield came
        try:
            under_way.result()
        except OriginBroke:
            self._broke()
            raise

    def _unread_bytes(self) -> int:
        # The buffer of http.client is left out, since it is small.
        return 0 if self._response.isclosed() else self._exchange.unread_bytes()

    def _close(self) -> None:
        """Keep the connection if the body was read whole; else give it up."""
        if self._closed:
            return
        self._closed = True
        under_way = self._under_way
        if under_way is not None and not under_way.done():
            self._exchange.abort()
            under_way.add_done_callback(closes(self._exchange.connection, self._client))
            return
        self._client.give_back()
        if self._response.isclosed() and not self._response.will_close:
            self._client.keep(self._key, self._exchange.connection)
        else:
            self._response.close()
            self._exchange.connection.close()


class Receiving:
    """Receives bytes of a body in a thread, and tells the event loop how far it is."""

    def __init__(self, response: Response, count: int, sink: ByteSink, buffer_bytes: int, read_bytes: int) -> None:
        self._response = response
        self._buffer_bytes = buffer_bytes
        self.read_bytes = read_bytes
        """How many bytes are asked of the socket at once."""
        self._count = count
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._told = True
        self.received = 0
        """Bytes that the sink has."""

    async def news(self) -> None:
        """Returns when more bytes are here, or it is over."""
        await self._news.wait()
        self._news.clear()
        self._told = True

    def tell(self, _: object = None) -> None:
        self._news.set()

    def run(self) -> None:
        """In a thread. Raises OriginBroke, and what the sink raises."""
        buffer = memoryview(bytearray(self._buffer_bytes))
        left = self._count
        told_at, told = float("-inf"), 0
        while left:
            began = time.monotonic()
            try:
                got = self._response.receive_into(buffer[: min(self.read_bytes, left)])
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise OriginBroke(described(error)) from error
            if not got:
                raise OriginBroke("the body was shorter than it said")
            now = time.monotonic()
            if now - began > _READ_SLOW_S:
                self.read_bytes = max(_READ_BYTES_MIN, self.read_bytes // 2)
            elif now - began < _READ_FAST_S:
                self.read_bytes = min(self._buffer_bytes, self.read_bytes * 2)
            self._sink.write(buffer[:got])
            left -= got
            self.received += got
            # The end is told by the future of this work.
            due = self._sink.is_awaited and now - told_at >= _TELL_S
            if left and self._told and (due or self.received - told >= _TELL_BYTES):
                self._told, told_at, told = False, now, self.received
                self._loop.call_soon_threadsafe(self.tell)


def _over(done: asyncio.Future[None], sink: ByteSink) -> None:
    if not done.cancelled():
        done.exception()
    sink.ended()


def closes(connection: http.client.HTTPConnection, client: Client) -> Callable[[asyncio.Future[T]], None]:
    """A callback that closes a connection once the thread that uses it has ended."""

    def close(done: asyncio.Future[T]) -> None:
        if not done.cancelled():
            done.exception()
        connection.close()
        client.give_back()

    return close
