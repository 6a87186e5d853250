"""The read of an object: a GET or HEAD becomes a version, an extent of it, and a body.

version    from the version cache while it is fresh, else by one question to the origin (`version_lookup`)
extent     by the Range, the conditions of RFC 9110, and the version's size
body       each byte from the nearest place that has it (`body`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.readahead import Glances, ReaderCount
from outrider.core.errors import (
    OriginBroke,
    PreconditionFailed,
    S3Error,
    ServiceUnavailable,
    Signal,
    VersionChanged,
    unanswered,
)
from outrider.core.model import BlockKey, Extent, Headers, ObjectRef, ObjectVersion
from outrider.core.origin.backoff import RETRYABLE_STATUSES
from outrider.core.origin.oddities import Uncached
from outrider.core.s3 import ranges
from outrider.core.s3.conditions import CONDITIONALS, Precondition, evaluate
from outrider.core.s3.headers import wants_checksums, without_checksums
from outrider.core.s3.ranges import RangeSpec
from outrider.engine.fill.block_source import BlockSource
from outrider.engine.fill.content_verification import ContentVerification
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.fill.flight_table import FlightTable
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.fill.reply_proof import Unproved
from outrider.engine.read.body import BodyParts, BodyRead
from outrider.engine.read.body_pieces import Body, EarlyPiece, FilePiece
from outrider.engine.read.same_bytes import SentBytes
from outrider.engine.read.version_answers import NotCacheable
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.read.version_lookup import VersionLookup
from outrider.metrics import Metrics
from outrider.ports import BlockStore

# How often one read begins again because the object was overwritten under it. A name that changes faster is relayed.
_BEGINNINGS = 3
# `x-cache` judges a read by its first 8 GiB: a 5 TB object must not hold up all other requests for a header.
_STATUS_BLOCKS_MAX = 1024

OnRequested = Callable[[ObjectVersion, Extent], None]


class CacheStatus(Enum):
    """The value of `x-cache`."""

    HIT = "HIT"
    MISS = "MISS"
    PARTIAL = "PARTIAL"
    PEER = "PEER"
    BYPASS = "BYPASS"


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """The head is certain, and so is the first byte of the body. Close `body` when done, also halfway."""

    status: int
    headers: Headers
    length: int
    cache: CacheStatus
    body: Body | None = None


class ObjectReads:
    """Answers GET and HEAD of objects from the store, the flights and, past them, the source of missing blocks."""

    def __init__(
        self, layout: BlockLayout, source: BlockSource, versions: VersionCache, store: BlockStore, flights: FlightTable,
        contents: ContentVerification, version_lookup: VersionLookup, scheduler: FillScheduler, metrics: Metrics,
    ) -> None:  # fmt: skip
        self._layout = layout
        self._versions = versions
        self._store = store
        self._contents = contents
        self._version_lookup = version_lookup
        self._scheduler = scheduler
        self._readers = ReaderCount()
        self._body_parts = BodyParts(layout, source, store, flights, contents, self._readers, metrics)

    async def head(self, ref: ObjectRef, headers: Mapping[str, str]) -> ReadAnswer:
        """Raises what `get` raises."""
        version, cache = await self._known(ref, headers), CacheStatus.HIT
        if version is None:
            with self._scheduler.question():
                version, cache = await self._version_lookup.ask(ref, None), CacheStatus.MISS
        if (early := _conditional(version, headers, cache)) is not None:
            return early
        extent = _extent_of(headers, _range_of(headers), version)
        return _answer(version, extent, headers, cache, None)

    async def get(
        self, ref: ObjectRef, headers: Mapping[str, str], on_requested: OnRequested | None = None
    ) -> ReadAnswer:
        """`headers` are the request's, names in lower case. `on_requested` is called with the bytes that will be read,
        before any are.

        Raises:
            S3Error: what S3 says of the Range or the conditions; ServiceUnavailable: the origin cannot be reached.
            OriginRefused: the origin's own error, to be passed on.
            NotCacheable: forward the request instead.
        """
        span = _range_of(headers)
        answers = self._version_lookup.answers
        try:
            for beginning in range(_BEGINNINGS):
                version = await self._known_or_looked_up(ref, headers, span, by_get=beginning > 0)
                cache = CacheStatus.HIT
                if (early := _conditional(version, headers, cache)) is not None:
                    return early
                extent = _extent_of(headers, span, version)
                whole = extent or Extent(0, version.size)
                if on_requested is not None:
                    on_requested(version, whole)
                    on_requested = None
                await self._version_lookup.wait_for_transfer(version, whole.start)
                body = self._body(version, whole, self._versions.changes)
                cache = self._status_of(body.version_id, whole)
                try:
                    # The first byte is in hand before the head is promised: until here another version changes nothing.
                    first = await body.begin()
                except VersionChanged:
                    continue
                except Unproved as error:
                    if beginning > 0:
                        raise answers.refuse(ref, error.why) from error
                    # The size that we know may be wrong.
                    continue
                except OriginBroke as error:
                    raise unanswered(error) from error
                if cache is CacheStatus.MISS and isinstance(first, EarlyPiece | FilePiece) and first.source == "peer":
                    cache = CacheStatus.PEER
                return _answer(version, extent, headers, cache, body)
            raise NotCacheable(ref, Uncached.CHANGING)
        except NotCacheable as error:
            answers.uncached(error)
            raise

    def resume(self, version: ObjectVersion, extent: Extent, since: int) -> Body:
        """The bytes of `extent`, for a reply whose head is out: now only `version` will do. `since`: the number of
        changes of the version cache when the reply began."""
        return self._body(version, extent, since, has_begun=True)

    def doubt(self, version: ObjectVersion, position: int) -> None:
        """The block that holds this byte could not be read where it was to be sent from."""
        self._store.doubt(self._layout.key(version, self._layout.index_of(position)))

    # -- which version ------------------------------------------------------------------------------------------

    def _fresh(self, ref: ObjectRef, headers: Mapping[str, str]) -> ObjectVersion | None:
        """The version to answer from without asking; None: ask."""
        version = self._versions.fresh(ref)
        # A condition that fails on the version that is cached may hold on the version that the origin has: a client
        # that wrote past us asks for its new ETag. Only the origin refuses.
        if version is None or CONDITIONALS.isdisjoint(headers):
            return version
        return None if evaluate(headers, version) is Precondition.FAILED else version

    async def _known(self, ref: ObjectRef, headers: Mapping[str, str]) -> ObjectVersion | None:
        """As `_fresh`, with the version's checksums where they are wanted and the origin states them."""
        version = self._fresh(ref, headers)
        if version is None or version.whole_headers or not wants_checksums(headers):
            return version
        await self._version_lookup.ask_checksums(ref)
        return self._fresh(ref, headers)

    async def _known_or_looked_up(
        self, ref: ObjectRef, headers: Mapping[str, str], span: RangeSpec | None, *, by_get: bool
    ) -> ObjectVersion:  # fmt: skip
        """`by_get`: see `VersionLookup.ask`."""
        try:
            version = await self._known(ref, headers)
            if version is not None:
                return version
            wants = wants_checksums(headers)
            self._readers.beginning += 1
            try:
                first_byte = _first_byte(headers, span, self._layout.block_bytes)
                if by_get and first_byte is None:
                    first_byte = 0
                if self._contents.has_mismatched and self._contents.relays(ref):
                    # A question that brings a block would bring it in vain.
                    first_byte = None
                with self._scheduler.question():
                    return await self._version_lookup.ask(ref, first_byte, whole_headers=wants, by_get=by_get)
            finally:
                self._readers.beginning -= 1
        except OriginRefused as refused:
            if not refused.body and refused.status in RETRYABLE_STATUSES:
                # The origin was tried as long as the client waits, and is not tried as long again.
                after = dict(refused.headers).get("retry-after", "1")
                text = f"The origin does not answer: status {refused.status}."
                raise ServiceUnavailable(text, headers=(("retry-after", after),)) from refused
            if not refused.body:
                # The question was a HEAD, whose refusal has no body: the origin says why to the GET itself.
                raise NotCacheable(ref, Uncached.REFUSED) from refused
            raise

    # -- which bytes ----------------------------------------------------------------------------------------------

    def _status_of(self, vid: bytes, extent: Extent) -> CacheStatus:
        if extent.length == 0:
            return CacheStatus.HIT
        indexes = self._layout.indexes(extent)[:_STATUS_BLOCKS_MAX]
        here = sum([self._store.has(BlockKey(vid, index)) for index in indexes])
        if here == 0:
            return CacheStatus.MISS
        return CacheStatus.HIT if here == len(indexes) else CacheStatus.PARTIAL

    def _body(self, version: ObjectVersion, extent: Extent, since: int, *, has_begun: bool = False) -> BodyRead:
        def wrong(error: VersionChanged | Unproved, has_sent: bool) -> None:
            self._versions.forget(version.ref)
            if has_sent and isinstance(error, Unproved):
                self._version_lookup.answers.refuse(version.ref, error.why)
            elif has_sent:
                self._version_lookup.cut(version)

        return BodyRead(
            version, extent, since, self._body_parts, has_begun=has_begun, on_wrong=wrong, renew=self._renew
        )  # fmt: skip

    async def _renew(self, version: ObjectVersion, sent: Extent) -> tuple[ObjectVersion, int] | None:
        """See `body.Renew`."""
        bytes_sent = SentBytes(version, sent, self._body_parts)
        if not await bytes_sent.read():
            return None
        self._versions.forget(version.ref)
        try:
            now = await self._version_lookup.ask(version.ref, None)
        except (Signal, S3Error):
            return None
        return (now, self._versions.changes) if await bytes_sent.are_of(now) else None


def _range_of(headers: Mapping[str, str]) -> RangeSpec | None:
    """None: there is no Range, or an unusual one."""
    return ranges.parse(headers["range"]) if "range" in headers else None


def _first_byte(headers: Mapping[str, str], span: RangeSpec | None, block_bytes: int) -> int | None:
    """Where a read of an unknown object begins; None: only its size can show it, or whether it is worth a block, or a
    condition may end it first."""
    if not CONDITIONALS.isdisjoint(headers):
        return None
    if "range" not in headers:
        return 0
    if span is None or span.first is None:
        return None
    if span.last is None:
        return span.first
    is_glance = Glances.may_be(Extent(span.first, span.last + 1), block_bytes + 1, block_bytes)
    return None if is_glance else span.first


def _extent_of(headers: Mapping[str, str], span: RangeSpec | None, version: ObjectVersion) -> Extent | None:
    """None: the whole object. Raises InvalidRange; NotCacheable: a Range that stores answer differently."""
    if "range" not in headers:
        return None
    if span is None:
        raise NotCacheable(version.ref, Uncached.RANGE_FORM)
    return ranges.resolve(span, version.size)


def _conditional(version: ObjectVersion, headers: Mapping[str, str], cache: CacheStatus) -> ReadAnswer | None:
    if CONDITIONALS.isdisjoint(headers):
        return None
    verdict = evaluate(headers, version)
    if verdict is Precondition.FAILED:
        raise PreconditionFailed
    if verdict is Precondition.NOT_MODIFIED:
        sent = {"etag", "last-modified", "cache-control", "expires", "vary", "x-amz-version-id"}
        return ReadAnswer(304, tuple(pair for pair in version.headers if pair[0] in sent), 0, cache)
    return None


def _answer(
    version: ObjectVersion,
    extent: Extent | None,
    request_headers: Mapping[str, str],
    cache: CacheStatus,
    body: Body | None,
) -> ReadAnswer:
    headers = version.headers
    if extent is not None or not wants_checksums(request_headers):
        headers = without_checksums(headers)
    if extent is None:
        return ReadAnswer(200, headers, version.size, cache, body)
    headers += (("content-range", ranges.content_range(extent, version.size)),)
    return ReadAnswer(206, headers, extent.length, cache, body)
