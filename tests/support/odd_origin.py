"""A catalogue of odd origins: a small S3 server on loopback that answers as AWS does, save for the oddities set.

Objects are held in memory. GET, HEAD and LIST are answered. Each request is recorded with the bytes that were sent for
it, so that the traffic of a cache can be compared with that of clients without one.

    with OddOrigin(Oddities(range_status=200)).on_thread() as origin, Proxy(bucket, origin.endpoint) as proxy:
        origin.put("train", "a.tar", RAMP)
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape

from tests.support.oddities import (
    AWS,
    ListETag,
    ListSize,
    Oddities,
    Reply,
    Seen,
    Stored,
    etag_of,
    object_reply,
    refusal,
    send,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Iterator, Mapping

_HEAD_BYTES_MAX = 64 * 1024
_START_S = 60.0
# The dates of the objects: each one that is put is a second younger than the one before, and all are old enough to be
# settled.
_FIRST_DATE = 1_700_000_000


class OddOrigin:
    """All attributes may be changed at any time. `odd_objects` overrides `oddities` for single objects.

    Refusals (404, 412, ...) are as AWS sends them, but for `http_1_0`, `closes` and `hangs_up`.
    """

    def __init__(self, oddities: Oddities = AWS) -> None:
        self.oddities = oddities
        self.odd_objects: dict[tuple[str, str], Oddities] = {}
        self.objects: dict[tuple[str, str], Stored] = {}
        self.seen: list[Seen] = []
        self._dates = count(_FIRST_DATE)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    # -- objects -------------------------------------------------------------------------------------------------------

    def put(self, bucket: str, key: str, body: bytes, *headers: tuple[str, str], modified: int | None = None) -> None:
        """Store an object, or overwrite it. `modified` None: a second after the last one that was put."""
        date = next(self._dates) if modified is None else modified
        self.objects[bucket, key] = Stored(body, date, headers)

    def delete(self, bucket: str, key: str) -> None:
        del self.objects[bucket, key]

    # -- what was seen ------------------------------------------------------------------------------------------------

    @property
    def sent_bytes(self) -> int:
        """The bytes of bodies that were sent."""
        return sum(seen.sent_bytes for seen in self.seen)

    def count(self, method: str) -> int:
        return sum(seen.method == method for seen in self.seen)

    # -- life ----------------------------------------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        assert self._server is not None, "not running"
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def endpoint(self) -> str:
        host, port = self.address
        return f"http://{host}:{port}"

    @asynccontextmanager
    async def serving(self, listener: socket.socket | None = None) -> AsyncIterator[Self]:
        """Serves on the running loop. `listener` None: on a free port of loopback."""
        where: dict[str, Any] = {"host": "127.0.0.1", "port": 0} if listener is None else {"sock": listener}
        self._server = await asyncio.start_server(self._serve, **where, limit=_HEAD_BYTES_MAX)
        try:
            yield self
        finally:
            self._server.close()
            for writer in tuple(self._writers):
                writer.transport.abort()
            await asyncio.sleep(0)

    @contextmanager
    def on_thread(self) -> Iterator[OddOrigin]:
        """Serves on a thread with a loop of its own."""
        started, ends = threading.Event(), asyncio.Event()
        loop = asyncio.new_event_loop()

        async def serve() -> None:
            async with self.serving():
                started.set()
                await ends.wait()
            # The tasks of the connections that were cut end by themselves.
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others)

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(serve())

        thread = threading.Thread(target=run, name="odd origin", daemon=True)
        thread.start()
        assert started.wait(_START_S), "the origin did not start"
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(ends.set)
            thread.join(_START_S)
            assert not thread.is_alive(), "the origin did not stop"

    # -- connections ---------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while await self._one_request(reader, writer):
                    pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Returns whether another request may follow on this connection."""
        raw = await reader.readuntil(b"\r\n\r\n")
        start, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, _ = start.split(" ", 2)
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        seen = Seen(method, target, headers)
        self.seen.append(seen)
        path, _, query = target.partition("?")
        bucket, _, key = unquote(path, errors="surrogateescape").removeprefix("/").partition("/")
        odd = self.odd_objects.get((bucket, key), self.oddities)
        reply = self._reply(odd, seen, bucket, key, dict(parse_qsl(query, keep_blank_values=True)), body)
        seen.status = reply.status
        await self._send(writer, odd, seen, reply)
        return not (reply.closes or odd.closes or odd.hangs_up or odd.http_1_0 or headers.get("connection") == "close")

    def _reply(
        self, odd: Oddities, seen: Seen, bucket: str, key: str, query: Mapping[str, str], body: bytes
    ) -> Reply:  # fmt: skip
        """`body`: that of the request, which only an origin that can be written needs."""
        if key:
            return object_reply(odd, seen, self.objects.get((bucket, key)))
        return self._list(odd, seen.method, bucket, query)

    async def _send(self, writer: asyncio.StreamWriter, odd: Oddities, seen: Seen, reply: Reply) -> None:
        await send(writer, odd, seen, reply)

    # -- LIST ----------------------------------------------------------------------------------------------------------

    def _list(self, odd: Oddities, method: str, bucket: str, query: Mapping[str, str]) -> Reply:
        """A page of ListObjectsV2, or of ListObjects."""
        if method != "GET":
            return refusal(405, method)
        if odd.list_refuses & query.keys():
            return refusal(400, method)
        prefix = query.get("prefix", "")
        after = query.get("continuation-token") or query.get("start-after") or query.get("marker") or ""
        rows = self._rows(bucket, prefix, query.get("delimiter", ""))
        # A marker that is a common prefix comes before the keys under it (S3 API reference, ListObjects: Marker).
        names = sorted(name for name in rows if name > after)
        page = names[: min(odd.list_page, int(query.get("max-keys") or 1000))]
        encodes = query.get("encoding-type") == "url" and not odd.list_ignores_encoding
        entries = "".join(
            self._entry(odd, bucket, key, encodes=encodes) if key else _group(name, encodes=encodes)
            for name, key in ((name, rows[name]) for name in page)
        )
        more = len(page) < len(names)
        token = ""
        if more and not odd.list_without_token:
            is_second = query.get("list-type") == "2"
            name = "NextContinuationToken" if is_second else "NextMarker"
            token = f"<{name}>{quote(page[-1]) if encodes and not is_second else escape(page[-1])}</{name}>"
        xml = (
            '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{'<EncodingType>url</EncodingType>' if encodes else ''}"
            f"{token}{entries}</ListBucketResult>"
        )
        return Reply(200, [("Content-Type", "application/xml")], xml.encode())

    def _rows(self, bucket: str, prefix: str, delimiter: str) -> dict[str, str]:
        """The keys under `prefix`, each for itself; and the common prefixes, each with an empty key."""
        rows = {}
        for name, key in self.objects:
            if name == bucket and key.startswith(prefix):
                head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                rows[prefix + head + cut if cut else key] = "" if cut else key
        return rows

    def _entry(self, odd: Oddities, bucket: str, key: str, *, encodes: bool) -> str:
        stored = self.objects[bucket, key]
        odd = self.odd_objects.get((bucket, key), odd)
        date = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.modified))
        etag = etag_of(odd, stored, "GET") if odd.list_etag is ListETag.RIGHT else _LISTED_ETAGS[odd.list_etag]
        shown = "" if etag is None else f"<ETag>{escape(etag)}</ETag>"
        right = len(stored.body)
        size = {ListSize.SMALLER: right // 2, ListSize.LARGER: right * 2, ListSize.ZERO: 0}.get(odd.list_size, right)
        listed = "" if odd.list_size is ListSize.MISSING else f"<Size>{size}</Size>"
        return (
            f"<Contents><Key>{quote(key) if encodes else escape(key)}</Key><LastModified>{date}</LastModified>{shown}"
            f"{listed}<StorageClass>STANDARD</StorageClass></Contents>"
        )


_LISTED_ETAGS = {ListETag.OTHER: '"listed"', ListETag.MISSING: None}


def _group(name: str, *, encodes: bool) -> str:
    return f"<CommonPrefixes><Prefix>{quote(name) if encodes else escape(name)}</Prefix></CommonPrefixes>"
