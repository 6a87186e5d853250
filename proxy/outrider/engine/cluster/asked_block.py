"""One block, asked of one member after the other. A body that breaks goes on at its offset at the next one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
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
from outrider.ports import Buffer, ByteSink, PeerReply, PeerTransport

# A member whose bytes come by other connections, and to which none is made in time, has a full link. It is tried once
# more, within a second in all: another member, or the bucket, would fetch the block anew.
_RECONNECTS_MAX = 1
# A reader gets the bytes of a block up to this size once all are here and have the peer's digest.
_HELD_BYTES_MAX = 64 * 1024


Opened = AbstractAsyncContextManager[tuple[PeerReply, WatchedRead]]

LEFT_OUT = "left_out"
"""A member was not asked for a block, though it owns it and is there."""


class Reads(Protocol):
    """The reads of members, as far as one block needs them. A Protocol, as `peer_reader` imports this module."""

    layout: BlockLayout
    transport: PeerTransport

    @property
    def clock(self) -> Callable[[], float]: ...

    def opened(self, member: Member, read: PeerRead, on_tick: Callable[[], None] | None = None) -> Opened: ...

    def known(self, version: ObjectVersion) -> Confirmed: ...

    def flowed(self, watched: WatchedRead, count: int) -> None: ...

    def promote(self, member: Member, read: PeerRead) -> None: ...

    def failed(self, member: Member, error: PeerFailed) -> None: ...

    def serves(self, member: Member) -> bool: ...

    def gave_up(self, ref: ObjectRef, index: int, why: str) -> None: ...

    def refuted(self, version: ObjectVersion, index: int, member: Member) -> None: ...


class AskedBlock:
    """Implements `engine.fill.peer_block.PeerBlock`."""

    def __init__(
        self, reads: Reads, version: ObjectVersion, index: int, candidates: list[Member], *, is_remote: bool
    ) -> None:  # fmt: skip
        self.reads = reads
        self._version = version
        self._index = index
        self._candidates = candidates
        self.is_remote = is_remote
        self.gives = False
        self.digest = ""
        self._digest_by: Member | None = None
        # Why the member that was asked last gave no more bytes.
        self._why = "absent"
        self._reconnects_left = _RECONNECTS_MAX
        self.is_used = False
        """Bytes of a peer were handed on."""
        self.begun: tuple[PeerReply, WatchedRead] | None = None
        """A reply that brings the first bytes, which another owns."""

    def refuted(self) -> None:
        if self._digest_by is not None:
            self.reads.refuted(self._version, self._index, self._digest_by)
        self._why = "digest"
        self._candidates.clear()
        self.digest = ""

    def body(self, extent: Extent, slot: FillSlot | None) -> AskedBody:
        return AskedBody(self, extent, slot)

    def check(self, digest: str) -> None:
        """`digest`: that of all bytes of the block. Raises ContentMismatch."""
        if self.digest and digest != self.digest:
            self.refuted()
            raise ContentMismatch(f"{self._version.ref}: not the bytes of the peer's digest")

    def is_whole(self, extent: Extent) -> bool:
        return extent == self.reads.layout.extent(self._index, self._version.size)

    # -- one reply after the other ------------------------------------------------------------------------------------

    async def opened(self, extent: Extent, slot: FillSlot | None) -> tuple[PeerReply, WatchedRead, Opened | None]:
        """A reply that brings `extent`, of the next member that gives one, and the context that it is to be left by;
        None: another owns it. Raises PeerFailed: none does."""
        self.gives = False
        begun, self.begun = self.begun, None
        if begun is not None and begun[0].extent is not None and begun[0].extent.start == extent.start:
            self._takes(begun[0], begun[1].member)
            return *begun, None
        failure = PeerFailed(self._why)
        while self._candidates:
            member = self._candidates[0]
            try:
                read = self._read(extent, slot)
                context = self.reads.opened(member, read, self._promoter(member, read, slot))
                reply, watched = await context.__aenter__()
                if reply.extent != extent:
                    error = PeerFailed("garbage", "other bytes than those that were asked for")
                    await context.__aexit__(PeerFailed, error, None)
                    raise error
                self._takes(reply, member)
                return reply, watched, context
            except PeerFailed as error:
                failure = error
                if error.why == "connect" and self._reconnects_left and self.reads.serves(member):
                    self._reconnects_left -= 1
                    continue
                self._drop(member)
                if isinstance(error, PeerChanged):
                    self._candidates.clear()
        self.reads.gave_up(self._version.ref, self._index, failure.why if self.is_remote else LEFT_OUT)
        try:
            raise failure
        finally:
            # Its traceback knows this frame.
            del failure

    def _read(self, extent: Extent, slot: FillSlot | None) -> PeerRead:
        read_class = ReadClass.DEMAND
        if slot is not None and not slot.demand:
            read_class = ReadClass.AHEAD
        elif slot is not None and slot.ahead > 0:
            read_class = ReadClass.NEXT
        return PeerRead(
            self._version.ref, extent, self._index, self.reads.known(self._version), read_class,
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
                self.reads.promote(member, replace(read, read_class=ReadClass.DEMAND))

        return look

    def _takes(self, reply: PeerReply, member: Member) -> None:
        self.gives = True
        if reply.digest and not self.digest:
            self.digest, self._digest_by = reply.digest, member

    def broke(self, member: Member, error: PeerFailed) -> None:
        """A body of the member ended before its end."""
        self.gives = False
        if not self.is_used:
            # It says nothing about the bytes, all of which come from elsewhere.
            self.digest = ""
        self._drop(member)
        self._why = error.why
        self.reads.failed(member, error)

    def _drop(self, member: Member) -> None:
        if member in self._candidates:
            self._candidates.remove(member)


class AskedBody:
    """The bytes of an extent of the block. Implements `engine.fill.peer_block.PeerBody`."""

    def __init__(self, block: AskedBlock, extent: Extent, slot: FillSlot | None) -> None:
        self._block = block
        self._extent = extent
        self._slot = slot
        self.position = extent.start
        is_whole = block.is_whole(extent)
        # The reader gets a small block once all of it is here and right.
        self._is_held = is_whole and extent.length <= _HELD_BYTES_MAX
        # The bytes of the whole block; None: a part was asked for, or they are not all told here.
        self._checksum = PayloadChecksum() if is_whole else None
        self._open: tuple[PeerReply, WatchedRead, Opened | None] | None = None

    async def some(self) -> Buffer:
        while self.position < self._extent.stop:
            reply, watched = await self._opened()
            try:
                piece = await (self._whole(reply, watched) if self._is_held else self._next(reply, watched))
            except PeerFailed as error:
                await self._broke(watched, error)
                continue
            if not piece:
                continue
            if self._checksum is not None and not self._is_held:
                self._checksum.update(piece)
            self.position += len(piece)
            self._block.is_used = True
            if self.position == self._extent.stop:
                # The last bytes are handed out only if all are right.
                if self._checksum is not None and not self._is_held:
                    self._block.check(digest_text(self._checksum.digest()))
                await self._close_reply()
            return piece
        return b""

    async def _next(self, reply: PeerReply, watched: WatchedRead) -> Buffer:
        piece = (await watched.awaited(reply.some()))[: self._extent.stop - self.position]
        if not piece:
            raise PeerFailed("broke", "the body was shorter than it said")
        self._block.reads.flowed(watched, len(piece))
        return piece

    async def _whole(self, reply: PeerReply, watched: WatchedRead) -> Buffer:
        """All bytes; empty: they do not have the digest."""
        held = bytearray()
        while len(held) < self._extent.length:
            held += await self._next(reply, watched)
        whole = bytes(held[: self._extent.length])
        checksum = PayloadChecksum(whole)
        if self._block.digest and self._block.digest != digest_text(checksum.digest()):
            self._block.refuted()
            await self._close_reply()
            return b""
        return whole

    def check(self, piece: Buffer) -> None:
        if self._checksum is None or self._is_held or not self._block.digest:
            return
        self._checksum.update(piece)
        self.position += len(piece)
        if self.position == self._extent.stop:
            self._block.check(digest_text(self._checksum.digest()))

    async def in_thread(self) -> bool:
        reply, _ = await self._opened()
        return reply.in_thread

    async def receive(self, count: int, sink: ByteSink, received: Callable[[int], None]) -> None:
        # The block's file is compared with the digest when it is whole: see `BlockWriter.expect`.
        self._checksum = None
        assert self._open is not None, "in_thread was asked"
        reply, watched, _ = self._open
        counted, began = _CountedSink(sink), self.position
        try:
            async with aclosing(reply.receive(min(count, self._extent.stop - self.position), counted)) as counts:
                while came := await watched.awaited(anext(counts, 0)):
                    self._block.is_used = True
                    self._block.reads.flowed(watched, came)
                    self._take(came, received)
            if self.position == self._extent.stop:
                await self._close_reply()
        except PeerFailed as error:
            self._block.is_used |= counted.count > 0
            await self._broke(watched, error)
            if not counted.is_over:
                raise StoreUnavailable("the disk does not take bytes that came") from error
            # The thread may have written more before it was stopped.
            if more := began + counted.count - self.position:
                self._take(more, received)

    def _take(self, count: int, received: Callable[[int], None]) -> None:
        self.position += count
        received(count)

    async def _opened(self) -> tuple[PeerReply, WatchedRead]:
        if self._open is None:
            self._open = await self._block.opened(Extent(self.position, self._extent.stop), self._slot)
        return self._open[:2]

    async def _broke(self, watched: WatchedRead, error: PeerFailed) -> None:
        self._block.broke(watched.member, error)
        await self._close_reply()

    async def _close_reply(self) -> None:
        opened, self._open = self._open, None
        if opened is not None and opened[2] is not None:
            await opened[2].__aexit__(None, None, None)

    async def aclose(self) -> None:
        await self._close_reply()


class _CountedSink:
    """Counts the bytes that a sink took."""

    def __init__(self, sink: ByteSink) -> None:
        self._sink = sink
        self.count = 0
        self.is_over = False
        self.check, self.place, self.hashed, self.refused = sink.check, sink.place, sink.hashed, sink.refused

    @property
    def is_awaited(self) -> bool:
        return self._sink.is_awaited

    def write(self, data: memoryview) -> None:
        self._sink.write(data)
        self.count += len(data)

    def written(self, count: int, disk_s: float) -> None:
        self._sink.written(count, disk_s)
        self.count += count

    def ended(self) -> None:
        self._sink.ended()
        self.is_over = True
