"""The body of a batch: a tar of its objects in the order of the list, each as soon as its turn and its bytes are there.

Small hits are gathered in a buffer, many to one call of the socket. Other objects are opened side by side, some before
their turn. A flight fills such an object into the cache, whether or not the client takes bytes. The bytes that it
holds in memory until its turn are taken from the memory budget. Where the budget has no room, no object is opened
before its turn.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import AsyncIterator, Collection, Sequence

from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.errors import S3Error, Signal, SlowDown
from outrider.core.s3 import tar
from outrider.core.s3.batch import Batch, BatchRead
from outrider.engine.read.body_pieces import EarlyPiece, FilePiece, Piece
from outrider.engine.read.object_read import CacheStatus
from outrider.http.control.batch_objects import BatchObjects, Found, Opened

CACHE_RECORD, STATUS_RECORD = "comment", "OUTRIDER.status"
"""PAX records: of an object that is no hit, how it was received (as `x-cache` of a GET); of a refusal, its status. tar
warns of records that it does not know, and knows `comment`."""

# A longer object goes from its file to the socket by itself.
_GATHERED_BYTES = 64 * 1024
_BUFFER_BYTES = 256 * 1024
# Room for the head of an entry with a long name, and for the ends of the tar and of its chunk.
_HEAD_ROOM_BYTES = 8 * 1024
_BATCH_BYTES = 2 * _BUFFER_BYTES
"""The memory of a batch, beside objects that are opened before their turn: the buffer, and the list of reads."""
# The objects of one batch that are opened before their turn, and the bytes that each may hold in memory: as many as a
# fill holds until they are on disk.
_AHEAD_MAX = 32
_AHEAD_BYTES = 512 * 1024
# Objects that are looked at before other work has its turn.
_LOOKED_AT_ONCE = 128
# Hits whose pages are brought into memory by one call.
_READY_MAX = 64

Hits = Sequence[tuple[BatchRead, int]]
"""Hits in a buffer, each with the number of its bytes."""


class BatchBody:
    """In chunks of HTTP, the last one included: an object is one chunk, and so are the hits of a buffer. A file that
    gives fewer bytes than it should breaks no chunk.

    `__anext__` raises what the body of a GET raises. With `Batch.fails_whole` it also raises the refusal of an object.
    """

    def __init__(self, batch: Batch, objects: BatchObjects, memory: MemoryBudget) -> None:
        self._reads = batch.reads
        self._fails_whole = batch.fails_whole
        self._objects = objects
        self.counts = objects.counts
        self._memory = memory
        self._held_bytes = 0
        # The object whose turn it is, and if it is opened, its reply; `_total` of its bytes were sent.
        self._number = 0
        self._current: Opened | None = None
        self._total = 0
        # Pieces that come before all else, with the hits in them; and the last one that was handed out.
        self._out: deque[tuple[Piece, Hits]] = deque()
        self._last_piece: Piece | None = None
        self._last_hits: Hits = ()
        self._buffer = _Buffer()
        self._has_ended = False
        # Objects before their turn: `_next` is the first that was not looked at, those before `_ready` were made ready.
        self._next = self._ready = 0
        self._found: dict[int, Found] = {}
        self._ahead: dict[int, asyncio.Task[Opened | None]] = {}
        self._ahead_bytes: dict[int, int] = {}

    async def begin(self) -> None:
        """Wait for the first object, so that its refusal may be the answer.

        Raises:
            SlowDown: there is no memory for a batch.
            S3Error: with `fails_whole`, the first object is refused.
        """
        self._take(_BATCH_BYTES)
        try:
            if self._reads:
                await self._turn()
        except BaseException:
            await self.aclose()
            raise

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        self._count_last()
        while not self._out:
            if self._current is not None:
                piece = await self._next_of(self._current)
                if piece is not None:
                    self._last_piece = piece
                    return piece
                await self._end(self._current)
            elif self._number < len(self._reads):
                await self._turn()
            elif self._has_ended:
                raise StopAsyncIteration
            else:
                self._has_ended = True
                self._buffer.end()
                self._out.append(self._buffer.take(b"0\r\n\r\n"))
        piece, self._last_hits = self._out.popleft()
        return piece

    async def aclose(self) -> None:
        """End all reads, also in the middle."""
        ahead, self._ahead = self._ahead, {}
        current, self._current = self._current, None
        try:
            await _all_ended(ahead.values())
        finally:
            self._memory.give_back(self._held_bytes)
            self._held_bytes = 0
            for task in ahead.values():
                if not task.cancelled() and task.exception() is None and (opened := task.result()) is not None:
                    await self._objects.close(opened)
            if current is not None:
                await self._objects.end(current)

    # -- the turn of an object ----------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Put the next object into the buffer, or open it. Hits that the buffer holds do not wait for it."""
        number = self._number
        if number not in self._ahead and await self._gather(number):
            self._number += 1
            if self._buffer.is_full:
                self._look_ahead(number + 1)
                self._out.append(self._buffer.take())
            return
        self._look_ahead(number)
        if self._buffer.has_hits:
            self._out.append(self._buffer.take())
            return
        self._current = opened = await self._opened(number)
        self._number += 1
        self._objects.note(opened)
        if opened.error is not None and self._fails_whole:
            raise opened.error
        head = tar.entry_head(_name_of(opened.read), opened.length, _records_of(opened))
        self._out.append((b"%x\r\n%b" % (tar.entry_bytes(head, opened.length), head), ()))

    async def _opened(self, number: int) -> Opened:
        early = self._ahead.get(number)
        if early is not None:
            opened = await early
            del self._ahead[number]
            self._give_back(self._ahead_bytes.pop(number))
            if opened is not None:
                return opened
        return await self._objects.open(self._reads[number])

    async def _next_of(self, opened: Opened) -> Piece | None:
        if opened.taken:
            return opened.taken.pop(0)
        return None if opened.body is None else await anext(aiter(opened.body), None)

    async def _end(self, opened: Opened) -> None:
        if self._total != opened.length:
            raise OSError(errno.EIO, f"an object of the batch ended after {self._total} of {opened.length} bytes")
        self._out.append((tar.padding(opened.length) + b"\r\n", ()))
        self._current, self._total = None, 0
        await self._objects.end(opened)

    def _count_last(self) -> None:
        """The piece that was handed out last is sent, or as much of it as its file gave."""
        for read, count in self._last_hits:
            self._objects.count_hit(read, count)
        self._last_hits = ()
        piece, self._last_piece = self._last_piece, None
        if piece is None or self._current is None:
            return
        if isinstance(piece, FilePiece):
            source, count = piece.source, piece.sent
        else:
            source, count = (piece.source, len(piece.data)) if isinstance(piece, EarlyPiece) else ("origin", len(piece))
        self._total += count
        if self._current.error is None:
            self._current.sent[source] += count

    # -- hits ---------------------------------------------------------------------------------------------------------

    async def _gather(self, number: int) -> bool:
        """Put the object into the buffer, if it is a small hit."""
        if self._put(number):
            return True
        if number < self._ready or number not in self._found:
            return False
        # Its pages are not in memory, or it was not verified since the start: then so are most of the next ones.
        nearest = range(number, min(number + _READY_MAX, len(self._reads)))
        self._ready = nearest.stop
        await self._objects.make_ready([
            found for each in nearest
            if each not in self._ahead and (found := self._find(each)) is not None and found.length <= _GATHERED_BYTES
        ])  # fmt: skip
        return self._put(number)

    def _put(self, number: int) -> bool:
        read, found = self._reads[number], self._find(number)
        if found is None or found.length > _GATHERED_BYTES:
            return False
        length = found.length
        head = tar.entry_head(_name_of(read), length)
        if not self._objects.read_into(found, self._buffer.room(head, length)):
            return False
        self._buffer.keep(read, len(head), length)
        self._found.pop(number, None)
        return True

    def _find(self, number: int) -> Found | None:
        found = self._found.get(number)
        if found is not None and self._objects.is_current(found):
            return found
        found = self._objects.find(self._reads[number])
        if found is None:
            self._found.pop(number, None)
        else:
            self._found[number] = found
        return found

    # -- before its turn ----------------------------------------------------------------------------------------------

    def _look_ahead(self, number: int) -> None:
        """Open objects that are not cached, from `number` on, as far as there is room."""
        self._next = max(self._next, number)
        for at in range(self._next, min(self._next + _LOOKED_AT_ONCE, len(self._reads))):
            if self._find(at) is None and not self._begin(at):
                return
            self._next = at + 1

    def _begin(self, number: int) -> bool:
        if len(self._ahead) >= _AHEAD_MAX or not self._memory.take_spare(_AHEAD_BYTES):
            return False
        self._held_bytes += _AHEAD_BYTES
        self._ahead_bytes[number] = _AHEAD_BYTES
        self._ahead[number] = asyncio.create_task(self._open_early(number), name="batch: open early")
        return True

    async def _open_early(self, number: int) -> Opened | None:
        """None: it is to be opened at its turn."""
        opened = await self._objects.open(self._reads[number])
        is_kept = False
        try:
            is_kept = await self._objects.receive(opened, _AHEAD_BYTES)
        except (Signal, S3Error, OSError):
            pass  # no byte of it was sent, so it may still be whole at its turn
        finally:
            if not is_kept:
                await self._objects.close(opened)
        if not is_kept:
            return None
        in_memory = min(_AHEAD_BYTES, opened.bytes_taken)
        self._ahead_bytes[number] -= _AHEAD_BYTES - in_memory
        self._give_back(_AHEAD_BYTES - in_memory)
        return opened

    def _take(self, count: int) -> None:
        if not self._memory.take(count):
            raise SlowDown(headers=(("retry-after", "1"),))
        self._held_bytes += count

    def _give_back(self, count: int) -> None:
        self._held_bytes -= count
        self._memory.give_back(count)


async def _all_ended(tasks: Collection[asyncio.Task[Opened | None]]) -> None:
    """Cancel these tasks, and return once none is under way.

    A connection that is lost in this moment cancels the wait, too. The cancel is raised afterwards: a task that is
    still under way holds memory and a place at the bucket.
    """
    for task in tasks:
        task.cancel()
    cancel: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancel = error
    if cancel is not None:
        raise cancel


class _Buffer:
    """The entries of hits, in one chunk. Each chunk has memory of its own, since TLS may still hold the last one."""

    # So many digits hold the length of any full buffer.
    _HEAD = b"%06x\r\n"
    _HEAD_BYTES = 8

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._hits: list[tuple[BatchRead, int]] = []
        self._view = memoryview(b"")
        self._stop = self._HEAD_BYTES

    @property
    def has_hits(self) -> bool:
        return bool(self._hits)

    @property
    def is_full(self) -> bool:
        """The next hit may find no room."""
        return self._stop > _BUFFER_BYTES - _GATHERED_BYTES - _HEAD_ROOM_BYTES

    def put(self, data: bytes) -> int:
        """Returns the place behind the data."""
        if not self._view:
            self._view = memoryview(bytearray(_BUFFER_BYTES))
        stop = self._stop + len(data)
        self._view[self._stop : stop] = data
        return stop

    def end(self) -> None:
        """Put the end of the tar."""
        self._stop = self.put(tar.END)

    def room(self, head: bytes, count: int) -> memoryview:
        """The place for the content of an entry with that head. Nothing is kept of it before `keep`."""
        start = self.put(head)
        return self._view[start : start + count]

    def keep(self, read: BatchRead, head_bytes: int, count: int) -> None:
        stop, rest = self._stop + head_bytes + count, -count % tar.BLOCK_BYTES
        self._stop = stop + rest
        # A read that failed may have left bytes there.
        self._view[stop : self._stop] = bytes(rest)
        self._hits.append((read, count))

    def take(self, end: bytes = b"") -> tuple[Piece, Hits]:
        """All that is in it, with the hits. `end`: bytes behind the chunk."""
        hits, view, stop = self._hits, self._view, self._stop
        view[: self._HEAD_BYTES] = self._HEAD % (stop - self._HEAD_BYTES)
        last = stop + 2 + len(end)
        view[stop:last] = b"\r\n" + end
        self._begin()
        return EarlyPiece(view[:last], "disk"), hits


def _records_of(opened: Opened) -> tuple[tuple[str, str], ...]:
    if opened.error is not None:
        return ((STATUS_RECORD, str(opened.status)),)
    return () if opened.cache is CacheStatus.HIT else ((CACHE_RECORD, opened.cache.value),)


def _name_of(read: BatchRead) -> str:
    return f"{read.ref.bucket}/{read.ref.key}"
