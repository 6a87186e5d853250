"""The fast path of the S3 port: a plain read of a cached object is answered in the very call that brought its bytes,
without the HTTP parser, a task or a wait.

If anything is unusual, missing, stale or refused, nothing is sent, and the request takes the slow path (`handler`). The
slow path gives the same reply, only later. It also sends the rest of a reply that the socket did not take at once. A
small read waits for the disk before it does (`ColdHit`).
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from email.utils import formatdate
from typing import TYPE_CHECKING, Literal

from outrider.core.auth.grants import Client
from outrider.core.auth.sigv4 import SignedRequest
from outrider.core.errors import InvalidRange, S3Error
from outrider.core.insight.usage import AWAY_S_MAX, HitTally
from outrider.core.memo import Memo
from outrider.core.model import Extent, ObjectVersion
from outrider.core.s3 import operation as operations
from outrider.core.s3 import ranges
from outrider.core.s3.body_integrity import payload_rule
from outrider.core.s3.encoding import parse_query
from outrider.core.s3.operation import Operation, OperationKind
from outrider.core.s3.plain_request import PlainRequest, known_fields, recognise
from outrider.engine.read.hit_lookup import HitLookup, Piece
from outrider.http.access import Access, Principal, reader_name
from outrider.http.record.access_log import AccessLog, new_request_number, request_id_of, subject_of
from outrider.http.record.hit_counts import HitCounts
from outrider.http.record.record import Ended
from outrider.http.s3.hit_reply import COPIED_BYTES, Brought, Subject, send_at_once, send_file_at_once
from outrider.http.s3.slow_path_handoff import Begun, ColdHit, Recognised
from outrider.http.wire.sender import SocketSender
from outrider.metrics import Metrics
from outrider.pagecache import in_memory, read_in_memory
from outrider.ports import Clock

if TYPE_CHECKING:
    from outrider.http.record.server_spans import ServerSpans

_QUERIES_MAX = 1024
_HOSTS_MAX = 256
_GRANTED_MAX = 8192
# Sent before the loop serves other connections.
_BYTES_AT_ONCE = 1024 * 1024
# A read of at most this length comes back to the fast path once its pages are in memory. For a longer read the slow
# path adds little to the time of sending.
_PAGED_IN_BYTES = 1024 * 1024


_NOBODY = Principal(None, None, payload_rule(()))

OnHit = Callable[[str, ObjectVersion, int, int, float], None]
"""Called with the reader (see `access.reader_name`), the version that it read, the run of bytes `[start, stop)` of it,
and the time by the engine's clock."""


Answered = bool | Begun | ColdHit | Recognised
"""True: the request was answered, and counted. `Begun`: the reply was sent in part. In all other cases nothing was
sent. False: the fast path knows nothing about the request."""


class FastPath:
    """It counts and logs the requests that it answers by itself."""

    def __init__(
        self, hits: HitLookup, access: Access, note: OnHit, metrics: Metrics, access_log: AccessLog,
        *, clock: Clock, domains: tuple[str, ...] = (), heads_bytes: int, spans: ServerSpans | None = None,
    ) -> None:  # fmt: skip
        """`note` is called with each read that was answered here. `heads_bytes`: how many bytes of reply heads are kept
        ready. `clock`: that of `hits`."""
        self._hits = hits
        self._access = access
        self._note = note
        self._metrics = metrics
        self._access_log = access_log
        self._spans = spans
        self._clock = clock
        # Where requests are not signed and not traced, the lines of a known form hold all that a reply depends on.
        self._is_open = access.is_open and spans is None
        self._domains = domains
        # Bounded in bytes by `_looked_up`: the lookup of a bounded cache class would cost each hit more.
        self._subjects: OrderedDict[bytes, Subject] = OrderedDict()
        self._subjects_bytes = 0
        self._heads_bytes = heads_bytes
        self._copied = memoryview(bytearray(COPIED_BYTES))
        self._harmless_queries: Memo[bytes, bool] = Memo(_QUERIES_MAX)
        self._harmless_hosts: Memo[str, bool] = Memo(_HOSTS_MAX)
        # Access keys and names that a grant covers, and the client with that grant: it may have others some time later.
        self._granted: Memo[tuple[str, bytes], Client] = Memo(_GRANTED_MAX)
        # The last request that was classified, and its operation: also for the slow path.
        self._classified: tuple[PlainRequest | None, Operation | None] = (None, None)
        # The last request that the cache must not answer, because no grant covers it as a plain read or it is unsigned,
        # and its sender: for the slow path.
        self._not_granted: tuple[PlainRequest | None, Principal | None] = (None, None)
        self._date = b""
        # On `time.perf_counter`: another clock would cost each hit another call.
        self._date_until = 0.0
        self._counts = HitCounts(metrics, self._forget_subjects)

    def answer(self, data: bytes, wire: SocketSender, cold: ColdHit | None = None) -> Answered:
        """Answer `data`, a whole request, now. `cold`: the result before its pages were read; they are not waited for
        again."""
        started = time.perf_counter() if cold is None else cold.started
        line_bytes = data.find(b"\r\n")
        # A subject is known by the first line of a GET without a query.
        subject = self._subjects.get(data[:line_bytes])
        if subject is not None and self._is_open and cold is None:
            answered = self._answer_known(data[line_bytes + 2 :], subject, wire, started)
            if answered is not None:
                return answered
        return self._answer_any(data, wire, started, cold)

    def _answer_known(
        self, fields: bytes, subject: Subject, wire: SocketSender, started: float
    ) -> Literal[True] | Begun | None:
        """The shortest way, for a request whose lines came before, but for the Range. None: nothing was sent, and
        `_answer_any` has to look."""
        known = known_fields(fields)
        if known is None:
            return None
        meaning, asked_range, start, stop = known
        version = subject.known.version
        if asked_range is None:
            stop, status, is_unusual = version.size, 200, meaning.checksums
        else:
            status, is_unusual = 206, False
            if stop > version.size:
                stop = version.size
        length = stop - start
        if (
            is_unusual
            or subject.is_folder
            or not 0 < length <= _BYTES_AT_ONCE
            or not self._harmless_hosts.get(meaning.host)
        ):
            return None
        if meaning.if_match is not None and meaning.if_match != version.etag:
            return None
        now = self._clock()
        found = self._hits.open_file(subject.known, now, start, stop)
        if found is None:
            return None
        file, offset = found
        number = new_request_number()
        head = self._head(subject, meaning.checksums, asked_range is not None, start, stop, number, started)
        went = send_file_at_once(wire, head, file, offset, length, self._copied)
        if went is None:
            return None
        taken, sent, disk_failed = went
        reader = reader_name(_NOBODY, wire.address, meaning.app) if meaning.app else wire.address
        if sent < length:
            return self._begun("GET", subject, status, head[taken:], Extent(start, stop), sent, number, started,
                               _NOBODY, wire, reader, meaning.app, disk_failed=disk_failed)  # fmt: skip
        seconds = time.perf_counter() - started
        self._counts.add(
            subject.tallies.get(reader) or self._new_tally(subject, reader),
            "GET", status, sent, seconds, started - wire.ended,
        )  # fmt: skip
        wire.ended = started + seconds
        self._note(reader, version, start, stop, now)
        if self._access_log.is_wanted():
            text = None if asked_range is None else f"bytes={asked_range.decode('ascii')}"
            self._access_log.hit(subject.log, seconds, "GET", status, sent, request_id_of(number), "-", wire.address,
                                 meaning.app, text)  # fmt: skip
        return True

    def _answer_any(self, data: bytes, wire: SocketSender, started: float, cold: ColdHit | None) -> Answered:
        read = recognise(data)
        if read is None:
            return False
        name = b"GET %s HTTP/1.1" % read.path
        if self._domains:
            name = b"%s %s" % (read.host.encode(), name)
        # Before anything is looked up: the time that a refusal takes must not tell which objects are cached.
        known = None if cold is None or cold.recognised.head != data else cold.recognised.who
        who = self._admitted(read, name, known)
        if who is None or (subject := self._subject(read, name)) is None:
            return self._recognised(data, read, who)
        version = subject.known.version
        try:
            extent = Extent(0, version.size) if read.span is None else ranges.resolve(read.span, version.size)
        except InvalidRange:
            return self._recognised(data, read, who)
        if read.method == "HEAD" or extent.length == 0:
            return self._send(read, subject, wire, Extent(0, 0), (), started, who)
        pieces = self._hits.pieces(subject.known, extent, _BYTES_AT_ONCE)
        if pieces is None:
            return self._not_ready(self._recognised(data, read, who), subject, extent, started, cold)
        try:
            brought = self._bring(extent, pieces)
            if brought is None:
                return self._not_ready(self._recognised(data, read, who), subject, extent, started, cold)
            return self._send(read, subject, wire, extent, brought, started, who)
        finally:
            for lease, *_ in pieces:
                lease.release()

    def _not_ready(
        self, recognised: bool | Recognised, subject: Subject, extent: Extent, started: float, cold: ColdHit | None
    ) -> bool | ColdHit | Recognised:
        if cold is not None or extent.length > _PAGED_IN_BYTES or not isinstance(recognised, Recognised):
            return recognised
        if (page_in := self._hits.page_in(subject.known, extent)) is not None:
            return ColdHit(page_in, None, started, recognised)
        prepare = self._hits.prepare(subject.known, extent)
        if prepare is False:
            return recognised
        return ColdHit(None, None if prepare is True else prepare, started, recognised)

    def _recognised(self, data: bytes, read: PlainRequest, who: Principal | None) -> bool | Recognised:
        """The findings for the slow path; False: there are none. `who` None: the sender was not admitted here."""
        if who is None and self._not_granted[0] is read:
            who = self._not_granted[1]
        if who is None:
            return False
        return Recognised(data, who, self._classified[1] if self._classified[0] is read else None)

    def stop(self) -> None:
        """To be called after the last answer."""
        self._access_log.flush()

    # -- the sender and the object -------------------------------------------------------------------------------

    def _subject(self, read: PlainRequest, name: bytes) -> Subject | None:
        """None: the slow path has to look it up, or the reply depends on more than a plain read's."""
        subject = self._subjects.get(name)
        if subject is None or not self._hits.is_current(subject.known):
            subject = self._looked_up(name, read, subject)
        if subject is None or (read.query and not self._is_harmless(read.query)):
            return None
        version = subject.known.version
        if read.checksums and read.range is None and not version.whole_headers:
            return None
        if read.if_match is not None and read.if_match not in (version.etag, version.etag[1:-1]):
            return None
        # Stores differ in their readings of a Range, and of a condition, on a folder's own key.
        if (read.range is not None or read.if_match is not None) and version.ref.key.endswith("/"):
            return None
        return subject

    def _looked_up(self, name: bytes, read: PlainRequest, old: Subject | None) -> Subject | None:
        if (dropped := self._subjects.pop(name, None)) is not None:
            self._subjects_bytes -= dropped.size_bytes
        operation = old.operation if old else self._operation(read)
        known = None if operation is None else self._hits.known(operation.ref)
        if operation is None or known is None:
            return None
        if old is not None and old.known.version == known.version:
            old.known = known
            subject = old
        else:
            tallies = self._counts.tallies_of(operation.ref)
            subject = Subject(
                operation, known, subject_of(*operation.ref), len(name), tallies, is_folder=operation.key.endswith("/")
            )
            subject.prepare(known.version)
        self._subjects[name] = subject
        self._subjects_bytes += subject.size_bytes
        while self._subjects_bytes > self._heads_bytes:
            self._subjects_bytes -= self._subjects.popitem(last=False)[1].size_bytes
        return subject

    def _is_harmless(self, query: bytes) -> bool:
        """Whether `query` is a signature alone, which does not change the reply."""
        harmless = self._harmless_queries.get(query)
        if harmless is None:
            rest = operations.without_signature(tuple(parse_query(query.decode("ascii"))))
            harmless = all(name in operations.MEANINGLESS_QUERY for name, _ in rest)
            self._harmless_queries.put(query, harmless)
        return harmless

    def _admitted(self, read: PlainRequest, name: bytes, known: Principal | None) -> Principal | None:
        """The sender, if it may read the object. `known`: the sender, if its signature was verified before."""
        if self._access.is_open:
            return _NOBODY if self._harmless_hosts.get(read.host) or self._is_harmless_host(read.host) else None
        if known is None:
            host = operations.bucket_of_host(read.host, self._domains)
            signed = SignedRequest(read.method, read.path.decode("ascii"), read.query.decode("ascii"), read.headers())
            try:
                known = self._access.identify(signed, host)
            except S3Error:
                return None
        if known.client is None:
            return None
        if known.client.is_anonymous:  # never served from the cache
            self._not_granted = read, known
            return None
        asks = known.client.access_key, name
        if self._granted.get(asks) is known.client or self._is_granted(read, known, known.client, asks):
            return known
        self._not_granted = read, known
        return None

    def _is_granted(self, read: PlainRequest, who: Principal, client: Client, asks: tuple[str, bytes]) -> bool:
        operation = self._operation(read)
        try:
            if operation is None:
                return False
            self._access.check(who, operation, None)
        except S3Error:
            return False
        self._granted.put(asks, client)
        return True

    def _operation(self, read: PlainRequest) -> Operation | None:
        """The plain GET of the object that `read` names; None: it is no plain read."""
        if self._classified[0] is not read:
            self._classified = read, _classified(read, self._domains)
        operation = self._classified[1]
        if operation is None or operation.kind not in (OperationKind.GET, OperationKind.HEAD):
            return None
        if operation.kind is OperationKind.GET and not operation.query:
            return operation
        return replace(operation, kind=OperationKind.GET, method="GET", query=())

    def _is_harmless_host(self, host: str) -> bool:
        try:
            self._access.check_sender((("host", host),))
        except S3Error:
            return False
        self._harmless_hosts.put(host, True)
        return True

    def _bring(self, extent: Extent, pieces: Sequence[Piece]) -> Brought | None:
        """None: not all of the body is in memory."""
        length = extent.stop - extent.start
        try:
            if length > COPIED_BYTES:
                for lease, fd, offset, count in pieces:
                    if not (lease.block.stays_in_memory or in_memory(fd, offset, count)):
                        return None
                return pieces
            copy, start = self._copied[:length], 0
            for lease, fd, offset, count in pieces:
                part = copy[start : start + count]
                if not read_in_memory(fd, offset, part, stays=lease.block.stays_in_memory):
                    return None
                start += count
        except OSError as error:
            return error
        return copy

    # -- the reply -----------------------------------------------------------------------------------------------

    def _send(
        self, read: PlainRequest, subject: Subject, wire: SocketSender, extent: Extent,
        brought: Brought, started: float, who: Principal,
    ) -> Literal[True] | Begun:  # fmt: skip
        number = new_request_number()
        status = 200 if read.range is None else 206
        head = self._head(subject, read.checksums, read.range is not None, extent.start, extent.stop, number, started)
        taken, sent, disk_failed = send_at_once(wire, head, brought, extent.length)
        reader = reader_name(who, wire.address, read.app)
        if taken < len(head) or sent < extent.length:
            return self._begun(read.method, subject, status, head[taken:], extent, sent, number, started, who, wire,
                               reader, read.app, disk_failed=disk_failed)  # fmt: skip
        seconds = time.perf_counter() - started
        tally = subject.tallies.get(reader) or self._new_tally(subject, reader)
        self._counts.add(tally, read.method, status, sent, seconds, started - wire.ended)
        wire.ended = started + seconds
        if extent.length:
            self._note(reader, subject.known.version, extent.start, extent.stop, self._clock())
        if self._access_log.is_wanted():
            self._access_log.hit(subject.log, seconds, read.method, status, sent, request_id_of(number),
                                 _client_name(who), wire.address, read.app, read.range)  # fmt: skip
        if self._spans is not None:
            span = self._spans.begin(read.method, read.trace_headers(), started, current=False)
            if span.is_recording():
                end = Ended(request_id_of(number), read.method.lower(), read.method, subject.operation, read.range,
                            _client_name(who), wire.address, status, "HIT", Counter(disk=sent), started, None, reader,
                            app=read.app, first_byte_s=seconds)  # fmt: skip
                self._spans.ended(end, span)
        return True

    def _begun(
        self, method: str, subject: Subject, status: int, head: bytes, extent: Extent, sent: int, number: int,
        started: float, who: Principal, wire: SocketSender, reader: str, app: str, *, disk_failed: bool,
    ) -> Begun:  # fmt: skip
        """`head`: its unsent rest. `sent`: how many bytes of the body of `extent` were sent."""
        seconds = time.perf_counter() - started
        self._counts.first_byte(method, seconds)
        operation = replace(subject.operation, kind=OperationKind(method.lower()), method=method)
        rest = Extent(extent.start + sent, extent.stop)
        return Begun(operation, subject.known.version, head, rest, status, sent, request_id_of(number), started,
                     _client_name(who), app, reader, min(started - wire.ended, AWAY_S_MAX),
                     disk_failed=disk_failed, first_byte_s=seconds, since=subject.known.changes)  # fmt: skip

    def _head(
        self, subject: Subject, checksums: bool, is_part: bool, start: int, stop: int, number: int, started: float
    ) -> bytes:
        """`number`: of the request. `started`: when it came, on `time.perf_counter`."""
        if started >= self._date_until:
            now = time.time()
            self._date_until = started + 1.0 - now % 1.0
            self._date = b"date: %s\r\n\r\n" % formatdate(now, usegmt=True).encode()
        if not is_part:
            head = subject.whole_with_checksums if checksums else subject.whole
            return b"%sx-amz-request-id: %016X\r\n%s" % (head, number, self._date)
        if not subject.part:
            subject.prepare_part()
        return b"%scontent-range: bytes %d-%d/%d\r\ncontent-length: %d\r\nx-amz-request-id: %016X\r\n%s" % (
            subject.part, start, stop - 1, subject.known.version.size, stop - start, number, self._date,
        )  # fmt: skip

    def _new_tally(self, subject: Subject, reader: str) -> HitTally:
        subject.tallies, tally = self._counts.begin(subject.operation.ref, reader)
        return tally

    def _forget_subjects(self) -> None:
        """They hold tallies that are no longer counted."""
        self._subjects.clear()
        self._subjects_bytes = 0


def _client_name(who: Principal) -> str:
    return "-" if who.client is None else who.client.name


def _classified(read: PlainRequest, domains: tuple[str, ...]) -> Operation | None:
    """None: the request is refused; the slow path says why."""
    target = b"%s?%s" % (read.path, read.query) if read.query else read.path
    try:
        return operations.classify(read.method, target.decode("ascii"), read.headers(), domains)
    except S3Error:
        return None
