"""A request's body as it arrives, from a client that may wait for leave, stop halfway, or send next to nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from aiohttp import hdrs
from aiohttp.http import HttpVersion11
from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest

from outrider.core.errors import IncompleteBody, RequestTimeout
from outrider.http.wire.sender import Sender

# What a client has brought of a body must be worth this much for each second that it was waited for, beyond its
# `client_timeout_s`: less is no upload, but a connection to the origin held for nothing.
_BODY_BYTES_PER_S_MIN = 1024
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def send_leave(request: BaseRequest, wire: Sender) -> None:
    """Where the client expects it, before it sends a body."""
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.version >= HttpVersion11:
        await wire.send(_CONTINUE)


async def client_body(request: BaseRequest, wire: Sender, timeout_s: float) -> AsyncIterator[bytes]:
    """Leave to send it is given when the first byte is wanted, not before.

    Raises:
        IncompleteBody: the client stopped halfway.
        RequestTimeout: it sends nothing more, or next to nothing, and does not leave either.
    """
    content = request.content
    try:
        await send_leave(request, wire)
        brought, waited_s = 0, 0.0
        while not content.at_eof():
            asked_at = time.perf_counter()
            async with asyncio.timeout(timeout_s):
                chunk = await content.readany()
            brought, waited_s = brought + len(chunk), waited_s + time.perf_counter() - asked_at
            if waited_s > timeout_s + brought / _BODY_BYTES_PER_S_MIN:
                raise RequestTimeout
            yield chunk
    except TimeoutError as error:
        raise RequestTimeout from error
    except (RequestPayloadError, ConnectionError, asyncio.IncompleteReadError) as error:
        raise IncompleteBody from error
