"""One member's connection to the peer port."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import Executor
from typing import Any, Protocol, cast

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_server import Server

from outrider.http.peer.gatekeeper import Refused
from outrider.http.peer.handler import PeerHandler
from outrider.http.wire.bounded_head import BoundedHeads
from outrider.http.wire.sender import TlsSender, wire_of

log = logging.getLogger(__name__)

# Longer than a member keeps an idle connection, so that it is the member that closes it.
_IDLE_S = 60.0
# A known version is up to 60 KiB, and a key of 1,024 bytes is 3 KiB when escaped.
_HEAD_BYTES_MAX = 128 * 1024
_LINE_BYTES_MAX = 16 * 1024
_FIELD_BYTES_MAX = 64 * 1024
_HEADERS_MAX = 64
# A member takes bytes in bursts, as it writes them to its disk meanwhile. With twice the buffer of a client its owner
# waits for room half as often, which takes a fifth of the CPU time of a body. With four times as much, the pages leave
# the processor's cache.
_NEAR_BUFFER_BYTES = 512 * 1024
# After a refusal the rest of the body is read and dropped for so long: a reset could lose the refusal.
_LINGER_S = 1.0


class ConnectionPort(Protocol):
    """The port as one of its connections sees it. A Protocol, as `server` imports this module."""

    handler: PeerHandler
    is_ending: bool
    """A connection that is made from now on serves one request."""

    @property
    def readers(self) -> Executor:
        """The threads that wait for the disk."""
        ...


class PeerConnection(BoundedHeads):
    """Owned by aiohttp's server. `wire` sends on it, as long as it is open."""

    __slots__ = ("asked_at", "closed", "introduced", "is_ending", "port", "wire")

    def __init__(self, server: Server, port: ConnectionPort) -> None:
        options: dict[str, Any] = {
            "access_log": None, "auto_decompress": False, "keepalive_timeout": _IDLE_S, "lingering_time": _LINGER_S,
            "max_line_size": _LINE_BYTES_MAX, "max_field_size": _FIELD_BYTES_MAX, "max_headers": _HEADERS_MAX,
            "logger": log,
        }  # fmt: skip
        super().__init__(server, _HEAD_BYTES_MAX, **options)
        self.port = port
        self.closed = asyncio.Event()
        self.introduced = asyncio.Event()
        """Set once a request had the signature of a member, and when the connection is lost."""
        self.is_ending = False
        """The request that is under way is the last one."""
        self.asked_at = time.monotonic()
        """When the last request came, in monotonic seconds; before the first one, when the connection was made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.is_ending = self.port.is_ending
        super().connection_made(transport)
        # A cast, not an assertion: uvloop's transports are no subclasses of asyncio's.
        self.wire = wire_of(cast(asyncio.Transport, transport), self.port.readers, _NEAR_BUFFER_BYTES)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.wire.lost()
        self.closed.set()
        self.introduced.set()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """No request is under way, and none begins to come."""
        return not (self.is_ending or self._has_request() or self._head_bytes)

    def end(self) -> None:
        """The request that is under way is the last one. Without one, the connection is closed."""
        self.is_ending = True
        request = self._current_request
        if not self._has_request():
            self.force_close()
        elif request is None or not request.body_exists:
            # aiohttp's `close` stops reading. A request whose body is on its way ends the connection by its reply.
            self.close()

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
