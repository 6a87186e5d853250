"""One block, asked of one member after the other. A body that breaks goes on at its offset at the next one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from typing import Protocol

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import PayloadChecksum, digest_text
from outrider.core.cluster.member import Member
from outrider.core.cluster.peer_messages import Confirmed, PeerChanged, PeerFailed, PeerRead, ReadClass
from outrider.core.errors import StoreUnavailable
from outrider.core.model import Extent, ObjectRef, ObjectVersion
from outrider.engine.cluster.peer_watch import WatchedRead
from outrider.engine.fill.content_verification import ContentMismatch
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.engine.fill.sinks import SinkAt
from outrider.ports import ByteSink, Chunks, PeerReply, PeerTransport

# A reader gets the bytes of a block up to this size once all are here and have the peer's digest.
_HELD_BYTES_MAX = 64 * 1024


LEFT_OUT = "left_out"
"""A member was not asked for a block, though it owns it and is there."""


class Reads(Protocol):
    """The reads of members, as far as one block needs them."""

    layout: BlockLayout
    transport: PeerTransport

    @property
    def clock(self) -> Callable[[], float]: ...

    def opened(
        self, member: Member, read: PeerRead, on_tick: Callable[[], None] | None = None
    ) -> AbstractAsyncContextManager[tuple[PeerReply, WatchedRead]]: ...

    def known(self, version: ObjectVersion) -> Confirmed: ...

    def flowed(self, watched: WatchedRead, count: int) -> None: ...

    def promote(self, member: Member, read: PeerRead) -> None: ...

    def failed(self, member: Member, error: PeerFailed) -> None: ...

    def gave_up(self, ref: ObjectRef, index: int, why: str) -> None: ...

    def refuted(self, version: ObjectVersion, index: int, member: Member) -> None: ...


class AskedBlock:
    """Implements `engine.fill.peer_block.PeerBlock`."""

    def __init__(
        self, reads: Reads, version: ObjectVersion, index: int, candidates: list[Member], *, is_remote: bool
    ) -> None:  # fmt: skip
        self._reads = reads
        self._version = version
        self._index = index
        self._candidates = candidates
        self.is_remote = is_remote
        self.gives = False
        self.digest = ""
        self._digest_by: Member | None = None
        # Why the member that was asked last gave no more bytes.
        self._why = "absent"
        # Bytes of a peer were handed on.
        self._is_used = False
        # The bytes of a whole block that `stream` handed on; None: it was asked for a part.
        self._checksum: PayloadChecksum | None = None
        self.begun: tuple[PeerReply, WatchedRead] | None = None
        """A reply that brings the first bytes, which another owns."""

    @property
    def receives_in_threads(self) -> bool:
        return self._reads.transport.receives_in_threads

    def refuted(self) -> None:
        if self._digest_by is not None:
            self._reads.refuted(self._version, self._index, self._digest_by)
        self._why = "digest"
        self._candidates.clear()
        self.digest = ""

    async def stream(self, extent: Extent, slot: FillSlot | None) -> Chunks:
        is_whole = extent == self._reads.layout.extent(self._index, self._version.size)
        if is_whole and extent.length <= _HELD_BYTES_MAX:
            held = await self._whole(extent, slot)
            self._is_used = True
            for piece in held:
                yield piece
            return
        position, checksum = extent.start, PayloadChecksum()
        self._checksum = checksum if is_whole else None
        while position < extent.stop:
            async with self._reply(Extent(position, extent.stop), slot) as (reply, watched):
                try:
                    async with aclosing(self._chunks(reply, watched, extent.stop - position)) as chunks:
                        async for chunk in chunks:
                            position += len(chunk)
                            self._is_used = True
                            checksum.update(chunk)
                            if is_whole and position == extent.stop:
                                # The last bytes are handed out only if all are right.
                                self._check(digest_text(checksum.digest()))
                            yield chunk
                except PeerFailed as error:
                    self._broke(watched.member, error)

    def checked(self, rest: Chunks, count: int) -> Chunks:
        checksum = self._checksum
        return rest if checksum is None or not self.digest else self._checked(rest, count, checksum)

    async def _checked(self, rest: Chunks, count: int, checksum: PayloadChecksum) -> Chunks:
        async with aclosing(rest) as chunks:
            async for chunk in chunks:
                count -= len(chunk)
                checksum.update(chunk)
                if count == 0:
                    self._check(digest_text(checksum.digest()))
                yield chunk

    def _check(self, digest: str) -> None:
        """Raises ContentMismatch."""
        if self.digest and digest != self.digest:
            self.refuted()
            raise ContentMismatch(f"{self._version.ref}: not the bytes of the peer's digest")

    async def _whole(self, extent: Extent, slot: FillSlot | None) -> list[bytes]:
        """A small block, which is handed out once all of it is here and has the digest. Raises PeerFailed."""
        while True:
            async with self._reply(extent, slot) as (reply, watched):
                try:
                    async with aclosing(self._chunks(reply, watched, extent.length)) as chunks:
                        held = [chunk async for chunk in chunks]
                except PeerFailed as error:
                    self._broke(watched.member, error)
                    continue
                if not self.digest or self.digest == _digest(held):
                    return held
                self.refuted()

    async def _chunks(self, reply: PeerReply, watched: WatchedRead, count: int) -> Chunks:
        """The next `count` bytes of the body. Raises PeerFailed."""
        async with aclosing(reply.chunks()) as chunks:
            while count:
                chunk = await watched.awaited(anext(chunks, None))
                if chunk is None:
                    raise PeerFailed("broke", "the body was shorter than it said")
                chunk = chunk[:count]
                self._reads.flowed(watched, len(chunk))
                count -= len(chunk)
                yield chunk

    async def receive(self, extent: Extent, sink_at: SinkAt, slot: FillSlot | None) -> AsyncGenerator[int, None]:
        position = extent.start
        while position < extent.stop:
            async with self._reply(Extent(position, extent.stop), slot) as (reply, watched):
                try:
                    while position < extent.stop:
                        place, room = await sink_at(position)
                        sink, began = _CountedSink(place), position
                        async with aclosing(reply.receive(min(room, extent.stop - position), sink)) as counts:
                            while count := await watched.awaited(anext(counts, 0)):
                                position += count
                                self._is_used = True
                                self._reads.flowed(watched, count)
                                yield count
                except PeerFailed as error:
                    self._is_used |= sink.count > 0
                    self._broke(watched.member, error)
                    if not sink.is_over:
                        raise StoreUnavailable("the disk does not take bytes that came") from error
                    # The thread may have written more before it was stopped.
                    if more := began + sink.count - position:
                        position += more
                        yield more

    # -- one reply after the other ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _reply(self, extent: Extent, slot: FillSlot | None) -> AsyncIterator[tuple[PeerReply, WatchedRead]]:
        """A reply that brings `extent`, of the next member that gives one. Raises PeerFailed: none does."""
        self.gives = False
        begun, self.begun = self.begun, None
        if begun is not None and begun[0].extent is not None and begun[0].extent.start == extent.start:
            self._takes(begun[0], begun[1].member)
            yield begun
            return
        failure = PeerFailed(self._why)
        while self._candidates:
            member, given = self._candidates[0], False
            try:
                read = self._read(extent, slot)
                async with self._reads.opened(member, read, self._promoter(member, read, slot)) as (reply, watched):
                    if reply.extent != extent:
                        raise PeerFailed("garbage", "other bytes than those that were asked for")
                    self._takes(reply, member)
                    given = True
                    yield reply, watched
                    return
            except PeerFailed as error:
                if given:
                    raise
                failure = error
                self._drop(member)
                if isinstance(error, PeerChanged):
                    self._candidates.clear()
        self._reads.gave_up(self._version.ref, self._index, failure.why if self.is_remote else LEFT_OUT)
        raise failure

    def _read(self, extent: Extent, slot: FillSlot | None) -> PeerRead:
        read_class = ReadClass.DEMAND
        if slot is not None and not slot.demand:
            read_class = ReadClass.AHEAD
        elif slot is not None and slot.ahead > 0:
            read_class = ReadClass.NEXT
        return PeerRead(
            self._version.ref, extent, self._index, self._reads.known(self._version), read_class,
            only_if_here=not self.is_remote,
        )  # fmt: skip

    def _promoter(self, member: Member, read: PeerRead, slot: FillSlot | None) -> Callable[[], None] | None:
        """Called now and then while the read is under way: tells the member once a reader waits for a block that was
        asked for ahead of readers. None: a reader waited from the beginning."""
        if slot is None or read.read_class is not ReadClass.AHEAD:
            return None
        told = False

        def look() -> None:
            nonlocal told
            if slot.demand and not told:
                told = True
                self._reads.promote(member, replace(read, read_class=ReadClass.DEMAND))

        return look

    def _takes(self, reply: PeerReply, member: Member) -> None:
        self.gives = True
        if reply.digest and not self.digest:
            self.digest, self._digest_by = reply.digest, member

    def _broke(self, member: Member, error: PeerFailed) -> None:
        self.gives = False
        if not self._is_used:
            # It says nothing about the bytes, all of which come from elsewhere.
            self.digest = ""
        self._drop(member)
        self._why = error.why
        self._reads.failed(member, error)

    def _drop(self, member: Member) -> None:
        if member in self._candidates:
            self._candidates.remove(member)


def _digest(pieces: list[bytes]) -> str:
    checksum = PayloadChecksum()
    for piece in pieces:
        checksum.update(piece)
    return digest_text(checksum.digest())


class _CountedSink:
    """Counts the bytes that a sink took."""

    def __init__(self, sink: ByteSink) -> None:
        self._sink = sink
        self.count = 0
        self.is_over = False
        self.check = sink.check

    @property
    def is_awaited(self) -> bool:
        return self._sink.is_awaited

    def write(self, data: memoryview) -> None:
        self._sink.write(data)
        self.count += len(data)

    def ended(self) -> None:
        self._sink.ended()
        self.is_over = True
