"""Which version of an object the origin has now: one question for all who want to know, and one round trip to the first
byte of an object that nobody knows yet."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from cachetools import LRUCache, TTLCache

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.freshness import is_settled
from outrider.core.cache.readahead import FIRST_BLOCKS, BlockRun, fill_start
from outrider.core.errors import OriginBroke, S3Error, ServiceUnavailable, Signal, unanswered, without_traceback
from outrider.core.model import Headers, ObjectRef, ObjectVersion, is_strong_etag
from outrider.core.origin.backoff import RETRYABLE_STATUSES
from outrider.core.s3 import ranges
from outrider.core.s3.headers import replayable, without_checksums
from outrider.engine.fill.block_source import BlockSource
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.origin_reader import OriginReader, OriginRefused
from outrider.engine.read.version_cache import Mark, VersionCache
from outrider.engine.tasks.runtime import Runtime
from outrider.ports import OriginReply, OriginRequest

log = logging.getLogger(__name__)

_CHECKSUMS: Headers = (("x-amz-checksum-mode", "ENABLED"),)
# A HEAD that was sent for checksums alone is waited for no longer than this once the bytes are here.
_BESIDE_WAIT_S = 1.0
# After one that failed, or took longer: each whole read in its folder would wait as long for as little.
_BESIDE_REST_S = 60.0
_FOLDERS_MAX = 4096
# In an ending this tells one object from the next, and not its kind: `train.tfrecord-00000-of-01024`, `data.17`.
_NUMBER = re.compile(r"\d{3,}|^\d+$")


class NotCacheable(Signal):
    """The cache cannot answer this one: no strong ETag, no size, a name that moves too fast. Forward it."""


@dataclass(slots=True)
class _Opening:
    """A question to the origin about one name, under way for all who want to know."""

    mark: Mark
    by_head: bool
    whole_headers: bool
    brings: bool
    """The first bytes are on their way with it, or with one that it took the place of."""
    small: bool
    """One block will most likely hold it."""
    settled: bool = True
    """No reply to it told of a version that may be put again with the date that it has."""
    version: asyncio.Future[ObjectVersion] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, version: ObjectVersion) -> None:
        if not self.version.done():
            self.version.set_result(version)

    def fail(self, error: Exception) -> None:
        if not self.version.done():
            self.version.set_exception(error)
            # Nobody may be left to hear it; asyncio would then complain of an exception never retrieved.
            self.version.exception()


class VersionLookup:
    """Owns the questions under way. What they learn goes into the catalog; the block they bring, into a flight."""

    def __init__(
        self, layout: BlockLayout, origin_reader: OriginReader, source: BlockSource, catalog: VersionCache,
        flights: FlightTable, runtime: Runtime, *, stale_if_error: bool = False,
    ) -> None:  # fmt: skip
        self._layout = layout
        self._origin_reader = origin_reader
        self._catalog = catalog
        self._source = source
        self._flights = flights
        self._spawn = runtime.spawn
        self._clock = runtime.clock
        self._stale_if_error = stale_if_error
        self._sleep = runtime.sleep
        self._version_lookup: dict[ObjectRef, _Opening] = {}
        # Folders whose checksums the origin does not tell just now.
        self._untold: TTLCache[tuple[str, str], None] = TTLCache(_FOLDERS_MAX, _BESIDE_REST_S, runtime.clock)
        # The size last seen in each folder, and anywhere, of each ending: one shard, or sample, is much like the next.
        self._sizes: LRUCache[tuple[str, str], int] = LRUCache(_FOLDERS_MAX)

    def is_asking(self, ref: ObjectRef) -> bool:
        """Whether the catalog is about to be told of it."""
        return ref in self._version_lookup

    async def ask(
        self, ref: ObjectRef, first_byte: int | None, *, whole_headers: bool = False, if_small: bool = False,
        size: int = -1,
    ) -> ObjectVersion:  # fmt: skip
        """The version that the origin has now. `first_byte` None: ask by HEAD; else by a GET that brings the block
        of that byte with it, so that an unknown object costs one round trip. `whole_headers`: also the checksums of
        the whole, which stores leave out of the answer to a Range. `if_small`: those too, where they cost nothing, so
        that no reader has to ask for them: one block holds it. `size`: as a LIST told it; -1: nobody did."""
        try:
            # No name for the question here: a refusal knows the frames that it came through, and would close a circle.
            return await asyncio.shield(self._question(ref, first_byte, whole_headers, if_small, size))
        except (OriginBroke, OriginRefused) as error:
            down = isinstance(error, OriginBroke) or error.status in RETRYABLE_STATUSES
            if down and self._stale_if_error and (stale := self._catalog.stale(ref)) is not None:
                log.warning("origin down, served stale", extra={"object": str(ref)})
                return stale
            if isinstance(error, OriginRefused):
                raise
            raise unanswered(error) from error

    def _question(
        self, ref: ObjectRef, first_byte: int | None, whole_headers: bool, if_small: bool, size: int
    ) -> asyncio.Future[ObjectVersion]:
        """The answer to come of a question under way that will do, or of one that begins now."""
        stale = self._catalog.stale(ref)
        if stale is not None and first_byte is not None and self._is_here(stale, first_byte):
            # Most likely it is the same still. Not by If-None-Match: a 304 leaves out the
            # headers, which may have changed while the bytes, and so the ETag, did not.
            first_byte = None
        opening, brings = self._version_lookup.get(ref), False
        # One that began before a write may tell of the older version, as may any that began before this read where each
        # must ask.
        if opening is not None and not self._catalog.will_be_fresh(ref, opening.mark):
            if opening.brings and self._catalog.believes(ref, opening.mark):
                first_byte, brings = None, True
            opening = None
        by_head = first_byte is None
        # A HEAD's refusal has no words for a GET.
        if opening is None or (opening.by_head and not by_head) or (whole_headers and not opening.whole_headers):
            small = self._is_small(ref, size)
            whole_headers = whole_headers or by_head or (if_small and small)
            opening = _Opening(self._catalog.mark(), by_head, whole_headers, brings or not by_head, small)
            self._version_lookup[ref] = opening
            task = self._spawn(self._open(ref, opening, first_byte), f"open {ref}")
            # Not a `finally` in the task: one that is cancelled before its first step never gets there.
            task.add_done_callback(lambda _: self._closed(ref, opening))
        return opening.version

    def _is_here(self, version: ObjectVersion, byte: int) -> bool:
        return not self._flights.wanted(self._layout.key(version, self._layout.index_of(byte)))

    async def ask_checksums(self, ref: ObjectRef) -> None:
        """Of an object whose version is fresh: the catalog knows more then, or nothing new where the origin does not
        tell in time. A checksum is no reason to hold back, or refuse, bytes that are here."""
        if _folder(ref) not in self._untold:
            await self._told(ref, self._beside(ref, self.ask(ref, None)))

    async def _open(self, ref: ObjectRef, opening: _Opening, first_byte: int | None) -> None:
        try:
            if first_byte is None:
                await self._open_by_head(ref, opening)
            else:
                await self._open_by_get(ref, opening, first_byte)
        except Signal as error:
            opening.fail(without_traceback(error))
        except Exception as error:  # noqa: BLE001 - top of a task: our bug becomes the waiters' 500
            opening.fail(error)

    def _closed(self, ref: ObjectRef, opening: _Opening) -> None:
        opening.fail(ServiceUnavailable("The proxy is stopping."))
        if self._version_lookup.get(ref) is opening:
            del self._version_lookup[ref]

    async def _open_by_head(self, ref: ObjectRef, opening: _Opening) -> None:
        self._learn(ref, opening, await self._head(ref, opening))

    async def _head(self, ref: ObjectRef, opening: _Opening) -> ObjectVersion:
        async with self._origin_reader.reply(
            OriginRequest("HEAD", ref.bucket, ref.key, headers=_CHECKSUMS), hedged=True
        ) as reply:
            return await self._version_of(ref, opening, reply, whole=True)

    async def _open_by_get(self, ref: ObjectRef, opening: _Opening, first_byte: int) -> None:
        index, inside = divmod(first_byte, self._layout.block_bytes)
        stop = (index + 1) * self._layout.block_bytes
        # One request that tells all, or a part and a HEAD beside it. The first is for small objects: of a large one
        # too much would be under way when we stop it.
        whole = opening.whole_headers and opening.small
        asks = opening.whole_headers and not whole and _folder(ref) not in self._untold
        beside = self._beside(ref, self._head(ref, opening)) if asks else None
        headers: Headers = _CHECKSUMS
        start = 0 if whole else first_byte - inside + fill_start(inside, self._layout.block_bytes)
        if not whole:
            headers += (("range", f"bytes={start}-{stop - 1}"),)
        asked_at = self._clock()
        async with self._source.first_reply(OriginRequest("GET", ref.bucket, ref.key, headers=headers)) as reply:
            if reply.status != 416:
                version = await self._version_of(ref, opening, reply, whole=whole)
                if beside is not None:
                    told = await self._told(ref, beside)
                    same = told is not None and (told.etag, told.size) == (version.etag, version.size)
                    version = told if told is not None and same else version
                flights = self._adopt(version, index, start, whole=whole)
                self._learn(ref, opening, version)
                if flights and _begins_at(reply) == flights[0].begins_at:
                    await self._flights.fill_from(flights, reply, asked_at)
                elif flights:
                    # It ignored the Range or took another: ask as any fill does, which checks, skips and asks again.
                    self._flights.fill(flights)
                return
        # Nothing at that offset: the object is shorter, or empty. Only its HEAD can tell how long it is.
        if beside is not None and (told := await self._told(ref, beside)) is not None:
            self._learn(ref, opening, told)
        else:
            await self._open_by_head(ref, opening)

    def _is_small(self, ref: ObjectRef, size: int) -> bool:
        """Whether one block will most likely hold it. `size` -1: nobody told it."""
        seen = [size] if size >= 0 else [self._sizes[kind] for kind in _kinds(ref) if kind in self._sizes]
        return bool(seen) and seen[0] <= self._layout.block_bytes

    def _beside(
        self, ref: ObjectRef, question: Coroutine[Any, Any, ObjectVersion]
    ) -> asyncio.Future[ObjectVersion | None]:
        """What `question` tells while something else goes on; None: it told nothing."""
        told: asyncio.Future[ObjectVersion | None] = asyncio.get_running_loop().create_future()

        def settle(version: ObjectVersion | None) -> None:
            if not told.done():
                told.set_result(version)

        async def ask() -> None:
            try:
                settle(await question)
            except (Signal, S3Error) as error:
                # That one is gone says nothing of the others.
                if not isinstance(error, OriginRefused) or error.status != 404:
                    self._untold[_folder(ref)] = None

        task = self._spawn(ask(), f"head {ref}")
        task.add_done_callback(lambda _: settle(None))
        return told

    async def _told(self, ref: ObjectRef, beside: asyncio.Future[ObjectVersion | None]) -> ObjectVersion | None:
        """What was asked beside a thing that is done by now; None: nothing, or it takes much longer."""
        bound: asyncio.Future[Any] = asyncio.ensure_future(self._sleep(_BESIDE_WAIT_S))
        try:
            await asyncio.wait([beside, bound], return_when=asyncio.FIRST_COMPLETED)
        finally:
            bound.cancel()
        if not beside.done():
            self._untold[_folder(ref)] = None
            return None
        return beside.result()

    def _adopt(self, version: ObjectVersion, index: int, start: int, *, whole: bool) -> list[Flight]:
        blocks = self._layout.count(version.size)
        # Larger than it was taken for: what comes of the next blocks is kept, too, where they are few.
        count = blocks if whole and index == 0 and blocks <= FIRST_BLOCKS else 1
        here = not all(self._flights.wanted(self._layout.key(version, one)) for one in range(index, index + count))
        if index >= blocks or here:
            return []
        return self._flights.board(version, BlockRun(index, count), start)

    def _learn(self, ref: ObjectRef, opening: _Opening, version: ObjectVersion) -> None:
        self._catalog.learn(version, opening.mark, settled=opening.settled)
        for kind in _kinds(ref):
            self._sizes[kind] = version.size
        if self._version_lookup.get(ref) is opening:
            # The question is answered; the rest of the opening only fills a block.
            del self._version_lookup[ref]
        opening.settle(version)

    async def _version_of(self, ref: ObjectRef, opening: _Opening, reply: OriginReply, *, whole: bool) -> ObjectVersion:
        if reply.status not in (200, 206):
            if reply.status == 404:
                self._catalog.gone(ref)
            raise await OriginRefused.read(reply)
        headers = dict(reply.headers)
        opening.settled &= is_settled(headers)
        size = reply.content_length
        cached = replayable(reply.headers)
        if reply.status == 206:
            got = ranges.parse_content_range(headers.get("content-range", ""))
            size = None if got is None else got[1]
            if got is None or got[0].length != got[1]:
                cached = without_checksums(cached)
        etag = headers.get("etag")
        if size is None or not is_strong_etag(etag):
            raise NotCacheable(f"{ref} has no strong ETag or no size")
        assert etag is not None
        return ObjectVersion(ref, etag, size, cached, whole and reply.status == 200)


def _folder(ref: ObjectRef) -> tuple[str, str]:
    return ref.bucket, ref.key.rpartition("/")[0]


def _kinds(ref: ObjectRef) -> tuple[tuple[str, str], tuple[str, str]]:
    """What objects like it have in common: the folder and the ending (an index among shards is not like them), or,
    where each sample has a folder of its own, the ending alone."""
    folder, _, name = ref.key.rpartition("/")
    ending = _NUMBER.sub("", name.rpartition(".")[2]) if "." in name else ""
    return (ref.bucket, f"{folder}/*.{ending}"), (ref.bucket, f"*.{ending}")


def _begins_at(reply: OriginReply) -> int | None:
    """Where in the object the body of a 200 or 206 begins."""
    if reply.status == 200:
        return 0
    got = ranges.parse_content_range(dict(reply.headers).get("content-range", ""))
    return None if got is None else got[0].start
