"""GETs of a mount over connections of its own: no signature, no headers, and the body straight to where it is wanted.

The proxy answers such a request for an object that it has without a parser or a task, and so does this client. Nothing
else is done here. Where a reply is unusual (a refusal, an error, another version, a body framed otherwise), or the
connection breaks, `HttpOrigin` asks again for what has not come.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from email.utils import formatdate
from math import inf
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from outrider.ports import Clock, OriginRequest

if TYPE_CHECKING:
    from outrider.adapters.origin.endpoint import Endpoint
    from outrider.mount.listed import FileVersion
    from outrider.mount.target import Target

_CONNECT_TIMEOUT_S = 5.0
_HEAD_BYTES_MAX = 16 * 1024
_STATUS = re.compile(rb"HTTP/1\.1 ([2-5]\d\d) ")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,18})\r\n", re.IGNORECASE)
_RANGE = re.compile(rb"\r\ncontent-range: *bytes (\d{1,18})-\d{1,18}/(\d{1,18})\r\n", re.IGNORECASE)
_ETAG = re.compile(rb"\r\netag:([^\r\n]*)\r\n", re.IGNORECASE)
_DATE = re.compile(rb"\r\nlast-modified:([^\r\n]*)\r\n", re.IGNORECASE)
# A proxy that asks for signatures serves an unsigned request so, if strangers may read the object.
_PAST_CACHE = re.compile(rb"\r\nx-cache: *BYPASS\r\n", re.IGNORECASE)
# One that says how the body is framed otherwise, or that the connection ends with it.
_UNUSUAL = re.compile(rb"\r\n(?:transfer-encoding|connection):", re.IGNORECASE)
_REFUSED = (401, 403)
# No plain GET is tried for so long after one that was refused or served past the cache, or after a connect that took
# too long; twice as long after each further one.
_REST_S = 60.0
# A network forgets connections that are silent for some minutes, and tells nobody. As aiohttp's client here.
_IDLE_S = 20.0


class PlainGets:
    """To one proxy, which speaks HTTP. `close` after the last."""

    def __init__(
        self, endpoint: Endpoint, bucket: str, *, connections: int, reply_s: float, idle_s: float = _IDLE_S,
        clock: Clock = time.monotonic,
    ) -> None:  # fmt: skip
        """`connections`: how many at once, and no more are kept. `reply_s`: how long the proxy may send nothing.
        `idle_s`: how long a connection is kept without a request, or twice that."""
        self._endpoint = endpoint
        self._bucket = bucket
        self._room = connections
        self._reply_s = reply_s
        self._idle_s = idle_s
        self._clock = clock
        # The one that was used last at the end.
        self._idle: list[_Connection] = []
        self._sweeping: asyncio.TimerHandle | None = None
        self._open: set[_Connection] = set()
        self._rests_until = -inf
        self._rest_s = _REST_S
        parts = urlsplit(endpoint.base)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._rest = b" HTTP/1.1\r\nHost: %s\r\n" % endpoint.host.encode()

    async def fill(self, buffer: Target, key: str, start: int, version: FileVersion) -> None:
        """Fill `buffer` with the bytes of `version` from `start` on, as far as that goes without anything unusual."""
        if not self._room or not version.etag or self._clock() < self._rests_until:
            return
        self._room -= 1
        connection = None
        try:
            connection = self._idle.pop() if self._idle else await self._connected()
            if connection is not None:
                request = self._request(buffer, key, start, whole=buffer.room == version.size)
                await connection.get(request, buffer, start, version, self._reply_s)
                if connection.status in _REFUSED or connection.is_past_cache:
                    self._pause()
                elif connection.is_free:
                    self._rest_s = _REST_S
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

    def _keep(self, connection: _Connection) -> None:
        """For the next read, if it may have one."""
        if not connection.is_free:
            connection.close()
            return
        connection.idle_at = self._clock()
        self._idle.append(connection)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(self._idle_s, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        now = self._clock()
        for connection in [idle for idle in self._idle if now - idle.idle_at >= self._idle_s]:
            self._idle.remove(connection)
            connection.close()
        if self._idle:
            self._sweeping = asyncio.get_running_loop().call_later(self._idle_s, self._sweep)

    def _request(self, buffer: Target, key: str, start: int, *, whole: bool) -> bytes:
        path = self._endpoint.path_of(OriginRequest("GET", self._bucket, key)).encode("ascii")
        asked = b"" if whole else b"Range: bytes=%d-%d\r\n" % (start, start + buffer.room - 1)
        return b"GET %s%s%s\r\n" % (path, self._rest, asked)

    async def _connected(self) -> _Connection | None:
        """None: nobody answers there."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(lambda: _Connection(self._lost), self._host, self._port)
        except TimeoutError:
            # The other client tries several addresses of a name at once.
            self._pause()
            return None
        except OSError:
            return None
        self._open.add(connection)
        return connection

    def _lost(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._open):
            connection.close()


class _Connection(asyncio.BufferedProtocol):
    """One request at a time."""

    def __init__(self, lost: Callable[[_Connection], None]) -> None:
        self._lost = lost
        self._head = bytearray(_HEAD_BYTES_MAX)
        self._head_bytes = 0
        # The room that the body still has; None: the head is not whole.
        self._body: memoryview | None = None
        self._buffer: Target | None = None
        self._etag = self._date = b""
        self._start = self._size = 0
        self._done: asyncio.Future[None] | None = None
        # Whether anything came since the last look.
        self._heard = False
        self._watching: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.status = 0
        """The status of the last reply; 0: there was none."""
        self.is_past_cache = False
        """The cache had no part in the last reply."""
        self.idle_at = 0.0
        """When it became free, by the clock of its owner."""

    @property
    def is_free(self) -> bool:
        """Whether the last reply was read whole, and the next request may be sent."""
        return self._buffer is None and self._transport is not None

    async def get(self, request: bytes, buffer: Target, start: int, version: FileVersion, reply_s: float) -> None:
        """Send `request`, and put the body into `buffer`. Returns when it is full, or when that will not be."""
        if self._transport is None:
            return
        loop = asyncio.get_running_loop()
        self._buffer, self._start, self._size = buffer, start, version.size
        self._etag = version.etag.encode("utf-8", "surrogateescape")
        self._date = formatdate(version.seconds, usegmt=True).encode() if version.seconds else b""
        self._head_bytes, self._body, self.status, self.is_past_cache = 0, None, 0, False
        self._done = loop.create_future()
        self._heard = False
        self._watching = loop.call_later(reply_s, self._watch, loop, reply_s)
        self._transport.write(request)
        try:
            await self._done
        finally:
            self._watching.cancel()
            self._done = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # -- called by the loop ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._lost(self)
        self._end()

    def get_buffer(self, _: int) -> memoryview:
        return memoryview(self._head)[self._head_bytes :] if self._body is None else self._body

    def buffer_updated(self, count: int) -> None:
        self._heard = True
        if self._buffer is None:
            self.close()  # nobody has asked for it
        elif self._body is None:
            self._head_bytes += count
            self._read_head()
        else:
            self._take(count)

    def _read_head(self) -> None:
        head = bytes(memoryview(self._head)[: self._head_bytes])
        end = head.find(b"\r\n\r\n") + 4
        if end < 4:
            if self._head_bytes == _HEAD_BYTES_MAX:
                self._give_up()
            return
        buffer, rest = self._buffer, len(head) - end
        if buffer is None or not self._is_usual(head[:end], buffer) or rest > buffer.room:
            self._give_up()
            return
        self._body = buffer.empty()
        self._body[:rest] = head[end:]
        self._take(rest)

    def _is_usual(self, head: bytes, buffer: Target) -> bool:
        status, length, etag, part = _STATUS.match(head), _LENGTH.search(head), _ETAG.search(head), _RANGE.search(head)
        if status is None:
            return False
        self.status, self.is_past_cache = int(status[1]), _PAST_CACHE.search(head) is not None
        if (
            etag is None
            or etag[1].strip(b" ").strip(b'"') != self._etag
            or length is None
            or int(length[1]) != buffer.room
        ):
            return False
        date = _DATE.search(head)
        if date is not None and self._date not in (b"", date[1].strip(b" ")):
            return False  # put again, or a date in another form
        if buffer.room == self._size:
            is_asked = self.status == 200
        else:
            is_asked = (
                self.status == 206 and part is not None and (int(part[1]), int(part[2])) == (self._start, self._size)
            )
        return is_asked and _UNUSUAL.search(head) is None

    def _take(self, count: int) -> None:
        assert self._body is not None
        assert self._buffer is not None
        self._body = self._body[count:]
        self._buffer.arrived(count)
        if not self._body:
            self._buffer, self._body, self._head_bytes = None, None, 0
            self._end()

    def _watch(self, loop: asyncio.AbstractEventLoop, reply_s: float) -> None:
        if self._heard:
            self._heard = False
            self._watching = loop.call_later(reply_s, self._watch, loop, reply_s)
        else:
            self._give_up()

    def _give_up(self) -> None:
        """At once: there may be no room for what still comes."""
        self.close()
        self._end()

    def _end(self) -> None:
        """The buffer is full, or no more is put into it."""
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
