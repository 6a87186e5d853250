"""One connection to the admin port: it serves one request, and it is closed after a bounded time in any case.

Others than the kubelet and Prometheus can reach the port as well, and need no token to open connections.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp.http import RawRequestMessage
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse
from aiohttp.web_server import Server

from outrider.http.wire.bounded_head import BoundedHeads

log = logging.getLogger(__name__)

# Large enough for the cookies that a browser sends along, of all services under the names of this machine.
_HEAD_BYTES_MAX = 64 * 1024
# After a refusal the rest of the body is read and dropped for so long: a reset could lose the refusal.
_LINGER_S = 1.0


class AdminConnection(BoundedHeads):
    """Owned by aiohttp's server. It is closed after the answer, because clients ask every few seconds at most."""

    __slots__ = ("_end", "_life_s", "is_cut")

    def __init__(self, server: Server, life_s: float) -> None:
        """`life_s`: how long the connection may last in all."""
        super().__init__(server, _HEAD_BYTES_MAX, access_log=None, lingering_time=_LINGER_S, logger=log)
        self._life_s = life_s
        self._end: asyncio.TimerHandle | None = None
        self.is_cut = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._end = self._loop.call_later(self._life_s, self.cut)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)

    def cut(self) -> None:
        self.is_cut = True
        if self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        for at, (message, payload) in enumerate(self._messages):
            if isinstance(message, RawRequestMessage):
                self._messages[at] = message._replace(should_close=True), payload

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> StreamResponse:
        """A request that the parser refuses is the client's fault: it gets a 400, and no line in the log."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
        refusal = Response(status=400, text="this is no HTTP request that is answered here\n")
        refusal.force_close()
        return refusal
