"""The S3 port as its connections see it. Protocols, since `server` and `handler` import the connection's parts."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Protocol

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from outrider.http.s3.fast_path import FastPath
from outrider.http.wire.sender import Sender


class RequestHandling(Protocol):
    """The part of the request handler that a connection calls itself; aiohttp calls the rest."""

    @property
    def are_full(self) -> bool:
        """As many requests are under way as the settings allow: the next request is refused."""
        ...

    def refuse_unparsed(self, request: BaseRequest, wire: Sender, why: str) -> StreamResponse:
        """The reply to bytes that the HTTP parser refused."""
        ...


class ConnectionPort(Protocol):
    """The port as one of its connections sees it; on the engine's loop."""

    fast_path: FastPath
    client_timeout_s: float
    is_ending: bool
    """A connection that is made from now on serves one request."""

    @property
    def handler(self) -> RequestHandling: ...

    @property
    def readers(self) -> Executor:
        """The threads that wait for the disk."""
        ...

    @property
    def spare_connections(self) -> int:
        """How many more clients may connect; a negative number counts the connections that are being turned away."""
        ...

    @property
    def turned_away_max(self) -> int:
        """At most this many connections beyond the limit are refused with a reply, which costs little; more are cut."""
        ...

    def left_alone(self, request: asyncio.Task[None]) -> None:
        """The client of this request left. The request goes on, because a write under way must not be broken off."""
        ...
