"""The bucket of a mount as the proxy shows it: LIST, HEAD and GET."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import closing
from functools import partial
from typing import TypeVar

from outrider.core.errors import OriginBroke
from outrider.core.model import Headers
from outrider.core.s3.conditions import parse_http_date
from outrider.core.s3.list_page import PAGE_BYTES_MAX, ListPage, parse_page
from outrider.core.s3.list_walk import LIST_FORMS, NOT_UNDERSTOOD, ListWalk
from outrider.core.s3.operation import Query
from outrider.core.s3.ranges import parse_content_range
from outrider.mount.listed import FileVersion, ObjectFacts
from outrider.mount.plain_gets import PlainGets
from outrider.mount.target import Target
from outrider.ports import Origin, OriginReply, OriginRequest

T = TypeVar("T")
_DENIED = (401, 403)
_BUSY = 429
# A proxy that is started anew is back within seconds. Training code gives up at the first error of a file.
_PAUSES_S = (0.1, 0.4, 1.0, 2.0, 4.0, 8.0, 15.0)


class Stale(Exception):
    """The object is gone, or is not of the version and size that were requested."""


class Unreachable(OSError):
    """The proxy is away or busy, and was for half a minute."""


class MountBucket:
    """Errors are those of a file system: each call raises OSError, EACCES where the proxy or the store refuses, and EIO
    for all else. Where the proxy is away or busy it is tried again for half a minute, and the error is
    `Unreachable`."""

    def __init__(
        self, proxy: Origin, name: str, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        *, plain: PlainGets | None = None,
    ) -> None:  # fmt: skip
        """`plain` is asked for bytes first. None: there is none for such a proxy."""
        self._proxy = proxy
        self._plain = plain
        self._name = name
        self._sleep = sleep
        # The first of `LIST_FORMS` that the store has answered.
        self._form = 0

    async def pages(self, prefix: str) -> AsyncGenerator[ListPage, None]:
        """The objects and directories under `prefix`, without those in its directories."""
        walk = ListWalk(delimited=True)
        way_on: Query = ()
        while True:
            page = await self._patiently(partial(self._page, prefix, (("delimiter", "/"), *way_on)))
            try:
                walk.take(page)
                way_on = walk.way_on(page) if page.is_truncated else ()
            except OriginBroke as error:
                raise OSError(errno.EIO, str(error)) from error
            yield page
            if not page.is_truncated:
                return

    async def has_any(self, prefix: str) -> bool:
        """Whether any key begins with `prefix`."""
        page = await self._patiently(partial(self._page, prefix, (("max-keys", "1"),)))
        return bool(page.objects or page.groups)

    async def complaint_about(self, prefix: str) -> str | None:
        """Why a mount of `prefix` shows nothing, and the nearest prefix above it that has objects; None: it has some.

        A LIST of one key for each level.
        """
        shown = f"s3://{self._name}/"
        try:
            if await self.has_any(prefix):
                return None
            above = prefix
            while above:
                above = above[: above.rstrip("/").rfind("/") + 1]
                if await self.has_any(above):
                    return f"{shown}{prefix} holds no object; {shown}{above} does."
        except OSError as error:
            return f"{shown}{prefix} is not listed: {error.strerror}"
        return f"{shown} holds no object."

    async def head(self, key: str) -> ObjectFacts | None:
        """None: there is no such object."""
        return await self._patiently(partial(self._head, key))

    async def read_into(self, buffer: Target, key: str, start: int, version: FileVersion) -> None:
        """Fill `buffer` with the bytes from `start` on. All of them take no Range.

        Raises:
            Stale: they are not those of `version`.
        """
        if self._plain is not None:
            await self._plain.fill(buffer, key, start, version)
        if buffer.room:
            await self._patiently(partial(self._read_on, buffer, key, start, version))

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        for pause_s in (*_PAUSES_S, None):
            try:
                return await call()
            except OriginBroke as error:
                if pause_s is None or error.lasting:
                    raise Unreachable(errno.EIO, str(error)) from error
                await self._sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    async def _head(self, key: str) -> ObjectFacts | None:
        with closing(await self._proxy.ask(OriginRequest("HEAD", self._name, key))) as reply:
            if reply.status == 404:
                return None
            if reply.status != 200 or reply.content_length is None:
                raise _refused(reply.status)
            return _facts_of(reply, reply.content_length)

    async def _read_on(self, buffer: Target, key: str, start: int, version: FileVersion) -> None:
        """Goes on where a body broke off."""
        if not buffer.room:
            return
        first = start + buffer.received
        headers: Headers = ()
        if buffer.room < version.size:
            headers = (("range", f"bytes={first}-{first + buffer.room - 1}"),)
        with closing(await self._proxy.ask(OriginRequest("GET", self._name, key, headers=headers))) as reply:
            _check(reply, first, version)
            while piece := await reply.some():
                buffer.take(piece)
        if buffer.room:
            raise OriginBroke("the body was too short")

    async def _page(self, prefix: str, more: Query) -> ListPage:
        for form in range(self._form, len(LIST_FORMS)):
            page = await self._page_in(form, prefix, more)
            if page is not None:
                self._form = form
                return page
        raise AssertionError("the last form returns or raises")

    async def _page_in(self, form: int, prefix: str, more: Query) -> ListPage | None:
        """None: the store does not understand this form."""
        request = OriginRequest("GET", self._name, "", query=(*LIST_FORMS[form], ("prefix", prefix), *more))
        with closing(await self._proxy.ask(request)) as reply:
            if reply.status == 404:
                raise OSError(errno.EIO, f"there is no bucket {self._name}: check its name, and the proxy's --origin")
            if reply.status in NOT_UNDERSTOOD and form + 1 < len(LIST_FORMS):
                return None
            if reply.status != 200:
                raise _refused(reply.status)
            body = bytearray()
            while piece := await reply.some():
                body += piece
                if len(body) > PAGE_BYTES_MAX:
                    raise OSError(errno.EIO, "a page of the LIST is too long")
        page = parse_page(bytes(body))
        if page is None:
            raise OSError(errno.EIO, "the reply to a LIST is no page of a LIST")
        return page


def _check(reply: OriginReply, start: int, version: FileVersion) -> None:
    """Raises Stale: the reply is not of `version`."""
    if reply.status in (404, 416):
        raise Stale
    if reply.status != 206 and not (reply.status == 200 and start == 0):
        raise _refused(reply.status)
    headers, size = dict(reply.headers), reply.content_length
    if reply.status == 206:
        part = parse_content_range(headers.get("content-range", ""))
        if part is not None and part[0].start != start:
            raise OSError(errno.EIO, "the reply to a Range brings other bytes")
        size = None if part is None else part[1]
    if not version.may_be(_facts_of(reply, -1 if size is None else size)):
        raise Stale


def _facts_of(reply: OriginReply, size: int) -> ObjectFacts:
    headers = dict(reply.headers)
    return ObjectFacts.of(size, headers.get("etag", ""), parse_http_date(headers.get("last-modified")))


def _refused(status: int) -> Exception:
    if status >= 500 or status == _BUSY:
        return OriginBroke(f"the proxy answers {status}")
    if status in _DENIED:
        return OSError(errno.EACCES, f"the proxy answers {status}: `outrider doctor` shows what the keys may not do")
    return OSError(errno.EIO, f"the proxy answers {status}")
