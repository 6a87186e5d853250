"""Reads of the origin that survive its failures: retries with backoff, a broken body resumed at its offset, and hedged
requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    suppress,
)
from dataclasses import replace
from sys import maxsize

from outrider.core.errors import OriginBroke, OriginBusy, Signal, VersionChanged
from outrider.core.insight.bottleneck import OriginWait
from outrider.core.model import Extent, Headers, ObjectRef, ObjectVersion, is_sendable
from outrider.core.origin.backoff import RETRYABLE_STATUSES, SLOW_DOWN_STATUSES, retry_after_s
from outrider.core.origin.hedging import Hedging
from outrider.core.origin.oddities import Oddity
from outrider.core.origin.quirks import Quirks
from outrider.core.s3 import ranges
from outrider.engine.fill.fill_scheduler import FillScheduler, FillSlot
from outrider.engine.fill.patience import NOBODY, Patience, Retries, Tries, Waiters
from outrider.engine.fill.reply_proof import Brought, Unproved, brought_of, check_version, is_odd_success
from outrider.engine.fill.sinks import Discard, SinkAt
from outrider.metrics import Metrics
from outrider.origin_oddities import OriginOddities
from outrider.ports import Chunks, Clock, Origin, OriginReply, OriginRequest

log = logging.getLogger(__name__)

# How origins answer a request header that they do not take: other statuses have other causes.
_REFUSED_HEADERS = (400, 501)
_REFUSED_CONDITIONS = (400, 412, 501)
# An error document of S3 has some hundred bytes. Longer ones are cut.
_REFUSAL_BYTES_MAX = 64 * 1024
# The loop takes fewer steps from a readable socket to a reply head.
_STEPS_OF_A_HEAD = 8


class OriginRefused(Signal):
    """The origin answered with an error of its own, which is to be passed on as it is."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        # The status alone, since it shows in logs: the text of AWS may contain the session token (ExpiredToken), or the
        # string that was signed.
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body

    def __str__(self) -> str:
        return f"origin answered {self.status}"

    def __copy__(self) -> OriginRefused:
        return OriginRefused(self.status, self.headers, self.body)

    @classmethod
    async def read(cls, reply: OriginReply) -> OriginRefused:
        body = bytearray()
        async with aclosing(reply.chunks()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > _REFUSAL_BYTES_MAX:
                    break
        return cls(reply.status, reply.headers, bytes(body[:_REFUSAL_BYTES_MAX]))


class OriginReader:
    """Reads the origin. Writes are never tried twice, so they do not go through here."""

    def __init__(
        self, origin: Origin, patience: Patience, metrics: Metrics, scheduler: FillScheduler, hedging: Hedging,
        oddities: OriginOddities | None = None,
    ) -> None:  # fmt: skip
        """`oddities` None: this reader has a list of its own."""
        self._origin = origin
        self._patience = patience
        self._metrics = metrics
        self._scheduler = scheduler
        self._hedging = hedging
        self._retries = Retries(patience, metrics)
        self.quirks = Quirks(patience.clock)
        self.oddities = oddities or OriginOddities(origin.endpoint, metrics)
        """Told of each reply that differs from AWS S3's."""

    @property
    def receives_in_threads(self) -> bool:
        """See `ports.Origin`."""
        return self._origin.receives_in_threads

    @property
    def clock(self) -> Clock:
        """The clock that patience is measured by."""
        return self._patience.clock

    @property
    def patience_s(self) -> float:
        """For how long a client waits for the next byte while the origin is away."""
        return 0.0 if self._retries.are_stopped else self._patience.patience_s

    @property
    def long_wait(self) -> OriginWait | None:
        """The reads that wait for an origin that is busy or away, for longer than a few tries take; None: none."""
        return self._retries.long_wait

    def stop_waiting(self) -> None:
        """The proxy is stopping: reads that wait for an origin that is away fail now, after as many tries as for
        nobody."""
        self._retries.stop()

    @asynccontextmanager
    async def reply(
        self, request: OriginRequest, *, hedged: bool = False, waiters: Waiters = NOBODY
    ) -> AsyncIterator[OriginReply]:  # fmt: skip
        """The reply to a GET or HEAD; after the last try, also a reply that says 5xx. `hedged`: a second request is
        sent when the reply is late. It is for requests that are all alike, so that their latencies can be compared.
        `waiters`: tries go on for as long as one of them waits, and the patience lasts.

        Raises:
            OriginBroke: no try brought a reply; OriginBusy: no connection came free in time.
        """
        given = False
        with self._retries.begin(f"s3://{request.bucket}/{request.key}", waiters) as tries:
            while True:
                try:
                    async with self._send(request, hedged=hedged, within_s=tries.left_s) as reply:
                        wait_s = None
                        if reply.status in RETRYABLE_STATUSES:
                            after_s = self._retry_after_s(reply)
                            wait_s = tries.failed(f"status {reply.status}", retry_after_s=after_s)
                        else:
                            tries.answered()
                        if wait_s is None:
                            given = True
                            yield reply
                            return
                        await _drain(reply)
                except OriginBusy:
                    raise
                except OriginBroke as error:
                    # A body that broke while the caller reads it is the caller's to deal with: it has the reply
                    # already.
                    if given or (wait_s := tries.failed(error, lasting=error.lasting)) is None:
                        raise
                # Not within the `async with`: the connection is given back before the wait.
                await tries.pause(wait_s)

    @asynccontextmanager
    async def asked(
        self, request: OriginRequest, optional: Headers, *, hedged: bool = False, waiters: Waiters = NOBODY
    ) -> AsyncIterator[OriginReply]:  # fmt: skip
        """As `reply`, with headers that some origins refuse: these get the request once more without them."""
        tried = bool(optional) and not self.quirks.has(request.bucket, Oddity.CHECKSUM_MODE_REFUSED)
        if tried:
            with_optional = replace(request, headers=request.headers + optional)
            async with self.reply(with_optional, hedged=hedged, waiters=waiters) as reply:
                if reply.status not in _REFUSED_HEADERS:
                    yield reply
                    return
                await _drain(reply)
        async with self.reply(request, hedged=hedged, waiters=waiters) as reply:
            # The refusal may have another cause: only a reply that is no refusal proves this one.
            if tried and reply.status < 300:
                self.learned(Oddity.CHECKSUM_MODE_REFUSED, ObjectRef(request.bucket or "", request.key))
            yield reply

    def learned(self, quirk: Oddity, ref: ObjectRef) -> None:
        """The bucket of `ref` is asked otherwise from now on."""
        if self.quirks.has(ref.bucket, quirk):
            return
        self.quirks.learn(ref.bucket, quirk)
        self.oddities.note(quirk, ref)

    async def stream(
        self, version: ObjectVersion, extent: Extent, first: OriginReply | None = None, slot: FillSlot | None = None,
        waiters: Waiters = NOBODY,
    ) -> Chunks:  # fmt: skip
        """The bytes of `extent`, all of `version`; a body that breaks is resumed at its offset.

        `first`: a reply that already brings the bytes from `extent.start` on. `slot`: held by the caller; other fills
        have it while this one waits before the next try. `waiters`: see `reply`.

        Raises:
            VersionChanged: the origin no longer has `version`.
            OriginRefused: the origin answered with an error of its own.
            OriginBroke: the last try failed.
            Unproved: the replies do not tell which bytes they bring.
        """
        position = extent.start
        with self._retries.begin(version.ref, waiters) as tries:
            while position < extent.stop:
                started = position
                try:
                    if first is not None:
                        bodies = first.chunks()
                        first = None
                    else:
                        bodies = self._once(version, Extent(position, extent.stop), tries)
                    async with aclosing(bodies) as chunks:
                        async for chunk in chunks:
                            piece = chunk[: extent.stop - position]
                            position += len(piece)
                            yield piece
                            if position == extent.stop:
                                return
                    raise OriginBroke("the body was shorter than it said", lasting=True)
                except OriginBroke as error:
                    if (wait_s := _wait_after(error, tries, progressed=position > started)) is None:
                        raise
                await tries.pause(wait_s, slot)

    async def receive(
        self, version: ObjectVersion, extent: Extent, sink_at: SinkAt, slot: FillSlot | None, waiters: Waiters
    ) -> AsyncGenerator[int, None]:
        """As `stream`, for many bytes: a thread puts them into the sinks that `sink_at` names. Yields how many more are
        there. Raises what `stream` raises, and StoreUnavailable: a sink does not take them."""
        position = extent.start
        with self._retries.begin(version.ref, waiters) as tries:
            while position < extent.stop:
                started = position
                try:
                    rest = Extent(position, extent.stop)
                    async with aclosing(self._received_once(version, rest, sink_at, tries)) as counts:
                        async for count in counts:
                            position += count
                            yield count
                            if position == extent.stop:
                                return
                    raise OriginBroke("the body was shorter than it said", lasting=True)
                except OriginBroke as error:
                    if (wait_s := _wait_after(error, tries, progressed=position > started)) is None:
                        raise
                await tries.pause(wait_s, slot)

    async def _received_once(
        self, version: ObjectVersion, extent: Extent, sink_at: SinkAt, tries: Tries
    ) -> AsyncGenerator[int, None]:
        """One GET of `extent`, received by a thread."""
        async with self._proved(version, extent, tries, bulk=True) as (reply, body):
            if skip := extent.start - body.start:
                async for count in reply.receive(skip, Discard()):
                    self.dropped("restart", count)
            # No byte beyond those that the reply names.
            stop = extent.stop if body.length is None else min(extent.stop, body.start + body.length)
            position = extent.start
            try:
                while position < stop:
                    sink, room = await sink_at(position)
                    async with aclosing(reply.receive(min(room, stop - position), sink)) as counts:
                        async for count in counts:
                            position += count
                            yield count
            finally:
                if position < stop:
                    reply.give_up("abandoned")

    async def _once(self, version: ObjectVersion, extent: Extent, tries: Tries) -> Chunks:
        """One GET of `extent`."""
        async with self._proved(version, extent, tries) as (reply, body):
            skip = extent.start - body.start
            left = extent.length if body.length is None else body.length - skip
            async with aclosing(reply.chunks()) as chunks:
                try:
                    async for chunk in chunks:
                        if skip:
                            dropped = min(skip, len(chunk))
                            skip -= dropped
                            chunk = chunk[dropped:]
                            self.dropped("restart", dropped)
                        # No byte beyond those that the reply names.
                        if len(chunk) > left:
                            chunk = chunk[:left]
                        if chunk:
                            left -= len(chunk)
                            yield chunk
                except GeneratorExit:
                    if left:
                        reply.give_up("abandoned")
                    raise

    @asynccontextmanager
    async def _proved(
        self, version: ObjectVersion, extent: Extent, tries: Tries, *, bulk: bool = False
    ) -> AsyncIterator[tuple[OriginReply, Brought]]:
        """A reply that proves to bring bytes of `version` from `extent.start` on, or from before it.

        A reply that proves nothing is followed by another.
        """
        ref = version.ref
        while True:
            conditions = self._conditions(version)
            request = _part_of(ref, extent, conditions, bulk=bulk)
            async with self._send(request, hedged=True, within_s=tries.left_s) as reply:
                if conditions and reply.status in _REFUSED_CONDITIONS:
                    await _drain(reply)
                    await self._check_refusal(reply.status, version, extent)
                    continue
                await _check_status(reply, version, self._patience.wall_clock())
                try:
                    tries.answered()
                    body = brought_of(reply, version, extent)
                except Unproved as error:
                    tries.doubts += 1
                    if error.may_pass(tries.doubts):
                        self._metrics.origin_retries.inc()
                        continue
                    if error.why is Oddity.SIZES_DIFFER:
                        # The size that we know may be the wrong one.
                        self.oddities.note(error.why, ref)
                        raise VersionChanged(f"{ref}: another size") from error
                    raise
                tries.doubts = 0
                self.told(body, ref)
                yield reply, body
                return

    async def _check_refusal(self, status: int, version: ObjectVersion, extent: Extent) -> None:
        """A GET with If-Match was refused: one byte without it tells by its ETag whether the version changed. If it did
        not, the bucket is not asked with If-Match any more. Raises what `stream` raises."""
        byte = Extent(extent.start, extent.start + 1)
        # Tried again by itself: the next try of the fill would begin with the refusal.
        async with self.reply(_part_of(version.ref, byte)) as reply:
            await _check_status(reply, version, self._patience.wall_clock())
            check_version(reply, version)
        self.learned(Oddity.IF_MATCH_FAILS if status == 412 else Oddity.IF_MATCH_REFUSED, version.ref)

    def dropped(self, cause: str, count: int) -> None:
        """`count` bytes of the origin came for nothing. `cause`: one of `metrics.DUPLICATE_CAUSES`."""
        self._metrics.duplicate_origin_bytes.labels(cause).inc(count)

    def told(self, body: Brought, ref: ObjectRef) -> None:
        """A reply proved its bytes, and may be odd all the same."""
        if body.odd is Oddity.RANGE_IGNORED:
            self.learned(body.odd, ref)
            return
        if body.size is not None and body.length not in (None, body.size):
            # It was ignored by one of several servers, or in a moment of weakness.
            self.quirks.unlearn(ref.bucket, Oddity.RANGE_IGNORED)
        if body.odd is not None:
            self.oddities.note(body.odd, ref)

    def _conditions(self, version: ObjectVersion) -> Headers:
        if self.quirks.has(version.ref.bucket, Oddity.IF_MATCH_REFUSED, Oddity.IF_MATCH_FAILS):
            return ()
        # Bytes that are no UTF-8 cannot be sent as they are. The ETag of the reply is compared in any case.
        return (("if-match", version.etag),) if is_sendable(version.etag) else ()

    @asynccontextmanager
    async def _send(
        self, request: OriginRequest, *, hedged: bool, within_s: float | None = None
    ) -> AsyncIterator[OriginReply]:  # fmt: skip
        """One try, or a hedged one: two requests, of which the first that is answered is used and the other given
        up. `within_s`: the head of the reply is not waited for any longer; None: the adapter's timeout is enough."""
        after_s, began = self._hedging.after_s() if hedged else None, self._patience.clock()
        sending = self._origin.send(request) if after_s is None else self._raced(request, after_s)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(within_s):
                    reply = await stack.enter_async_context(sending)
            except TimeoutError as error:
                raise OriginBroke("no reply for as long as clients wait") from error
            if reply.status in SLOW_DOWN_STATUSES:
                self._scheduler.slow_down()
                self._hedging.slow_down(self._patience.clock())
            if hedged and reply.status not in RETRYABLE_STATUSES:
                body_bytes = 0 if request.method == "HEAD" else reply.content_length or 0
                self._hedging.replied(self._patience.clock() - began, body_bytes)
            yield reply

    @asynccontextmanager
    async def _raced(self, request: OriginRequest, after_s: float) -> AsyncIterator[OriginReply]:
        async with AsyncExitStack() as tries:
            first, replies = _Try(self._origin.send(request)), self._hedging.replies
            tries.push_async_callback(first.close)
            await self._late(first, after_s)
            if not first.head.done() and self._hedging.replies == replies:
                await self._late(first, self._hedging.ALONE_S)
            may = not self._hedging.rests(self._patience.clock())
            if first.head.done() or not may or not self._hedging.spend(_body_bytes(request)):
                yield await first.head
                return
            second = _Try(self._origin.send(request))
            tries.push_async_callback(second.close)
            won = await _first_answered(first, second)
            self._metrics.hedges.labels("yes" if won is second else "no").inc()
            await (first if won is second else second).close(lost=True)
            yield await won.head

    async def _late(self, attempt: _Try, after_s: float) -> None:
        """Wait until the reply is here, or is late by `after_s`."""
        rings = self._patience.alarm(after_s)
        try:
            await asyncio.wait((attempt.head, rings), return_when=asyncio.FIRST_COMPLETED)
        finally:
            rings.cancel()
        # An alarm rings late where the loop was busy. The reply may be in the socket by then, unread.
        for _ in range(_STEPS_OF_A_HEAD):
            if attempt.head.done():
                return
            await asyncio.sleep(0)

    def _retry_after_s(self, reply: OriginReply) -> float:
        return retry_after_s(dict(reply.headers), self._patience.wall_clock())


class _Try:
    """A request whose head is waited for in a task of its own, so that it can be waited for beside another request."""

    def __init__(self, sending: AbstractAsyncContextManager[OriginReply]) -> None:
        self._sending = sending
        self._closed = False
        self.head = asyncio.ensure_future(sending.__aenter__())

    @property
    def answered(self) -> bool:
        """It has a reply that another try would bring, too: what was asked for, or a refusal for good."""
        if not self.head.done() or self.head.cancelled() or self.head.exception() is not None:
            return False
        return self.head.result().status not in RETRYABLE_STATUSES

    async def close(self, *, lost: bool = False) -> None:
        """Give it up, or end its reply. A second call does nothing. `lost`: the other request was answered first."""
        if self._closed:
            return
        self._closed = True
        if not self.head.done():
            self.head.cancel()
            await asyncio.wait([self.head])
        if not self.head.cancelled() and self.head.exception() is None:
            if lost:
                self.head.result().give_up("hedge")
            await self._sending.__aexit__(None, None, None)


def _body_bytes(request: OriginRequest) -> int:
    """How many bytes the body of the reply most likely has."""
    asked = ranges.parse(dict(request.headers).get("range", ""))
    likely = maxsize if request.likely_bytes is None else request.likely_bytes
    if request.method == "HEAD":
        return 0
    return (
        likely
        if asked is None or asked.first is None or asked.last is None
        else min(likely, asked.last - asked.first + 1)
    )


async def _first_answered(first: _Try, second: _Try) -> _Try:
    """The first try that is answered. A failure is no answer while the other request is under way; when both fail, the
    first one's failure counts."""
    out = {first.head, second.head}
    while out:
        _, out = await asyncio.wait(out, return_when=asyncio.FIRST_COMPLETED)
        for attempt in (first, second):
            if attempt.answered:
                return attempt
    return first


def _wait_after(error: OriginBroke, tries: Tries, *, progressed: bool) -> float | None:
    """How long to wait before the next try; None: that was the last."""
    return tries.failed(error, retry_after_s=error.retry_after_s, progressed=progressed, lasting=error.lasting)


def _part_of(ref: ObjectRef, extent: Extent, conditions: Headers = (), *, bulk: bool = False) -> OriginRequest:
    span = ("range", f"bytes={extent.start}-{extent.stop - 1}")
    return OriginRequest("GET", ref.bucket, ref.key, headers=(span, *conditions), bulk=bulk)


async def _drain(reply: OriginReply) -> None:
    """Read an error document to its end, so that the connection can be used again."""
    with suppress(OriginBroke):
        await OriginRefused.read(reply)


async def _check_status(reply: OriginReply, version: ObjectVersion, now: float) -> None:
    """Raises what `stream` raises, unless the reply is a 200 or 206. `now`: seconds since 1970."""
    if reply.status in RETRYABLE_STATUSES:
        await _drain(reply)
        raise OriginBroke(f"status {reply.status}", retry_after_s=retry_after_s(dict(reply.headers), now))
    # 416: the object has shrunk. 404: it is gone. Both say only that the version that we know exists no more.
    if reply.status in (404, 412, 416):
        await _drain(reply)
        raise VersionChanged(f"{version.ref}: {reply.status}")
    if is_odd_success(reply.status):
        raise Unproved(Oddity.STATUS_ODD)
    if reply.status not in (200, 206):
        raise await OriginRefused.read(reply)
