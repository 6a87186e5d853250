"""The peer port: which members are connected, and the connection of each. It is aiohttp's low-level server; replies are
sent by `http.wire.sender`."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_server import Server

from outrider.http.peer.handler import PeerHandler, Refused
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
# Threads that wait for the disk, so that the loop does not.
_READERS = 8
# How long a shutdown waits for members to close their connections.
_GOODBYE_S = 0.5


class PeerConnection(BoundedHeads):
    """Owned by aiohttp's server. `wire` sends on it, as long as it is open."""

    __slots__ = ("closed", "introduced", "is_ending", "port", "requested_at", "wire")

    def __init__(self, server: Server, port: PeerServer) -> None:
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
        self.requested_at = time.monotonic()
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

    def is_members(self) -> None:
        """A request had the signature of a member."""
        self.introduced.set()
        self.requested_at = time.monotonic()

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


class PeerServer(Server):
    """The protocol factory of the peer port."""

    def __init__(self, handler: PeerHandler) -> None:
        # A read whose member left is given up; a fill that it began goes on by itself.
        super().__init__(self._handle, handler_cancellation=True)
        self.handler = handler
        self.readers = ThreadPoolExecutor(_READERS, thread_name_prefix="outrider-peer-read")
        self.is_ending = False

    async def _handle(self, request: BaseRequest) -> StreamResponse:
        connection = cast(PeerConnection, request.protocol)
        return await self.handler.handle(request, connection.wire, connection.is_members)

    @property
    def in_flight(self) -> int:
        """How many reads are under way."""
        return self.handler.in_flight

    def pre_shutdown(self) -> None:
        """Every connection ends with the request that is under way."""
        self.is_ending = True
        for connection in self.connections:
            if isinstance(connection, PeerConnection):
                connection.end()

    def make_room(self) -> bool:
        """Closes the connection that is idle for longest. False: none is."""
        open_ones = (each for each in self.connections if isinstance(each, PeerConnection))
        oldest = min((each for each in open_ones if each.is_idle), key=lambda each: each.requested_at, default=None)
        if oldest is not None:
            oldest.end()
        return oldest is not None

    async def idle(self) -> None:
        """Returns once no read is under way."""
        await self.handler.idle()

    async def shutdown(self, timeout: float | None = None) -> None:
        """Returns when every connection is closed and no request is under way."""
        still_open = [connection for connection in self.connections if isinstance(connection, PeerConnection)]
        await super().shutdown(timeout)
        await _all_closed(still_open)
        for connection in still_open:
            connection.wire.abort()
        await _all_closed(still_open)
        self.readers.shutdown(wait=True)

    def __call__(self) -> PeerConnection:
        return PeerConnection(self, self)


async def _all_closed(connections: list[PeerConnection]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_GOODBYE_S):
            for connection in connections:
                await connection.closed.wait()
