"""The bytes of a version as the origin sends them. Each reply proves what it brings, and a body that breaks is resumed
at its offset."""

from __future__ import annotations

from collections.abc import Callable

from outrider.core.errors import OriginBroke, VersionChanged
from outrider.core.model import Extent, Headers, ObjectRef, ObjectVersion, is_sendable
from outrider.core.origin.backoff import RETRYABLE_STATUSES, retry_after_s
from outrider.core.origin.oddities import Oddity
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import NOBODY, Tries, Waiters
from outrider.engine.fill.refused import OriginRefused, drain
from outrider.engine.fill.reply_proof import Unproved, check_version, is_odd_success, proved_body_of
from outrider.ports import Buffer, ByteSink, OriginReply, OriginRequest

_REFUSED_CONDITIONS = (400, 412, 501)


class OriginBody:
    """The bytes of an extent in order, taken by `some`, or by `receive` where a thread can. Close it (`aclose`), also
    halfway.

    All three raise:
        VersionChanged: the origin no longer has the version.
        OriginRefused: the origin answered with an error of its own.
        OriginBroke: the last try failed.
        Unproved: the replies do not prove which bytes they bring.
    """

    def __init__(
        self, reader: OriginReader, version: ObjectVersion, extent: Extent, *, slot: FillSlot | None = None,
        waiters: Waiters = NOBODY, bulk: bool = False, reply: OriginReply | None = None,
    ) -> None:  # fmt: skip
        """`slot`: held by the caller; other fills have it while this body waits before the next try. `waiters`: see
        `OriginReader.reply`. `bulk`: the bytes are many, and better received (`receive`). `reply`: brings the first
        bytes already, and is closed here."""
        self._reader = reader
        self._version = version
        self._extent = extent
        self._slot = slot
        self._bulk = bulk
        self._tries = Tries(reader.retries, version.ref, waiters)
        self.position = extent.start
        """The object's byte that comes next."""
        # Where the reply begins that is under way, or is requested.
        self._resumed_at = extent.start
        self._reply = reply
        # The bytes of that reply before `position`, and how many more it names.
        self._skip = 0
        self._left = 0 if reply is None else extent.length

    async def some(self) -> Buffer:
        """The next bytes, which are not empty unless all have come."""
        stop = self._extent.stop
        while self.position < stop:
            try:
                if self._reply is None:
                    self._reply = await self._opened()
                piece = await self._reply.some()
                if not piece or not self._left:
                    raise OriginBroke("the body was shorter than it said", lasting=True)
                if piece := self._wanted(piece):
                    return piece
            except OriginBroke as error:
                if not await self._goes_on(error):
                    raise
        await self.aclose()
        return b""

    def _wanted(self, piece: Buffer) -> Buffer:
        """The part of `piece` that lies in the extent, without a byte beyond those that the reply names."""
        if self._skip:
            dropped = min(self._skip, len(piece))
            self._skip -= dropped
            piece = piece[dropped:]
            self._reader.dropped("restart", dropped)
        left = min(self._left, self._extent.stop - self.position)
        if len(piece) > left:
            piece = piece[:left]
        self.position += len(piece)
        self._left -= len(piece)
        return piece

    async def in_thread(self) -> bool:
        """Return once a reply is here that brings the next bytes: whether a thread can receive them."""
        while self._reply is None:
            try:
                self._reply = await self._opened()
            except OriginBroke as error:
                if not await self._goes_on(error):
                    raise
        # Bytes that nobody requested are dropped by `some`.
        return self._reply.in_thread and not self._skip

    async def receive(self, count: int, sink: ByteSink, received: Callable[[int], None]) -> None:
        """Have a thread put up to `count` of the next bytes into `sink`; `received` is called with how many more are
        there. Fewer come if the connection breaks: `position` says how many. The sink is ended in any case. Raises what
        the sink raises, too."""
        reply = self._reply
        assert reply is not None, "in_thread was asked"

        def landed(more: int) -> None:
            self.position += more
            self._left -= more
            received(more)

        try:
            count = min(count, self._left)
            if not count:
                sink.ended()
                raise OriginBroke("the body was shorter than it said", lasting=True)
            await reply.receive(count, sink, landed)
        except OriginBroke as error:
            if not await self._goes_on(error):
                raise

    async def _goes_on(self, error: OriginBroke) -> bool:
        """Wait before the next try; False: that was the last. It does not raise `error`, whose traceback would know
        this frame, which knows `error`."""
        self._left = 0
        self._close_reply()
        wait_s = self._tries.failed(
            error, retry_after_s=error.retry_after_s, progressed=self.position > self._resumed_at, lasting=error.lasting
        )
        self._resumed_at = self.position
        if wait_s is None:
            return False
        await self._tries.pause(wait_s, self._slot)
        return True

    async def aclose(self) -> None:
        """Give up the bytes that have not come."""
        self._close_reply()
        self._tries.end()

    def _close_reply(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            if self._left:
                reply.give_up("abandoned")
            reply.close()

    # -- one reply ----------------------------------------------------------------------------------------------------

    async def _opened(self) -> OriginReply:
        """A reply that proves to bring bytes from `position` on, or from before it. One that proves nothing is followed
        by another."""
        reader, tries, version = self._reader, self._tries, self._version
        rest = Extent(self.position, self._extent.stop)
        while True:
            conditions = self._conditions()
            request = _part_of(version.ref, rest, conditions, bulk=self._bulk)
            reply = await reader.once(request, hedged=True, within_s=tries.left_s)
            try:
                if conditions and reply.status in _REFUSED_CONDITIONS:
                    await drain(reply)
                    await self._check_refusal(reply.status)
                    continue
                await _check_status(reply, version, reader.patience.wall_clock())
                tries.answered()
                try:
                    body = proved_body_of(reply, version, rest)
                except Unproved as error:
                    tries.doubts += 1
                    if not error.may_pass(tries.doubts):
                        if error.why is not Oddity.SIZES_DIFFER:
                            raise
                        # The size that we know may be the wrong one.
                        reader.oddities.note(error.why, version.ref)
                        raise VersionChanged(f"{version.ref}: another size") from error
                    reply.close()
                    reader.retried()
                    continue
            except BaseException:
                reply.close()
                raise
            tries.doubts = 0
            reader.note_proved(body, version.ref)
            self._skip = rest.start - body.start
            self._left = rest.length if body.length is None else body.length - self._skip
            return reply

    def _conditions(self) -> Headers:
        version = self._version
        if self._reader.quirks.has(version.ref.bucket, Oddity.IF_MATCH_REFUSED, Oddity.IF_MATCH_FAILS):
            return ()
        # Bytes that are no UTF-8 cannot be sent as they are. The ETag of the reply is compared in any case.
        return (("if-match", version.etag),) if is_sendable(version.etag) else ()

    async def _check_refusal(self, status: int) -> None:
        """A GET with If-Match was refused: one byte without it shows by its ETag whether the version changed. If it did
        not, the bucket is not asked with If-Match any more."""
        byte = Extent(self.position, self.position + 1)
        # Tried again by itself: the next try of the body would begin with the refusal.
        reply = await self._reader.reply(_part_of(self._version.ref, byte))
        try:
            await _check_status(reply, self._version, self._reader.patience.wall_clock())
            check_version(reply, self._version)
        finally:
            reply.close()
        self._reader.learned(
            Oddity.IF_MATCH_FAILS if status == 412 else Oddity.IF_MATCH_REFUSED, self._version.ref
        )  # fmt: skip


def _part_of(ref: ObjectRef, extent: Extent, conditions: Headers = (), *, bulk: bool = False) -> OriginRequest:
    span = ("range", f"bytes={extent.start}-{extent.stop - 1}")
    return OriginRequest("GET", ref.bucket, ref.key, headers=(span, *conditions), bulk=bulk)


async def _check_status(reply: OriginReply, version: ObjectVersion, now: float) -> None:
    """Raises what a body raises, unless the reply is a 200 or 206. `now`: seconds since 1970."""
    if reply.status in (200, 206):
        return
    if reply.status in RETRYABLE_STATUSES:
        await drain(reply)
        raise OriginBroke(f"status {reply.status}", retry_after_s=retry_after_s(dict(reply.headers), now))
    # 416: the object has shrunk. 404: it is gone. Both say only that the version that we know exists no more.
    if reply.status in (404, 412, 416):
        await drain(reply)
        raise VersionChanged(f"{version.ref}: {reply.status}")
    if is_odd_success(reply.status):
        raise Unproved(Oddity.STATUS_ODD)
    raise await OriginRefused.read(reply)
