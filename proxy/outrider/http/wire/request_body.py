"""The body of a request as it arrives, from a client that may wait for 100 Continue, stop halfway, or send too
slowly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from aiohttp import hdrs
from aiohttp.http import HttpVersion11
from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest

from outrider.core.errors import IncompleteBody, RequestTimeout
from outrider.http.wire.sender import WireSender

# The least rate of an upload, for the time beyond `client_timeout_s` that was spent waiting for the client: a slower
# body holds a connection to the origin for nothing.
BODY_BYTES_PER_S_MIN = 1024
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def awaits_continue(request: BaseRequest) -> bool:
    return request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.version >= HttpVersion11


async def send_continue(request: BaseRequest, wire: WireSender) -> None:
    """Send 100 Continue if the client waits for it."""
    if awaits_continue(request):
        await wire.send(CONTINUE)


async def client_body(request: BaseRequest, wire: WireSender, timeout_s: float) -> AsyncIterator[bytes]:
    """The pieces of the body. 100 Continue is sent when the first piece is requested, not before.

    Raises:
        IncompleteBody: the client stopped halfway.
        RequestTimeout: the client sends nothing more, or too slowly, and keeps the connection open.
    """
    content = request.content
    try:
        await send_continue(request, wire)
        received, waited_s = 0, 0.0
        while not content.at_eof():
            since = time.perf_counter()
            async with asyncio.timeout(timeout_s):
                chunk = await content.readany()
            received, waited_s = received + len(chunk), waited_s + time.perf_counter() - since
            if waited_s > timeout_s + received / BODY_BYTES_PER_S_MIN:
                raise RequestTimeout
            yield chunk
    except TimeoutError as error:
        raise RequestTimeout from error
    except (RequestPayloadError, ConnectionError, asyncio.IncompleteReadError) as error:
        raise IncompleteBody from error
