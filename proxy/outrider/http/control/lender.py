"""Loans: a mount on this machine gets descriptors of block files over a unix socket, and reads the blocks by itself.

A loan is a hit. Its version is fresh, its block is on disk and verified, and nobody waits for the origin; all else is
refused, and the mount sends a GET. It may be read as long as the proxy itself would serve the version without a
question: until its time is up, or any belief of the version cache ends (a counter in shared memory, which each mount
maps, so that a write through the proxy ends a loan before it is answered).

The lender is there in loopback mode alone. It lends to processes of the proxy's own user, and of root, that have the
token which the control bucket gives (`descriptors.json`): another proxy's socket at the same path knows no such token.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import secrets
import socket
from collections.abc import Callable
from functools import lru_cache
from struct import Struct

from outrider.core.cache.loan_messages import (
    PACKET_BYTES_MAX,
    READS_MAX,
    TOKEN_BYTES,
    BadMessage,
    Loan,
    LoanRead,
    LoanTerms,
    pack_loan,
    pack_refusal,
    pack_terms,
    parse_greeting,
    parse_reads,
)
from outrider.core.memo import Memo
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.s3.conditions import parse_http_date
from outrider.engine.read.hit_lookup import HitLookup, Lent
from outrider.engine.read.version_cache import Known
from outrider.http.record.hit_counts import HitCounts
from outrider.http.wire.acceptor import Acceptor
from outrider.metrics import Metrics
from outrider.ports import Clock

log = logging.getLogger(__name__)

MOUNTS_MAX = 8
"""Each takes a descriptor."""
_TOKENS_MAX = 256
# Some 300 bytes each.
_KNOWN_MAX = 16384
_PACKETS_AT_ONCE = 4
# Source: unix(7), struct ucred.
_PEER = Struct("=iII")
_COUNTER_BYTES = 8
_ENDED = 2**64 - 1

OnRead = Callable[[str, ObjectVersion, int, int, float], None]
"""As `fast_path.OnHit`."""


def may_ask(uid: int, own_uid: int) -> bool:
    """Whether a process of this user gets descriptors: it could open the files of the cache directory by itself."""
    return uid in (own_uid, 0)


def _uid_of(peer: socket.socket) -> int:
    return int(_PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1])


# Many objects are uploaded within a second, and a parse takes as long as the rest of an answer.
@lru_cache(maxsize=1024)
def _seconds(last_modified: str | None) -> int:
    date = parse_http_date(last_modified)
    return 0 if date is None else int(date.timestamp())


class Lender:
    """Owns the socket and its mounts, from `serve` to `close`. On the running loop."""

    def __init__(self, hits: HitLookup, note: OnRead, metrics: Metrics, clock: Clock, *, block_bytes: int) -> None:
        """`note` is called with each read by a loan. `changed` is to be called with all changes of the version
        cache."""
        # For all mounts, as they may read the same files.
        self._known: Memo[ObjectRef, Known] = Memo(_KNOWN_MAX)
        self.lend_at_once = hits.lend_at_once
        self.lend = hits.lend
        self._hits = hits
        self._note = note
        self._clock = clock
        self._metrics = metrics
        self._counts = HitCounts(metrics, lambda: None)
        self.terms = pack_terms(LoanTerms(block_bytes, READS_MAX))
        self._readers: Memo[str, str] = Memo(_TOKENS_MAX)
        self._path = ""
        self._acceptor: Acceptor | None = None
        self.borrowers: set[Borrower] = set()
        self.counter_fd = -1
        self._counter: memoryview | None = None

    def changed(self, changes: int) -> None:
        if self._counter is not None:
            self._counter[0] = changes

    def serve(self, listening: socket.socket, path: str) -> None:
        """`path`: of the socket, as a mount finds it. Raises OSError: this machine has no such memory."""
        self.counter_fd = os.memfd_create("outrider-changes", os.MFD_CLOEXEC)
        os.ftruncate(self.counter_fd, mmap.PAGESIZE)
        # A number of the machine, so that no reader sees half of one.
        self._counter = memoryview(mmap.mmap(self.counter_fd, _COUNTER_BYTES)).cast("Q")
        self.changed(self._hits.changes)
        self._path = path
        self._acceptor = Acceptor(listening, self._take)

    def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        # No loan has this number: all end at once.
        self.changed(_ENDED)
        for each in list(self.borrowers):
            each.end()
        if self.counter_fd >= 0:
            os.close(self.counter_fd)

    def offer(self, reader: str) -> dict[str, str] | None:
        """The socket, and a token for a mount whose reads are those of `reader`. None: it does not listen."""
        if self._acceptor is None:
            return None
        token = secrets.token_hex(TOKEN_BYTES // 2)
        self._readers.put(token, reader)
        return {"path": self._path, "token": token}

    def known(self, ref: ObjectRef) -> Known | None:
        """As `HitLookup.known`."""
        known = self._known.get(ref)
        if known is None or not self._hits.is_current(known):
            known = self._hits.known(ref)
            if known is not None:
                self._known.put(ref, known)
        return known

    def now(self) -> float:
        return self._clock()

    def reader_of(self, token: str) -> str | None:
        return self._readers.get(token)

    def _take(self, client: socket.socket, _: str) -> None:
        if len(self.borrowers) >= MOUNTS_MAX or not may_ask(_uid_of(client), os.geteuid()):
            client.close()
            return
        self.borrowers.add(Borrower(self, client))

    def count(self, reader: str, ref: ObjectRef, known: Known | None, read: LoanRead) -> None:
        """A mount has read by a loan. `known` None: it is over by now."""
        if known is not None and read.stop <= known.version.size:
            self._hits.read_by_loan(known, read.start)
            self._note(reader, known.version, read.start, read.stop, self._clock())
        tallies = self._counts.tallies_of(ref)
        tally = tallies.get(reader) or self._counts.begin(ref, reader)[1]
        self._metrics.disk_wait_s.inc(read.disk_s)
        self._counts.add(tally, "DESCRIPTOR", 206, read.stop - read.start, read.wait_s, read.away_s)


class Borrower:
    """The connection of one mount."""

    def __init__(self, lender: Lender, client: socket.socket) -> None:
        self._lender = lender
        self._socket = client
        self._reader: str | None = None
        self._bucket = ""
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop.add_reader(client.fileno(), self._readable)

    def end(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        for task in self._tasks:
            task.cancel()
        self._lender.borrowers.discard(self)

    def _readable(self) -> None:
        try:
            for _ in range(_PACKETS_AT_ONCE):
                try:
                    packet = self._socket.recv(PACKET_BYTES_MAX)
                except BlockingIOError:
                    return
                if not packet:
                    self.end()
                    return
                self._take(packet)
        except (OSError, BadMessage) as error:
            # It may be stopped, and takes no answers. It sends GETs from then on.
            log.debug("mount gets no more descriptors", extra={"error": str(error)})
            self.end()

    def _take(self, packet: bytes) -> None:
        """Raises OSError, BadMessage."""
        if self._reader is None:
            token, self._bucket = parse_greeting(packet)
            self._reader = self._lender.reader_of(token)
            if self._reader is None:
                raise BadMessage("a token of another proxy")
            socket.send_fds(self._socket, [self._lender.terms], [self._lender.counter_fd])
            return
        for read in parse_reads(packet):
            ref = ObjectRef(self._bucket, read.key)
            known = self._lender.known(ref)
            if read.number:
                self._lend(read, known)
            else:
                self._lender.count(self._reader, ref, known, read)

    def _lend(self, read: LoanRead, known: Known | None) -> None:
        """Raises OSError."""
        if known is None or read.start >= known.version.size or len(self._tasks) >= READS_MAX:
            self._socket.send(pack_refusal(read.number))
            return
        lent = self._lender.lend_at_once(known, read.start)
        if lent is not None:
            self._answer(read.number, lent)
            return
        task = self._loop.create_task(self._lend_later(read, known), name="loan")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _lend_later(self, read: LoanRead, known: Known) -> None:
        lent = await self._lender.lend(known, read.start)
        try:
            if lent is None:
                self._socket.send(pack_refusal(read.number))
            else:
                self._answer(read.number, lent)
        except OSError as error:
            log.debug("mount gets no more descriptors", extra={"error": str(error)})
            self.end()

    def _answer(self, number: int, lent: Lent) -> None:
        """Raises OSError."""
        known, block = lent.known, lent.lease.block
        version = known.version
        date = dict(version.headers).get("last-modified")
        loan = Loan(
            number, known.changes, known.until - self._lender.now(), lent.extent.start, lent.extent.stop,
            block.payload_offset, version.size, _seconds(date), version.etag.strip('"'),
        )  # fmt: skip
        try:
            socket.send_fds(self._socket, [pack_loan(loan)], [block.fd])
        finally:
            lent.lease.release()
