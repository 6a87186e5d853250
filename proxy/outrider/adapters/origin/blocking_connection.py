"""A connection on a blocking socket, for one thread at a time: requests, and their replies by a `ReplyReader`."""

from __future__ import annotations

import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from outrider.adapters.origin.body_sender import pass_on
from outrider.adapters.origin.connection import broken_by
from outrider.core.errors import OriginBroke, S3Error
from outrider.core.origin.reply_reader import ReplyReader
from outrider.ports import BodyInThread, Buffer, Place

T = TypeVar("T")

_HEAD_READ_BYTES = 16 * 1024
# The rest of a small body is waited for no longer with the head. The reader of a body has bounds of its own.
_SMALL_WAIT_S = 0.02


class BlockingConnection:
    """`abort` may come from another thread at any time. `ask` and the reads raise OriginBroke."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.reader = ReplyReader()
        """It reads the last reply."""
        self._pieces: deque[Buffer] = deque()

    @property
    def is_open(self) -> bool:
        """False: the server has ended it, or sent bytes that nobody requested. Where no request is under way."""
        look = select.poll()
        look.register(self.socket, select.POLLIN)
        return not look.poll(0)

    @property
    def is_read(self) -> bool:
        """The reply is whole, and so is what was read of it."""
        return self.reader.is_over and not self._pieces

    def ask(
        self, request: bytes, timeout_s: float, *, body: BodyInThread | None = None, small_bytes: int = 0
    ) -> None:  # fmt: skip
        """Send a request, and read the head of its reply. `small_bytes`: the body of the reply, up to this size, is
        received with the head if it comes at once. Where that fails, the connection is closed."""
        try:
            self._ask(request, timeout_s, body, small_bytes)
        except BaseException:
            # Here, since perhaps nobody waits for this thread any more.
            self.close()
            raise

    def _ask(self, request: bytes, timeout_s: float, body: BodyInThread | None, small_bytes: int) -> None:
        self.reader = ReplyReader()
        self._pieces.clear()
        try:
            _bound(self.socket, timeout_s)
            is_whole = True
            if body is None:
                self.socket.sendall(request)
            else:
                is_whole = pass_on(body, partial(self.socket.sendall, request), self.socket, timeout_s)
            while not self.reader.status:
                self._receive(_HEAD_READ_BYTES)
        except S3Error as error:
            raise OriginBroke("the body of the client failed") from error
        except OSError as error:
            raise broken_by(error) from error
        self.reader.keeps &= is_whole
        if self.reader.is_measured and (self.reader.left or 0) <= small_bytes:
            self._hold()

    def some(self, count: int) -> Buffer:
        """The next bytes of the body, by one read of the socket of at most `count` bytes. Empty: it has ended."""
        while not self._pieces and not self.reader.is_over:
            self._receive(min(count, self.reader.left or count) if self.reader.is_measured else count)
        return self.held()

    def held(self) -> Buffer:
        """The next bytes of the body that were received already. Waits for nothing."""
        return self._pieces.popleft() if self._pieces else b""

    def receive_into(self, buffer: memoryview) -> int:
        """The next bytes of the body, as many as the buffer takes unless the body or the line ends before. 0: the body
        has ended."""
        while not self._pieces and not self.reader.is_over:
            if not self.reader.is_measured:
                self._receive(len(buffer))
                continue
            room = buffer[: self._room(min(len(buffer), self.reader.left or 0))]
            if count := self._in_time(self.socket.recv_into, room, len(room), socket.MSG_WAITALL):
                self._has_read(count)
                self.reader.passed(count)
                return count
            self._end()
        piece = memoryview(self.held())
        count = min(len(piece), len(buffer))
        buffer[:count] = piece[:count]
        if count < len(piece):
            self._pieces.appendleft(piece[count:])
        return count

    def _receive(self, count: int) -> None:
        if data := self._in_time(self.socket.recv, self._room(count)):
            self._has_read(len(data))
            self._pieces.extend(self.reader.feed(data))
        else:
            self._end()

    def _end(self) -> None:
        """The server has ended the connection."""
        self.reader.end()

    @property
    def writes(self) -> bool:
        """The next bytes of the body do not have to pass here: `write` may be called."""
        return False

    def write(self, place: Place, count: int, progress: Callable[[int, float], None]) -> tuple[bytes, int] | None:
        """Have `count` bytes of the body written into `place`. `progress`: called with how many more are there, and the
        seconds that the disk took. Returns the hashes, if they are wanted. Raises OSError of the disk, too."""
        raise NotImplementedError

    def _room(self, count: int) -> int:
        """How many of `count` bytes may be read at once."""
        return count

    def _has_read(self, count: int) -> None:
        """So many were read."""

    def _hold(self) -> None:
        """Receive the body as far as it comes within a moment. Errors are left for the next read to meet."""
        look = select.poll()
        look.register(self.socket, select.POLLIN)
        with suppress(OSError):
            while self.reader.left and look.poll(_SMALL_WAIT_S * 1e3):
                if not (data := self.socket.recv(self._room(self.reader.left), socket.MSG_DONTWAIT)):
                    break
                self._has_read(len(data))
                self._pieces.extend(self.reader.feed(data))

    def _in_time(self, call: Callable[..., T], *args: object) -> T:
        try:
            return call(*args)
        except BlockingIOError as error:  # of a socket with SO_RCVTIMEO
            raise broken_by(TimeoutError()) from error
        except OSError as error:
            raise broken_by(error) from error

    def abort(self) -> None:
        """End the wait of the thread that sends or receives."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()


def _bound(sock: socket.socket, timeout_s: float) -> None:
    """Bound each wait on the socket. With Python's own time-out a socket does not block, and the kernel could not wait
    for many bytes at once."""
    sock.settimeout(None)
    bound = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)
