"""What the engine needs of the world. Adapters implement these; fakes with knobs stand in for them in tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from outrider.core.cache.block_file import BlockMeta
from outrider.core.model import BlockKey, Headers, ObjectRef, ObjectVersion
from outrider.core.s3.form_fields import PostForm
from outrider.core.s3.operation import Query

Clock = Callable[[], float]
"""Seconds: since 1970 where signatures are made and verified, monotonic everywhere else."""

Chunks = AsyncGenerator[bytes, None]
"""A body as it arrives; `aclose` gives up what is left of it."""

Name = ObjectRef | str
"""An object; or a bucket, with all that is in it."""

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class OriginRequest:
    """A request to the origin, unsigned. `key` empty: the bucket; `bucket` None: the service.

    `body` None: none. `body_bytes` None with a body: unknown length. `payload_hash`: what `x-amz-content-sha256`
    says; a hash of the body, or UNSIGNED-PAYLOAD, or a streaming form that `body` already is framed in.
    """

    method: str
    bucket: str | None
    key: str
    query: Query = ()
    headers: Headers = ()
    body: AsyncIterator[Buffer] | None = None
    body_bytes: int | None = None
    payload_hash: str | None = None
    form: PostForm | None = None
    """`body` is what follows the head of this form; the origin signs its policy, instead of the request."""
    bare: bool = False
    """With an empty `key`: no slash after the bucket."""


class OriginReply(Protocol):
    """A reply whose head is in. Header names in lower case."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def content_length(self) -> int | None:
        """None: not told (chunked, or until the connection ends)."""
        ...

    def chunks(self) -> Chunks:
        """The body as it arrives.

        Raises:
            OriginBroke: the connection ended, or nothing came for too long, before the body was whole.
        """
        ...


class Origin(Protocol):
    """The S3 behind us. Signs with the proxy's own credentials."""

    @property
    def endpoint(self) -> str:
        """A name for this origin that is part of each block's identity."""
        ...

    def send(self, request: OriginRequest) -> AbstractAsyncContextManager[OriginReply]:
        """One try. Leaving the context before the body was read gives the connection up.

        Raises:
            OriginBroke: no reply came; OriginBusy: nothing was sent, as no connection came free.
        """
        ...


class OpenBlock(Protocol):
    """A block file that is open while it is leased; `payload_offset` is where block offset 0 lies in the file."""

    @property
    def fd(self) -> int: ...

    @property
    def payload_offset(self) -> int: ...


class Lease(Protocol):
    """The right to read an open block; the block is no victim and its file stays open until `release`."""

    @property
    def block(self) -> OpenBlock: ...

    def release(self) -> None: ...


class BlockWriter(Protocol):
    """A block on its way to disk. Ends with `commit` or `abort`, exactly once; `abort` never raises."""

    def lease(self) -> Lease:
        """What was written so far can be read through it, also after `commit`. Not before the first write."""
        ...

    async def write(self, offset: int, pieces: Sequence[Buffer]) -> float:
        """Put `pieces`, one after another, at `offset` of the payload. No byte twice; several writes may be under way
        at once. How many seconds the disk took for it. Raises StoreUnavailable: it did not take it."""
        ...

    async def commit(self) -> None:
        """All is written; from here on the store has the block. Raises StoreUnavailable."""
        ...

    async def abort(self) -> None: ...


class BlockStore(Protocol):
    """Blocks on disk, within a budget. Its own troubles are counted and logged by itself; to the engine they are a
    miss or `StoreUnavailable`."""

    @property
    def room_bytes(self) -> int:
        """What of the budget is neither used nor reserved."""
        ...

    def has(self, block: BlockKey) -> bool: ...

    def lease_at_once(self, block: BlockKey) -> Lease | None:
        """As `lease_open`, from any thread; its lease may be released in any thread."""
        ...

    def lease_open(self, block: BlockKey) -> Lease | None:
        """A lease without any wait, if the block is here and verified, and the disk need not be asked; else None."""
        ...

    def page_in(self, block: BlockKey, start: int, count: int) -> Callable[[], None] | None:
        """What brings so many bytes of a block from disk into memory, for `lease_at_once`; it waits, and never fails.
        None: that would not help. From any thread."""
        ...

    async def lease(self, block: BlockKey) -> Lease | None:
        """None: not here, or found bad (then it is deleted and counted)."""
        ...

    def doubt(self, block: BlockKey) -> None:
        """Its file did not give the bytes that it should have: it is verified before it is used again."""
        ...

    async def create(self, meta: BlockMeta) -> BlockWriter:
        """Reserve room, evicting what may go, and begin a block.

        Raises:
            StoreUnavailable: no room can be made, or the disk is sick.
        """
        ...


@dataclass(frozen=True, slots=True)
class Evicted:
    """What was dropped: blocks, and bytes on disk. `later`: blocks that go once nobody reads them; `pinned`: blocks
    that stay."""

    blocks: int
    bytes: int
    later: int
    pinned: int


class ControlledStore(BlockStore, Protocol):
    """What those need of the store who are asked to warm, pin, evict and verify."""

    removals: int
    """How many blocks have left so far, for whatever reason."""
    on_bad: list[Callable[[BlockMeta, str], None]]
    """Called with each block that is found damaged, and what is wrong with it."""

    async def most_bytes(self) -> int:
        """How much of the cache could be filled, as far as budget and file system go now. Raises OSError."""
        ...

    def blocks_of(self, wanted: Callable[[ObjectRef], bool]) -> list[BlockKey]: ...

    def is_verified(self, block: BlockKey) -> bool:
        """It is here, and its checksum held when it was written or first read."""
        ...

    async def verify(self, block: BlockKey, *, again: bool = True) -> int:
        """Read it and compare its checksum; a bad one is gone afterwards. `again` False: unless that was done before.
        How many bytes it has; 0: it is gone, or was verified before."""
        ...

    async def drop(self, blocks: Iterable[BlockKey]) -> Evicted:
        """Raises StoreUnavailable: the disk would not let one go."""
        ...


class Versions(Protocol):
    """Told by the store, after a start, of each version that it found blocks of."""

    def recall(self, origin: str, version: ObjectVersion, *, vouched: bool) -> None:
        """`vouched`: a LIST that shows it may do for a question about it."""
        ...

    def vouches(self, origin: str, version: ObjectVersion) -> bool:
        """Whether it may be recalled so after a stop; from any thread, while nothing changes."""
        ...
