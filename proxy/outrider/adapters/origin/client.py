"""Sends requests over HTTP/1.1, and returns their replies: on the event loop, or in threads for large bodies."""

from __future__ import annotations

import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping

from aiohttp.abc import AbstractResolver

from outrider.adapters.origin.bulk_client import BulkClient
from outrider.adapters.origin.connection import LoopConnection
from outrider.adapters.origin.connector import Connector
from outrider.adapters.origin.endpoint import Endpoint
from outrider.adapters.origin.http_reply import Counts, HttpReply, ReceivedReply
from outrider.adapters.origin.idle_connections import IdleConnections
from outrider.adapters.origin.receivers import Receivers
from outrider.core.errors import OriginBroke
from outrider.core.origin.oddities import Oddity
from outrider.ports import BodyInThread, Buffer

Note = Callable[[Oddity, str], None]
"""Called for each head that was mended, with the kind and the name of a header."""


class HttpClient:
    """Owns the connections, and the threads that receive. To any number of servers."""

    def __init__(
        self, counts: Counts, note: Note, *, threads: int, connect_timeout_s: float, small_bytes: int = 0,
        resolver: AbstractResolver | None = None, receivers: Receivers | None = None, idle_max: int = sys.maxsize,
    ) -> None:  # fmt: skip
        """`threads`, `small_bytes`, `receivers`: see `BulkClient`. `receivers` trust whom each `tls` of `ask` does.
        `idle_max`: of the connections without a request, those of the loop and those of threads, so many each."""
        self._counts = counts
        self._note = note
        self._connector = Connector(connect_timeout_s, resolver)
        self._idle: IdleConnections[LoopConnection] = IdleConnections(most=idle_max)
        self.bulk = BulkClient(
            threads, self._connector, counts, small_bytes=small_bytes, receivers=receivers, idle_max=idle_max
        )

    async def ask(
        self, target: Endpoint, method: str, path: str, headers: Mapping[str, str], timeout_s: float,
        *, tls: ssl.SSLContext | None = None, body: AsyncIterator[Buffer] | None = None,
        body_in_thread: BodyInThread | None = None, bulk: bool = False, content: bytes = b"",
    ) -> ReceivedReply:  # fmt: skip
        """Send a request once, and return its reply, which the caller closes. `path`: percent-encoded, with the query.
        `timeout_s` bounds each wait for the server. `bulk`: the body of the reply is large. A body without a
        Content-Length is sent in chunks. `content`: a short body, which is sent with the head.

        Raises:
            OriginBroke: no reply came, or none that can be read.
        """
        chunked = body is not None and "content-length" not in headers
        request = _request(target, method, path, {**headers, "transfer-encoding": "chunked"} if chunked else headers)
        request += content
        reply: ReceivedReply | None = None
        if bulk or body_in_thread is not None:
            reply = await self.bulk.ask(target, request, timeout_s, body_in_thread)
        if reply is None:
            expects = body is not None and headers.get("expect", "").lower() == "100-continue"
            key = (target.key, tls)
            connection = self._idle.take(key) or await self._connector.connect(target, tls)
            try:
                await connection.ask(
                    request, timeout_s=timeout_s, without_body=method == "HEAD", body=body, chunked=chunked,
                    expects=expects,
                )  # fmt: skip
            except BaseException:
                connection.abort()
                raise
            reply = HttpReply(connection, lambda free: self._idle.put(key, free), self._counts)
        for kind, name in reply.oddities:
            self._note(kind, name)
        return reply

    def close(self) -> None:
        """No request is under way any more."""
        self._idle.close()
        self.bulk.close()


def _request(target: Endpoint, method: str, path: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request. Raises OriginBroke: it cannot be written."""
    to_proxy = target.proxy.url is not None and target.base.startswith("http:")
    lines = [f"{method} {target.base if to_proxy else ''}{path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    text = "\r\n".join(lines)
    ends = len(lines) - 1
    if text.count("\n") != ends or text.count("\r") != ends or "\0" in text:
        raise OriginBroke("a header cannot be written", lasting=True)
    return f"{text}\r\n\r\n".encode("utf-8", "surrogateescape")
