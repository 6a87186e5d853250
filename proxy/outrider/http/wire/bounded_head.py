"""Bounds the head of a request in time and size: aiohttp (3.14) bounds silence alone, and by an hour."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp.web_protocol import RequestHandler
from aiohttp.web_server import Server

from outrider.http.wire.request_guards import guarded

HEAD_TIMEOUT_S = 10.0
"""A head comes in one piece, as a rule."""


class BoundedHeads(RequestHandler):
    """A connection is closed whose first request, or whose next one once it has begun, takes too long to come."""

    __slots__ = ("_head_bytes", "_head_bytes_max", "_head_timer")

    def __init__(self, server: Server, head_bytes_max: int, **options: Any) -> None:
        """`options`: aiohttp's."""
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._parser = guarded(self._parser)
        self._head_bytes_max = head_bytes_max
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._head_timer = self._loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._has_request():
            self._head_bytes = 0
            self._stop_head_timer()
            return
        self._head_bytes += len(data)
        if self._head_bytes > self._head_bytes_max:
            if self.transport is not None:
                self.transport.abort()
        elif self._head_timer is None:
            self._head_timer = self._loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)

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
