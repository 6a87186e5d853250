"""The messages by which a member tells the others what its clients read. So a job on several nodes is one job to the
planner of each of them, wherever the bytes came from. The body is JSON; see `peer_control`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from outrider.core.cluster.peer_control import BODY_BYTES_MAX
from outrider.core.cluster.wire_forms import (
    NAME,
    NUMBER_MAX,
    SECONDS_MAX,
    WireError,
    as_json,
    json_object,
    matched,
    text,
    whole,
)
from outrider.core.model import ObjectRef

READS_PATH = "/-/reads"
READS_MAX = 1000
"""Reads in one message."""

_MS = 1000.0
# A member sends so many messages a second to all others together: they take a few hundredths of a core. The others know
# of a read that much later, and an epoch seems to end as much later for them.
_MESSAGES_S = 20.0


def told_every_s(others: int) -> float:
    """The time between two messages to each of so many other members."""
    return max(1, others) / _MESSAGES_S


class ToldRead(NamedTuple):
    """`reader` began to read an object of `size` bytes, so many seconds before the message was sent."""

    reader: str
    ref: ObjectRef
    size: int
    age_s: float


@dataclass(frozen=True, slots=True)
class ReadsTold:
    """Objects that clients of `sender` began to read, in this order. `readers`: how many of them read at a time."""

    sender: str
    readers: int
    reads: Sequence[ToldRead]

    def reader_name(self, read: ToldRead) -> str:
        """The reader's name in the whole cluster. The same address may be another client at another member."""
        return f"{self.sender}/{read.reader}"


def reads_body(message: ReadsTold) -> bytes:
    """The body of a message. The oldest of reads that are too many for one are left out."""
    body = _body(message)
    while len(body) > BODY_BYTES_MAX:
        message = replace(message, reads=message.reads[(len(message.reads) + 1) // 2 :])
        body = _body(message)
    return body


def _body(message: ReadsTold) -> bytes:
    # Most reads have the reader and the bucket in common.
    readers: dict[str, int] = {}
    buckets: dict[str, int] = {}
    rows = [
        [
            readers.setdefault(read.reader, len(readers)), buckets.setdefault(read.ref.bucket, len(buckets)),
            read.ref.key, read.size, round(read.age_s * _MS),
        ]
        for read in message.reads
    ]  # fmt: skip
    return as_json({
        "from": message.sender, "count": message.readers, "readers": list(readers), "buckets": list(buckets),
        "reads": rows,
    })  # fmt: skip


def parse_reads(body: bytes) -> ReadsTold:
    """Raises WireError."""
    told = json_object(body)
    readers, buckets = _texts(told, "readers"), _texts(told, "buckets")
    rows = told.get("reads")
    if not isinstance(rows, list) or len(rows) > READS_MAX:
        raise WireError("reads: not a list, or too long")
    reads = tuple(_read_of(row, readers, buckets) for row in rows)
    return ReadsTold(matched(NAME, told.get("from"), "from"), whole(told, "count"), reads)


def _texts(told: dict[str, Any], field: str) -> list[str]:
    texts = told.get(field)
    if not isinstance(texts, list):
        raise WireError(f"{field}: not a list")
    return [text(each, field) for each in texts]


def _read_of(row: object, readers: Sequence[str], buckets: Sequence[str]) -> ToldRead:
    if not isinstance(row, list) or len(row) != 5:
        raise WireError("reads: not of their form")
    reader, bucket, key, size, age_ms = row
    for number, limit in (
        (reader, len(readers)), (bucket, len(buckets)), (size, NUMBER_MAX), (age_ms, int(_MS * SECONDS_MAX))
    ):  # fmt: skip
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < limit:
            raise WireError("reads: not of their form")
    if not key or not buckets[bucket]:
        raise WireError("reads: an empty name")
    return ToldRead(readers[reader], ObjectRef(buckets[bucket], text(key, "reads")), size, age_ms / _MS)
