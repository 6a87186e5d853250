"""Requests that an origin refuses together, since this machine's clock is wrong."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate

import pytest

from outrider.ports import OriginRequest
from tests.contract.http_origins import FixedKeys, listening, opened
from tests.support.fakes import reply_to

TOGETHER = 3
BODY = b"<Error><Code>RequestTimeTooSkewed</Code></Error>"


class Strict:
    """Refuses requests of another day. It answers none before the first ones have all come."""

    def __init__(self) -> None:
        self.count = 0
        self.all_came = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            self.count += 1
            if self.count == TOGETHER:
                self.all_came.set()
            await self.all_came.wait()
            if time.strftime("x-amz-date: %Y%m%d", time.gmtime()).encode() in request.lower():
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            else:
                head = f"HTTP/1.1 403 Forbidden\r\nDate: {formatdate(usegmt=True)}\r\nContent-Length: {len(BODY)}"
                writer.write(head.encode() + b"\r\n\r\n" + BODY)
            await writer.drain()


@pytest.mark.parametrize("was_corrected", [False, True])
async def test_all_requests_that_were_signed_by_a_wrong_clock_are_repeated(was_corrected: bool) -> None:
    """The refusal of the first one corrects the clock. The others were signed before. `was_corrected`: the clock was
    wrong, and somebody has set it."""
    off_s = 86_400

    def clock() -> float:
        return time.time() + off_s

    async def status_of(key: str) -> int:
        async with reply_to(origin, OriginRequest("GET", "b", key)) as reply:
            return reply.status

    async with (
        listening((strict := Strict()).serve) as port,
        opened(port, FixedKeys(), clock=clock, connections=8) as origin,
    ):
        if was_corrected:
            strict.all_came.set()
            assert await status_of("a") == 200
            strict.count, off_s = 0, 0
            strict.all_came.clear()
        assert await asyncio.gather(*(status_of(key) for key in "abc")) == [200] * TOGETHER
