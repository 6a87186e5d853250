"""One request on a blocking socket, and the head of its reply, as a thread sends and reads them (`http.client`)."""

from __future__ import annotations

import http.client
import io
import re
import select
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from outrider.adapters.origin.http_reply import in_socket
from outrider.adapters.origin.pass_on import pass_on
from outrider.core.errors import OriginBroke, S3Error
from outrider.core.origin.reply_head import split
from outrider.ports import BodyInThread

T = TypeVar("T")

# Far above the head of any reply of S3.
_HEAD_BYTES_MAX = 256 * 1024
_HEAD_READ_BYTES = 16 * 1024
# The rest of a small body is waited for no longer with the head. The reader of a body has bounds of its own.
_SMALL_WAIT_S = 0.02
_HEAD = re.compile(rb"HTTP/1\.[01] [2-5][0-9]{2}[^\r\n\0]*\r\n(?:[!-9;-~]+:[^\r\n\0]*\r\n)*\r\n")
_FRAMING = re.compile(rb"\r\n((?:content-length|transfer-encoding):[^\r\n]*)", re.IGNORECASE)
_PLAIN_FRAMING = re.compile(
    rb"(?:content-length:[ \t]*[0-9]{1,18}|transfer-encoding:[ \t]*chunked)[ \t]*", re.IGNORECASE
)
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n\0]*)?\r?\n")
_CHUNK_LINE_BYTES_MAX = 8192


class Unfit(Exception):
    """`http.client` cannot read this reply: the request has to be sent another way."""


class NoThread(Unfit):
    """No thread is free for this request: it has to be sent another way."""


class Exchange:
    """One request and the head of its reply, in a thread. `abort` may come from another thread at any time."""

    def __init__(
        self, key: tuple[str, str], connection: http.client.HTTPConnection, method: str, path: str,
        headers: Mapping[str, str], connect_timeout_s: float, read_timeout_s: float, *, is_used: bool,
        body: BodyInThread | None, small_bytes: int = 0,
    ) -> None:  # fmt: skip
        """`is_used`: another request came before on this connection. `body` None: no body. `small_bytes`: the body of
        the reply, up to this size, is received with the head if it comes at once."""
        self.key = key
        self.connection = connection
        self._method = method
        self._body = body
        self._path = path
        self._headers = headers
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._is_used = is_used
        self._small_bytes = small_bytes
        self._aborted = False
        # `http.client` forgets the socket of a reply that ends its connection.
        self._socket: socket.socket | None = connection.sock

    def run(self) -> Response:
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
        except ValueError as error:
            # A header that cannot be written.
            raise OriginBroke(described(error), lasting=True) from error
        except OSError as error:
            raise OriginBroke(described(error)) from error

    def _send(self) -> Response:
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
        assert isinstance(response, Response)
        if not is_whole:
            response.will_close = True
        if (response.length or 0) <= self._small_bytes:
            response.hold()
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


class Response(http.client.HTTPResponse):
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

    def _get_chunk_left(self) -> int | None:
        """The bytes left of the chunk, or of the next one; None: the body has ended.

        The method of `http.client` takes any two bytes for the end of a chunk, what Python takes for a number for its
        size, and the end of the connection for that of the trailers: other bytes than were sent would look whole.
        """
        if self.chunk_left:
            return int(self.chunk_left)
        if self.chunk_left == 0 and self.fp.readline(2) not in (b"\r\n", b"\n"):
            raise http.client.HTTPException("a chunk of another length than it said")
        size = _CHUNK_SIZE.fullmatch(self.fp.readline(_CHUNK_LINE_BYTES_MAX))
        if size is None:
            raise http.client.HTTPException("no size of a chunk")
        self.chunk_left = int(size[1], 16) or None
        if self.chunk_left is None:
            while (line := self.fp.readline(_CHUNK_LINE_BYTES_MAX)) not in (b"\r\n", b"\n"):
                if not line.endswith(b"\n"):
                    raise http.client.HTTPException("no end of the trailers")
            self._close_conn()  # type: ignore[attr-defined]
        return self.chunk_left

    def hold(self) -> None:
        """Receive the body, to be taken later, as far as it comes within a moment. Only for a body whose length was
        told. In a thread. Errors are left for the next read to meet."""
        if self.length and not self.chunked:
            self.stream.hold(self.length, _SMALL_WAIT_S)

    def take_held(self) -> bytes:
        """The next bytes of the body that were received already; empty: there are none, or they have to be read another
        way. Waits for nothing."""
        if not self.length or self.chunked:
            return b""
        held = self.stream.take(self.length)
        self.length -= len(held)
        return held


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
        """Receives until the empty line of a head that is no interim one (1xx), an end, or more than any head may have.

        Interim heads are dropped: `http.client` takes all of them but a 100 for the reply.
        """
        came = b""
        while (found := split(came)) is None and len(came) < _HEAD_BYTES_MAX:
            more = _in_time(self._socket.recv, _HEAD_READ_BYTES)
            if not more:
                break
            came += more
        self._head, self._body = found or (came, b"")
        self._whole_head = True
        if self._head and not _is_plain(self._head):
            raise http.client.HTTPException("a head that is read elsewhere")

    def hold(self, count: int, wait_s: float) -> None:
        """Receive until `count` bytes of the body are here, or nothing has come for `wait_s`."""
        pieces, missing = [self._body], count - len(self._body)
        look = select.poll()
        look.register(self._socket, select.POLLIN)
        with suppress(OSError):
            while missing > 0 and look.poll(wait_s * 1e3):
                if not (more := self._socket.recv(missing, socket.MSG_DONTWAIT)):
                    break
                pieces.append(more)
                missing -= len(more)
        self._body = b"".join(pieces)

    def take(self, count_max: int) -> bytes:
        taken, self._body = self._body[:count_max], self._body[count_max:]
        return taken

    def receive_into(self, buffer: memoryview) -> int:
        held = min(len(buffer), len(self._body))
        if held:
            buffer[:held], self._body = self._body[:held], self._body[held:]
            return held
        return _in_time(self._socket.recv_into, buffer, len(buffer), socket.MSG_WAITALL)

    def close(self) -> None:
        self._file.close()
        super().close()


def _is_plain(head: bytes) -> bool:
    """Whether `http.client` reads the head as all parsers do. It takes a bare CR for the end of a line, a line that is
    no field for the end of the head, the first of several lengths, and as a length what Python takes for a number."""
    framings = _FRAMING.findall(head)
    is_framed_plainly = len(framings) <= 1 and all(map(_PLAIN_FRAMING.fullmatch, framings))
    return is_framed_plainly and _HEAD.fullmatch(head) is not None


def _in_time(call: Callable[..., T], *args: object) -> T:
    """A system call on a socket with SO_RCVTIMEO. Raises TimeoutError."""
    try:
        return call(*args)
    except BlockingIOError as error:
        raise TimeoutError("timed out") from error


class _ConnectTimedOut(TimeoutError):
    """Nobody answers at the address."""


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
