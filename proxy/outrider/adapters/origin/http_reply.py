"""A reply of the origin: what all replies have, and those that the event loop receives."""

from __future__ import annotations

import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from fcntl import ioctl
from termios import FIONREAD
from typing import Protocol

from outrider.adapters.origin.connection import LoopConnection
from outrider.core.errors import OriginBroke
from outrider.core.model import Headers
from outrider.core.origin import error_causes
from outrider.core.origin.reply_reader import ReplyReader
from outrider.ports import Buffer, ByteSink

# An error reply of S3 has some hundred bytes, or some thousand where it repeats the string that was signed.
_REFUSAL_BYTES_MAX = 64 * 1024


class Counts(Protocol):
    """Counts the bytes of bodies; `metrics.Metrics` does so for the origin."""

    def received(self, count: int, /) -> None: ...

    def duplicated(self, cause: str, count: int) -> None: ...


class ReceivedReply(ABC):
    """A reply of the origin until `close`. Satisfies `ports.OriginReply`."""

    in_thread = False

    def __init__(self, counts: Counts, reader: ReplyReader) -> None:
        self._counts = counts
        self.on_free: Callable[[], None] | None = None
        """Called once, when the body has been read whole, and its connection is free for other requests, or by
        `close`."""
        self.on_close: Callable[[int], None] | None = None
        """Called once, by `close`, with the bytes that were received."""
        self._read: bytes | None = None
        # The part of it that `some` has not given yet.
        self._read_rest = b""
        self.received_bytes = 0
        self.status = reader.status
        self.headers: Headers = reader.headers
        self.content_length = reader.content_length
        self.oddities = reader.oddities
        """The headers that were mended."""

    async def refusal(self) -> bytes:
        """The body of a refusal, without the parts that name the proxy's signature; `some` then gives the same.

        A body that is longer than any of S3's is cut.
        """
        if self._read is None:
            body = bytearray()
            # Read until the end: AWS sends refusals in chunks, without a Content-Length.
            while len(body) <= _REFUSAL_BYTES_MAX and (piece := await self._some()):
                body += piece
            self._read = self._read_rest = error_causes.without_signers(bytes(body[:_REFUSAL_BYTES_MAX]))
            self.content_length = len(self._read)
        return self._read

    async def some(self) -> Buffer:
        if self._read is None:
            return await self._some()
        rest, self._read_rest = self._read_rest, b""
        return rest

    @abstractmethod
    async def _some(self) -> Buffer: ...

    async def receive(self, count: int, sink: ByteSink, received: Callable[[int], None]) -> None:
        raise AssertionError("no thread receives it")

    def close(self) -> None:
        """See `ports.OriginReply`."""
        self._close()
        if self.on_free is not None:
            self._free_connection()
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close(self.received_bytes)

    @abstractmethod
    def _close(self) -> None: ...

    def give_up(self, cause: str) -> None:
        """See `ports.OriginReply`."""
        if (unread := self._unread_bytes()) > 0:
            self._counts.duplicated(cause, unread)

    @abstractmethod
    def _unread_bytes(self) -> int:
        """How many bytes of the body have come and were not read, as far as this end of the connection knows."""

    def _count(self, count: int) -> None:
        self._counts.received(count)
        self.received_bytes += count

    def _broke(self) -> None:
        # A caller that retries may still hold this reply, and wait for the very connection that it has.
        self._close()
        self._free_connection()

    def _free_connection(self) -> None:
        on_free, self.on_free = self.on_free, None
        if on_free is not None:
            on_free()


class HttpReply(ReceivedReply):
    """A reply that the event loop receives."""

    def __init__(self, connection: LoopConnection, keep: Callable[[LoopConnection], None], counts: Counts) -> None:
        """`keep` takes the connection where the next request may be sent on it."""
        super().__init__(counts, connection.reader)
        # None: it is not ours any more.
        self._connection: LoopConnection | None = connection
        self._keep = keep
        self._is_whole = False

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.is_free:
            self._keep(connection)
        else:
            connection.abort()

    def _unread_bytes(self) -> int:
        connection = self._connection
        return 0 if connection is None else connection.held_bytes + in_socket(connection.socket)

    async def _some(self) -> Buffer:
        connection = self._connection
        if connection is None:
            if self._is_whole:
                return b""
            raise OriginBroke("the reply was given up")
        try:
            piece = await connection.some()
        except OriginBroke:
            self._broke()
            raise
        self._count(len(piece))
        if connection.is_read:
            self._is_whole = True
            self._close()
            self._free_connection()
        return piece


def in_socket(sock: socket.socket | None) -> int:
    """How many bytes the kernel has received for `sock` that were not read."""
    try:
        return 0 if sock is None else int.from_bytes(ioctl(sock.fileno(), FIONREAD, bytes(4)), sys.byteorder)
    except (OSError, ValueError):
        return 0  # it is closed
