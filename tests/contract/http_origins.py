"""An `HttpOrigin`, opened, and the servers behind it: of given bytes, or of given answers."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.core.auth.sigv4 import Credentials
from outrider.metrics import Metrics
from outrider.ports import Clock

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FixedKeys:
    """`access_key` "": requests are not signed."""

    def __init__(self, access_key: str = "AKID") -> None:
        self._credentials = Credentials(access_key, "secret") if access_key else None

    async def current(self) -> Credentials | None:
        return self._credentials

    async def renew(self, refused: Credentials) -> bool:
        return False


class Scripted:
    """Answers each request with the next of `replies`. `pieces`: a reply goes out so many bytes at a time; 0: whole."""

    def __init__(self, replies: Sequence[bytes], pieces: int = 0, *, closes: bool = False) -> None:
        self.replies = list(replies)
        self.pieces = pieces
        self.closes = closes
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            await reader.readuntil(b"\r\n\r\n")
            reply = self.replies.pop(0)
            count = self.pieces or len(reply) or 1
            for at in range(0, len(reply), count):
                writer.write(reply[at : at + count])
                await writer.drain()
                await asyncio.sleep(0)
            if self.closes:
                break


@asynccontextmanager
async def listening(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server. `serve` may end by the end of the connection."""

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(once, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def answering(answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    """The port of a server."""
    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def opened(
    at: int | str, keys: Any = None, *, metrics: Metrics | None = None, clock: Clock = time.time, connections: int = 4,
    **settings: Any,
) -> AsyncIterator[HttpOrigin]:  # fmt: skip
    """`at`: a port of this machine, or an endpoint. `keys` None: requests are not signed."""
    endpoint = at if isinstance(at, str) else f"http://127.0.0.1:{at}"
    origin = HttpOrigin(
        endpoint, "us-east-1", keys or FixedKeys(""), metrics or Metrics(), clock, connections=connections, **settings
    )
    await origin.open()
    try:
        yield origin
    finally:
        await origin.close()
