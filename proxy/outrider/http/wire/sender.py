"""The sending side of a connection, past asyncio's transport: the kernel copies block files to the socket (`sendfile`).

uvloop has no `loop.sendfile`, and asyncio's takes the transport apart for each call. So each connection keeps a
duplicate of the socket's descriptor, which `add_writer` accepts beside the transport's own.

`sendfile` waits for the disk if a page is not in memory, and all other clients would wait with it. So the pages are
checked first, and missing ones are read in a thread. On a file system that asks another process or machine (NFS, FUSE),
`sendfile` may wait all the same: bytes from there are read in a thread, and sent from memory.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import ssl
import struct
import time
from abc import ABC, abstractmethod
from concurrent.futures import Executor
from contextlib import suppress

from outrider.futures import retrieve_failure
from outrider.pagecache import in_memory

Buffer = bytes | bytearray | memoryview

# A client that takes nothing for this long is taken for gone, even if TCP still holds the connection. A training step
# or a validation pass pauses a reader for minutes.
SEND_TIMEOUT_S = 3600.0
_READ_BYTES = 256 * 1024
_TLS_BUFFER_BYTES = 256 * 1024
# The bytes that are sent between two checks of the pages. With far fewer than a socket takes at once there would be
# many checks; with far more, pages could be evicted from memory before they are sent.
_STRIDE_BYTES = 1024 * 1024
# A disk that takes longer than this to read such a piece counts as failed.
_READ_PATIENCE_S = 10.0
# A client within this round-trip time needs no larger send buffer than this (the kernel doubles it: 1 GB/s and more).
# The kernel would let the buffer grow to megabytes, and the pages would have left the processor's cache before the
# client copies them: this bound alone made eight big streams to curl 1.2 times as fast, and 1.8 times where sockets may
# hold 32 MiB to be read.
_NEAR_S = 0.0005
_NEAR_BUFFER_BYTES = 256 * 1024


class WireSender(ABC):
    """Writes in order. `send` and `send_file` raise ConnectionError when the client is gone."""

    def __init__(self, transport: asyncio.Transport, readers: Executor) -> None:
        self._transport: asyncio.Transport | None = transport
        self._readers = readers
        peer = transport.get_extra_info("peername")
        # A socket for both families shows an IPv4 address in the form of IPv6.
        self.address = str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) and peer else ""
        """The client's address, without the port; empty: the socket does not give it."""
        self.ended = time.perf_counter()
        """When the last reply was sent, or the connection began, on `time.perf_counter`. Set by the caller that
        replies."""
        self.full_s = 0.0
        """For how long, in all, senders waited for the client to take bytes."""
        self.full_since: float | None = None
        """Since when a sender waits for that, on `time.perf_counter`; None: none does."""

    @property
    @abstractmethod
    def has_unsent(self) -> bool:
        """Some of the bytes given to `send` are still in this process, and would be lost with it."""

    @abstractmethod
    async def send(self, data: Buffer, *, more: bool = False) -> None:
        """`more`: more bytes follow at once, so the kernel may wait for them and send both in one segment."""

    @abstractmethod
    async def send_parts(self, head: Buffer, body: Buffer) -> None:
        """As `send` of one after the other, if possible by one system call."""

    @abstractmethod
    async def send_file(
        self, fd: int, offset: int, count: int, *, is_new: bool = False, is_remote: bool = False
    ) -> int:  # fmt: skip
        """How many bytes were sent; fewer than `count`: the disk failed to give the rest, and the client still
        waits. `is_new`: the bytes were written a moment ago, so their pages are in memory. `is_remote`: see
        `OpenBlock`."""

    @property
    def is_lost(self) -> bool:
        """The client is gone, or the connection was closed."""
        return self._transport is None

    @abstractmethod
    def lost(self) -> None:
        """The connection is closed: a waiting `send` fails, and nothing is written any more."""

    def abort(self) -> None:
        """Close now, and drop the bytes that were not sent yet."""
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """As `abort`, with a TCP reset: a body without a length would look whole if the connection just ended."""
        # A closed TLS transport has no socket any more.
        if self._transport is not None and (connection := self._transport.get_extra_info("socket")) is not None:
            # Source: socket(7), SO_LINGER: with a time of 0 the last close sends a reset.
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()

    async def _send_read(self, fd: int, offset: int, count: int) -> int:
        """As `send_file`, by reads in a thread."""
        sent = 0
        while sent < count:
            try:
                data = await _pread(self._readers, fd, min(count - sent, _READ_BYTES), offset + sent)
            except OSError:
                break
            if not data:
                break
            await self.send(data)
            sent += len(data)
        return sent


class SocketSender(WireSender):
    """Plain TCP."""

    def __init__(
        self, transport: asyncio.Transport, readers: Executor, near_bytes: int = _NEAR_BUFFER_BYTES
    ) -> None:  # fmt: skip
        """`near_bytes`: the send buffer for a client that is near."""
        super().__init__(transport, readers)
        original = transport.get_extra_info("socket")
        self._socket: socket.socket | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        try:
            self._socket = socket.socket(fileno=os.dup(original.fileno()))
        except OSError:
            # No descriptor is left. The client would wait in vain on an open connection.
            transport.abort()
            return
        self._socket.setblocking(False)
        if 0 < _round_trip_s(self._socket) < _NEAR_S:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, near_bytes)

    @property
    def has_unsent(self) -> bool:
        return False

    def _alive(self) -> socket.socket:
        # Called before each use of the descriptor: once it is closed, its number may belong to another connection.
        if self._socket is None:
            raise ConnectionResetError("the client is gone")
        return self._socket

    async def send(self, data: Buffer, *, more: bool = False) -> None:
        view = memoryview(data)
        flags = socket.MSG_MORE if more else 0
        while view:
            try:
                sent = self._alive().send(view, flags)
            except (BlockingIOError, InterruptedError):
                await self._writable()
            else:
                view = view[sent:]

    async def send_parts(self, head: Buffer, body: Buffer) -> None:
        sent = self.send_parts_now(head, body)
        if sent < len(head):
            await self.send(memoryview(head)[sent:], more=True)
            sent = len(head)
        if sent < len(head) + len(body):
            await self.send(memoryview(body)[sent - len(head) :])

    def second_socket(self) -> socket.socket:
        """One more duplicate, for the caller to close. Raises OSError."""
        return self._alive().dup()

    def send_now(self, data: Buffer, *, more: bool = False) -> int:
        """How many bytes the kernel took without a wait. Raises OSError: the client is gone."""
        if self._socket is None:  # `_alive`, written out: here a call more would slow each hit
            raise ConnectionResetError("the client is gone")
        try:
            return self._socket.send(data, socket.MSG_MORE if more else 0)
        except (BlockingIOError, InterruptedError):
            return 0

    def send_parts_now(self, head: Buffer, body: Buffer) -> int:
        """As `send_now`, for head and body in one system call."""
        if self._socket is None:
            raise ConnectionResetError("the client is gone")
        try:
            return self._socket.sendmsg((head, body))
        except (BlockingIOError, InterruptedError):
            return 0

    def send_file_now(self, fd: int, offset: int, count: int) -> int:
        """As `send_now`, for bytes of a file whose pages are in memory."""
        if self._socket is None:
            raise ConnectionResetError("the client is gone")
        try:
            sent = os.sendfile(self._socket.fileno(), fd, offset, count)
        except (BlockingIOError, InterruptedError):
            return 0
        if sent == 0:
            raise OSError(errno.EIO, "a block file is shorter than it was")
        return sent

    async def send_file(
        self, fd: int, offset: int, count: int, *, is_new: bool = False, is_remote: bool = False
    ) -> int:  # fmt: skip
        if is_remote:
            return await self._send_read(fd, offset, count)
        start, stop = offset, offset + count
        looked_at = stop if is_new else offset
        while offset < stop:
            try:
                if offset >= looked_at:
                    looked_at = min(stop, offset + _STRIDE_BYTES)
                    if not in_memory(fd, offset, looked_at - offset):
                        await _pread(self._readers, fd, looked_at - offset, offset)
                sent = self.send_file_now(fd, offset, looked_at - offset)
            except ConnectionError:
                raise
            except OSError:
                # The error may be the socket's: then the next call to send fails as well.
                break
            if sent == 0:
                await self._writable()
            offset += sent
        return offset - start

    async def _writable(self) -> None:
        descriptor = self._alive().fileno()
        self._waiter = self._loop.create_future()
        self._loop.add_writer(descriptor, self._wake)
        timeout = self._loop.call_later(SEND_TIMEOUT_S, self._fail, ConnectionResetError("the client takes nothing"))
        self.full_since = began = time.perf_counter()
        try:
            await self._waiter
        finally:
            self.full_since = None
            self.full_s += time.perf_counter() - began
            timeout.cancel()
            self._waiter = None
            if self._socket is not None:
                self._loop.remove_writer(descriptor)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: ConnectionError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def lost(self) -> None:
        if self._socket is not None:
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._transport = None
        self._fail(ConnectionResetError("the client is gone"))


class TlsSender(WireSender):
    """TLS: the kernel cannot encrypt a file, so its bytes are read in a thread and go through the transport."""

    def __init__(self, transport: asyncio.Transport, readers: Executor) -> None:
        super().__init__(transport, readers)
        transport.set_write_buffer_limits(high=_TLS_BUFFER_BYTES)
        self._room = asyncio.Event()
        self._room.set()

    @property
    def has_unsent(self) -> bool:
        if self._transport is None:
            return False
        # This transport does not count all: the one below it also holds bytes, but only while the socket is full.
        return self._transport.get_write_buffer_size() > 0 or _is_full(self._transport)

    def paused(self, paused: bool) -> None:
        """Back-pressure of the transport, passed on by the protocol."""
        if paused:
            self._room.clear()
        else:
            self._room.set()

    async def send(self, data: Buffer, *, more: bool = False) -> None:
        if not self._room.is_set():
            self.full_since = began = time.perf_counter()
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await self._room.wait()
            finally:
                self.full_since = None
                self.full_s += time.perf_counter() - began
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the client is gone")
        self._transport.write(data)

    async def send_parts(self, head: Buffer, body: Buffer) -> None:
        await self.send(head)
        await self.send(body)

    async def send_file(
        self, fd: int, offset: int, count: int, *, is_new: bool = False, is_remote: bool = False
    ) -> int:  # fmt: skip
        return await self._send_read(fd, offset, count)

    def lost(self) -> None:
        self._transport = None
        self._room.set()


def _round_trip_s(connection: socket.socket) -> float:
    """The round-trip time by the kernel's measure; 0: unknown. Source: linux/tcp.h, struct tcp_info: tcpi_rtt, in
    microseconds."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 72)
    except OSError:
        return 0.0
    return float(struct.unpack_from("=I", info, 68)[0]) / 1e6 if len(info) == 72 else 0.0


def wire_of(
    transport: asyncio.Transport, readers: Executor, near_bytes: int = _NEAR_BUFFER_BYTES
) -> SocketSender | TlsSender:  # fmt: skip
    """`readers`: the threads that wait for the disk. `near_bytes`: see `SocketSender`."""
    tls: ssl.SSLContext | None = transport.get_extra_info("sslcontext")
    return SocketSender(transport, readers, near_bytes) if tls is None else TlsSender(transport, readers)


async def _pread(readers: Executor, fd: int, count: int, offset: int) -> bytes:
    """`os.pread` in a thread, with a duplicate of the descriptor: if the caller is cancelled, its own may be closed and
    its number reused. Raises OSError: the disk fails, or does not answer."""
    own = os.dup(fd)

    def read() -> bytes:
        try:
            return os.pread(own, count, offset)
        finally:
            os.close(own)

    # Shielded: a call that is cancelled before a thread begins it would never close the descriptor.
    reading = asyncio.get_running_loop().run_in_executor(readers, read)
    reading.add_done_callback(retrieve_failure)
    async with asyncio.timeout(_READ_PATIENCE_S):
        return await asyncio.shield(reading)


def _is_full(transport: asyncio.Transport) -> bool:
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return False
    look = select.poll()
    look.register(connection.fileno(), select.POLLOUT)
    return not look.poll(0)
