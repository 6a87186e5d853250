"""Which version of an object the origin has now: one question for all who want to know, and one round trip to the first
byte of an object that nobody knows yet."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from outrider.core import ranges, s3wire
from outrider.core.backoff import RETRYABLE_STATUSES
from outrider.core.errors import OriginBroke, ServiceUnavailable, Signal
from outrider.core.model import BlockKey, Headers, ObjectRef, ObjectVersion, is_strong_etag, version_id
from outrider.core.window import Run
from outrider.engine.asking import Asking, OriginRefused
from outrider.engine.catalog import Catalog, Mark
from outrider.engine.flights import Flight, Flights, Spawn
from outrider.ports import OriginReply, OriginRequest

log = logging.getLogger(__name__)


class NotCacheable(Signal):
    """The cache cannot answer this one: no strong ETag, no size, a name that moves too fast. Forward it."""


@dataclass(slots=True)
class _Opening:
    """A question to the origin about one name, under way for all who want to know."""

    mark: Mark
    by_head: bool
    version: asyncio.Future[ObjectVersion] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, version: ObjectVersion) -> None:
        if not self.version.done():
            self.version.set_result(version)

    def fail(self, error: Exception) -> None:
        if not self.version.done():
            self.version.set_exception(error)
            # Nobody may be left to hear it; asyncio would then complain of an exception never retrieved.
            self.version.exception()


class Openings:
    """Owns the questions under way. What they learn goes into the catalog; the block they bring, into a flight."""

    def __init__(
        self, asking: Asking, origin: str, catalog: Catalog, flights: Flights, spawn: Spawn,
        *, block_bytes: int, stale_if_error: bool = False,
    ) -> None:  # fmt: skip
        self._asking = asking
        self._origin = origin
        self._catalog = catalog
        self._flights = flights
        self._spawn = spawn
        self._block_bytes = block_bytes
        self._stale_if_error = stale_if_error
        self._openings: dict[ObjectRef, _Opening] = {}

    async def ask(self, ref: ObjectRef, first_byte: int | None) -> ObjectVersion:
        """The version that the origin has now. `first_byte` None: ask by HEAD; else by a GET that brings the block
        of that byte with it, so that an unknown object costs one round trip."""
        if self._catalog.stale(ref) is not None:
            # Most likely it is the same still, and its blocks are here. Not by If-None-Match: a 304 leaves out the
            # headers, which may have changed while the bytes, and so the ETag, did not.
            first_byte = None
        by_head = first_byte is None
        opening = self._openings.get(ref)
        # One that began before a write may tell of the older version, and a HEAD's refusal has no words for a GET.
        if opening is None or not self._catalog.believes(ref, opening.mark) or (opening.by_head and not by_head):
            opening = _Opening(self._catalog.mark(), by_head)
            self._openings[ref] = opening
            task = self._spawn(self._open(ref, opening, first_byte), f"open {ref}")
            # Not a `finally` in the task: one that is cancelled before its first step never gets there.
            task.add_done_callback(lambda _: self._closed(ref, opening))
        try:
            return await asyncio.shield(opening.version)
        except (OriginBroke, OriginRefused) as error:
            down = isinstance(error, OriginBroke) or error.status in RETRYABLE_STATUSES
            if down and self._stale_if_error and (stale := self._catalog.stale(ref)) is not None:
                log.warning("origin down, served stale", extra={"object": str(ref)})
                return stale
            if isinstance(error, OriginRefused):
                raise
            raise ServiceUnavailable(f"The origin does not answer: {error}.") from error

    async def _open(self, ref: ObjectRef, opening: _Opening, first_byte: int | None) -> None:
        try:
            if first_byte is None:
                await self._open_by_head(ref, opening)
            else:
                await self._open_by_get(ref, opening, first_byte // self._block_bytes)
        except Signal as error:
            opening.fail(error)
        except Exception as error:  # noqa: BLE001 - top of a task: our bug becomes the waiters' 500
            opening.fail(error)

    def _closed(self, ref: ObjectRef, opening: _Opening) -> None:
        opening.fail(ServiceUnavailable("The proxy is stopping."))
        if self._openings.get(ref) is opening:
            del self._openings[ref]

    async def _open_by_head(self, ref: ObjectRef, opening: _Opening) -> None:
        request = OriginRequest("HEAD", ref.bucket, ref.key, headers=(("x-amz-checksum-mode", "ENABLED"),))
        async with self._asking.reply(request) as reply:
            self._learn(ref, opening, await self._version_of(ref, reply))

    async def _open_by_get(self, ref: ObjectRef, opening: _Opening, index: int) -> None:
        start = index * self._block_bytes
        headers: Headers = (
            ("range", f"bytes={start}-{start + self._block_bytes - 1}"), ("x-amz-checksum-mode", "ENABLED"),
        )  # fmt: skip
        async with self._asking.reply(OriginRequest("GET", ref.bucket, ref.key, headers=headers)) as reply:
            if reply.status != 416:
                version = await self._version_of(ref, reply)
                flights = self._adopt(version, index)
                self._learn(ref, opening, version)
                if flights and _begins_at(reply) == start:
                    await self._flights.pour(flights, reply)
                elif flights:
                    # It ignored the Range or took another: ask as any fill does, which checks, skips and asks again.
                    self._flights.fill(flights)
                return
        # Nothing at that offset: the object is shorter, or empty. Only its HEAD can tell how long it is.
        await self._open_by_head(ref, opening)

    def _adopt(self, version: ObjectVersion, index: int) -> list[Flight]:
        key = BlockKey(version_id(self._origin, version, self._block_bytes), index)
        if index * self._block_bytes >= version.size or not self._flights.wanted(key):
            return []
        return self._flights.board(self._origin, version, self._block_bytes, Run(index, 1))

    def _learn(self, ref: ObjectRef, opening: _Opening, version: ObjectVersion) -> None:
        self._catalog.learn(version, opening.mark)
        if self._openings.get(ref) is opening:
            # The question is answered; the rest of the opening only fills a block.
            del self._openings[ref]
        opening.settle(version)

    async def _version_of(self, ref: ObjectRef, reply: OriginReply) -> ObjectVersion:
        if reply.status not in (200, 206):
            if reply.status == 404:
                self._catalog.gone(ref)
            raise await OriginRefused.read(reply)
        headers = dict(reply.headers)
        size = reply.content_length
        kept = s3wire.replayable(reply.headers)
        if reply.status == 206:
            got = ranges.parse_content_range(headers.get("content-range", ""))
            size = None if got is None else got[1]
            if got is None or got[0].length != got[1]:
                kept = s3wire.without_checksums(kept)
        etag = headers.get("etag")
        if size is None or not is_strong_etag(etag):
            raise NotCacheable(f"{ref} has no strong ETag or no size")
        assert etag is not None
        return ObjectVersion(ref, etag, size, kept)


def _begins_at(reply: OriginReply) -> int | None:
    """Where in the object the body of a 200 or 206 begins."""
    if reply.status == 200:
        return 0
    got = ranges.parse_content_range(dict(reply.headers).get("content-range", ""))
    return None if got is None else got[0].start
