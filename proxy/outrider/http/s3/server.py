"""The S3 port: which clients are connected. The requests are handled by `fast_path` and `handler`.

It is aiohttp's low-level server, without router or middleware; replies are sent by `http.wire.sender`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from outrider.http.s3.connection import Connection, S3Port

log = logging.getLogger(__name__)

# Presigned queries carry session tokens of 1-2 KiB, and a key of 1,024 bytes is 3 KiB when escaped.
_LINE_BYTES_MAX = 32 * 1024
_FIELD_BYTES_MAX = 16 * 1024
# S3 allows 2 KB of user metadata, which may be some 700 headers.
_HEADERS_MAX = 1024
# After a refusal the rest of the body is read and dropped for so long: a reset could lose the refusal.
_LINGER_S = 2.0
# The parser holds up to twice this, and one read of the socket, of a body that is not read yet.
_BODY_BUFFER_BYTES = 64 * 1024
# The interval at which `idle` looks for requests that are about to begin.
_LOOK_AGAIN_S = 0.005
# How long a shutdown waits for clients to close their connections. A TLS client with an idle pool may never do so.
_GOODBYE_S = 0.5


class S3Server(S3Port):
    """The protocol factory of the S3 port. `stop` ends its threads."""

    @property
    def in_flight(self) -> int:
        """How many requests are under way."""
        return self.handler.in_flight

    @property
    def connected(self) -> int:
        """How many connections there are."""
        return len(self.connections)

    @property
    def accepted_max(self) -> int:
        """How many connections there may be, those included that are refused with a reply."""
        return self.connections_max + self.turned_away_max

    def pre_shutdown(self) -> None:
        """Every connection ends with the request that is under way. More connections may still come from a TLS
        handshake; each of them serves one request."""
        self.is_ending = True
        for connection in self.connections:
            if isinstance(connection, Connection):
                connection.end()

    async def idle(self) -> None:
        """Returns once no request is under way or about to begin."""
        await self.handler.idle()
        while any(isinstance(connection, Connection) and connection.has_work for connection in self.connections):
            await asyncio.sleep(_LOOK_AGAIN_S)
            await self.handler.idle()

    async def stop(self) -> None:
        """To be called after the last request."""
        self.fast_path.stop()
        self.readers.shutdown(wait=True)

    async def shutdown(self, timeout: float | None = None) -> None:
        """Returns when every connection is closed and no request is under way.

        aiohttp's own shutdown does less: it leaves a TLS connection open whose client does not close it, and it lets a
        request go on whose client left.
        """
        still_open = [connection for connection in self.connections if isinstance(connection, Connection)]
        for task in self.left_alone:
            task.cancel()
        await super().shutdown(timeout)
        await _all_closed(still_open)
        for connection in still_open:
            connection.wire.abort()
        await _all_closed(still_open)

    def __call__(self) -> Connection:
        return Connection(
            self, loop=asyncio.get_running_loop(), access_log=None, auto_decompress=False,
            lingering_time=_LINGER_S, max_line_size=_LINE_BYTES_MAX, max_field_size=_FIELD_BYTES_MAX,
            max_headers=_HEADERS_MAX, keepalive_timeout=self.client_idle_s, read_bufsize=_BODY_BUFFER_BYTES,
            logger=log,
        )  # fmt: skip


async def _all_closed(connections: list[Connection]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_GOODBYE_S):
            for connection in connections:
                await connection.closed.wait()
