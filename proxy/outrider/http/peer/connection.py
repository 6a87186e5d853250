"""One member's connection to the peer port."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from typing import Any, Protocol, cast

from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_server import Server

from outrider.http.peer.gatekeeper import Refused
from outrider.http.peer.handler import PeerHandler
from outrider.http.wire.parser_guard import guarded
from outrider.http.wire.sender import TlsSender, wire_of

log = logging.getLogger(__name__)

# Longer than a member keeps an idle connection, so that it is the member that closes it.
_IDLE_S = 60.0
# A known version is up to 60 KiB, and a key of 1,024 bytes is 3 KiB when escaped.
_HEAD_BYTES_MAX = 128 * 1024
_LINE_BYTES_MAX = 16 * 1024
_FIELD_BYTES_MAX = 64 * 1024
_HEADERS_MAX = 64
# A head comes in one piece, as a rule.
_HEAD_TIMEOUT_S = 10.0
# A member takes bytes in bursts, as it writes them to its disk meanwhile. With twice the buffer of a client its owner
# waits for room half as often, which takes a fifth of the CPU time of a body. With four times as much, the pages leave
# the processor's cache.
_NEAR_BUFFER_BYTES = 512 * 1024
# After a refusal the rest of the body is read and dropped for so long: a reset could lose the refusal.
_LINGER_S = 1.0


class ConnectionPort(Protocol):
    """The port as one of its connections sees it."""

    handler: PeerHandler
    is_ending: bool
    """A connection that is made from now on serves one request."""

    @property
    def readers(self) -> Executor:
        """The threads that wait for the disk."""
        ...

    @property
    def spare_connections(self) -> int:
        """How many more connections there may be; a negative number: this one is too many."""
        ...


class PeerConnection(RequestHandler):
    """Owned by aiohttp's server. `wire` sends on it, as long as it is open."""

    __slots__ = ("_head_bytes", "_head_timer", "closed", "is_ending", "port", "wire")

    def __init__(self, server: Server, port: ConnectionPort) -> None:
        options: dict[str, Any] = {
            "access_log": None, "auto_decompress": False, "keepalive_timeout": _IDLE_S, "lingering_time": _LINGER_S,
            "max_line_size": _LINE_BYTES_MAX, "max_field_size": _FIELD_BYTES_MAX, "max_headers": _HEADERS_MAX,
            "logger": log,
        }  # fmt: skip
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._parser = guarded(self._parser)
        self.port = port
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self.closed = asyncio.Event()
        self.is_ending = False
        """The request that is under way is the last one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        is_one_too_many = self.port.spare_connections <= 0
        self.is_ending = self.port.is_ending
        super().connection_made(transport)
        # A cast, not an assertion: uvloop's transports are no subclasses of asyncio's.
        self.wire = wire_of(cast(asyncio.Transport, transport), self.port.readers, _NEAR_BUFFER_BYTES)
        if is_one_too_many:
            self.wire.abort()
        else:
            self._head_timer = self._loop.call_later(_HEAD_TIMEOUT_S, self._head_is_late)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_timer()
        self.wire.lost()
        self.closed.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._has_request():
            self._head_bytes = 0
            self._stop_head_timer()
            return
        self._head_bytes += len(data)
        if self._head_bytes > _HEAD_BYTES_MAX:
            self.wire.abort()
        elif self._head_timer is None:
            self._head_timer = self._loop.call_later(_HEAD_TIMEOUT_S, self._head_is_late)

    def end(self) -> None:
        """The request that is under way is the last one. Without one, the connection is closed."""
        self.is_ending = True
        request = self._current_request
        if not self._has_request():
            self.force_close()
        elif request is None or not request.body_exists:
            # aiohttp's `close` stops reading. A request whose body is on its way ends the connection by its reply.
            self.close()

    def _has_request(self) -> bool:
        """A request is under way, or about to begin."""
        return self._request_in_progress or bool(self._messages)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self._has_request():
            self.force_close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if isinstance(self.wire, TlsSender):
            self.wire.paused(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if isinstance(self.wire, TlsSender):
            self.wire.paused(False)

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> StreamResponse:
        """Bytes that aiohttp's parser refuses are answered with 400, and the connection is closed. A `message` of None:
        the handler raised, and the connection is cut.

        Raises ConnectionResetError: the connection was cut.
        """
        if message is None:
            self.wire.reset()
            raise ConnectionResetError from exc
        return self.port.handler.refuse(request, self.wire, Refused(400, "garbage"))
