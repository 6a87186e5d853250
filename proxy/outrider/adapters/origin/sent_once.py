"""Keeps aiohttp's client from sending a request again by itself."""

from __future__ import annotations

import aiohttp


class SentOnce(Exception):
    """Carries `why` past aiohttp, which would send a request once more when the connection breaks before its reply.

    A PUT or DELETE must not be done twice, and a request of a member has a number that comes once. The retries of a GET
    are the caller's, which counts them and waits between.
    """

    def __init__(self, why: aiohttp.ClientError) -> None:
        super().__init__()
        self.why = why


async def sent_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise SentOnce(error) from error
