"""A connection of the event loop, over TCP or TLS: one request at a time, and its reply by a `ReplyReader`."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from math import inf
from typing import Protocol, cast

from outrider.core.errors import Broke, OriginBroke, without_traceback
from outrider.core.origin.reply_reader import ReplyReader
from outrider.ports import Buffer

# The socket is read no further while more bytes of a body wait for their reader. Four times as much took 15 MB more
# memory in a cold epoch, and no less CPU: the kernel buffers the rest.
_HELD_BYTES_MAX = 64 * 1024
# So much is read with a head whose body has a place: it would have to be copied there.
_HEAD_BYTES = 4 * 1024
_LAST_BYTES = 64 * 1024


class BodyPlace(Protocol):
    """Memory for a body that is measured, with room for no more than all of it."""

    def empty(self) -> memoryview:
        """The room for what has not come."""
        ...

    def landed(self, count: int) -> None: ...


class LoopConnection(asyncio.BufferedProtocol):
    """Made by the event loop. A caller of `ask` reads the reply to its end, or ends the connection by `abort`."""

    def __init__(self, landing: memoryview) -> None:
        """`landing`: the bytes that all connections of one event loop read into. Each takes what came before the next
        one reads."""
        self._landing = landing
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.reader = ReplyReader()
        """It reads the last reply."""
        # A request has been sent whose reply is not whole.
        self._is_requested = False
        self._pieces: deque[Buffer] = deque()
        self.held_bytes = 0
        """Bytes of the body that were received and not read."""
        # Where the body belongs, if it is to be received there; as the head of the reply says, once it is here.
        self._into: BodyPlace | None = None
        self._place: Callable[[ReplyReader], BodyPlace | None] | None = None
        self._broke: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_paused = False
        self._sending: asyncio.Task[None] | None = None
        self._sender: asyncio.Future[None] | None = None
        self._may_send = True
        # The last moment at which something came, or was waited for; and how long nothing may.
        self._since, self._timeout_s = 0.0, inf
        self._alarm: asyncio.TimerHandle | None = None

    # -- for the client --------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """False: the server has ended it, or sent bytes that nobody requested and the loop has not read. Where no
        request is under way."""
        sock = self.socket
        if sock is None or self._transport is None or self._transport.is_closing():
            return False
        look = select.poll()
        look.register(sock, select.POLLIN)
        return not look.poll(0)

    @property
    def socket(self) -> socket.socket | None:
        return None if self._transport is None else self._transport.get_extra_info("socket")

    @property
    def is_free(self) -> bool:
        """The next request may be sent."""
        # One that is paused would not notice that the server ends it, or sends what nobody requested. Whether it did is
        # looked at before the next request.
        is_reading = self._transport is not None and not self._transport.is_closing() and not self._is_paused
        return self.reader.is_over and self.reader.keeps and not self._is_sending and is_reading

    @property
    def is_read(self) -> bool:
        """The reply is whole, and so is what was read of it."""
        return self.reader.is_over and not self._pieces

    @property
    def _is_sending(self) -> bool:
        return self._sending is not None and not self._sending.done()

    async def ask(
        self, request: bytes, *, timeout_s: float, without_body: bool = False,
        body: AsyncIterator[Buffer] | None = None, chunked: bool = False, expects: bool = False,
        place: Callable[[ReplyReader], BodyPlace | None] | None = None,
    ) -> ReplyReader:  # fmt: skip
        """Send `request`, and wait for the head of the reply. `timeout_s`: how long the server may send nothing, here
        and in the body. `expects`: the body is sent once the server asks for it. `place`: asked where the body belongs,
        as soon as the head is here. None: `some` gives it. Raises OriginBroke."""
        self.reader = reader = ReplyReader(without_body=without_body)
        self._broke, self._timeout_s, self._is_requested, self._place = None, timeout_s, True, place
        self._pieces.clear()
        self.held_bytes, self._sending = 0, None
        if self._is_paused:
            self._resume()
        if self._transport is None:
            self._fail(OriginBroke("the connection was closed"))
        elif body is None:
            self._transport.write(request)
        else:
            self._sending = self._loop.create_task(self._send(request, body, chunked=chunked, expects=expects))
        while not reader.status:
            await self._more()
        return reader

    async def some(self) -> Buffer:
        """See `OriginReply.some`."""
        while not self._pieces:
            if self.reader.is_over:
                return b""
            await self._more()
        piece = self._pieces.popleft()
        self.held_bytes -= len(piece)
        if self._is_paused and not self._pieces:
            self._resume()
        return piece

    async def filled(self) -> None:
        """Returns when the place of `ask` has the body, or will not have it."""
        while self._into is not None:
            await self._more()

    async def start_tls(self, tls: ssl.SSLContext, host: str) -> None:
        assert self._transport is not None
        transport = await self._loop.start_tls(self._transport, self, tls, server_hostname=host)
        self._transport = transport

    def abort(self) -> None:
        transport, self._transport, self._into = self._transport, None, None
        if self._broke is None:
            # A body that goes on until the connection ends is not whole by that.
            self._broke = OriginBroke("the reply was given up")
        if self._sending is not None:
            self._sending.cancel()
        if transport is not None:
            transport.abort()

    close = abort

    async def _more(self) -> None:
        """Returns when something has come. Raises OriginBroke."""
        if self._broke is not None:
            raise without_traceback(self._broke)
        self._since = self._loop.time()
        due = self._since + self._timeout_s
        if self._alarm is not None and self._alarm.when() > due:
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None:
            self._alarm = self._loop.call_at(due, self._ring)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _resume(self) -> None:
        if self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def _ring(self) -> None:
        self._alarm, now = None, self._loop.time()
        if self._is_sending and self._sender is None:
            self._since = now  # it is the server that waits
        if self._waiter is None:
            return
        if now < self._since + self._timeout_s:
            self._alarm = self._loop.call_at(self._since + self._timeout_s, self._ring)
        else:
            self._fail(OriginBroke("timed out", cause=Broke.LATE))

    def _fail(self, error: OriginBroke) -> None:
        if self._broke is None:
            self._broke = without_traceback(error)
        self.abort()
        self._wake()

    def _wake(self) -> None:
        for waiter in (self._waiter, self._sender):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    # -- the body of the request -----------------------------------------------------------------------------------

    async def _send(self, head: bytes, body: AsyncIterator[Buffer], *, chunked: bool, expects: bool) -> None:
        """A server that answers before it has the body may take the rest, or end the connection.

        The head is sent when the first piece is here. SeaweedFS stores an empty object if none comes after the head.
        """
        try:
            if expects:
                self._write(head)
                head = b""
                while not self.reader.goes_on and self._broke is None:
                    await self._until_woken()
                if self.reader.status:
                    self.reader.keeps = False  # it does not want the body
                    return
            async for piece in body:
                if piece:
                    self._write(head, *((b"%x\r\n" % len(piece), piece, b"\r\n") if chunked else (piece,)))
                    head = b""
                while not self._may_send and self._broke is None:
                    await self._until_woken()
            self._write(head, b"0\r\n\r\n" if chunked else b"")
            self._since = self._loop.time()
        except Exception as error:  # noqa: BLE001 - whatever it is, the request is not whole
            self._fail(OriginBroke(f"the body of the request failed: {type(error).__name__}"))

    def _write(self, *pieces: Buffer) -> None:
        if self._transport is None:
            return
        # Not `writelines`: in Python 3.12 and 3.13.0 that of asyncio never pauses its writer.
        if sum(map(len, pieces)) <= _HELD_BYTES_MAX:
            pieces = (b"".join(pieces),)
        for piece in pieces:
            if piece:
                self._transport.write(piece)

    async def _until_woken(self) -> None:
        self._since = self._loop.time()
        self._sender = self._loop.create_future()
        try:
            await self._sender
        finally:
            self._sender = None

    # -- called by the loop ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not an assertion: uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, ConnectionError) and self._sending is not None and not self.reader.is_over:
            self._take_last()
        self._transport = None
        self._may_send = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._broke is None and not self.reader.is_over:
            try:
                if error is not None:
                    raise broken_by(error)
                self.reader.end()
            except OriginBroke as broke:
                self._fail(broke)
        self._wake()

    def _take_last(self) -> None:
        """The body could not be sent on. The reply to that may have come before, and be in the socket."""
        sock = self.socket
        if sock is None or self._transport is None or self._transport.get_extra_info("ssl_object") is not None:
            return
        with suppress(OSError):
            while not self.reader.is_over and self._broke is None and (data := os.read(sock.fileno(), _LAST_BYTES)):
                self._take(data)

    def pause_writing(self) -> None:
        self._may_send = False

    def resume_writing(self) -> None:
        self._may_send = True
        self._wake()

    def get_buffer(self, _: int) -> memoryview:
        if self._into is not None:
            return self._into.empty()
        return self._landing if self._place is None else self._landing[:_HEAD_BYTES]

    def buffer_updated(self, count: int) -> None:
        self._since = self._loop.time()
        if self._into is None:
            self._take(bytes(self._landing[:count]))
            return
        self.reader.passed(count)
        self._received_into(self._into, count)

    def _received_into(self, place: BodyPlace, count: int) -> None:
        place.landed(count)
        if self.reader.is_over:
            self._into = None
            self._wake()

    def _take(self, data: bytes) -> None:
        if self.reader.is_over or not self._is_requested:
            self.reader.keeps = False
            self.abort()  # nobody has requested it
            return
        try:
            pieces = self.reader.feed(data)
        except OriginBroke as error:
            self._fail(error)
            return
        if self._place is not None and self.reader.status:
            self._into, self._place = self._place(self.reader), None
        for piece in pieces:
            if self._into is not None:
                self._into.empty()[: len(piece)] = piece
                self._received_into(self._into, len(piece))
                continue
            self._pieces.append(piece)
            self.held_bytes += len(piece)
        if self.held_bytes > _HELD_BYTES_MAX and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()


def broken_by(error: Exception) -> OriginBroke:
    """`error`: of a connection. Its text is not shown, since it may hold an address."""
    if isinstance(error, TimeoutError):
        return OriginBroke("timed out", cause=Broke.LATE)
    return OriginBroke(type(error).__name__)
