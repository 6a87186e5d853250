"""The fast path of the S3 port: a plain read of a cached object is answered in the very call that brings its bytes,
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

from outrider.core.errors import InvalidRange
from outrider.core.insight.usage import AWAY_S_MAX, HitTally
from outrider.core.model import Extent, ObjectVersion
from outrider.core.s3 import ranges
from outrider.core.s3.operation import OperationKind
from outrider.core.s3.plain_request import PlainRequest, known_fields, recognise
from outrider.engine.read.hit_lookup import HitLookup, Piece
from outrider.http.access import Access, Principal, reader_name
from outrider.http.record.access_log import AccessLog, new_request_number, request_id_of, subject_of
from outrider.http.record.hit_counts import HitCounts
from outrider.http.record.record import Ended
from outrider.http.s3.exchange import Begun, ColdHit, Recognised
from outrider.http.s3.hit_admission import ANYBODY, HitAdmission
from outrider.http.s3.hit_reply import COPIED_BYTES, HitBody, Subject, send_at_once, send_file_at_once
from outrider.http.wire.sender import SocketSender
from outrider.metrics import Metrics
from outrider.pagecache import in_memory, read_in_memory
from outrider.ports import Clock

if TYPE_CHECKING:
    from outrider.http.record.server_spans import ServerSpans

# Sent before the loop serves other connections.
_BYTES_AT_ONCE = 1024 * 1024
# A read of at most this length comes back to the fast path once its pages are in memory. For a longer read the slow
# path adds little to the time of sending.
_PAGED_IN_BYTES = 1024 * 1024


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
        self._admission = HitAdmission(access, domains)
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
        """The shortest way, for a request whose header lines other than the Range were seen before. None: nothing was
        sent, and `_answer_any` has to look."""
        known = known_fields(fields)
        if known is None:
            return None
        meaning, requested_range, start, stop = known
        version = subject.known.version
        if requested_range is None:
            stop, status, is_unusual = version.size, 200, meaning.checksums
        else:
            status, is_unusual, requested_range = 206, False, b"bytes=" + requested_range
            if stop > version.size:
                stop = version.size
        length = stop - start
        if (
            is_unusual
            or subject.is_folder
            or not 0 < length <= _BYTES_AT_ONCE
            or not self._admission.harmless_hosts.get(meaning.host)
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
        head = self._head(subject, meaning.checksums, requested_range is not None, start, stop, number, started)
        went = send_file_at_once(wire, head, file, offset, length, self._copied)
        if went is None:
            return None
        return self._finish(wire, subject, "GET", status, ANYBODY, meaning.app, requested_range, head, start, stop,
                            went, number, started, now)  # fmt: skip

    def _answer_any(self, data: bytes, wire: SocketSender, started: float, cold: ColdHit | None) -> Answered:
        read = recognise(data)
        if read is None:
            return False
        name = b"GET %s HTTP/1.1" % read.path
        if self._domains:
            name = b"%s %s" % (read.host.encode(), name)
        # Before anything is looked up: the time that a refusal takes must not reveal which objects are cached.
        known = None if cold is None or cold.recognised.head != data else cold.recognised.who
        who = self._admission.admitted(read, name, known)
        if who is None or (subject := self._subject(read, name)) is None:
            return self._admission.recognised(data, read, who)
        version = subject.known.version
        try:
            extent = Extent(0, version.size) if read.span is None else ranges.resolve(read.span, version.size)
        except InvalidRange:
            return self._admission.recognised(data, read, who)
        if read.method == "HEAD" or extent.length == 0:
            return self._send(read, subject, wire, Extent(0, 0), (), started, who)
        pieces = self._hits.pieces(subject.known, extent, _BYTES_AT_ONCE)
        if pieces is None:
            return self._not_ready(self._admission.recognised(data, read, who), subject, extent, started, cold)
        try:
            body = self._body_in_memory(extent, pieces)
            if body is None:
                return self._not_ready(self._admission.recognised(data, read, who), subject, extent, started, cold)
            return self._send(read, subject, wire, extent, body, started, who)
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

    def stop(self) -> None:
        """To be called after the last answer."""
        self._access_log.flush()

    # -- the object ----------------------------------------------------------------------------------------------

    def _subject(self, read: PlainRequest, name: bytes) -> Subject | None:
        """None: the slow path has to look it up, or the reply depends on more than a plain read's."""
        subject = self._subjects.get(name)
        if subject is None or not self._hits.is_current(subject.known):
            subject = self._looked_up(name, read, subject)
        if subject is None or (read.query and not self._admission.is_harmless_query(read.query)):
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
        operation = old.operation if old else self._admission.operation(read)
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

    def _body_in_memory(self, extent: Extent, pieces: Sequence[Piece]) -> HitBody | None:
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
        body: HitBody, started: float, who: Principal,
    ) -> Literal[True] | Begun:  # fmt: skip
        number = new_request_number()
        is_part = read.range is not None
        head = self._head(subject, read.checksums, is_part, extent.start, extent.stop, number, started)
        went = send_at_once(wire, head, body, extent.length)
        requested_range = None if read.range is None else read.range.encode()
        return self._finish(
            wire, subject, read.method, 206 if is_part else 200, who, read.app, requested_range, head, extent.start,
            extent.stop, went, number, started, self._clock(), read,
        )  # fmt: skip

    def _finish(
        self, wire: SocketSender, subject: Subject, method: str, status: int, who: Principal, app: str,
        requested_range: bytes | None, head: bytes, start: int, stop: int, went: tuple[int, int, bool], number: int,
        started: float, now: float, read: PlainRequest | None = None,
    ) -> Literal[True] | Begun:  # fmt: skip
        """Count and log a reply with the bytes `[start, stop)`, of which `went` was sent (see `send_at_once`). `read`
        None: there is no trace of the request."""
        taken, sent, disk_failed = went
        client = "-" if who.client is None else who.client.name
        reader = reader_name(who, wire.address, app) if app or who.client else wire.address
        seconds = time.perf_counter() - started
        if taken < len(head) or sent < stop - start:
            self._counts.first_byte(method, seconds)
            operation = replace(subject.operation, kind=OperationKind(method.lower()), method=method)
            return Begun(operation, subject.known.version, head[taken:], Extent(start + sent, stop), status, sent,
                         request_id_of(number), started, client, app, reader,
                         min(started - wire.ended, AWAY_S_MAX), disk_failed=disk_failed, first_byte_s=seconds,
                         since=subject.known.changes)  # fmt: skip
        self._counts.add(
            subject.tallies.get(reader) or self._new_tally(subject, reader),
            method, status, sent, seconds, started - wire.ended,
        )  # fmt: skip
        wire.ended = started + seconds
        if sent:
            self._note(reader, subject.known.version, start, stop, now)
        if self._access_log.is_wanted():
            text = None if requested_range is None else requested_range.decode("ascii")
            self._access_log.hit(subject.log, seconds, method, status, sent, request_id_of(number), client,
                                 wire.address, app, text)  # fmt: skip
        if self._spans is not None and read is not None:
            span = self._spans.begin(method, read.trace_headers(), started, current=False)
            if span.is_recording():
                end = Ended(request_id_of(number), method.lower(), method, subject.operation, read.range, client,
                            wire.address, status, "HIT", Counter(disk=sent), started, None, reader, app=app,
                            first_byte_s=seconds)  # fmt: skip
                self._spans.ended(end, span)
        return True

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
