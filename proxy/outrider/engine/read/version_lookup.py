"""The version lookup: which version of an object the origin has now. All clients that want to know share one question,
and the question about an unknown object brings its first block along."""

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
from outrider.core.origin.oddities import Oddity
from outrider.core.s3 import ranges
from outrider.core.s3.headers import replayable, varies_with_clients, without_checksums
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
_CHECKSUMS_WAIT_S = 1.0
# After a HEAD for checksums that failed or took longer, none is sent for this folder for so long: each read of a whole
# object in it would wait as long in vain.
_CHECKSUMS_REST_S = 60.0
_FOLDERS_MAX = 4096
# Digits in an ending tell one object from the next, and not its kind: `train.tfrecord-00000-of-01024`, `data.17`.
_NUMBER = re.compile(r"\d{3,}|^\d+$")


class NotCacheable(Signal):
    """The cache cannot answer this request: no strong ETag, no size, a name that changes too fast. Forward it."""


@dataclass(slots=True)
class _Question:
    """A question to the origin about one name, under way for all clients that want to know."""

    mark: Mark
    by_head: bool
    whole_headers: bool
    brings: bool
    """The first block is on its way with this question, or with the one whose place it took."""
    small: bool
    """The object most likely fits into one block."""
    settled: bool = True
    """No reply told of a version that may be overwritten without a change of its date."""
    answer: asyncio.Future[ObjectVersion] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, version: ObjectVersion) -> None:
        if not self.answer.done():
            self.answer.set_result(version)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            # No client may be left to hear it: asyncio would then complain of an exception never retrieved.
            self.answer.exception()


class VersionLookup:
    """Owns the questions under way. Their answers go into the version cache; the block that a question brings, into a
    flight."""

    def __init__(
        self, layout: BlockLayout, origin_reader: OriginReader, source: BlockSource, versions: VersionCache,
        flights: FlightTable, runtime: Runtime, *, stale_if_error: bool = False,
    ) -> None:  # fmt: skip
        self._layout = layout
        self._origin_reader = origin_reader
        self._source = source
        self._versions = versions
        self._flights = flights
        self._runtime = runtime
        self._stale_if_error = stale_if_error
        self._questions: dict[ObjectRef, _Question] = {}
        # Folders whose checksums the origin does not tell now.
        self._no_checksums: TTLCache[tuple[str, str], None] = TTLCache(_FOLDERS_MAX, _CHECKSUMS_REST_S, runtime.clock)
        # The size last seen of each kind of object: one shard, or sample, is much like the next.
        self._sizes: LRUCache[tuple[str, str], int] = LRUCache(_FOLDERS_MAX)

    def is_asking(self, ref: ObjectRef) -> bool:
        """Whether the version cache is about to be told of `ref`."""
        return ref in self._questions

    async def ask(
        self, ref: ObjectRef, first_byte: int | None, *, whole_headers: bool = False, if_small: bool = False,
        size: int = -1,
    ) -> ObjectVersion:  # fmt: skip
        """The version that the origin has now.

        `first_byte`: the question is a GET that brings the block of that byte, so that an unknown object costs one
        round trip; None: the question is a HEAD. `whole_headers`: the checksums of the whole object are wanted, too,
        which stores leave out of a reply to a Range. `if_small`: they are wanted where they cost nothing, which is
        where one block holds the object. `size`: as a LIST told it; -1: unknown.

        Raises:
            OriginRefused, NotCacheable, ServiceUnavailable: see `ObjectReads.get`.
        """
        try:
            # No name for the future here: an error knows the frames that it came through, and would close a circle.
            return await asyncio.shield(self._asked(ref, first_byte, whole_headers, if_small, size))
        except (OriginBroke, OriginRefused) as error:
            down = isinstance(error, OriginBroke) or error.status in RETRYABLE_STATUSES
            if down and self._stale_if_error and (stale := self._versions.stale(ref)) is not None:
                log.warning("origin down, served stale", extra={"object": str(ref)})
                return stale
            if isinstance(error, OriginRefused):
                raise
            raise unanswered(error) from error

    async def ask_checksums(self, ref: ObjectRef) -> None:
        """Ask for the checksums of an object whose version is fresh. The version cache has them afterwards, unless the
        origin does not tell them in time: a checksum is no reason to hold back, or refuse, bytes that are here."""
        if folder_of(ref) not in self._no_checksums:
            await self._answer_beside(ref, self._ask_beside(ref, self.ask(ref, None)))

    # -- one question for all ---------------------------------------------------------------------------------------

    def _asked(
        self, ref: ObjectRef, first_byte: int | None, whole_headers: bool, if_small: bool, size: int
    ) -> asyncio.Future[ObjectVersion]:
        """The answer of a question under way that will do, or of one that begins now."""
        stale = self._versions.stale(ref)
        if stale is not None and first_byte is not None and self._is_here(stale, first_byte):
            # The version is most likely the same still, so its block is not brought again. Not by If-None-Match: a 304
            # leaves out the headers, which may have changed while the bytes, and so the ETag, did not.
            first_byte = None
        question, brings = self._questions.get(ref), False
        # A question that began before a write may be answered with the older version. In a mode in which each read must
        # ask, the same holds for any question that began before this read.
        if question is not None and not self._versions.will_be_fresh(ref, question.mark):
            if question.brings and self._versions.believes(ref, question.mark):
                first_byte, brings = None, True
            question = None
        by_head = first_byte is None
        # The refusal of a HEAD has no body to answer a GET with.
        if question is None or (question.by_head and not by_head) or (whole_headers and not question.whole_headers):
            small = self._is_small(ref, size)
            whole_headers = whole_headers or by_head or (if_small and small)
            question = _Question(self._versions.mark(), by_head, whole_headers, brings or not by_head, small)
            self._begin(ref, question, first_byte)
        return question.answer

    def _begin(self, ref: ObjectRef, question: _Question, first_byte: int | None) -> None:
        self._questions[ref] = question
        task = self._runtime.spawn(self._put(ref, question, first_byte), f"open {ref}")
        # Not a `finally` in the task: a task that is cancelled before its first step never gets there.
        task.add_done_callback(lambda _: self._ended(ref, question))

    async def _put(self, ref: ObjectRef, question: _Question, first_byte: int | None) -> None:
        try:
            if first_byte is None:
                self._learn(ref, question, await self._head(ref, question))
            else:
                await self._get(ref, question, first_byte)
        except Signal as error:
            question.fail(without_traceback(error))
        except Exception as error:  # noqa: BLE001 - top of a task: our bug becomes the waiters' 500
            question.fail(error)

    def _ended(self, ref: ObjectRef, question: _Question) -> None:
        question.fail(ServiceUnavailable("The proxy is stopping."))
        if self._questions.get(ref) is question:
            del self._questions[ref]

    def _is_here(self, version: ObjectVersion, byte: int) -> bool:
        return not self._flights.wanted(self._layout.key(version, self._layout.index_of(byte)))

    def _is_small(self, ref: ObjectRef, size: int) -> bool:
        """Whether one block most likely holds the object. `size` -1: unknown."""
        seen = [size] if size >= 0 else [self._sizes[kind] for kind in _kinds(ref) if kind in self._sizes]
        return bool(seen) and seen[0] <= self._layout.block_bytes

    # -- asked by HEAD, or by a GET that brings a block -------------------------------------------------------------

    async def _head(self, ref: ObjectRef, question: _Question) -> ObjectVersion:
        request = OriginRequest("HEAD", ref.bucket, ref.key, headers=_CHECKSUMS)
        async with self._origin_reader.reply(request, hedged=True) as reply:
            return await self._version_of(ref, question, reply, whole=True)

    async def _get(self, ref: ObjectRef, question: _Question, first_byte: int) -> None:
        index, inside = divmod(first_byte, self._layout.block_bytes)
        # Checksums come with a GET of the whole object, or by a HEAD beside a GET of one block. The former is for small
        # objects: of a large one too much would be under way when we stop it.
        whole = question.whole_headers and question.small
        asks = question.whole_headers and not whole and folder_of(ref) not in self._no_checksums
        beside = self._ask_beside(ref, self._head(ref, question)) if asks else None
        headers: Headers = _CHECKSUMS
        start = 0 if whole else first_byte - inside + fill_start(inside, self._layout.block_bytes)
        if not whole:
            stop = (index + 1) * self._layout.block_bytes
            headers += (("range", f"bytes={start}-{stop - 1}"),)
        asked_at = self._runtime.clock()
        async with self._source.first_reply(OriginRequest("GET", ref.bucket, ref.key, headers=headers)) as reply:
            if reply.status != 416:
                version = await self._version_of(ref, question, reply, whole=whole)
                if beside is not None:
                    by_head = await self._answer_beside(ref, beside)
                    if by_head is not None and (by_head.etag, by_head.size) == (version.etag, version.size):
                        version = by_head
                flights = self._board(version, index, start, whole=whole)
                self._learn(ref, question, version)
                if flights and _begins_at(reply) == flights[0].begins_at:
                    await self._flights.fill_from(flights, reply, asked_at)
                elif flights:
                    # The origin ignored the Range or took another. An ordinary fill checks that, skips, and asks again.
                    self._flights.fill(flights)
                return
        # Nothing lies at that offset: the object is shorter, or empty. Only a HEAD tells how long it is.
        by_head = None if beside is None else await self._answer_beside(ref, beside)
        self._learn(ref, question, by_head or await self._head(ref, question))

    def _board(self, version: ObjectVersion, index: int, start: int, *, whole: bool) -> list[Flight]:
        """Flights for the blocks that the reply brings; none if one of them is here or on its way."""
        blocks = self._layout.count(version.size)
        # An object that is larger than it was taken for: its next blocks are kept, too, where they are few.
        count = blocks if whole and index == 0 and blocks <= FIRST_BLOCKS else 1
        indexes = range(index, index + count)
        if index >= blocks or not all(self._flights.wanted(self._layout.key(version, i)) for i in indexes):
            return []
        return self._flights.board(version, BlockRun(index, count), start)

    def _learn(self, ref: ObjectRef, question: _Question, version: ObjectVersion) -> None:
        self._versions.learn(version, question.mark, settled=question.settled)
        for kind in _kinds(ref):
            self._sizes[kind] = version.size
        if self._questions.get(ref) is question:
            # The question is answered; its task goes on only to fill a block.
            del self._questions[ref]
        question.settle(version)

    async def _version_of(
        self, ref: ObjectRef, question: _Question, reply: OriginReply, *, whole: bool
    ) -> ObjectVersion:  # fmt: skip
        if reply.status not in (200, 206):
            if reply.status == 404:
                self._versions.gone(ref)
            raise await OriginRefused.read(reply)
        headers = dict(reply.headers)
        question.settled &= is_settled(headers)
        size = reply.content_length
        kept = replayable(reply.headers)
        if reply.status == 206:
            got = ranges.parse_content_range(headers.get("content-range", ""))
            size = None if got is None else got[1]
            if got is None or got[0].length != got[1]:
                kept = without_checksums(kept)
        etag = headers.get("etag")
        if size is None or not is_strong_etag(etag):
            raise NotCacheable(f"{ref} has no strong ETag or no size")
        if varies_with_clients(reply.headers):
            self._origin_reader.oddities.note(Oddity.VARIES, ref, uncached=True)
            raise NotCacheable(f"{ref} varies with the request")
        assert etag is not None
        return ObjectVersion(ref, etag, size, kept, whole and reply.status == 200)

    # -- checksums, asked for beside something else -----------------------------------------------------------------

    def _ask_beside(
        self, ref: ObjectRef, question: Coroutine[Any, Any, ObjectVersion]
    ) -> asyncio.Future[ObjectVersion | None]:
        """The answer to `question`, which is asked in a task of its own; None: there was no answer."""
        answer: asyncio.Future[ObjectVersion | None] = asyncio.get_running_loop().create_future()

        def settle(version: ObjectVersion | None) -> None:
            if not answer.done():
                answer.set_result(version)

        async def ask() -> None:
            try:
                settle(await question)
            except (Signal, S3Error) as error:
                # An object that is gone says nothing about the others of its folder.
                if not isinstance(error, OriginRefused) or error.status != 404:
                    self._no_checksums[folder_of(ref)] = None

        task = self._runtime.spawn(ask(), f"head {ref}")
        task.add_done_callback(lambda _: settle(None))
        return answer

    async def _answer_beside(
        self, ref: ObjectRef, beside: asyncio.Future[ObjectVersion | None]
    ) -> ObjectVersion | None:
        """The answer of `_ask_beside`, once the rest is done; None: there is none, or it takes much longer."""
        bound: asyncio.Future[Any] = asyncio.ensure_future(self._runtime.sleep(_CHECKSUMS_WAIT_S))
        try:
            await asyncio.wait([beside, bound], return_when=asyncio.FIRST_COMPLETED)
        finally:
            bound.cancel()
        if not beside.done():
            self._no_checksums[folder_of(ref)] = None
            return None
        return beside.result()


def folder_of(ref: ObjectRef) -> tuple[str, str]:
    """The bucket and the folder of an object: one job reads all objects in it alike."""
    return ref.bucket, ref.key.rpartition("/")[0]


def _kinds(ref: ObjectRef) -> tuple[tuple[str, str], tuple[str, str]]:
    """Names for the objects that are like this one. The first is the folder and the ending: an index among shards is
    not like them. The second is the ending alone, for data sets where each sample has a folder of its own."""
    folder, _, name = ref.key.rpartition("/")
    ending = _NUMBER.sub("", name.rpartition(".")[2]) if "." in name else ""
    return (ref.bucket, f"{folder}/*.{ending}"), (ref.bucket, f"*.{ending}")


def _begins_at(reply: OriginReply) -> int | None:
    """Where in the object the body of a 200 or 206 begins."""
    if reply.status == 200:
        return 0
    got = ranges.parse_content_range(dict(reply.headers).get("content-range", ""))
    return None if got is None else got[0].start
