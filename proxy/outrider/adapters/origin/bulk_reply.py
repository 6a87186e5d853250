"""A reply whose body a thread receives: the thread puts it in its place, and the event loop learns how far it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from outrider.adapters.origin.blocking_connection import BlockingConnection
from outrider.adapters.origin.http_reply import Counts, ReceivedReply, in_socket
from outrider.core.errors import OriginBroke
from outrider.futures import retrieve_failure
from outrider.ports import Buffer, ByteSink, Place

T = TypeVar("T")

_READ_BYTES_MIN = 16 * 1024
READ_BYTES_FIRST = 64 * 1024
# More than a socket gives at once costs memory and gains nothing; with less, the system calls cost more.
_READ_BYTES_MAX = 1024 * 1024
# All buffers together take no more than this.
_BUFFERS_BYTES = 8 * 1024 * 1024
# A read of the socket returns once the requested bytes are here: fewer are requested on a slow line, so that a reader
# gets bytes every few milliseconds.
_READ_SLOW_S, _READ_FAST_S = 0.006, 0.002
# A reader that waits learns of new bytes after this time, or after so many: each time costs the loop some 50 us, and
# wakes a thread that takes the GIL.
_REPORT_S, _REPORT_BYTES = 0.005, 1024 * 1024
# After such a silence the sink is asked whether it is what hangs.
_CHECK_S = 1.0
# The thread of a body that is given up ends at once, unless the disk does not answer.
_ABORT_S = 10.0


class NoThread(Exception):
    """No thread can be started for this work."""


class BodyThreads:
    """Threads that receive bodies, or send them. Called on the event loop's thread."""

    def __init__(self, most: int, name: str) -> None:
        self.pool = ThreadPoolExecutor(most, thread_name_prefix=name)
        self.receiving = 0
        """Bodies that are being received."""

    @property
    def buffer_bytes(self) -> int:
        """How many bytes one more body may hold in memory."""
        return max(READ_BYTES_FIRST, min(_READ_BYTES_MAX, _BUFFERS_BYTES // (self.receiving + 1)))

    def begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do `work` in a thread. Raises NoThread: it will not be done."""
        is_wanted = True

        def run() -> T:
            if not is_wanted:
                raise NoThread("too late")
            return work()

        try:
            return asyncio.get_running_loop().run_in_executor(self.pool, run)
        except RuntimeError as error:
            # The executor starts a thread after it has queued the work, and another thread may come to it.
            is_wanted = False
            raise NoThread("none can be started") from error


class BulkReply(ReceivedReply):
    """A reply whose body a thread receives."""

    in_thread = True

    def __init__(
        self, threads: BodyThreads, connection: BlockingConnection, counts: Counts, over: Callable[[], None]
    ) -> None:  # fmt: skip
        """`over` is called once the reply is over, and its thread free: the connection is to be kept, or closed."""
        super().__init__(counts, connection.reader)
        self._threads = threads
        self._over = over
        self._connection = connection
        self._under_way: asyncio.Future[Any] | None = None
        self._closed = False
        self._read_bytes = READ_BYTES_FIRST

    async def _some(self) -> Buffer:
        connection = self._connection
        # No thread is asked for bytes received with the head.
        chunk = connection.held()
        if not chunk and not connection.is_read:
            # One read of the socket: it returns what is here. Each costs two changes of thread.
            wanted_bytes = self._read_bytes
            reading = self._under_way = self._begin(partial(connection.some, wanted_bytes))
            try:
                chunk = await asyncio.shield(reading)
            except asyncio.CancelledError:
                connection.abort()
                raise
            except OriginBroke:
                self._broke()
                raise
            if len(chunk) == wanted_bytes:
                self._read_bytes = min(self._threads.buffer_bytes, 2 * wanted_bytes)
        if connection.is_read:
            self._free_connection()
        self._count(len(chunk))
        return chunk

    def _begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Raises OriginBroke: there is no thread, and the rest has to be requested another way."""
        try:
            return self._threads.begin(work)
        except NoThread as error:
            self._broke()
            raise OriginBroke(f"no thread: {error}") from error

    async def receive(self, count: int, sink: ByteSink, received: Callable[[int], None]) -> None:
        receiving = Receiving(self._connection, count, sink, self._threads.buffer_bytes, self._read_bytes)
        try:
            under_way = self._under_way = self._begin(receiving.run)
        except OriginBroke:
            sink.ended()
            raise
        self._threads.receiving += 1
        under_way.add_done_callback(receiving.report)
        try:
            while not under_way.done():
                try:
                    async with asyncio.timeout(_CHECK_S):
                        await receiving.news()
                except TimeoutError:
                    sink.check()
                # The last bytes are reported once the thread has ended, and with it the use of the sink.
                if (until := receiving.received) < count:
                    self._report(receiving, until, received)
            if self._connection.is_read:
                self._free_connection()
        finally:
            try:
                if not under_way.done():
                    self._connection.abort()
                    # The sink may be closed afterwards: the thread must not use it any more.
                    await asyncio.wait([under_way], timeout=_ABORT_S)
            finally:
                self._threads.receiving -= 1
                self._read_bytes = receiving.read_bytes
                if under_way.done():
                    _over(under_way, sink)
                else:
                    under_way.add_done_callback(partial(_over, sink=sink))
        self._report(receiving, receiving.received, received)
        try:
            under_way.result()
        except OriginBroke:
            self._broke()
            raise

    def _report(self, receiving: Receiving, until: int, received: Callable[[int], None]) -> None:
        more, receiving.reported = until - receiving.reported, until
        if more:
            self._count(more)
            received(more)

    def _unread_bytes(self) -> int:
        return 0 if self._connection.reader.is_over else in_socket(self._connection.socket)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._under_way is None or self._under_way.done():
            self._over()
        else:
            self._connection.abort()
            self._under_way.add_done_callback(self._thread_ended)

    def _thread_ended(self, done: asyncio.Future[Any]) -> None:
        retrieve_failure(done)
        self._over()


class Receiving:
    """Receives bytes of a body in a thread, and reports to the event loop how far it is."""

    def __init__(
        self, connection: BlockingConnection, count: int, sink: ByteSink, buffer_bytes: int, read_bytes: int
    ) -> None:  # fmt: skip
        self._connection = connection
        self._buffer_bytes = buffer_bytes
        self.read_bytes = read_bytes
        """How many bytes are asked of the socket at once."""
        self._count = count
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._is_reported, self._reported_at, self._reported_bytes = True, float("-inf"), 0
        self.received = self.reported = 0
        """Bytes that the sink has, and those that were reported."""

    async def news(self) -> None:
        """Returns when more bytes are here, or it is over."""
        await self._news.wait()
        self._news.clear()
        self._is_reported = True

    def report(self, _: object = None) -> None:
        self._news.set()

    def run(self) -> None:
        """In a thread. Raises OriginBroke, and what the sink raises."""
        buffer = memoryview(bytearray(self._buffer_bytes))
        left = self._count
        while left:
            if self._connection.writes and (place := self._sink.place(left)) is not None:
                self._written_by_receiver(place, left)
                return
            began = time.monotonic()
            got = self._connection.receive_into(buffer[: min(self.read_bytes, left)])
            if not got:
                raise OriginBroke("the body was shorter than it said")
            now = time.monotonic()
            if now - began > _READ_SLOW_S:
                self.read_bytes = max(_READ_BYTES_MIN, self.read_bytes // 2)
            elif now - began < _READ_FAST_S:
                self.read_bytes = min(self._buffer_bytes, self.read_bytes * 2)
            self._sink.write(buffer[:got])
            left -= got
            self._count_received(got, now)

    def _written_by_receiver(self, place: Place, count: int) -> None:
        def progress(more: int, disk_s: float) -> None:
            self._sink.written(more, disk_s)
            self._count_received(more, time.monotonic())

        try:
            hashes = self._connection.write(place, count, progress)
        except OSError as error:
            self._sink.refused(error)
        else:
            if hashes is not None:
                self._sink.hashed(*hashes)

    def _count_received(self, count: int, now: float) -> None:
        self.received += count
        # The end is reported by the future of this work.
        if self.received == self._count or not self._is_reported:
            return
        is_due = now - self._reported_at >= _REPORT_S and self._sink.is_awaited
        if is_due or self.received - self._reported_bytes >= _REPORT_BYTES:
            self._is_reported, self._reported_at, self._reported_bytes = False, now, self.received
            self._loop.call_soon_threadsafe(self.report)


def _over(done: asyncio.Future[None], sink: ByteSink) -> None:
    retrieve_failure(done)
    sink.ended()
