"""Receives large bodies of the origin in threads: a thread that waits in `recv_into` or `pwrite` holds no GIL.

Each request is sent, and its reply's head read, by `http.client` on a blocking socket. The body is then received into
one buffer and handed on from there (`ports.ByteSink`), all in one thread. The event loop hears how far it is, and moves
no bytes. The large body of a request is sent in the same way (`pass_on`), in one of a few threads of their own.

Only plain http comes here. Over https each TLS record (16 KiB) releases and takes the GIL, and threads on several cores
then wait for each other: neither TLS sockets in threads nor threads that decrypt from memory were faster than the event
loop (docs/benchmarks.md, the receiving path).
"""

from __future__ import annotations

import asyncio
import http.client
import select
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from cachetools import TTLCache

from outrider.adapters.origin.blocking_exchange import Exchange, NoThread, Response, Unfit
from outrider.adapters.origin.bulk_reply import READ_BYTES_FIRST, BulkReply, closes
from outrider.adapters.origin.endpoint import Endpoint
from outrider.adapters.origin.http_reply import Counts
from outrider.core.errors import OriginBroke
from outrider.ports import BodyInThread

T = TypeVar("T")

# An endpoint that sent a head which cannot be read here is asked by the other client for this time.
_UNFIT_S = 600.0
_ENDPOINTS_MAX = 1000
# As aiohttp's connections: idle ones are closed after this time.
_IDLE_S = 20.0
# Threads that send bodies. More uploads than that go through the event loop: the clients of some may be slow.
_SENDERS = 32
# More than a socket gives at once costs memory and gains nothing; with less, the system calls cost more.
_READ_BYTES_MAX = 1024 * 1024
# All buffers together take no more than this.
_BUFFERS_BYTES = 8 * 1024 * 1024


class BulkClient:
    """Owns the threads and the idle connections. Called on the event loop's thread."""

    def __init__(
        self, threads: int, counts: Counts, *, connect_timeout_s: float, read_timeout_s: float, small_bytes: int = 0
    ) -> None:  # fmt: skip
        """`threads`: how many requests may be under way. One more is refused, and never waits for a thread.
        `small_bytes`: bodies up to this size are received with the head of their reply, by one hop to a thread."""
        self._counts = counts
        self._free = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="outrider-receive")
        self._senders = ThreadPoolExecutor(_SENDERS, thread_name_prefix="outrider-send")
        self._senders_free = _SENDERS
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._small_bytes = small_bytes
        self._idle: dict[tuple[str, str], list[tuple[http.client.HTTPConnection, float]]] = {}
        self._closing: asyncio.TimerHandle | None = None
        self._unfit: TTLCache[str, None] = TTLCache(_ENDPOINTS_MAX, _UNFIT_S)
        self.receiving = 0
        """Bodies that are being received."""

    def can_reach(self, target: Endpoint) -> bool:
        """False: the way leads over TLS, or replies from there could not be read here."""
        secure = target.base.startswith("https:") or (
            target.proxy.url is not None and target.proxy.url.scheme != "http"
        )
        return not secure and target.url not in self._unfit

    async def get(self, target: Endpoint, path: str, headers: Mapping[str, str]) -> BulkReply:
        """Send a GET. `path`: percent-encoded, with the query.

        Raises:
            OriginBroke: no reply came. Unfit: it cannot be read here. NoThread: nothing was sent.
        """
        if not self._free:
            # Threads hang where the disk does.
            raise NoThread("all are in use")
        exchange = self._exchange(target, "GET", path, headers, self._read_timeout_s)
        try:
            head = self.begin(exchange.run)
        except NoThread:
            exchange.connection.close()
            raise
        return await self._reply(target, exchange, head)

    async def send(
        self, method: str, target: Endpoint, path: str, headers: Mapping[str, str], body: BodyInThread,
        timeout_s: float,
    ) -> BulkReply | None:  # fmt: skip
        """Send a request whose body a thread takes from the client. None: nothing was sent, and the body is where it
        was. `timeout_s` bounds each wait for the origin.

        Raises:
            OriginBroke: no reply came, or none that can be read here; or the body failed.
        """
        if self._senders_free == 0 or self._free == 0 or not body.begin():
            return None
        self._senders_free -= 1

        def sent(_: object) -> None:
            self._senders_free += 1
            body.end()

        exchange = self._exchange(target, method, path, headers, timeout_s, body)
        try:
            head = self._begin(self._senders, exchange.run)
        except NoThread as error:
            exchange.connection.close()
            sent(None)
            raise OriginBroke(f"no thread: {error}") from error
        head.add_done_callback(sent)
        try:
            return await self._reply(target, exchange, head)
        except Unfit as error:
            raise OriginBroke(str(error)) from error

    def _exchange(
        self, target: Endpoint, method: str, path: str, headers: Mapping[str, str], timeout_s: float,
        body: BodyInThread | None = None,
    ) -> Exchange:  # fmt: skip
        key = (target.url, str(target.proxy.url))
        connection, is_used = self._idle_connection(key), True
        if connection is None:
            connection, is_used = self._new_connection(target), False
        if target.proxy.url is not None:
            path = f"{target.base}{path}"
        return Exchange(
            key, connection, method, path, headers, self._connect_timeout_s, timeout_s, is_used=is_used, body=body,
            small_bytes=self._small_bytes,
        )  # fmt: skip

    async def _reply(self, target: Endpoint, exchange: Exchange, head: asyncio.Future[Response]) -> BulkReply:
        self._free -= 1
        try:
            response = await asyncio.shield(head)
        except asyncio.CancelledError:
            exchange.abort()
            head.add_done_callback(closes(exchange.connection, self))
            raise
        except BaseException as error:
            exchange.connection.close()
            self.give_back()
            if isinstance(error, Unfit):
                self._unfit[target.url] = None
            raise
        return BulkReply(self, exchange.key, exchange, response, self._counts)

    @property
    def buffer_bytes(self) -> int:
        """How many bytes one more body may hold in memory."""
        return max(READ_BYTES_FIRST, min(_READ_BYTES_MAX, _BUFFERS_BYTES // (self.receiving + 1)))

    def begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do `work` in a thread. Raises NoThread: it will not be done."""
        return self._begin(self._threads, work)

    def _begin(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> asyncio.Future[T]:
        job = _Job(work)
        try:
            return asyncio.get_running_loop().run_in_executor(threads, job.run)
        except RuntimeError as error:
            # The executor starts a thread after it has queued the work, and another thread may come to it.
            job.is_wanted = False
            raise NoThread("none can be started") from error

    def give_back(self) -> None:
        """A request is over, and its thread free."""
        self._free += 1

    def _new_connection(self, target: Endpoint) -> http.client.HTTPConnection:
        origin, proxy = urlsplit(target.base), target.proxy.url
        assert origin.hostname is not None
        near = (origin.hostname, origin.port or 80) if proxy is None else (proxy.host or "", proxy.port or 80)
        connection = http.client.HTTPConnection(*near, timeout=self._connect_timeout_s)
        connection.response_class = Response
        return connection

    # -- idle connections -------------------------------------------------------------------------------------------

    def _idle_connection(self, key: tuple[str, str]) -> http.client.HTTPConnection | None:
        idle = self._idle.get(key, [])
        while idle:
            connection, since = idle.pop()
            if time.monotonic() - since < _IDLE_S and not _was_closed(connection):
                return connection
            connection.close()
        return None

    def keep(self, key: tuple[str, str], connection: http.client.HTTPConnection) -> None:
        """The connection is free for the next request."""
        self._idle.setdefault(key, []).append((connection, time.monotonic()))
        if self._closing is None:
            self._closing = asyncio.get_running_loop().call_later(_IDLE_S, self._close_old)

    def _close_old(self) -> None:
        self._closing, before = None, time.monotonic() - _IDLE_S
        for key, idle in list(self._idle.items()):
            for connection, since in idle:
                if since <= before:
                    connection.close()
            self._idle[key] = [(connection, since) for connection, since in idle if since > before]
            if not self._idle[key]:
                del self._idle[key]
        if self._idle:
            self._closing = asyncio.get_running_loop().call_later(_IDLE_S, self._close_old)

    def close_idle(self) -> None:
        for idle in self._idle.values():
            for connection, _ in idle:
                connection.close()
        self._idle.clear()

    def close(self) -> None:
        """No request is under way any more."""
        if self._closing is not None:
            self._closing.cancel()
        self.close_idle()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._senders.shutdown(wait=False, cancel_futures=True)


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.is_wanted = True

    def run(self) -> T:
        if not self.is_wanted:
            raise NoThread("too late")
        return self._work()


def _was_closed(connection: http.client.HTTPConnection) -> bool:
    """Whether the origin has closed an idle connection, or sent what nobody asked for."""
    if connection.sock is None:
        return True
    look = select.poll()
    look.register(connection.sock, select.POLLIN)
    return bool(look.poll(0))
