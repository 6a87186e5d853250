"""Connections without a request, kept for the next one to the same server."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

# A network forgets connections that are silent for some minutes, and no one learns it. Shorter than a member keeps one.
IDLE_S = 20.0


class Keepable(Protocol):
    @property
    def is_open(self) -> bool: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Keepable)


class IdleConnections(Generic[C]):
    """Called on the event loop's thread. A connection is used again within `idle_s`, and closed within twice that. The
    one that is idle for longest is closed where there would be more than `most`."""

    def __init__(self, idle_s: float = IDLE_S, most: int = sys.maxsize) -> None:
        self._idle_s = idle_s
        self._most = most
        self._idle: dict[Hashable, list[tuple[C, float]]] = {}
        self._closing: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return sum(map(len, self._idle.values()))

    def take(self, key: Hashable) -> C | None:
        """The connection that was used last."""
        idle = self._idle.get(key)
        while idle:
            connection, since = idle.pop()
            if time.monotonic() - since < self._idle_s and connection.is_open:
                return connection
            connection.close()
        return None

    def put(self, key: Hashable, connection: C) -> None:
        if self._closed:
            connection.close()
            return
        self._idle.setdefault(key, []).append((connection, time.monotonic()))
        if self._most < sys.maxsize and len(self) > self._most:
            oldest = min(filter(None, self._idle.values()), key=lambda idle: idle[0][1])
            oldest.pop(0)[0].close()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().call_later(self._idle_s, self._close_old)

    def _close_old(self) -> None:
        self._closing, before = None, time.monotonic() - self._idle_s
        for key, idle in list(self._idle.items()):
            for connection, since in idle:
                if since <= before:
                    connection.close()
            self._idle[key] = [(connection, since) for connection, since in idle if since > before]
            if not self._idle[key]:
                del self._idle[key]
        if self._idle:
            self._closing = asyncio.get_running_loop().call_later(self._idle_s, self._close_old)

    def close(self) -> None:
        """A connection that is put afterwards, by a request that was under way, is closed."""
        self._closed = True
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        for idle in self._idle.values():
            for connection, _ in idle:
                connection.close()
        self._idle.clear()
