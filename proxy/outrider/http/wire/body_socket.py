"""A large body of a request, received by a thread: neither the event loop nor aiohttp's parser moves its bytes.

The thread reads a duplicate of the client's socket, up to the last byte of the body and no further. Meanwhile the
connection itself reads nothing. Behind the body it goes on with a new parser. If the thread stopped before the end,
nothing that still comes on the connection is parsed, and the connection ends with its reply.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Protocol

from aiohttp import StreamReader
from aiohttp.web_request import BaseRequest

from outrider.core.errors import IncompleteBody, RequestTimeout
from outrider.http.wire.request_body import BODY_BYTES_PER_S_MIN, CONTINUE, awaits_continue

# With fewer bytes to come, the changes of thread cost more than they save.
_BYTES_MIN = 1024 * 1024
# Two such pieces are in memory: one is held back until the next one has come.
_PIECE_BYTES = 256 * 1024


class BodyConnection(Protocol):
    """The part of a connection that gives its reading away. On the event loop's thread. A Protocol, as `s3` stands
    above."""

    def second_socket(self) -> socket.socket | None:
        """A duplicate of the client's socket, for the caller to close. None: its bytes are not the body's (TLS), or no
        descriptor is left."""
        ...

    def stop_reading(self) -> None: ...

    def read_on(self, content: StreamReader, *, is_whole: bool) -> None:
        """`content`: the body of the request that is under way. `is_whole`: a thread has read it to its end."""
        ...


class BodySocket:
    """Satisfies `engine.write.upload.BodyOnSocket`. The limits of time are those of `request_body.client_body`."""

    def __init__(self, request: BaseRequest, connection: BodyConnection, timeout_s: float) -> None:
        self._request = request
        self._connection = connection
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._received: list[bytes] = []
        self._left = 0
        self._received_bytes = 0
        self._waited_s = 0.0
        self._must_continue = awaits_continue(request)
        self._look = select.poll()

    def begin(self) -> bool:
        content, length = self._request.content, self._request.content_length
        if length is None or length - content.total_bytes < _BYTES_MIN or content.exception() is not None:
            return False
        self._socket = self._connection.second_socket()
        if self._socket is None:
            return False
        # While bytes are taken, aiohttp's parser may bring more that it holds; with the last ones it holds none.
        while piece := content.read_nowait():
            self._received.append(piece)
        self._connection.stop_reading()
        self._left = length - content.total_bytes
        self._received_bytes = content.total_bytes
        self._look.register(self._socket, select.POLLIN)
        return True

    def receive(self, beside: int) -> bytes | None:
        assert self._socket is not None
        try:
            if self._must_continue:
                self._must_continue = False
                self._socket.send(CONTINUE)
            if self._received:
                return self._received.pop(0)
            return self._receive(self._socket, beside) if self._left else None
        except OSError as error:
            raise IncompleteBody from error

    def _receive(self, client: socket.socket, beside: int) -> bytes:
        self._look.register(beside, select.POLLIN)
        since = time.perf_counter()
        ready = self._look.poll(self._timeout_s * 1e3)
        self._waited_s += time.perf_counter() - since
        if any(descriptor == beside for descriptor, _ in ready):
            return b""
        if not ready:
            raise RequestTimeout
        data = client.recv(min(self._left, _PIECE_BYTES))
        if not data:
            raise IncompleteBody
        self._left -= len(data)
        self._received_bytes += len(data)
        if self._waited_s > self._timeout_s + self._received_bytes / BODY_BYTES_PER_S_MIN:
            raise RequestTimeout
        return data

    def end(self) -> None:
        assert self._socket is not None
        self._socket.close()
        self._connection.read_on(self._request.content, is_whole=not self._left)
