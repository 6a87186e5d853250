"""One block, asked of one member after the other. A body that breaks goes on at its offset at the next one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Protocol

from outrider.core.cache.block_file import PayloadChecksum, digest_text
from outrider.core.cluster.member import Member
from outrider.core.cluster.peer_messages import Confirmed, PeerChanged, PeerFailed, PeerRead, ReadClass
from outrider.core.errors import StoreUnavailable
from outrider.core.model import Extent, ObjectRef, ObjectVersion
from outrider.engine.cluster.peer_requests import PeerRequests, WatchedRead
from outrider.engine.fill.content_verification import ContentMismatch
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.ports import BlockReceiver, Buffer, PeerReply

# A member whose bytes come by other connections, and to which none is made in time, has a full link. It is tried once
# more, within a second in all: another member, or the bucket, would fetch the block anew.
_RECONNECTS_MAX = 1
# A reader gets the bytes of a block up to this size once all are here and have the peer's digest.
_HELD_BYTES_MAX = 64 * 1024


LEFT_OUT = "left_out"
"""A member was not asked for a block, though it owns it and is there."""


class BlockKnowledge(Protocol):
    """The knowledge of this node about a version, and the consequences where no member brings a block. A Protocol, as
    `peer_reader` imports this module."""

    def known(self, version: ObjectVersion) -> Confirmed: ...

    def gave_up(self, ref: ObjectRef, index: int, why: str) -> None: ...

    def refuted(self, version: ObjectVersion, index: int, member: Member) -> None: ...


class RequestedBlock:
    """Implements `engine.fill.peer_block.PeerBlock`."""

    def __init__(
        self, requests: PeerRequests, reads: BlockKnowledge, version: ObjectVersion, index: int,
        candidates: list[Member], *, is_remote: bool, begun: tuple[PeerReply, WatchedRead] | None = None,
    ) -> None:  # fmt: skip
        """`begun`: a reply that brings the first bytes, which another owns."""
        self.requests = requests
        self._reads = reads
        self._version = version
        self._index = index
        self._candidates = candidates
        self.is_remote = is_remote
        self.gives = False
        self.digest = ""
        self._digest_by: Member | None = None
        # Why the member that was requested last gave no more bytes.
        self._why = "absent"
        self._reconnects_left = _RECONNECTS_MAX
        self.is_used = False
        """Bytes of a peer were handed on."""
        self._begun = begun

    def refuted(self) -> None:
        if self._digest_by is not None:
            self._reads.refuted(self._version, self._index, self._digest_by)
        self._why = "digest"
        self._candidates.clear()
        self.digest = ""

    def body(self, extent: Extent, slot: FillSlot | None) -> RequestedBody:
        return RequestedBody(self, extent, slot)

    def check(self, digest: str) -> None:
        """`digest`: that of all bytes of the block. Raises ContentMismatch."""
        if self.digest and digest != self.digest:
            self.refuted()
            raise ContentMismatch(f"{self._version.ref}: not the bytes of the peer's digest")

    def is_whole(self, extent: Extent) -> bool:
        return extent == self.requests.layout.extent(self._index, self._version.size)

    # -- one reply after the other ------------------------------------------------------------------------------------

    async def opened(
        self, extent: Extent, slot: FillSlot | None, stack: AsyncExitStack
    ) -> tuple[PeerReply, WatchedRead]:  # fmt: skip
        """A reply that brings `extent`, of the next member that gives one; `stack` leaves it. Raises PeerFailed: none
        does."""
        self.gives = False
        begun, self._begun = self._begun, None
        if begun is not None and begun[0].extent is not None and begun[0].extent.start == extent.start:
            self._takes(*begun)
            return begun
        failure = PeerFailed(self._why)
        while self._candidates:
            member = self._candidates[0]
            read = self._read(extent, slot)
            try:
                opened = self.requests.opened(member, read, self._promoter(member, read, slot))
                reply, watched = await stack.enter_async_context(opened)
                self._takes(reply, watched)
                return reply, watched
            except PeerFailed as error:
                failure = error
                if error.why == "connect" and self._reconnects_left and self._serves(member):
                    self._reconnects_left -= 1
                    continue
                self._drop(member)
                if isinstance(error, PeerChanged):
                    self._candidates.clear()
        self._reads.gave_up(self._version.ref, self._index, failure.why if self.is_remote else LEFT_OUT)
        try:
            raise failure
        finally:
            # Its traceback knows this frame.
            del failure

    def _serves(self, member: Member) -> bool:
        return self.requests.members.health.of(member.name).serves(self.requests.clock())

    def _read(self, extent: Extent, slot: FillSlot | None) -> PeerRead:
        read_class = ReadClass.DEMAND
        if slot is not None and not slot.demand:
            read_class = ReadClass.AHEAD
        elif slot is not None and slot.ahead > 0:
            read_class = ReadClass.NEXT
        return PeerRead(
            self._version.ref, extent, self._index, self._reads.known(self._version), read_class,
            only_if_cached=not self.is_remote,
        )  # fmt: skip

    def _promoter(self, member: Member, read: PeerRead, slot: FillSlot | None) -> Callable[[], None] | None:
        """Called now and then while the read is under way: notices once a reader waits for a block that was requested
        ahead of readers. None: a reader waited from the beginning."""
        if slot is None or read.read_class is not ReadClass.AHEAD:
            return None
        is_promoted = False

        def look() -> None:
            nonlocal is_promoted
            if slot.demand and not is_promoted:
                is_promoted = True
                self.requests.promote(member, read)

        return look

    def _takes(self, reply: PeerReply, watched: WatchedRead) -> None:
        self.gives = True
        if reply.digest and not self.digest:
            self.digest, self._digest_by = reply.digest, watched.member

    def broke(self, member: Member, error: PeerFailed) -> None:
        """A body of the member ended before its end."""
        self.gives = False
        if not self.is_used:
            # It says nothing about the bytes, all of which come from elsewhere.
            self.digest = ""
        self._drop(member)
        self._why = error.why
        self.requests.members.failed(member, error.why)

    def _drop(self, member: Member) -> None:
        if member in self._candidates:
            self._candidates.remove(member)


class RequestedBody:
    """The bytes of an extent of the block. Implements `engine.fill.peer_block.PeerBody`."""

    def __init__(self, block: RequestedBlock, extent: Extent, slot: FillSlot | None) -> None:
        self._block = block
        self._extent = extent
        self._slot = slot
        self.position = extent.start
        is_whole = block.is_whole(extent)
        # The reader gets a small block once all of it is here and right.
        self._is_held = is_whole and extent.length <= _HELD_BYTES_MAX
        # The bytes of the whole block; None: a part was requested, or they do not all pass here.
        self._checksum = PayloadChecksum() if is_whole else None
        self._open: tuple[PeerReply, WatchedRead] | None = None
        self._stack = AsyncExitStack()

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
        self._block.requests.flowed(watched, len(piece))
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

    async def receive(self, count: int, sink: BlockReceiver, received: Callable[[int], None]) -> None:
        # The block's file is compared with the digest when it is whole: see `BlockWriter.expect`.
        self._checksum = None
        assert self._open is not None, "in_thread was asked"
        (reply, watched), began = self._open, self.position

        def landed(more: int) -> None:
            self._block.is_used = True
            self._block.requests.flowed(watched, more)
            watched.waits_on()
            self._take(more, received)

        try:
            await watched.awaited(reply.receive(min(count, self._extent.stop - self.position), sink, landed))
            if self.position == self._extent.stop:
                await self._close_reply()
        except PeerFailed as error:
            self._block.is_used |= sink.count > 0
            await self._broke(watched, error)
            if not sink.over.done():
                raise StoreUnavailable("the disk does not take bytes that came") from error
            # The thread may have written more before it was stopped.
            if more := began + sink.count - self.position:
                self._take(more, received)

    def _take(self, count: int, received: Callable[[int], None]) -> None:
        self.position += count
        received(count)

    async def _opened(self) -> tuple[PeerReply, WatchedRead]:
        if self._open is None:
            self._open = await self._block.opened(Extent(self.position, self._extent.stop), self._slot, self._stack)
        return self._open

    async def _broke(self, watched: WatchedRead, error: PeerFailed) -> None:
        self._block.broke(watched.member, error)
        await self._close_reply()

    async def _close_reply(self) -> None:
        self._open = None
        await self._stack.aclose()

    async def aclose(self) -> None:
        await self._close_reply()
