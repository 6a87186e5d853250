"""Receives large bodies of the origin in threads: a thread that waits in `recv_into` or `pwrite` holds no GIL.

Each request is sent, and its reply's head read, by `http.client` on a blocking socket. The body is then received into
one buffer and handed on from there (`ports.ByteSink`), all in one thread. The event loop hears how far it is, and moves
no bytes. The large body of a request is sent in the same way (`pass_on`), in one of a few threads of their own.

Only plain http comes here. Over https each read of a TLS record (16 KiB) releases and takes the GIL; many threads then
wait for each other. With four readers of an origin without limits (the loads `line-http-4` and `line-https-4` of `make
bench`), the proxy took 0.84 x the CPU of aiohttp's way over http, and 1.5 x over https.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import re
import select
import socket
import struct
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from cachetools import TTLCache

from outrider.adapters.origin.endpoint import Endpoint
from outrider.adapters.origin.http_reply import Counts, Reply, in_socket
from outrider.adapters.origin.pass_on import pass_on
from outrider.core.errors import OriginBroke, S3Error
from outrider.ports import BodyInThread, ByteSink, Chunks

T = TypeVar("T")

# Far above the head of any reply of S3.
_HEAD_BYTES_MAX = 256 * 1024
_HEAD_READ_BYTES = 16 * 1024
_HEAD = re.compile(rb"HTTP/1\.[01] [1-5][0-9]{2}[^\r\n\0]*\r\n(?:[!-9;-~]+:[^\r\n\0]*\r\n)*\r\n")
_FRAMING = re.compile(rb"\r\n(?:content-length|transfer-encoding):", re.IGNORECASE)
# An endpoint that sent a head which cannot be read here is asked by the other client for this time.
_UNFIT_S = 600.0
_ENDPOINTS_MAX = 1000
# As aiohttp's connections: idle ones are closed after this time.
_IDLE_S = 20.0
# More than a socket gives at once costs memory and gains nothing; with less, the system calls cost more.
_READ_BYTES_MAX = 512 * 1024
# All buffers together take no more than this.
_BUFFERS_BYTES = 8 * 1024 * 1024
_READ_BYTES_MIN = 16 * 1024
_READ_BYTES_FIRST = 64 * 1024
# A read of the socket returns once the asked bytes are here: fewer are asked for on a slow line, so that a reader gets
# bytes every few milliseconds.
_READ_SLOW_S, _READ_FAST_S = 0.006, 0.002
# A reader that waits is told of new bytes after this time, or after so many: each time costs the loop some 50 us, and
# wakes a thread that takes the GIL.
_TELL_S, _TELL_BYTES = 0.005, 1024 * 1024
# After such a silence the sink is asked whether it is what hangs.
_CHECK_S = 1.0
# Threads that send bodies. More uploads than that go through the event loop: the clients of some may be slow.
_SENDERS = 32
# The thread of a body that is given up ends at once, unless the disk does not answer.
_ABORT_S = 10.0


class Unfit(Exception):
    """`http.client` cannot read this reply: the request has to be sent another way."""


class BulkClient:
    """Owns the threads and the idle connections. Called on the event loop's thread."""

    def __init__(self, threads: int, counts: Counts, *, connect_timeout_s: float, read_timeout_s: float) -> None:
        """`threads`: how many requests may be under way."""
        self._counts = counts
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="outrider-receive")
        self._senders = ThreadPoolExecutor(_SENDERS, thread_name_prefix="outrider-send")
        self._senders_free = _SENDERS
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
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
            OriginBroke: no reply came. Unfit: it cannot be read here.
        """
        exchange = self._exchange(target, "GET", path, headers, self._read_timeout_s)
        return await self._reply(target, exchange, self.begin(exchange.run))

    async def send(
        self, method: str, target: Endpoint, path: str, headers: Mapping[str, str], body: BodyInThread,
        timeout_s: float,
    ) -> BulkReply | None:  # fmt: skip
        """Send a request whose body a thread takes from the client. None: nothing was sent, and the body is where it
        was. `timeout_s` bounds each wait for the origin.

        Raises:
            OriginBroke: no reply came, or none that can be read here; or the body failed.
        """
        if self._senders_free == 0 or not body.begin():
            return None
        self._senders_free -= 1

        def sent(_: object) -> None:
            self._senders_free += 1
            body.end()

        exchange = self._exchange(target, method, path, headers, timeout_s, body)
        head = asyncio.get_running_loop().run_in_executor(self._senders, exchange.run)
        head.add_done_callback(sent)
        try:
            return await self._reply(target, exchange, head)
        except Unfit as error:
            raise OriginBroke(str(error)) from error

    def _exchange(
        self, target: Endpoint, method: str, path: str, headers: Mapping[str, str], timeout_s: float,
        body: BodyInThread | None = None,
    ) -> _Exchange:  # fmt: skip
        key = (target.url, str(target.proxy.url))
        connection, is_used = self._idle_connection(key), True
        if connection is None:
            connection, is_used = self._new_connection(target), False
        if target.proxy.url is not None:
            path = f"{target.base}{path}"
        return _Exchange(
            key, connection, method, path, headers, self._connect_timeout_s, timeout_s, is_used=is_used, body=body
        )  # fmt: skip

    async def _reply(self, target: Endpoint, exchange: _Exchange, head: asyncio.Future[_Response]) -> BulkReply:
        try:
            response = await asyncio.shield(head)
        except asyncio.CancelledError:
            exchange.abort()
            head.add_done_callback(_closes(exchange.connection))
            raise
        except BaseException as error:
            exchange.connection.close()
            if isinstance(error, Unfit):
                self._unfit[target.url] = None
            raise
        return BulkReply(self, exchange.key, exchange, response, self._counts)

    @property
    def buffer_bytes(self) -> int:
        """How many bytes one more body may hold in memory."""
        return max(_READ_BYTES_FIRST, min(_READ_BYTES_MAX, _BUFFERS_BYTES // (self.receiving + 1)))

    def begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _new_connection(self, target: Endpoint) -> http.client.HTTPConnection:
        origin, proxy = urlsplit(target.base), target.proxy.url
        assert origin.hostname is not None
        near = (origin.hostname, origin.port or 80) if proxy is None else (proxy.host or "", proxy.port or 80)
        connection = http.client.HTTPConnection(*near, timeout=self._connect_timeout_s)
        connection.response_class = _Response
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

    def close(self) -> None:
        """No request is under way any more."""
        if self._closing is not None:
            self._closing.cancel()
        for idle in self._idle.values():
            for connection, _ in idle:
                connection.close()
        self._idle.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._senders.shutdown(wait=False, cancel_futures=True)


class _Response(http.client.HTTPResponse):
    """A reply whose head is parsed by `http.client`, and whose body may be received past its buffer."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        self.stream = _Stream(sock)
        super().__init__(self.stream, *args, **options)  # type: ignore[arg-type]  # only `makefile` is asked of it

    def receive_into(self, buffer: memoryview) -> int:
        """The next bytes of the body, as many as the buffer takes unless the body or the line ends before. Only for a
        body whose length was told. Raises OSError."""
        if self.length is None or self.chunked:
            return self.readinto(buffer)
        count = self.stream.receive_into(buffer[: self.length])
        self.length -= count
        if self.length == 0:
            # As `http.client` does after the last byte.
            self._close_conn()  # type: ignore[attr-defined]
        return count


class _Stream(io.RawIOBase):
    """The bytes of a connection: first the head of a reply and nothing else, so that no buffer holds a part of the body
    when the head was read."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        # `http.client` closes a connection that ends with this reply; the socket stays open while this file is.
        self._file = sock.makefile("rb", buffering=0)
        self._head = b""
        self._body = b""
        self._whole_head = False

    def makefile(self, *_: object, **__: object) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._whole_head:
            self._read_head()
        if self._head:
            count = min(len(buffer), len(self._head))
            buffer[:count], self._head = self._head[:count], self._head[count:]
            return count
        if self._body:
            count = min(len(buffer), len(self._body))
            buffer[:count], self._body = self._body[:count], self._body[count:]
            return count
        return _in_time(self._socket.recv_into, buffer)

    def _read_head(self) -> None:
        """Receives until the empty line, an end, or more than any head may have."""
        came = b""
        while b"\r\n\r\n" not in came and b"\n\n" not in came and len(came) < _HEAD_BYTES_MAX:
            more = _in_time(self._socket.recv, _HEAD_READ_BYTES)
            if not more:
                break
            came += more
        ends = [at + len(mark) for mark in (b"\r\n\r\n", b"\n\n") if (at := came.find(mark)) >= 0]
        # An interim reply (100) is a head of its own; the next one is read as a body is.
        stop = min(ends, default=len(came))
        self._head, self._body, self._whole_head = came[:stop], came[stop:], True
        # `http.client` takes a bare CR for the end of a line, a line that is no field for the end of the head, and the
        # first of several lengths.
        if self._head and not (_HEAD.fullmatch(self._head) and len(_FRAMING.findall(self._head)) <= 1):
            raise http.client.HTTPException("a head that is read elsewhere")

    def receive_into(self, buffer: memoryview) -> int:
        held = min(len(buffer), len(self._body))
        if held:
            buffer[:held], self._body = self._body[:held], self._body[held:]
            return held
        return _in_time(self._socket.recv_into, buffer, len(buffer), socket.MSG_WAITALL)

    def close(self) -> None:
        self._file.close()
        super().close()


def _in_time(call: Callable[..., T], *args: object) -> T:
    """A system call on a socket with SO_RCVTIMEO. Raises TimeoutError."""
    try:
        return call(*args)
    except BlockingIOError as error:
        raise TimeoutError("timed out") from error


class _ConnectTimedOut(TimeoutError):
    """Nobody answers at the address."""


class _Exchange:
    """One request and the head of its reply, in a thread. `abort` may come from another thread at any time."""

    def __init__(
        self, key: tuple[str, str], connection: http.client.HTTPConnection, method: str, path: str,
        headers: Mapping[str, str], connect_timeout_s: float, read_timeout_s: float, *, is_used: bool,
        body: BodyInThread | None,
    ) -> None:  # fmt: skip
        """`is_used`: another request came before on this connection. `body` None: no body."""
        self.key = key
        self.connection = connection
        self._method = method
        self._body = body
        self._path = path
        self._headers = headers
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._is_used = is_used
        self._aborted = False
        # `http.client` forgets the socket of a reply that ends its connection.
        self._socket: socket.socket | None = connection.sock

    def run(self) -> _Response:
        try:
            try:
                return self._send()
            except (ConnectionError, http.client.RemoteDisconnected):
                # The origin closed an idle connection in the moment in which it was used. A GET may be sent again.
                if not self._is_used or self._aborted or self._body is not None:
                    raise
                self.connection.close()
                return self._send()
        except S3Error as error:
            raise OriginBroke("the body of the client failed") from error
        except (ConnectionError, TimeoutError, socket.gaierror) as error:
            raise OriginBroke(described(error)) from error
        except (http.client.RemoteDisconnected, http.client.BadStatusLine) as error:
            raise OriginBroke(described(error)) from error
        except http.client.HTTPException as error:
            raise Unfit(described(error)) from error
        except OSError as error:
            raise OriginBroke(described(error)) from error

    def _send(self) -> _Response:
        connection = self.connection
        if connection.sock is None:
            connection.timeout = self._connect_timeout_s
            try:
                connection.connect()
            except TimeoutError as error:
                raise _ConnectTimedOut from error
        _bound(connection.sock, self._read_timeout_s)
        self._socket = connection.sock
        if self._aborted:
            raise ConnectionAbortedError("given up")
        connection.putrequest(self._method, self._path, skip_host=True, skip_accept_encoding=True)
        for name, value in self._headers.items():
            connection.putheader(name, value.encode("utf-8", "surrogateescape"))
        is_whole = True
        if self._body is None:
            connection.endheaders()
        else:
            is_whole = pass_on(self._body, connection.endheaders, connection.sock, self._read_timeout_s)
        response = connection.getresponse()
        assert isinstance(response, _Response)
        if not is_whole:
            response.will_close = True
        return response

    def abort(self) -> None:
        """End the wait of the thread that sends or receives."""
        self._aborted = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def unread_bytes(self) -> int:
        """How many bytes the kernel has received that were not read."""
        return in_socket(self._socket)


class BulkReply(Reply):
    """A reply whose body a thread receives."""

    def __init__(
        self, client: BulkClient, key: tuple[str, str], exchange: _Exchange, response: _Response,
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
        self._read_bytes = _READ_BYTES_FIRST
        headers = tuple(
            (name.lower(), value.encode("latin-1", "replace").decode("utf-8", "surrogateescape").strip())
            for name, value in response.getheaders()
        )
        super().__init__(counts, response.status, headers)

    @property
    def _told_length(self) -> int | None:
        return self._length

    async def chunks(self) -> Chunks:
        if self._read is not None:
            yield self._read
            return
        while chunk := await self._read_some():
            if self._response.isclosed():
                self._whole()
            self._came(len(chunk))
            yield chunk
        if self._response.length:
            self._broke()
            raise OriginBroke("the body was shorter than it said")
        self._whole()

    async def _read_some(self) -> bytes:
        if self._response.isclosed():
            return b""
        reading = self._client.begin(lambda: self._response.read1(_READ_BYTES_FIRST))
        self._under_way = reading
        try:
            chunk = await asyncio.shield(reading)
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

    async def receive(self, count: int, sink: ByteSink) -> AsyncGenerator[int, None]:
        receiving = _Receiving(self._response, count, sink, self._client.buffer_bytes, self._read_bytes)
        self._client.receiving += 1
        under_way = self._under_way = self._client.begin(receiving.run)
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
            if not under_way.done():
                self._exchange.abort()
                # The sink may be closed afterwards: the thread must not use it any more.
                await asyncio.wait([under_way], timeout=_ABORT_S)
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

    def close(self) -> None:
        """Keep the connection if the body was read whole; else give it up."""
        if self._closed:
            return
        self._closed = True
        under_way = self._under_way
        if under_way is not None and not under_way.done():
            self._exchange.abort()
            under_way.add_done_callback(_closes(self._exchange.connection))
        elif self._response.isclosed() and not self._response.will_close:
            self._client.keep(self._key, self._exchange.connection)
        else:
            self._response.close()
            self._exchange.connection.close()


class _Receiving:
    """Receives bytes of a body in a thread, and tells the event loop how far it is."""

    def __init__(self, response: _Response, count: int, sink: ByteSink, buffer_bytes: int, read_bytes: int) -> None:
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


def _bound(sock: socket.socket, timeout_s: float) -> None:
    """Bound each wait on the socket. With Python's own time-out a socket does not block, and the kernel could not wait
    for many bytes at once."""
    sock.settimeout(None)
    bound = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)


def described(error: BaseException) -> str:
    """A description of `error` without an address or a URL, whose query may carry a secret."""
    if isinstance(error, _ConnectTimedOut):
        return "cannot connect: timed out"
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, socket.gaierror):
        return f"cannot connect: {error.strerror}"
    if isinstance(error, ConnectionRefusedError):
        return "cannot connect: refused"
    return type(error).__name__


def _was_closed(connection: http.client.HTTPConnection) -> bool:
    """Whether the origin has closed an idle connection, or sent what nobody asked for."""
    if connection.sock is None:
        return True
    look = select.poll()
    look.register(connection.sock, select.POLLIN)
    return bool(look.poll(0))


def _over(done: asyncio.Future[None], sink: ByteSink) -> None:
    if not done.cancelled():
        done.exception()
    sink.ended()


def _closes(connection: http.client.HTTPConnection) -> Callable[[asyncio.Future[T]], None]:
    """A callback that closes a connection once the thread that uses it has ended."""

    def close(done: asyncio.Future[T]) -> None:
        if not done.cancelled():
            done.exception()
        connection.close()

    return close
