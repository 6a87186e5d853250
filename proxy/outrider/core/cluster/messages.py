"""The messages between members that are JSON, a class each: `wire_forms.encode` and `decode` write and read them.

A field has the form that its type says: a bound, a pattern, a name on the wire. Each must be there; those of later
versions of the wire are ignored. A reader or bucket that many objects of a message have in common stands in it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, Self

from pydantic import FailFast, Field, InstanceOf, PlainValidator, SkipValidation

from outrider.core.cluster.member import Member
from outrider.core.cluster.object_samples import NUMBERS, SAMPLED_MAX
from outrider.core.cluster.wire_forms import (
    SECONDS_MAX,
    Base64,
    Full,
    Name,
    Number,
    Seconds,
    Spread,
    Text,
    Truth,
    WireError,
    Word,
    encode,
    filled,
    text,
)
from outrider.core.model import ObjectRef, VersionIdentity, quoted_etag

HELLO_PATH, FORGET_PATH, READS_PATH = "/-/hello", "/-/forget", "/-/reads"
ORDER_PATH, SHARES_PATH, LIST_PATH, COMMAND_PATH = "/-/order", "/-/shares", "/-/list", "/-/maintenance"
BODY_BYTES_MAX = 1024 * 1024
"""The longest body of a message that is no command."""
COMMAND_BYTES_MAX = 6 * 1024 * 1024
"""The longest body of a command: the longest list of objects, in base64."""
READS_MAX = REFS_MAX = OBJECTS_MAX = 1000
"""Reads in one message; objects in one of an order, for which the planner takes 10 ms; those in a page of a pin."""
FORGETS_MERGED_WIRE = LISTS_WIRE = 2
"""The version of the wire from which on a message may have several forgets, and a member has pages of LISTs."""
SHARES_MAX = 64
"""Datasets in one answer: with the longest names they fill half of the longest body."""

_MS = 1000
# A member sends so many messages a second to all others together: they take a few hundredths of a core. The others know
# of a read that much later, and an epoch seems to end as much later for them.
_MESSAGES_S = 20.0

_SenderName = Annotated[Name, Field(alias="from")]
_Millis = Annotated[int, Field(strict=True, ge=0, lt=int(_MS * SECONDS_MAX))]
_Texts = Annotated[list[Text], FailFast()]


def _ref_or_bucket(value: object) -> ObjectRef | str:
    if not isinstance(value, list):
        return filled(value)
    bucket, key = value
    return ObjectRef(filled(bucket), filled(key))


def _etag(value: object) -> str:
    if quoted_etag(etag := text(value)) is None:
        raise WireError("no ETag")
    return etag


_Etag = Annotated[str, PlainValidator(_etag)]


# -- what members are, and what was written ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """A member's account of itself, requested at regular intervals. `boot`: nanoseconds since 1970 at which its process
    began; a later process has a larger one. `ring`: the digest of its ring. `forgets`: the number of the last forget
    that it sent. `clock_s`: its time, in seconds since 1970. `is_leaving`: it is about to stop, and owns nothing new.
    `is_ready`: its index has been read, and its disk answers."""

    member: Annotated[Member, Spread(Member)]
    boot: Number
    ring: Word
    forgets: Number
    clock_s: Annotated[Seconds, Field(alias="clock")]
    is_ready: Annotated[Truth, Field(alias="ready")] = True
    is_leaving: Annotated[Truth, Field(alias="leaving")] = False

    @property
    def sender(self) -> str:
        return self.member.name


@dataclass(frozen=True, slots=True)
class Forget:
    """Writes are about to change these names (bucket alone: all of its objects), or have changed them. `number`: of the
    last of these forgets; each has one, counted up by one from 1 within a `boot` of the sender. `in_doubt`: the writes
    ended without an answer. `first`: the number of the first one; None: there is one alone, as in all messages of
    members before 0.3."""

    sender: _SenderName
    boot: Number
    number: Number
    names: Annotated[tuple[Annotated[ObjectRef | str, PlainValidator(_ref_or_bucket)], ...], FailFast()]
    in_doubt: Annotated[Truth, Field(alias="doubt")] = False
    first: Number | None = None

    @property
    def numbers(self) -> range:
        first = self.number if self.first is None else min(self.first, self.number)
        return range(first, self.number + 1)


def forget_body(message: Forget) -> bytes:
    """The body of a forget. Names that are too many for one are replaced by their buckets."""
    if len(body := encode(message)) <= BODY_BYTES_MAX:
        return body
    buckets = {name if isinstance(name, str) else name.bucket for name in message.names}
    return encode(replace(message, names=tuple(sorted(buckets))))


# -- what clients read ------------------------------------------------------------------------------------------------


def notice_interval_s(others: int) -> float:
    """The time between two messages of reads to each of so many other members."""
    return max(1, others) / _MESSAGES_S


class BegunRead(NamedTuple):
    """`reader` began to read an object of `size` bytes, so many seconds before the message was sent."""

    reader: str
    ref: ObjectRef
    size: int
    age_s: float


@dataclass(frozen=True, slots=True)
class ReadsNotice:
    """Objects that clients of `sender` began to read, in this order. `readers`: how many of them read at a time. So a
    job on several nodes is one job to the planner of each of them, wherever the bytes came from."""

    sender: _SenderName
    readers: Annotated[Number, Field(alias="count")]
    reads: Annotated[Sequence[BegunRead], SkipValidation, Spread(_Reads)]

    def reader_name(self, read: BegunRead) -> str:
        """The reader's name in the whole cluster. The same address may be another client at another member."""
        return f"{self.sender}/{read.reader}"


@dataclass(frozen=True, slots=True)
class _Reads:
    """A read: the numbers of its reader and bucket, the key, the size, the age in milliseconds."""

    readers: _Texts
    buckets: _Texts
    reads: Annotated[list[tuple[Number, Number, Full, Number, _Millis]], FailFast(), Field(max_length=READS_MAX)]

    @classmethod
    def of(cls, reads: Sequence[BegunRead]) -> Self:
        readers: dict[str, int] = {}
        buckets: dict[str, int] = {}
        rows = [
            (readers.setdefault(reader, len(readers)), buckets.setdefault(ref.bucket, len(buckets)), ref.key, size,
             round(age_s * _MS))
            for reader, ref, size, age_s in reads
        ]  # fmt: skip
        return cls(list(readers), list(buckets), rows)

    def value(self) -> Sequence[BegunRead]:
        return tuple(
            BegunRead(self.readers[reader], ObjectRef(filled(self.buckets[bucket]), key), size, age_ms / _MS)
            for reader, bucket, key, size, age_ms in self.reads
        )


def reads_body(message: ReadsNotice) -> bytes:
    """The body of a message. The oldest of reads that are too many for one are left out."""
    while len(body := encode(message)) > BODY_BYTES_MAX:
        message = replace(message, reads=message.reads[(len(message.reads) + 1) // 2 :])
    return body


# -- what clients will read -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OrderNotice:
    """One worker of `client`, which reads at `sender`, will read `refs` next: numbers `start` and on of the `total` of
    its epoch (None: not known). Only the member that a client gave it to passes an order on.

    `number` counts up from 1 within a `boot` of the sender. `order`: what the sender calls the plan that this is a part
    of. `is_withdrawn`: its unread objects are not expected any more, and `refs` is empty.
    """

    sender: _SenderName
    boot: Number
    number: Number
    order: Number
    client: Text
    refs: Annotated[Sequence[ObjectRef], SkipValidation, Spread(_Refs)] = ()
    start: Number = 0
    total: Number | None = None
    is_withdrawn: Annotated[Truth, Field(alias="withdrawn")] = False

    @property
    def reader_name(self) -> str:
        """The client's name in the whole cluster; see `ReadsNotice.reader_name`."""
        return f"{self.sender}/{self.client}"


@dataclass(frozen=True, slots=True)
class _Refs:
    """A read: the number of its bucket, and the key."""

    buckets: _Texts
    reads: Annotated[list[tuple[Number, Full]], FailFast(), Field(max_length=REFS_MAX)]

    @classmethod
    def of(cls, refs: Sequence[ObjectRef]) -> Self:
        """Raises WireError: a name is no text."""
        buckets: dict[str, int] = {}
        reads = [(buckets.setdefault(text(ref.bucket), len(buckets)), text(ref.key)) for ref in refs]
        return cls(list(buckets), reads)

    def value(self) -> Sequence[ObjectRef]:
        return tuple(ObjectRef(filled(self.buckets[bucket]), key) for bucket, key in self.reads)


def parts_of(message: OrderNotice) -> Iterator[OrderNotice]:
    """Messages that are short enough, and say the same in this order. Their numbers are to be set. Raises
    WireError."""
    refs = message.refs
    if len(refs) <= REFS_MAX and len(encode(message)) <= BODY_BYTES_MAX:
        yield message
        return
    if len(refs) == 1:
        raise WireError("reads: too long")
    count = min(REFS_MAX, (len(refs) + 1) // 2)
    for first in range(0, len(refs), count):
        yield from parts_of(replace(message, refs=refs[first : first + count], start=message.start + first))


# -- what members have ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SharesRequest:
    """The question what a member has of each dataset, for reports."""

    sender: _SenderName


@dataclass(frozen=True, slots=True)
class DatasetShare:
    """The part of a dataset that lies on a member's disk. `name`: its key template. `objects`, `size`: of the whole
    dataset, as far as the member knows it. `held_bytes`: all bytes on the disk; `near_bytes`: those of them that other
    members own, about. `known`: a sample of the objects that the member knows, each with its number and its size, and
    `below` that of the sample (see `object_samples`); empty from members before 0.3."""

    bucket: Text
    name: Text
    objects: Number
    size: Number
    held_bytes: Annotated[Number, Field(alias="held")]
    near_bytes: Annotated[Number, Field(alias="near")]
    known: Annotated[tuple[tuple[Number, Number], ...], FailFast(), Field(max_length=SAMPLED_MAX)] = ()
    below: Number = NUMBERS


@dataclass(frozen=True, slots=True)
class DatasetShares:
    """The answer."""

    datasets: Annotated[tuple[DatasetShare, ...], FailFast(), Field(max_length=SHARES_MAX)]


@dataclass(frozen=True, slots=True)
class ListRequest:
    """The question for a page of a LIST that clients may share. `query`: sorted by name."""

    sender: _SenderName
    bucket: Full
    query: Annotated[tuple[tuple[Text, Text], ...], FailFast()]


@dataclass(frozen=True, slots=True)
class ListedPage:
    """The answer: the page as the bucket sent it, `age_s` seconds after it was requested there. `packed`: its body, by
    zlib; empty: the member has no such page."""

    age_s: Annotated[Seconds, Field(alias="age")] = 0.0
    headers: Annotated[tuple[tuple[Text, Text], ...], FailFast()] = ()
    packed: Annotated[Base64, Field(alias="page")] = b""


# -- maintenance ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """A maintenance command, passed on to the other owners of the blocks. `folder`, `name`, `body`: as the client gave
    them to `sender`. `owner`: the client's access key; empty: it has none. `bytes_per_s`: the receiver's share of the
    bandwidth; 0: no limit. `at`: when the client gave it, in seconds since 1970 by the clock of that member; 0: that
    does not matter. `copies`: see `core.maintenance.copies`; None: one, as members before 0.3 keep of each block
    whatever is requested."""

    sender: _SenderName
    # "begin" of a pin comes from members of 0.2 alone, and changes nothing.
    verb: Annotated[str, Field(strict=True, pattern="^(put|get|cancel|delete|begin|list|objects)$")]
    folder: Annotated[str, Field(strict=True, pattern="^(warm|pin|evict|verify|plan)$")]
    owner: Text
    name: Full
    body: Annotated[Base64, Field(alias="list")] = b""
    bytes_per_s: Annotated[Seconds, Field(alias="rate")] = 0.0  # a rate has the bounds of a time
    at: Seconds = 0.0
    copies: Number | None = None


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """`report`: the progress of the member's part, or the fields of another message; None: it has no such command.
    `error`: why it did not act; empty: it did. `code`: the S3 code of the error."""

    # Members of all releases call it `told` on the wire.
    report: Annotated[InstanceOf[dict[str, Any]] | None, Field(alias="told")] = None
    error: Text = ""
    code: Text = ""


# -- pins, in answers to commands --------------------------------------------------------------------------------------


class PinReport(NamedTuple):
    """A pin that a member has, or that ended. `at`: when it was given, or ended."""

    owner: Text
    name: Text
    at: Seconds
    has_ended: Truth


@dataclass(frozen=True, slots=True)
class PinsReport:
    pins: Annotated[tuple[PinReport, ...], FailFast()]


PinnedObject = tuple[ObjectRef, VersionIdentity]
"""An object, and the identity of its version. The ETag has no quotes where the LIST showed none."""


@dataclass(frozen=True, slots=True)
class PinPage:
    """Some of the objects of a pin. `body`: the client's list. `more`: there are further ones."""

    client: Text
    at: Seconds
    body: Annotated[Base64, Field(alias="list")]
    objects: Annotated[Sequence[PinnedObject], SkipValidation, Spread(_PinnedObjects)]
    more: Truth


@dataclass(frozen=True, slots=True)
class _PinnedObjects:
    """An object: bucket, key, ETag, size. `modified`: their dates; None: members before 0.3 send none."""

    objects: Annotated[list[tuple[Full, Full, _Etag, Number]], FailFast(), Field(max_length=OBJECTS_MAX)]
    modified: Annotated[list[Text] | None, Field(max_length=OBJECTS_MAX)]

    @classmethod
    def of(cls, objects: Sequence[PinnedObject]) -> Self:
        rows = [(*ref, identity.etag, identity.size) for ref, identity in objects]
        return cls(rows, [identity.modified for _, identity in objects])

    def value(self) -> Sequence[PinnedObject]:
        dates = [""] * len(self.objects) if self.modified is None else self.modified
        if len(dates) != len(self.objects):
            raise WireError("modified: of another length")
        return tuple(
            (ObjectRef(bucket, key), VersionIdentity(etag, size, date))
            for (bucket, key, etag, size), date in zip(self.objects, dates, strict=True)
        )


# -- all of them ------------------------------------------------------------------------------------------------------

Notice = Forget | ReadsNotice | OrderNotice
"""A message whose answer is empty."""
Question = SharesRequest | ListRequest | Command
Answer = DatasetShares | ListedPage | CommandAnswer
BY_PATH: dict[str, type[Hello | Notice | Question]] = {
    HELLO_PATH: Hello, FORGET_PATH: Forget, READS_PATH: ReadsNotice, ORDER_PATH: OrderNotice,
    SHARES_PATH: SharesRequest, LIST_PATH: ListRequest, COMMAND_PATH: Command,
}  # fmt: skip
"""All that members POST to each other."""
