"""Asking the origin with patience: tries again what S3 wants tried again, and resumes a broken body at its offset."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from outrider.core.backoff import RETRYABLE_STATUSES, Backoff
from outrider.core.errors import OriginBroke, Signal, VersionChanged
from outrider.core.model import Extent, Headers, ObjectVersion
from outrider.core.ranges import parse_content_range
from outrider.metrics import Metrics
from outrider.ports import Chunks, Origin, OriginReply, OriginRequest

log = logging.getLogger(__name__)

# An error document of S3 is some hundred bytes; whatever is longer is not worth keeping.
_REFUSAL_BYTES_MAX = 64 * 1024


class OriginRefused(Signal):
    """The origin's own answer to the question, and not a content: to be passed on as it is."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        super().__init__(f"origin answered {status}")
        self.status = status
        self.headers = headers
        self.body = body

    @classmethod
    async def read(cls, reply: OriginReply) -> OriginRefused:
        body = bytearray()
        async with aclosing(reply.chunks()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > _REFUSAL_BYTES_MAX:
                    break
        return cls(reply.status, reply.headers, bytes(body[:_REFUSAL_BYTES_MAX]))


class Patience:
    """How failures are waited out; time and chance come in here, so that tests need neither."""

    def __init__(
        self,
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._backoff = backoff or Backoff()
        self._sleep = sleep
        self._chance = chance

    async def wait(self, failures: int) -> bool:
        """Wait as long as it takes before the next try; False: there should be none."""
        wait_s = self._backoff.wait_s(failures, self._chance())
        if wait_s is None:
            return False
        await self._sleep(wait_s)
        return True


class Asking:
    """Reads of the origin. Writes are never tried twice, so they do not come this way."""

    def __init__(self, origin: Origin, patience: Patience, metrics: Metrics) -> None:
        self._origin = origin
        self._patience = patience
        self._metrics = metrics

    @asynccontextmanager
    async def reply(self, request: OriginRequest) -> AsyncIterator[OriginReply]:
        """The reply to a GET or HEAD; when patience ends, also one that says 5xx.

        Raises:
            OriginBroke: no try brought any reply.
        """
        failures, given = 0, False
        while True:
            try:
                async with self._origin.send(request) as reply:
                    if reply.status not in RETRYABLE_STATUSES or not await self._again(failures + 1, f"{reply.status}"):
                        given = True
                        yield reply
                        return
            except OriginBroke as error:
                # A body that broke in its reader's hands is his to deal with: there is no second reply to give him.
                if given or not await self._again(failures + 1, str(error)):
                    raise
            failures += 1

    async def stream(self, version: ObjectVersion, extent: Extent, first: OriginReply | None = None) -> Chunks:
        """The bytes of `extent`, all of `version`; a body that breaks is resumed at its offset.

        `first`: a reply that already brings them from `extent.start` on.

        Raises:
            VersionChanged: the origin no longer has `version`.
            OriginRefused: it will not give them.
            OriginBroke: patience ended.
        """
        position, failures = extent.start, 0
        while position < extent.stop:
            started = position
            try:
                if first is not None:
                    bodies = first.chunks()
                    first = None
                else:
                    bodies = self._once(version, Extent(position, extent.stop))
                async with aclosing(bodies) as chunks:
                    async for chunk in chunks:
                        piece = chunk[: extent.stop - position]
                        position += len(piece)
                        yield piece
                        if position == extent.stop:
                            return
                raise OriginBroke("the body was shorter than it said")
            except OriginBroke as error:
                failures = failures + 1 if position == started else 1
                if not await self._again(failures, str(error)):
                    raise

    async def _once(self, version: ObjectVersion, extent: Extent) -> Chunks:
        """One GET of `extent`."""
        request = OriginRequest(
            "GET", version.ref.bucket, version.ref.key,
            headers=(("range", f"bytes={extent.start}-{extent.stop - 1}"), ("if-match", version.etag)),
        )  # fmt: skip
        async with self._origin.send(request) as reply:
            skip = await _check(reply, version, extent)
            async with aclosing(reply.chunks()) as chunks:
                async for chunk in chunks:
                    if skip:
                        dropped = min(skip, len(chunk))
                        skip -= dropped
                        chunk = chunk[dropped:]
                    if chunk:
                        yield chunk

    async def _again(self, failures: int, why: str) -> bool:
        again = await self._patience.wait(failures)
        if again:
            self._metrics.origin_retries.inc()
        else:
            log.warning("gave up asking the origin", extra={"tries": failures, "error": why})
        return again


async def _check(reply: OriginReply, version: ObjectVersion, extent: Extent) -> int:
    """How many bytes of the body lie before `extent`: 0, unless the origin ignored the Range."""
    if reply.status in RETRYABLE_STATUSES:
        raise OriginBroke(f"status {reply.status}")
    # 416: it has shrunk. 404: it is gone. Both only say that the version that we know is no more.
    if reply.status in (404, 412, 416):
        raise VersionChanged(f"{version.ref}: {reply.status}")
    if reply.status not in (200, 206):
        raise await OriginRefused.read(reply)
    headers = dict(reply.headers)
    # Not all origins heed If-Match on a GET; the ETag of what they send tells.
    if headers.get("etag") != version.etag:
        raise VersionChanged(f"{version.ref}: another ETag")
    if reply.status == 200:
        return extent.start
    got = parse_content_range(headers.get("content-range", ""))
    if got is None or got[1] != version.size or got[0].start != extent.start:
        raise OriginBroke("the Content-Range is not what was asked for")
    return 0
