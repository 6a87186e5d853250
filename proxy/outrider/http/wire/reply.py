"""One reply on the wire: its head, and a body whose file pieces the kernel copies."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion10
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from outrider.core.errors import S3Error, Signal
from outrider.core.model import Headers
from outrider.engine.read.body_pieces import Body, EarlyPiece, FilePiece
from outrider.http.record.record import Sent
from outrider.http.wire.sender import Buffer, WireSender

log = logging.getLogger(__name__)

OnEnd = Callable[[int, Sent, str | None], None]
"""Called once, when the reply has ended: with its status, the bytes sent, and the reason why it was cut (None: it
is whole)."""


@dataclass(frozen=True, slots=True)
class Rest:
    """The state of a reply that the fast path began: the unsent bytes of its head, and the body bytes that it has
    sent."""

    head: bytes
    sent: Sent


class WireReply(StreamResponse):
    """`length` None: the body is sent in chunks, or until the connection ends (HTTP/1.0). A body of bytes has its own
    length. `rest`: the fast path began this reply. `is_in_chunks`: the body makes its chunks itself.

    A body that fails halfway cuts the connection, so that a short answer never looks whole.
    """

    def __init__(
        self, status: int, headers: Headers, *, wire: WireSender, body: bytes | Body | None = None,
        length: int | None = None, close: bool = False, on_end: OnEnd | None = None,
        rest: Rest | None = None, is_in_chunks: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(status=status)
        self._wire_headers = headers
        self._wire = wire
        self._content = body
        self._content_bytes = len(body) if isinstance(body, bytes) else length
        self._must_close = close
        self._on_end = on_end
        self._rest = rest
        self._is_in_chunks = is_in_chunks
        self._source = "origin"

    def of_source(self, source: str) -> WireReply:
        """The same reply: that is the source of its plain bytes."""
        self._source = source
        return self

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        """Sends nothing: `write_eof` sends head and body together, so that both may share a segment."""
        self._req = request
        ends = getattr(request.protocol, "is_ending", False)
        self._keep_alive = request.keep_alive and not self._must_close and not ends
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        sent: Sent = Counter() if self._rest is None else self._rest.sent
        cut: str | None = "client left"
        try:
            await self._send(sent)
            cut = None
        except ConnectionError:
            raise
        except (Signal, S3Error, OSError) as error:
            cut = f"{type(error).__name__}: {error}"
            raise ConnectionResetError(cut) from error
        except asyncio.CancelledError:
            if not self._wire.is_lost:
                cut = "stopped"
            raise
        except Exception as error:
            log.exception("reply failed")
            cut = "our own error"
            raise ConnectionResetError(cut) from error
        finally:
            self._eof_sent = True
            if self._on_end is not None:
                self._on_end(self.status, sent, cut)
            if cut is not None:
                self._abort()

    def _abort(self) -> None:
        self._keep_alive = False
        self._wire.reset()

    async def _send(self, sent: Sent) -> None:
        assert self._req is not None
        content = self._content
        empty = self._req.method == "HEAD" or self.status in (204, 304)
        if content is None or isinstance(content, bytes):
            await self._wire.send(self._head(chunked=False) + (b"" if empty or content is None else content))
            return
        async with aclosing(content):
            if empty:
                await self._wire.send(self._head(chunked=False))
                return
            if self._is_in_chunks:
                await self._send_body(content, self._head(chunked=True), False, sent)
                return
            if self._content_bytes is None and self._req.version == HttpVersion10:
                self._keep_alive = False
            chunked = self._content_bytes is None and self._req.version > HttpVersion10
            await self._send_body(content, self._head(chunked=chunked), chunked, sent)

    async def _send_body(self, content: Body, head: bytes, chunked: bool, sent: Sent) -> None:
        wire = self._wire
        total = 0
        async for piece in content:
            if isinstance(piece, FilePiece):
                await wire.send(head, more=True)
                is_new = piece.source != "disk"
                piece.sent = await wire.send_file(
                    piece.fd, piece.offset, piece.count, is_new=is_new, is_remote=piece.is_remote
                )
                count, source = piece.sent, piece.source
            else:
                data, source = (piece.data, piece.source) if isinstance(piece, EarlyPiece) else (piece, self._source)
                if chunked or not head:
                    await wire.send(head, more=True)
                    await self._send_bytes(data, chunked=chunked)
                else:
                    await wire.send_parts(head, data)
                count = len(data)
            head = b""
            sent[source] += count
            total += count
        end = head + (b"0\r\n\r\n" if chunked else b"")
        if end:
            await wire.send(end)
        if self._content_bytes is not None and total != self._content_bytes:
            raise OSError(errno.EIO, f"the body ended after {total} of {self._content_bytes} bytes")

    async def _send_bytes(self, piece: Buffer, *, chunked: bool) -> None:
        # An empty chunk would end the body.
        if chunked and piece:
            await self._wire.send(b"%x\r\n" % len(piece), more=True)
            await self._wire.send(piece, more=True)
            await self._wire.send(b"\r\n")
        else:
            await self._wire.send(piece)

    def _head(self, *, chunked: bool) -> bytes:
        assert self._req is not None
        if self._rest is not None:
            return self._rest.head
        lines = [f"HTTP/1.1 {self.status} {_reason(self.status)}"]
        lines.extend([f"{name}: {value}" for name, value in self._wire_headers if name != "content-length"])
        if chunked:
            lines.append("transfer-encoding: chunked")
        elif self._content_bytes is not None and self.status not in (204, 304):
            lines.append(f"content-length: {self._content_bytes}")
        elif self._content is None and self.status not in (204, 304):
            lines.append("content-length: 0")
        lines.append(f"date: {_date(int(time.time()))}")
        lines.append("server: outrider")
        if not self._keep_alive:
            lines.append("connection: close")
        elif self._req.version == HttpVersion10:
            lines.append("connection: keep-alive")
        lines.append("\r\n")
        return "\r\n".join(lines).encode("utf-8", "surrogateescape")


@lru_cache(maxsize=1)
def _date(now: int) -> str:
    return formatdate(now, usegmt=True)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
