"""The peer port: which members are connected. It is aiohttp's low-level server; replies are sent by
`http.wire.sender`."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from aiohttp.web_server import Server

from outrider.http.peer.connection import PeerConnection
from outrider.http.peer.handler import PeerHandler

# Threads that wait for the disk, so that the loop does not.
_READERS = 8
# How long a shutdown waits for members to close their connections.
_GOODBYE_S = 0.5


class PeerServer(Server):
    """The protocol factory of the peer port."""

    def __init__(self, handler: PeerHandler) -> None:
        # A read whose member left is given up; a fill that it began goes on by itself.
        super().__init__(handler.handle, handler_cancellation=True)
        self.handler = handler
        self.readers = ThreadPoolExecutor(_READERS, thread_name_prefix="outrider-peer-read")
        self.is_ending = False

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
        oldest = min((each for each in open_ones if each.is_idle), key=lambda each: each.asked_at, default=None)
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
