"""The messages between a mount and the proxy on the same machine about loans: descriptors of block files.

1. The mount connects to a socket of packets, and sends the token that the proxy gave it over HTTP, and its bucket.
2. The proxy answers with a `LoanTerms`, and the descriptor of a counter in shared memory: see `Loan.changes`.
3. The mount sends runs of `LoanRead`s. One with a number asks for a loan. The others report reads by loans.
4. The proxy answers each number with a `Loan`, whose descriptor comes with it, or with the number alone: there is none,
   and the answer to a GET says why.

Numbers are in the machine's byte order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from outrider.core.errors import Signal

DESCRIPTORS = "descriptors.json"
"""The object of the control bucket with the path of the socket, and a token."""
READS_MAX = 64
"""In one packet, and questions that are not answered yet."""
PACKET_BYTES_MAX = 128 * 1024
TOKEN_BYTES = 32
_BUCKET_BYTES_MAX = 255
_TERMS = struct.Struct("=QI")
_READ = struct.Struct("=IQQIIIH")
_NUMBER = struct.Struct("=I")
_LOAN = struct.Struct("=IQdQQQQQ")
_MICROSECONDS = 1e6
_MICROSECONDS_MAX = 2**32 - 1
ANSWER_BYTES_MAX = 8 * 1024
"""The longest packet of the proxy. An ETag is far shorter."""


class BadMessage(Signal):
    """The bytes are no message of this form."""


class LoanTerms(NamedTuple):
    block_bytes: int
    questions_max: int


class LoanRead(NamedTuple):
    """A read of the bytes `[start, stop)` of an object. `number` 0: it was served by a loan, `wait_s` after it was
    requested, and `away_s` after the mount's last one; `disk_s` of this it waited for the disk. Else the mount asks for
    a loan of the block with `start`."""

    number: int
    key: str
    start: int
    stop: int
    wait_s: float = 0.0
    away_s: float = 0.0
    disk_s: float = 0.0


class Loan(NamedTuple):
    """The file has the bytes `[start, stop)` of the object's version from `offset` on. They may be read for `fresh_s`
    seconds since the question, as long as the counter in shared memory shows `changes`.

    `etag` has no quotes. `seconds`: the version's Last-Modified since 1970; 0: it has none.
    """

    number: int
    changes: int
    fresh_s: float
    start: int
    stop: int
    offset: int
    size: int
    seconds: int
    etag: str


def pack_greeting(token: str, bucket: str) -> bytes:
    return token.encode() + bucket.encode()


def parse_greeting(packet: bytes) -> tuple[str, str]:
    """The token and the bucket. Raises BadMessage."""
    try:
        text = packet.decode("ascii")
    except UnicodeDecodeError as error:
        raise BadMessage("no token") from error
    if not TOKEN_BYTES < len(text) <= TOKEN_BYTES + _BUCKET_BYTES_MAX:
        raise BadMessage("no token and bucket")
    return text[:TOKEN_BYTES], text[TOKEN_BYTES:]


def pack_terms(terms: LoanTerms) -> bytes:
    return _TERMS.pack(*terms)


def parse_terms(packet: bytes) -> LoanTerms:
    """Raises BadMessage."""
    try:
        terms = LoanTerms(*_TERMS.unpack(packet))
    except struct.error as error:
        raise BadMessage("no terms") from error
    if not terms.block_bytes:
        raise BadMessage("no block size")
    return terms


def pack_reads(reads: Iterable[LoanRead]) -> bytes:
    packed = bytearray()
    for read in reads:
        key = read.key.encode("utf-8", "surrogateescape")
        times = (_microseconds(seconds) for seconds in (read.wait_s, read.away_s, read.disk_s))
        packed += _READ.pack(read.number, read.start, read.stop, *times, len(key))
        packed += key
    return bytes(packed)


def parse_reads(packet: bytes) -> Iterator[LoanRead]:
    """Raises BadMessage, after the reads before the bad one."""
    at = 0
    while at < len(packet):
        try:
            number, start, stop, wait, away, disk, key_bytes = _READ.unpack_from(packet, at)
            at += _READ.size + key_bytes
            key = packet[at - key_bytes : at].decode("utf-8", "surrogateescape")
        except struct.error as error:
            raise BadMessage("a read is cut short") from error
        if at > len(packet) or start >= stop:
            raise BadMessage("no read")
        yield LoanRead(number, key, start, stop, *(each / _MICROSECONDS for each in (wait, away, disk)))


def pack_loan(loan: Loan) -> bytes:
    return _LOAN.pack(*loan[:-1]) + loan.etag.encode("utf-8", "surrogateescape")


def pack_refusal(number: int) -> bytes:
    return _NUMBER.pack(number)


def parse_answer(packet: bytes) -> tuple[int, Loan | None]:
    """The number of the question, and the loan; None: there is none. Raises BadMessage."""
    try:
        if len(packet) == _NUMBER.size:
            return _NUMBER.unpack(packet)[0], None
        fields = _LOAN.unpack_from(packet)
    except struct.error as error:
        raise BadMessage("no answer") from error
    loan = Loan._make((*fields, packet[_LOAN.size :].decode("utf-8", "surrogateescape")))
    if not loan.start < loan.stop <= loan.size:
        raise BadMessage("no block")
    return loan.number, loan


def _microseconds(seconds: float) -> int:
    return min(round(seconds * _MICROSECONDS), _MICROSECONDS_MAX)
