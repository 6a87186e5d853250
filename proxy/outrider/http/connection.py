"""One client's connection to the S3 port: aiohttp's parser and keep-alive, our own errors and our own sending side."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from outrider.http.fastlane import Begun
from outrider.http.wire import SocketWire, TlsWire, wire_of

if TYPE_CHECKING:
    from outrider.http.server import S3Server

# A connection with so many hits in a row asks for little else: a worker may have it.
_HITS_TO_LEND_OUT = 8


class Connection(RequestHandler):
    """Owned by aiohttp's server; `wire` is its sending side while it lasts."""

    __slots__ = ("_data", "_head_timer", "_hits_in_a_row", "_parser_is_clean", "begun", "closed", "server", "wire")

    def __init__(self, server: S3Server, data: bytes = b"", **options: Any) -> None:
        """`data`: what the client had sent before it came here."""
        super().__init__(server, **options)
        self.server = server
        self._data = data
        self._hits_in_a_row = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._parser_is_clean = True
        self.begun: Begun | None = None
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # Not asked of its class: uvloop's transports are none of asyncio's.
        self.wire = wire_of(cast(asyncio.Transport, transport), self.server.readers)
        if self._data:
            self.data_received(self._data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_timer()
        self.wire.lost()
        self.closed.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_idle() and self._answered_at_once(data):
            return
        super().data_received(data)
        self._parser_is_clean = self._ends_a_head(data)
        # aiohttp bounds the silence between requests, and it is long; half a head must not hold a connection as long.
        if self._is_asked():
            self._stop_head_timer()
        elif self._head_timer is None:
            loop = asyncio.get_running_loop()
            self._head_timer = loop.call_later(self.server.client_timeout_s, self._head_is_late)

    def _is_idle(self) -> bool:
        """No request is under way, none half in the parser, and none has to be turned away."""
        # A connection that closes has its waiter cancelled.
        waiter = self._waiter
        return waiter is not None and not waiter.done() and self._parser_is_clean

    def _ends_a_head(self, data: bytes) -> bool:
        """Whether `data`, now in the parser, ended with the head of a request: the next byte begins another, or a body,
        during which the connection is not idle.

        The parser does not tell what it holds. Else a request that is split over packets could have a header's value
        taken for a request. May be False where it is true.
        """
        # What came after the last head, and ended so, would be a head of its own.
        return bool(self._messages) and data.endswith(b"\r\n\r\n")

    def _answered_at_once(self, data: bytes) -> bool:
        wire = self.wire
        if not isinstance(wire, SocketWire) or self.server.is_full:
            return False
        answered = self.server.fast_lane.answer(data, wire)
        # aiohttp takes a connection on which it saw nothing for an idle one.
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if answered is True:
            self._hits_in_a_row += 1
            if self._hits_in_a_row >= _HITS_TO_LEND_OUT and self.server.workers is not None:
                client = wire.release()
                self.force_close()
                self.server.workers.lend_out(client)
            return True
        self._hits_in_a_row = 0
        if answered is not False:
            self.begun = answered
        return False

    def close(self) -> None:
        # aiohttp would leave an idle connection open, and deaf, until the drain has ended: a client's next request
        # would wait for that.
        idle = self._waiter is not None and not self._waiter.done()
        super().close()
        if idle:
            self.force_close()

    def _is_asked(self) -> bool:
        """A request is under way, or waits for its turn."""
        return self._request_in_progress or bool(self._messages)

    def _head_is_late(self) -> None:
        self._head_timer = None
        # Asked again: between its turn and its first step a request shows in neither place.
        if not self._is_asked():
            self.force_close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if isinstance(self.wire, TlsWire):
            self.wire.paused(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if isinstance(self.wire, TlsWire):
            self.wire.paused(False)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What aiohttp's parser refuses is answered in S3's words, and the connection closed."""
        return self.server.refuse_unparsed(request, self.wire)
