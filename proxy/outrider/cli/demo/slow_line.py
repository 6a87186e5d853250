"""The line between the demo and its bucket: late replies, and a limited bandwidth of each connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_PIECE_BYTES = 256 * 1024
# A shorter pause than this would be a longer one.
_PAUSE_S = 0.005


class SlowLine:
    """Relays connections to a port of loopback. `endpoint` is where it listens, within `opened`."""

    def __init__(self, port: int, latency_s: float, connection_bytes_s: float) -> None:
        self._port = port
        self._latency_s = latency_s
        self._connection_bytes_s = connection_bytes_s
        self._relays: set[asyncio.Task[None]] = set()
        self.endpoint = ""
        self.reply_bytes = 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.endpoint = f"http://{host}:{port}"
        try:
            yield
        finally:
            server.close()
            for relay in self._relays:
                relay.cancel()
            await asyncio.gather(*self._relays, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.get_running_loop().create_task(self._relay(reader, writer), name="slow line")
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far: asyncio.StreamWriter | None = None
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._port)
            async with asyncio.TaskGroup() as tasks:
                ways = (
                    tasks.create_task(self._requests(reader, far)),
                    tasks.create_task(self._replies(far_reader, writer)),
                )
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
        except* OSError:
            pass  # either end has left
        finally:
            for end in filter(None, (writer, far)):
                end.close()

    async def _requests(self, reader: asyncio.StreamReader, far: asyncio.StreamWriter) -> None:
        while piece := await reader.read(_PIECE_BYTES):
            await asyncio.sleep(self._latency_s)
            far.write(piece)
            await far.drain()

    async def _replies(self, far: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        free_at = loop.time()
        while piece := await far.read(_PIECE_BYTES):
            self.reply_bytes += len(piece)
            free_at = max(free_at, loop.time()) + len(piece) / self._connection_bytes_s
            if (pause_s := free_at - loop.time()) > _PAUSE_S:
                await asyncio.sleep(pause_s)
            writer.write(piece)
            await writer.drain()
