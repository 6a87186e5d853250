"""Requests to the origin that survive its failures: retries with backoff, and a second request where one is late."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from sys import maxsize

from outrider.core.errors import OriginBroke, OriginBusy
from outrider.core.insight.bottleneck import OriginWait
from outrider.core.model import Headers, ObjectRef
from outrider.core.origin.backoff import RETRYABLE_STATUSES, SLOW_DOWN_STATUSES, retry_after_s
from outrider.core.origin.hedging import Hedging
from outrider.core.origin.oddities import Oddity
from outrider.core.origin.quirks import Quirks
from outrider.core.s3 import ranges
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.fill.patience import NOBODY, Patience, Retries, Tries, Waiters
from outrider.engine.fill.refused import drain
from outrider.engine.fill.reply_proof import ProvedBody
from outrider.metrics import Metrics
from outrider.origin_oddities import OriginOddities
from outrider.ports import Origin, OriginReply, OriginRequest

log = logging.getLogger(__name__)

# How origins answer a request header that they do not take: other statuses have other causes.
_REFUSED_HEADERS = (400, 501)
# The loop takes fewer steps from a readable socket to a reply head.
_STEPS_OF_A_HEAD = 8


class OriginReader:
    """Reads the origin. Writes are never tried twice, so they do not go through here."""

    def __init__(
        self, origin: Origin, patience: Patience, metrics: Metrics, scheduler: FillScheduler, hedging: Hedging,
        oddities: OriginOddities | None = None,
    ) -> None:  # fmt: skip
        """`oddities` None: this reader has a list of its own."""
        self._origin = origin
        self.patience = patience
        self._metrics = metrics
        self._scheduler = scheduler
        self._hedging = hedging
        self.retries = Retries(patience, metrics)
        self.quirks = Quirks(patience.clock)
        self.oddities = oddities or OriginOddities(origin.endpoint, metrics)
        """Notified of each reply that differs from AWS S3's."""

    @property
    def endpoint(self) -> str:
        return self._origin.endpoint

    @property
    def patience_s(self) -> float:
        """For how long a client waits for the next byte while the origin is away."""
        return 0.0 if self.retries.are_stopped else self.patience.patience_s

    @property
    def long_wait(self) -> OriginWait | None:
        """The reads that wait for an origin that is busy or away, for longer than a few tries take; None: none."""
        return self.retries.long_wait

    def stop_waiting(self) -> None:
        """The proxy is stopping: reads that wait for an origin that is away fail now, after as many tries as for
        nobody."""
        self.retries.stop()

    async def reply(
        self, request: OriginRequest, optional: Headers = (), *, hedged: bool = False, waiters: Waiters = NOBODY
    ) -> OriginReply:  # fmt: skip
        """The reply to a GET or HEAD, which the caller closes; after the last try, also a reply that says 5xx.
        `optional`: headers that some origins refuse; these get the request once more without them. `hedged`: a second
        request is sent when the reply is late. It is for requests that are all alike, so that their latencies can be
        compared. `waiters`: tries go on for as long as one of them waits, and the patience lasts.

        Raises:
            OriginBroke: no try brought a reply; OriginBusy: no connection came free in time.
        """
        if optional and self.quirks.has(request.bucket, Oddity.CHECKSUM_MODE_REFUSED):
            optional = ()
        sent = replace(request, headers=request.headers + optional) if optional else request
        tries, within_s = Tries(self.retries, f"s3://{request.bucket}/{request.key}", waiters), None
        try:
            while True:
                try:
                    reply = await self.once(sent, hedged=hedged, within_s=within_s)
                except OriginBusy:
                    raise
                except OriginBroke as error:
                    if (wait_s := tries.failed(error, lasting=error.lasting)) is None:
                        raise
                    await tries.pause(wait_s)
                    within_s = tries.left_s
                    continue
                if reply.status in RETRYABLE_STATUSES:
                    after_s = retry_after_s(dict(reply.headers), self.patience.wall_clock())
                    if (wait_s := tries.failed(f"status {reply.status}", retry_after_s=after_s)) is None:
                        return reply
                    await drain(reply)
                    await tries.pause(wait_s)
                    within_s = tries.left_s
                    continue
                tries.answered()
                if sent is not request and reply.status in _REFUSED_HEADERS:
                    await drain(reply)
                    sent = request
                    continue
                # The refusal may have had another cause: only a reply that is no refusal proves this one.
                if optional and sent is request and reply.status < 300:
                    self.learned(Oddity.CHECKSUM_MODE_REFUSED, ObjectRef(request.bucket or "", request.key))
                return reply
        finally:
            tries.end()

    def learned(self, quirk: Oddity, ref: ObjectRef) -> None:
        """The bucket of `ref` is asked otherwise from now on."""
        if self.quirks.has(ref.bucket, quirk):
            return
        self.quirks.learn(ref.bucket, quirk)
        self.oddities.note(quirk, ref)

    def dropped(self, cause: str, count: int) -> None:
        """`count` bytes of the origin were received in vain. `cause`: one of `metrics.DUPLICATE_CAUSES`."""
        self._metrics.duplicate_origin_bytes.labels(cause).inc(count)

    def note_proved(self, body: ProvedBody, ref: ObjectRef) -> None:
        """A reply proved its bytes, and may be odd all the same."""
        if body.odd is Oddity.RANGE_IGNORED:
            self.learned(body.odd, ref)
            return
        if body.size is not None and body.length not in (None, body.size):
            # It was ignored by one of several servers, or in a moment of weakness.
            self.quirks.unlearn(ref.bucket, Oddity.RANGE_IGNORED)
        if body.odd is not None:
            self.oddities.note(body.odd, ref)

    def retried(self) -> None:
        """A reply that proved nothing is followed by another."""
        self._metrics.origin_retries.inc()

    async def once(
        self, request: OriginRequest, *, hedged: bool, within_s: float | None = None
    ) -> OriginReply:  # fmt: skip
        """One try, or a hedged one: two requests, of which the first that is answered is used and the other given
        up. `within_s`: the head of the reply is not waited for any longer; None: the adapter's timeout is enough."""
        hedging, clock = self._hedging, self.patience.clock
        after_s, began = hedging.after_s() if hedged else None, clock()
        sending = self._origin.ask(request) if after_s is None else self._raced(request, after_s)
        if within_s is None:
            reply = await sending
        else:
            try:
                async with asyncio.timeout(within_s):
                    reply = await sending
            except TimeoutError as error:
                raise OriginBroke("no reply for as long as clients wait") from error
        if reply.status in SLOW_DOWN_STATUSES:
            self._scheduler.slow_down()
            hedging.slow_down(clock())
        if hedged and reply.status not in RETRYABLE_STATUSES:
            hedging.replied(clock() - began, 0 if request.method == "HEAD" else reply.content_length or 0)
        return reply

    async def _raced(self, request: OriginRequest, after_s: float) -> OriginReply:
        race = _Race(self._origin, request, self.patience, self._hedging)
        try:
            reply = await race.run(after_s)
        except OriginBroke:
            if race.is_sent:
                self._metrics.hedges.labels("no").inc()
            raise
        if race.is_sent:
            self._metrics.hedges.labels("yes" if race.is_won else "no").inc()
        return reply


class _Race:
    """A request, and a second one if the reply to the first is late. The first that is answered is used: a failure is
    no answer while the other request is under way."""

    def __init__(self, origin: Origin, request: OriginRequest, patience: Patience, hedging: Hedging) -> None:
        self._origin = origin
        self._request = request
        self._patience = patience
        self._hedging = hedging
        self._replies = hedging.replies
        # Ends the wait for the first reply. It needs no task of its own, and most requests are not late.
        self._scope = asyncio.timeout(None)
        self._is_first_over = False
        self._second: asyncio.Task[OriginReply] | None = None
        self.is_sent = False
        """A second request was sent."""
        self.is_won = False
        """Its reply is used."""

    async def run(self, after_s: float) -> OriginReply:
        """Raises the first one's OriginBroke where both fail."""
        late = self._patience.alarm(after_s)
        late.add_done_callback(self._begin_second)
        first: OriginReply | None = None
        failure: OriginBroke | None = None
        try:
            try:
                async with self._scope:
                    first = await self._origin.ask(self._request)
            except TimeoutError:
                pass
            except OriginBroke as error:
                failure = error
            self._is_first_over = True
            late.cancel()
            if self._second is not None and self.is_sent and not _is_answer(first):
                await asyncio.wait([self._second])
                if _is_answer(second := _reply_of(self._second)):
                    assert second is not None
                    self._second, self.is_won = None, True
                    _lose(first)
                    return second
            await self._end_second()
            if first is None:
                assert failure is not None
                raise failure
            return first
        except BaseException:
            self._is_first_over = True
            late.cancel()
            _lose(first)
            await self._end_second()
            raise
        finally:
            del failure

    def _begin_second(self, late: asyncio.Future[None]) -> None:
        if not late.cancelled() and not self._is_first_over:
            self._second = asyncio.ensure_future(self._ask_again())
            self._second.add_done_callback(self._overtakes)

    async def _ask_again(self) -> OriginReply:
        await _head_is_read()
        if self._hedging.replies == self._replies:
            await self._patience.alarm(self._hedging.ALONE_S)
            await _head_is_read()
        if self._hedging.rests(self._patience.clock()) or not self._hedging.spend(_body_bytes(self._request)):
            raise OriginBroke("not sent")
        self.is_sent = True
        return await self._origin.ask(self._request)

    def _overtakes(self, second: asyncio.Task[OriginReply]) -> None:
        if not self._is_first_over and _is_answer(_reply_of(second)):
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def _end_second(self) -> None:
        """Only the first request counts from here on."""
        second, self._second = self._second, None
        if second is None:
            return
        # Also if this is cancelled.
        second.add_done_callback(lambda done: _lose(_reply_of(done)))
        try:
            # Its reply may have come as well: then its bytes are counted.
            await asyncio.sleep(0)
        finally:
            second.cancel()
        if not second.done():
            await asyncio.wait([second])


async def _head_is_read() -> None:
    """An alarm rings late where the loop was busy. The reply may be in the socket by then, unread."""
    for _ in range(_STEPS_OF_A_HEAD):
        await asyncio.sleep(0)


def _is_answer(reply: OriginReply | None) -> bool:
    """It is what another try would bring, too: what was requested, or a refusal for good."""
    return reply is not None and reply.status not in RETRYABLE_STATUSES


def _reply_of(done: asyncio.Task[OriginReply]) -> OriginReply | None:
    return None if done.cancelled() or done.exception() is not None else done.result()


def _lose(reply: OriginReply | None) -> None:
    if reply is not None:
        reply.give_up("hedge")
        reply.close()


def _body_bytes(request: OriginRequest) -> int:
    """How many bytes the body of the reply most likely has."""
    if request.method == "HEAD":
        return 0
    requested = ranges.parse(dict(request.headers).get("range", ""))
    likely = maxsize if request.likely_bytes is None else request.likely_bytes
    if requested is None or requested.first is None or requested.last is None:
        return likely
    return min(likely, requested.last - requested.first + 1)
