"""GETs of a mount over connections of its own: no signature, no headers, and the body straight to where it is wanted.

The proxy answers such a request for an object that it has without a parser or a task. Where a reply is unusual (a
refusal, an error, another version, a body framed otherwise), or the connection breaks, `HttpOrigin` asks again for what
has not come.
"""

from __future__ import annotations

import time
from email.utils import formatdate
from math import inf
from typing import TYPE_CHECKING

from outrider.adapters.origin.connection import LoopConnection
from outrider.adapters.origin.connector import Connector
from outrider.adapters.origin.idle_connections import IDLE_S, IdleConnections
from outrider.core.errors import Broke, OriginBroke
from outrider.core.origin.reply_reader import ReplyReader
from outrider.core.s3.encoding import object_path
from outrider.ports import Clock

if TYPE_CHECKING:
    from outrider.adapters.origin.endpoint import Endpoint
    from outrider.mount.listed import FileVersion
    from outrider.mount.target import Target

_CONNECT_TIMEOUT_S = 5.0
_REFUSED = (401, 403)
# No plain GET is tried for so long after one that was refused or served past the cache, or after a connect that took
# too long; twice as long after each further one.
_REST_S = 60.0


class PlainGets:
    """To one proxy, which speaks HTTP. `close` after the last."""

    def __init__(
        self, endpoint: Endpoint, bucket: str, *, connections: int, reply_s: float, idle_s: float = IDLE_S,
        clock: Clock = time.monotonic,
    ) -> None:  # fmt: skip
        """`connections`: how many at once, and no more are kept. `reply_s`: how long the proxy may send nothing.
        `idle_s`: how long a connection is kept without a request, or twice that."""
        self._endpoint = endpoint
        self._bucket = bucket
        self._room = connections
        self._reply_s = reply_s
        self._clock = clock
        self._connector = Connector(_CONNECT_TIMEOUT_S)
        self._idle: IdleConnections[LoopConnection] = IdleConnections(idle_s)
        self._rests_until = -inf
        self._rest_s = _REST_S
        self._rest = b" HTTP/1.1\r\nHost: %s\r\n" % endpoint.host.encode()

    async def fill(self, buffer: Target, key: str, start: int, version: FileVersion) -> None:
        """Fill `buffer` with the bytes of `version` from `start` on, as far as that goes without anything unusual."""
        if not self._room or not version.etag or self._clock() < self._rests_until:
            return
        self._room -= 1
        connection: LoopConnection | None = None
        try:
            connection = self._idle.take("") or await self._connector.connect(self._endpoint, None)
            reader = await connection.ask(
                self._request(buffer, key, start, version), timeout_s=self._reply_s,
                place=lambda reader: buffer if _is_usual(reader, buffer, start, version) else None,
            )  # fmt: skip
            # A proxy that asks for signatures serves an unsigned request past the cache, if strangers may read it.
            if reader.status in _REFUSED or dict(reader.headers).get("x-cache") == "BYPASS":
                self._pause()
            await connection.filled()
            if buffer.room:
                connection.abort()
        except OriginBroke as error:
            if error.cause is Broke.CONNECT and isinstance(error.__cause__, TimeoutError):
                self._pause()
        finally:
            self._room += 1
            if connection is not None:
                self._keep(connection)

    def _pause(self) -> None:
        # Once for all reads that were under way together.
        if self._clock() < self._rests_until:
            return
        self._rests_until = self._clock() + self._rest_s
        self._rest_s *= 2

    def _keep(self, connection: LoopConnection) -> None:
        """For the next read, if it may have one."""
        if not connection.is_free:
            connection.abort()
            return
        self._rest_s = _REST_S
        self._idle.put("", connection)

    def _request(self, buffer: Target, key: str, start: int, version: FileVersion) -> bytes:
        path = object_path(self._bucket, key, bare=False).encode("ascii")
        is_whole = buffer.room == version.size
        range_line = b"" if is_whole else b"Range: bytes=%d-%d\r\n" % (start, start + buffer.room - 1)
        return b"GET %s%s%s\r\n" % (path, self._rest, range_line)

    def close(self) -> None:
        self._idle.close()


def _is_usual(reader: ReplyReader, buffer: Target, start: int, version: FileVersion) -> bool:
    """The body is the bytes of `version` that were requested, and the connection stays."""
    headers = dict(reader.headers)
    # None if it was put again, or has a date in another form.
    dates = ("", formatdate(version.seconds, usegmt=True)) if version.seconds else ("", headers.get("last-modified"))
    if buffer.room == version.size:
        is_expected = reader.status == 200
    else:
        part = f"bytes {start}-{start + buffer.room - 1}/{version.size}"
        is_expected = reader.status == 206 and headers.get("content-range") == part
    return (
        is_expected and reader.keeps and reader.is_measured and reader.content_length == buffer.room
        and headers.get("etag", "").strip('"') == version.etag and headers.get("last-modified", "") in dates
    )  # fmt: skip
