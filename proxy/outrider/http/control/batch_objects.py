"""The objects of one batch, as their client may read them: a hit without a wait, else as a GET would read it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.errors import InternalError, InvalidRange, PreconditionFailed, S3Error
from outrider.core.model import Extent, ObjectVersion
from outrider.core.s3 import ranges, xml
from outrider.core.s3.batch import BatchRead
from outrider.core.s3.operation import Operation, OperationKind
from outrider.engine.ahead.prefetch import Prefetch
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.read.body_pieces import Body, EarlyPiece, FilePiece, Piece
from outrider.engine.read.hit_lookup import HitLookup
from outrider.engine.read.object_read import CacheStatus, ObjectReads
from outrider.engine.read.version_answers import NotCacheable
from outrider.engine.read.version_cache import Known
from outrider.engine.write.passthrough import ForwardBody, Passthrough
from outrider.engine.write.upload import Upload
from outrider.http.access import Access, Principal
from outrider.http.record.record import BatchCounts, Sent
from outrider.ports import Clock

log = logging.getLogger(__name__)

_REFUSAL_BYTES_MAX = 64 * 1024
# A disk that needs longer for the pages of a few small objects is slow in any case: a read has time limits for it.
_DISK_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class BatchParts:
    """The parts of the engine that batches are answered by. `clock`: that of `hits`. `readers`: the threads for block
    files whose pages are not in memory. A disk that hangs holds them alone, and each wait for them is measured.
    `memory`: see `batch_body`."""

    hits: HitLookup
    reads: ObjectReads
    passthrough: Passthrough
    prefetch: Prefetch
    access: Access
    clock: Clock
    readers: Executor
    memory: MemoryBudget


class Found(NamedTuple):
    """A cached object: the bytes from `start` to `stop` of it."""

    known: Known
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


@dataclass(slots=True)
class Opened:
    """An object whose length is certain, with the body to read it from; or a refusal, whose `taken` is the reason as
    JSON. `taken`: the pieces that were read before their turn; a `FilePiece` among them is the last."""

    read: BatchRead
    status: int
    cache: CacheStatus
    length: int
    body: Body | ForwardBody | None
    taken: list[Piece] = field(default_factory=list)
    error: S3Error | None = None
    """The refusal."""
    read_of: tuple[ObjectVersion, Extent] | None = None
    """The bytes that are read; None: the object was not found, or comes past the cache."""
    is_noted: bool = False
    """The planner knows of the read."""
    sent: Sent = field(default_factory=Counter)

    @property
    def bytes_taken(self) -> int:
        """The bytes of `taken` in memory."""
        return sum(_in_memory(piece) for piece in self.taken)


class Refusal(S3Error):
    """The bucket's own error, in its own words."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message or f"The bucket answered with status {status}.")
        self.status = status
        self.code = code or "InternalError"


class BatchObjects:
    """Called on the engine's loop, for one batch. `reader`: see `access.reader_name`."""

    def __init__(self, parts: BatchParts, who: Principal, reader: str, counts: BatchCounts) -> None:
        self._hits = parts.hits
        self._reads = parts.reads
        self._passthrough = parts.passthrough
        self._prefetch = parts.prefetch
        self._access = parts.access
        self._clock = parts.clock
        self._readers = parts.readers
        self._who = who
        self._reader = reader
        self.counts = counts

    # -- hits -------------------------------------------------------------------------------------------------------

    def find(self, read: BatchRead) -> Found | None:
        """The object, if the client may read it and all blocks of it are cached. None: `open` finds what it is."""
        if not self._access.is_open and self._denied(_operation_of(read)) is not None:
            return None
        known = self._hits.known(read.ref)
        if known is None:
            return None
        start, stop = 0, known.version.size
        if read.span is not None:
            try:
                start, stop = _bytes_of(read, stop)
            except InvalidRange:
                return None
        return Found(known, start, stop) if self._hits.is_here(known, start, stop) else None

    def is_current(self, found: Found) -> bool:
        return self._hits.is_current(found.known)

    def read_into(self, found: Found, into: memoryview) -> bool:
        """Read a hit, if that takes no wait; returns whether it did."""
        known, start, stop = found
        if start == stop:
            return True
        if not self._hits.read_into(known, start, into):
            return False
        self._prefetch.note(self._reader, known.version, start, stop, self._clock())
        return True

    def count_hit(self, read: BatchRead, count: int) -> None:
        """`count` bytes that `read_into` gave were sent."""
        self.counts.hit(read.ref, 200 if read.span is None else 206, count)

    async def make_ready(self, found: Iterable[Found]) -> None:
        """Bring the pages of these hits into memory, by one thread, and verify those that were not since the start. May
        fail for some."""
        pages: list[Callable[[], None]] = []
        works: list[Awaitable[None]] = []
        for known, start, stop in found:
            if start == stop:
                continue
            extent = Extent(start, stop)
            if (page_in := self._hits.page_in(known, extent)) is not None:
                pages.append(page_in)
            elif callable(prepare := self._hits.prepare(known, extent)):
                works.append(prepare())
        if pages:
            works.append(asyncio.get_running_loop().run_in_executor(self._readers, _call_all, pages))
        with suppress(TimeoutError):
            async with asyncio.timeout(_DISK_WAIT_S):
                await asyncio.gather(*works)

    # -- all other reads ----------------------------------------------------------------------------------------------

    async def open(self, read: BatchRead) -> Opened:
        """As a GET of it alone. A failure is a refusal, and never raised. The caller calls `end`."""
        operation = _operation_of(read)
        read_of: tuple[ObjectVersion, Extent] | None = None

        def note_read(version: ObjectVersion, extent: Extent) -> None:
            nonlocal read_of
            read_of = version, extent

        try:
            if (denied := self._denied(operation)) is not None:
                raise denied
            try:
                if read.span is not None and read.ref.key.endswith("/"):
                    # Stores differ in their readings of a Range on a folder's own key.
                    return await self._forwarded(read, operation)
                headers = {} if read.requested_range is None else {"range": read.requested_range}
                answer = await self._reads.get(read.ref, headers, note_read)
            except (NotCacheable, InvalidRange, PreconditionFailed):
                return await self._forwarded(read, operation, read_of=read_of)
            return Opened(read, answer.status, answer.cache, answer.length, answer.body, read_of=read_of)
        except S3Error as error:
            return _refused(read, error, read_of=read_of)
        except OriginRefused as refused:
            return _refused(read, Refusal(refused.status, *xml.error_in(refused.body)), read_of=read_of)
        except Exception:
            log.exception("request failed", extra={"object": str(read.ref)})
            return _refused(read, InternalError(), read_of=read_of)

    async def _forwarded(
        self, read: BatchRead, operation: Operation, *, read_of: tuple[ObjectVersion, Extent] | None = None
    ) -> Opened:
        headers = () if read.requested_range is None else (("range", read.requested_range),)
        answer = await self._passthrough.send(operation, headers, Upload())
        status = 206 if read.span is not None else 200
        if answer.status == status and answer.length is not None:
            return Opened(read, answer.status, answer.cache, answer.length, answer.body, read_of=read_of)
        async with aclosing(answer.body):
            if answer.status in (200, 206):
                # A tar states the length of an entry before its bytes, and not which bytes of the object they are.
                lacks = "state how long the object is" if answer.status == status else "answer a range with its bytes"
                text = f"The bucket does not {lacks}: read the object by a GET of its own."
                return _refused(read, Refusal(501, "NotImplemented", text), read_of=read_of)
            document = bytearray()
            async for piece in answer.body:
                document += piece
                if len(document) > _REFUSAL_BYTES_MAX:
                    break
        return _refused(read, Refusal(answer.status, *xml.error_in(bytes(document))), read_of=read_of)

    def note(self, opened: Opened) -> None:
        """It is the turn of the object. The planner learns the order of the list, not that of the bucket's answers."""
        if opened.read_of is not None:
            opened.is_noted = True
            self._prefetch.requested(self._reader, *opened.read_of, checksums=False)

    async def receive(self, opened: Opened, bytes_max: int) -> bool:
        """Read ahead what is in no file yet, up to `bytes_max` bytes of it. False: it is longer, and comes past the
        cache: it would hold a connection to the bucket until its turn."""
        received = 0
        if opened.body is not None:
            async for piece in opened.body:
                opened.taken.append(piece)
                if isinstance(piece, FilePiece):
                    return True
                received += _in_memory(piece)
                if received >= bytes_max:
                    return isinstance(piece, EarlyPiece) or received == opened.length
        return True

    async def close(self, opened: Opened) -> None:
        """The read ended before its turn."""
        if opened.body is not None:
            await opened.body.aclose()
        if opened.is_noted:
            self._prefetch.sent(self._reader, opened.read.ref)

    async def end(self, opened: Opened) -> None:
        """The read has ended; it is counted."""
        await self.close(opened)
        ref, status, cache, sent = opened.read.ref, opened.status, opened.cache.value, opened.sent
        if opened.read_of is not None and status < 400 and opened.cache is not CacheStatus.BYPASS:
            self.counts.read(ref, status, cache, sent)
        elif opened.error is None or isinstance(opened.error, Refusal):
            self.counts.past(ref, status, cache, sent)
        else:
            self.counts.refused(status, cache)

    def _denied(self, operation: Operation) -> S3Error | None:
        try:
            self._access.check(self._who, operation, None)
        except S3Error as error:
            return error
        return None


def _in_memory(piece: Piece) -> int:
    if isinstance(piece, FilePiece):
        return 0
    return len(piece.data if isinstance(piece, EarlyPiece) else piece)


def _operation_of(read: BatchRead) -> Operation:
    return Operation(OperationKind.GET, "GET", read.ref.bucket, read.ref.key, ())


def _bytes_of(read: BatchRead, size: int) -> tuple[int, int]:
    assert read.span is not None
    if read.ref.key.endswith("/"):
        raise InvalidRange  # see `BatchObjects.open`
    extent = ranges.resolve(read.span, size)
    return extent.start, extent.stop


def _refused(read: BatchRead, error: S3Error, *, read_of: tuple[ObjectVersion, Extent] | None) -> Opened:
    reason = json.dumps({"status": error.status, "code": error.code, "message": error.text}).encode() + b"\n"
    return Opened(read, error.status, CacheStatus.BYPASS, len(reason), None, [reason], error, read_of)


def _call_all(functions: Iterable[Callable[[], None]]) -> None:
    for function in functions:
        function()
