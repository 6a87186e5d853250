"""The ports: interfaces through which the engine uses the origin, the disk and the clock. Adapters implement them;
tests use fakes."""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cluster.member import ListedMember, Member
from outrider.core.cluster.messages import Answer, Hello, Question
from outrider.core.cluster.peer_messages import Confirmed, PeerRead, Sending
from outrider.core.model import BlockKey, Extent, Headers, ObjectRef, ObjectVersion
from outrider.core.s3.checksums import Kind
from outrider.core.s3.form_fields import PostForm
from outrider.core.s3.operation import Query

A = TypeVar("A", bound=Answer)

Clock = Callable[[], float]
"""Returns seconds: since 1970 where signatures are made or verified, monotonic everywhere else."""

Chunks = AsyncGenerator[bytes, None]
"""A body as it arrives. `aclose` gives up the rest of it."""

Name = ObjectRef | str
"""An object, or a bucket with all its objects."""

Buffer = bytes | bytearray | memoryview


class Place(NamedTuple):
    """Where another process may write the next bytes of a body: into the descriptor `file` from `offset` on. With the
    payload that begins at `begins_at` hashed beside it, once it is there; None: without. `crc`: the model of a CRC that
    is wanted, too, as anycrc names it; empty: none."""

    file: int
    offset: int
    begins_at: int | None = None
    crc: str = ""


class ByteSink(Protocol):
    """Takes the bytes of a body in order, in the thread that receives them. One that inherits from it takes them by
    `write` alone, unless it has a `place`."""

    @property
    def is_awaited(self) -> bool:
        """A reader waits for the next bytes. From any thread."""
        ...

    def write(self, data: memoryview) -> None:
        """`data` is valid during the call. `OriginReply.receive` raises what this raises."""
        ...

    def place(self, count: int) -> Place | None:
        """Where another process may write the next `count` bytes; None: only `write` takes them."""
        return None

    def written(self, count: int, disk_s: float) -> None:
        """So many bytes are in their place. `disk_s`: the seconds that the disk took."""
        raise AssertionError("there is no place")

    def hashed(self, digest: bytes, crc: int) -> None:
        """The XXH3 (128 bits) and the CRC of the payload up to here, where they were wanted."""
        raise AssertionError("there is no place")

    def refused(self, error: OSError) -> None:
        """The disk took no more at that place. Raises what `write` raises then."""
        raise AssertionError("there is no place")

    def check(self) -> None:
        """Called on the event loop's thread when nothing has come for a while. Raises if `write` is what hangs."""
        ...

    def ended(self) -> None:
        """Nothing calls `write` any more. On the event loop's thread, once."""
        ...


class BlockReceiver(ByteSink, Protocol):
    """A part of a block, written by the thread that receives it."""

    count: int
    """The bytes that it has taken so far."""
    disk_s: float
    """The seconds that the disk has taken so far."""
    over: Future[None]
    """Done once it has ended."""


class BodyInThread(Protocol):
    """The body of a request on its client's socket, for the thread that passes it on. It is taken once, or never."""

    def begin(self) -> bool:
        """Take the body from the event loop, on whose thread this is called. False: it stays there."""
        ...

    def read(self, beside: int) -> list[Buffer] | None:
        """The next pieces; None: the body has ended. In a thread, which waits for the client. An empty list: the
        descriptor `beside` has something to read. Raises S3Error: the body failed, or the client is too slow."""
        ...

    def end(self) -> None:
        """No thread reads any more. On the event loop's thread, once after each `begin` that returned True."""
        ...


@dataclass(frozen=True, slots=True)
class OriginRequest:
    """A request to the origin, unsigned. `key` empty: the bucket; `bucket` None: the service.

    `body` None: no body. `body_bytes` None with a body: its length is unknown. `payload_hash`: the value of
    `x-amz-content-sha256`. It is a hash of the body, UNSIGNED-PAYLOAD, or the streaming form in which `body` is framed.
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
    """`body` follows the head of this form. The adapter signs the form's policy, and not the request."""
    bare: bool = False
    """With an empty `key`: no slash after the bucket."""
    likely_bytes: int | None = None
    """How long the body of the reply most likely is, as objects alike were; None: unknown."""
    bulk: bool = False
    """The body is large, and will be received by `OriginReply.receive`."""
    unsigned: bool = False
    """An anonymous client sent the request: the adapter must not sign it."""
    body_in_thread: BodyInThread | None = None
    """The same body as `body`, for a thread. The adapter takes one or the other."""


class OriginReply(Protocol):
    """A reply whose head has come. Header names are in lower case."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def content_length(self) -> int | None:
        """None: not known (chunked, or until the connection ends)."""
        ...

    def give_up(self, cause: str) -> None:
        """The rest of the body is not wanted. Its bytes that have come already are counted as duplicates by `cause`
        (`metrics.DUPLICATE_CAUSES`)."""
        ...

    async def some(self) -> Buffer:
        """The next bytes of the body that have arrived; it suspends only while there are none. Empty: the body has
        ended.

        Raises:
            OriginBroke: the connection ended, or nothing came for too long, before the body was complete.
        """
        ...

    @property
    def in_thread(self) -> bool:
        """A thread can receive the body. False: it is taken by `some` alone."""
        ...

    async def receive(self, count: int, sink: ByteSink, received: Callable[[int], None]) -> None:
        """Where `in_thread`: put the next `count` bytes of the body into `sink`. `received` is called with how many
        more bytes the sink has, as often as a reader waits for them. `sink.ended` is called once: before the last of
        these calls, at an earlier end, or later if the sink hangs. It is called for one part of the body after the
        other, in place of `some`.

        Raises:
            OriginBroke: as `some`. Anything that the sink raises.
        """
        ...

    def close(self) -> None:
        """The end of the reply: its connection is kept if the body was read whole, else given up. A second call does
        nothing."""
        ...


class Origin(Protocol):
    """The S3 behind the proxy. Signs requests with the proxy's own credentials."""

    @property
    def endpoint(self) -> str:
        """A name for this origin that is part of each block's identity."""
        ...

    async def ask(self, request: OriginRequest) -> OriginReply:
        """Send a request once. The caller closes the reply.

        Raises:
            OriginBroke: no reply came.
            OriginBusy: nothing was sent, since no connection came free.
        """
        ...


class OpenBlock(Protocol):
    """A block file, open while it is leased. `payload_offset`: where the payload begins in the file."""

    @property
    def fd(self) -> int: ...

    @property
    def payload_offset(self) -> int: ...

    @property
    def stays_in_memory(self) -> bool:
        """No read of the file waits for a disk."""
        ...

    @property
    def is_remote(self) -> bool:
        """Any call on the file may wait, even if its pages are in memory (NFS, FUSE): it is read in threads."""
        ...


class Lease(Protocol):
    """The right to read an open block. Until `release` the block is no victim, and its file stays open."""

    @property
    def block(self) -> OpenBlock: ...

    def release(self) -> None: ...


class BlockWriter(Protocol):
    """Writes a block to disk. Ends with exactly one `commit` or `abort`; `abort` never raises."""

    def lease(self) -> Lease:
        """A lease for the bytes written so far, valid also after `commit`. Not to be called before the first write."""
        ...

    async def write(self, offset: int, pieces: Sequence[Buffer]) -> float:
        """Write `pieces`, one after another, at `offset` of the payload. No byte may be written twice; several writes
        may be under way at once. Returns the seconds that the disk took.

        Raises:
            StoreUnavailable: the disk did not take the bytes.
        """
        ...

    async def receiver(self, offset: int, is_awaited: Callable[[], bool]) -> BlockReceiver:
        """Takes the payload from `offset` on, from another thread; its bytes count as written once it has ended.
        `is_awaited`: whether a reader waits for the next bytes. Raises StoreUnavailable."""
        ...

    def expect(self, digest: str) -> None:
        """The block must have this digest (`BlockStore.digest`), or no `commit` succeeds. To be called before the last
        write."""
        ...

    async def commit(self) -> None:
        """All is written: the store has the block from now on. Raises StoreUnavailable; WrongDigest: see `expect`,
        which `write` raises as well."""
        ...

    async def abort(self) -> None: ...


class Contents(Protocol):
    """Receives the content hashes of blocks, which the store computes as it writes them, or reads them to verify them.
    Called on the engine's thread."""

    def kind_for(self, meta: BlockMeta) -> Kind | None:
        """The hash to compute of the block's payload; None: none is wanted."""
        ...

    def hashed(self, meta: BlockMeta, kind: Kind, digest: bytes) -> None:
        """The block is in the store, and its payload has this hash."""
        ...

    def saved(self, layout: BlockLayout, version: ObjectVersion) -> object:
        """The facts about the version's content for the next start, fit for JSON; None: there are none."""
        ...

    def restore(self, meta: BlockMeta, saved: object) -> None:
        """A start found the block. `saved`: the result of `saved` at the last stop."""
        ...


class BlockStore(Protocol):
    """Blocks on disk, within a budget. The store counts and logs its errors itself; for the engine they are a miss or
    `StoreUnavailable`."""

    @property
    def room_bytes(self) -> int:
        """The bytes of the budget that are neither used nor reserved."""
        ...

    def has(self, block: BlockKey) -> bool: ...

    def lease_at_once(self, block: BlockKey) -> Lease | None:
        """As `lease_open`, for hits, and of no remote file: the policy gets this read with the next one that it
        gets."""
        ...

    def open_file(self, block: BlockKey) -> OpenBlock | None:
        """The file of a block that is verified and open, and not remote. The caller may use it until the loop runs on.
        None: `lease_at_once` may succeed all the same."""
        ...

    def lease_open(self, block: BlockKey) -> Lease | None:
        """A lease without a wait. None: the block is not here or not verified, or the disk would have to be asked."""
        ...

    def lent(self, block: BlockKey) -> None:
        """Another process has the descriptor of the block's file now, or has read by it. The file is emptied when the
        block leaves: the process gets no more bytes of it, and it takes no room."""
        ...

    def page_in(self, block: BlockKey, start: int, count: int) -> Callable[[], None] | None:
        """A function that reads `count` bytes of the block from disk into the page cache, so that they can be sent
        without a wait. The function waits for the disk and never fails. None: that would not help."""
        ...

    def verify_at_once(self, block: BlockKey) -> bool:
        """Verify a small block and open its file, so that `lease_at_once` gives a lease of it, if that takes no wait
        for the disk. Returns whether it did. It counts as no read."""
        ...

    def prepare(self, block: BlockKey) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """A coroutine that verifies a block and opens its file, so that `lease_at_once` gives a lease of it. It waits
        for the disk, never fails, and counts as no read. None: that would not help."""
        ...

    async def lease(self, block: BlockKey) -> Lease | None:
        """A lease of the block. None: it is not here, or it was damaged, and then was deleted and counted."""
        ...

    def is_verified(self, block: BlockKey) -> bool:
        """Whether the block is here, and its checksum was right when it was written or first read."""
        ...

    async def digest(self, block: BlockKey, lease: Lease) -> str:
        """The digest of a block that was verified and is leased, as its file has it; empty: the disk gave none."""
        ...

    def doubt(self, block: BlockKey) -> None:
        """The block's file gave other bytes than it should: the block is verified before it is used again."""
        ...

    async def create(self, meta: BlockMeta, *, hashed: bool = True) -> BlockWriter:
        """Reserve room, with evictions if needed, and begin a block. `hashed` False: the caller compares the content
        itself, so `Contents` does not get it.

        Raises:
            StoreUnavailable: no room can be made, or the disk fails.
        """
        ...


@dataclass(frozen=True, slots=True)
class Evicted:
    """The result of `drop`: dropped blocks, and their bytes on disk. `later`: blocks that will be dropped when their
    reads end. `pinned`: blocks that stay."""

    blocks: int
    bytes: int
    later: int
    pinned: int


class ControlledStore(BlockStore, Protocol):
    """The store as the maintenance commands use it: to warm, pin, evict and verify."""

    removals: int
    """How many blocks have left the store since the start, for any reason."""
    on_bad: list[Callable[[BlockMeta, str], None]]
    """Called with each damaged block, and with what is wrong with it."""

    async def most_bytes(self) -> int:
        """The most bytes that the cache could hold, by the budget and the free space of now. Raises OSError."""
        ...

    def blocks_of(self, wanted: Callable[[ObjectRef], bool]) -> list[BlockKey]: ...

    async def verify(self, block: BlockKey, *, again: bool = True) -> int:
        """Read the block and compare its checksum; a damaged block is deleted. `again` False: skip a verified block.

        Returns the bytes of the block. 0: the block is gone, or was skipped.
        """
        ...

    async def drop(self, blocks: Iterable[BlockKey]) -> Evicted:
        """Delete blocks. Raises StoreUnavailable: a file could not be deleted."""
        ...


class Belief(NamedTuple):
    """The belief in a version that has blocks on disk, over a stop and a start."""

    version: ObjectVersion
    """With the headers that the origin sent last; those in the block files may be older."""
    age_s: float | None = None
    """The seconds since the origin confirmed it. None: the origin has to be asked."""
    vouched: bool = False
    """A LIST that shows the version may do for a question about it."""


class Versions(Protocol):
    """Receives, after a start, each version of which the store found blocks."""

    def recall(self, origin: str, belief: Belief) -> None:
        """Several versions of one name that were all confirmed are ambiguous, and none of them is believed."""
        ...

    def expect(self, count: int) -> None:
        """So many versions, or fewer, are to be recalled."""
        ...

    def recall_all(
        self, origin: str, refs: Sequence[ObjectRef], packed: Sequence[bytes], ages_s: Sequence[float | None],
        vouched: Sequence[bool],
    ) -> None:  # fmt: skip
        """As `recall` for each of these versions, by their packed forms."""
        ...

    def recalled(self) -> None:
        """All versions that a start found were recalled."""
        ...

    def belief(self, origin: str, version: ObjectVersion) -> Belief:
        """The belief that may be recalled after a stop; from any thread."""
        ...

    def confirmed_at(self, wall_clock: Clock, meta: BlockMeta) -> float:
        """When the origin confirmed the version of a block, in seconds since 1970; 0: not known."""
        ...

    def doubt(self, name: Name, for_s: float) -> None:
        """For so long each read of the name, or of the bucket, asks the origin: a write may be carried out yet."""
        ...

    def doubts(self) -> list[tuple[Name, float]]:
        """The names, and buckets, that are in doubt, and for how long they still are."""
        ...


class PeerReply(Protocol):
    """A peer's answer to a `PeerRead` that is to be believed. Its body is read as that of an `OriginReply`."""

    @property
    def confirmed(self) -> Confirmed:
        """The version that the peer has, whose age is that at the moment of the answer."""
        ...

    @property
    def extent(self) -> Extent | None:
        """The bytes that the body brings; None: none."""
        ...

    @property
    def digest(self) -> str:
        """The stored checksum of the block (`xxh3:HEX`, see `block_file`), if the body brings all of it and it is on
        the peer's disk; else empty."""
        ...

    @property
    def sending(self) -> Sending:
        """The load of the peer by all members, as of this reply."""
        ...

    async def some(self) -> Buffer:
        """As `OriginReply.some`. Raises PeerFailed."""
        ...

    @property
    def in_thread(self) -> bool:
        """See `OriginReply`."""
        ...

    async def receive(self, count: int, sink: ByteSink, received: Callable[[int], None]) -> None:
        """As `OriginReply.receive`. Raises PeerFailed, and anything that the sink raises."""
        ...


class PeerTransport(Protocol):
    """The wire between members. Everything that is sent is signed with the cluster's key."""

    def read(self, member: Member, read: PeerRead) -> AbstractAsyncContextManager[PeerReply]:
        """Ask a member. Leaving the context before the body was read gives the connection up.

        Raises:
            PeerFailed: no answer, or none that is to be believed. `why` is `absent` if the peer says that it does not
                have the bytes. PeerChanged: the bucket has another version, by what the peer knows.
        """
        ...

    async def hello(self, address: str, mine: Hello, name: str = "") -> Hello:
        """Exchange with a member who we are and who it is. `name`: the member that is believed to be there, any other
        one refuses; empty: it is not known. Raises PeerFailed."""
        ...

    async def send(self, member: Member, path: str, body: bytes) -> None:
        """Send a notice of `messages.BY_PATH`, encoded. Returns once the member has heeded it. Raises PeerFailed."""
        ...

    async def request(self, member: Member, question: Question, answer: type[A]) -> A:
        """Ask a member what it has, or have it do its part of a maintenance command. `answer`: the form of the answer.
        Raises PeerFailed."""
        ...


class MemberSource(Protocol):
    """Lists the members: a file, DNS, Kubernetes, Slurm."""

    def lists(self) -> AsyncGenerator[Sequence[ListedMember], None]:
        """Each list of the members, when it is first known and whenever it has changed. It never ends by itself, and
        raises nothing: a source that is away is asked again with backoff, logged and counted."""
        ...
