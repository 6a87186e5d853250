"""The bucket of a mount as the proxy shows it: LIST, HEAD and GET."""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime

from outrider.core.errors import OriginBroke, OriginBusy
from outrider.core.model import Headers
from outrider.core.s3.conditions import parse_http_date
from outrider.core.s3.list_page import PAGE_BYTES_MAX, ListPage, parse_page
from outrider.core.s3.operation import Query
from outrider.ports import Buffer, Origin, OriginReply, OriginRequest

_DENIED = (401, 403)


class Stale(Exception):
    """The object is gone, or another version took its place."""


class Bucket:
    """Errors are those of a file system: each call raises OSError, EACCES where the proxy or the store refuses, and EIO
    for all else."""

    def __init__(self, proxy: Origin, name: str) -> None:
        self._proxy = proxy
        self._name = name

    async def pages(self, prefix: str) -> AsyncGenerator[ListPage, None]:
        """The objects and directories under `prefix`, without those in its directories."""
        token: Query = ()
        while True:
            page = await self._page(prefix, (("delimiter", "/"), *token))
            yield page
            if not page.is_truncated:
                return
            if page.next_token is None:
                raise OSError(errno.EIO, "the LIST is truncated without a way on")
            token = (("continuation-token", page.next_token),)

    async def has_any(self, prefix: str) -> bool:
        """Whether any key begins with `prefix`."""
        page = await self._page(prefix, (("max-keys", "1"),))
        return bool(page.objects or page.groups)

    async def head(self, key: str) -> tuple[int, str, datetime | None] | None:
        """Size, ETag and time of an object; None: there is none."""
        try:
            async with self._proxy.send(OriginRequest("HEAD", self._name, key)) as reply:
                if reply.status == 404:
                    return None
                if reply.status != 200 or reply.content_length is None:
                    raise _refused(reply.status)
                told = dict(reply.headers)
                return reply.content_length, told.get("etag", ""), parse_http_date(told.get("last-modified"))
        except (OriginBroke, OriginBusy) as error:
            raise OSError(errno.EIO, str(error)) from error

    async def read_into(self, buffer: Target, key: str, start: int, etag: str, *, whole: bool) -> None:
        """Fill `buffer` with the bytes from `start` on. `whole`: they are the whole object, which takes no Range.

        Raises:
            Stale: they are not those of the version `etag`.
        """
        headers: Headers = () if whole else (("range", f"bytes={start}-{start + buffer.room - 1}"),)
        try:
            async with self._proxy.send(OriginRequest("GET", self._name, key, headers=headers)) as reply:
                _check(reply, start, etag)
                async with aclosing(reply.chunks()) as chunks:
                    async for chunk in chunks:
                        buffer.take(chunk)
        except (OriginBroke, OriginBusy) as error:
            raise OSError(errno.EIO, str(error)) from error
        if buffer.room:
            raise OSError(errno.EIO, "the body was too short")

    async def _page(self, prefix: str, more: Query) -> ListPage:
        query = (*more, ("encoding-type", "url"), ("list-type", "2"), ("prefix", prefix))
        try:
            async with self._proxy.send(OriginRequest("GET", self._name, "", query=query)) as reply:
                if reply.status != 200:
                    raise _refused(reply.status)
                body = bytearray()
                async with aclosing(reply.chunks()) as chunks:
                    async for chunk in chunks:
                        body += chunk
                        if len(body) > PAGE_BYTES_MAX:
                            raise OSError(errno.EIO, "a page of the LIST is too long")
        except (OriginBroke, OriginBusy) as error:
            raise OSError(errno.EIO, str(error)) from error
        page = parse_page(bytes(body))
        if page is None:
            raise OSError(errno.EIO, "the reply to a LIST is no page of a LIST")
        return page


class Target:
    """Bytes that come in order. `came`: how many are there."""

    def __init__(self, size: int) -> None:
        self.bytes = bytearray(size)
        self.came = 0

    @property
    def room(self) -> int:
        return len(self.bytes) - self.came

    def take(self, chunk: Buffer) -> None:
        end = self.came + len(chunk)
        if end > len(self.bytes):
            raise OSError(errno.EIO, "more bytes came than were asked for")
        self.bytes[self.came : end] = chunk
        self.came = end


def _check(reply: OriginReply, start: int, etag: str) -> None:
    if reply.status in (404, 416):
        raise Stale
    if reply.status != 206 and not (reply.status == 200 and start == 0):
        raise _refused(reply.status)
    for name, value in reply.headers:
        if name == "etag" and etag and value.strip('"') != etag:
            raise Stale


def _refused(status: int) -> OSError:
    return OSError(errno.EACCES if status in _DENIED else errno.EIO, f"the proxy answers {status}")
