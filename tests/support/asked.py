"""A reply as tests read it: within a context, and piece by piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from outrider.ports import Buffer, Origin, OriginReply, OriginRequest


class Body(Protocol):
    async def some(self) -> Buffer: ...


@asynccontextmanager
async def asked(origin: Origin, request: OriginRequest) -> AsyncIterator[OriginReply]:
    """The reply, which is closed at the end of the context."""
    reply = await origin.ask(request)
    try:
        yield reply
    finally:
        reply.close()


async def pieces_of(reply: Body) -> AsyncGenerator[bytes, None]:
    """The body as it arrives."""
    while piece := await reply.some():
        yield bytes(piece)
