"""The fast path of the S3 port: a plain read of a cached object is answered in the very call that brought its bytes,
without the HTTP parser, a task or a wait.

If anything is unusual, missing, stale, unverified or refused, nothing is sent, and the request takes the slow path
(`handler`). The slow path gives the same reply, only later. It also sends the rest of a reply that the socket did not
take at once.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from email.utils import formatdate
from typing import TYPE_CHECKING

from outrider.core.auth.sigv4 import SignedRequest
from outrider.core.errors import InvalidRange, S3Error
from outrider.core.insight.usage import AWAY_S_MAX, DatasetName, HitTally
from outrider.core.memo import Memo
from outrider.core.model import Extent, ObjectVersion
from outrider.core.s3 import operation as operations
from outrider.core.s3 import ranges
from outrider.core.s3.body_integrity import payload_rule
from outrider.core.s3.encoding import parse_query
from outrider.core.s3.operation import Kind, Operation
from outrider.core.s3.plain_request import PlainRequest, recognise
from outrider.engine.read.hit_lookup import HitLookup, Piece
from outrider.http.access import Access, Who, reader_name
from outrider.http.record.access_log import AccessLog, new_request_id, subject_of
from outrider.http.record.record import Ended
from outrider.http.s3.hit_reply import COPIED_BYTES, Brought, Subject, begins_with_a_page, send_at_once
from outrider.http.s3.slow_path_handoff import Begun, PageCold, Recognised
from outrider.http.wire.sender import SocketSender
from outrider.metrics import Metrics
from outrider.pagecache import in_memory, read_in_memory

if TYPE_CHECKING:
    from outrider.http.record.server_spans import ServerSpans

_QUERIES_MAX = 1024
_HOSTS_MAX = 256
_GRANTED_MAX = 8192
# Pairs of a dataset and a reader whose hits are counted apart. When there are more, the counts are handed on, and a new
# table begins.
_TALLIES_MAX = 1024
# Sent before the loop serves other connections.
_BYTES_AT_ONCE = 1024 * 1024
# A read of at most this length comes back to the fast path once its pages are in memory. For a longer read the slow
# path adds little to the time of sending.
_PAGED_IN_BYTES = 1024 * 1024


_NOBODY = Who(None, None, payload_rule(()))

OnHit = Callable[[str, ObjectVersion, Extent], None]
"""Called with the reader (see `access.reader_name`), the version that it read, and which bytes of it."""


Answered = bool | Begun | PageCold | Recognised
"""True: the request was answered, and counted. `Begun`: the reply was sent in part. In all other cases nothing was
sent. False: the fast path knows nothing about the request."""


class FastPath:
    """One for each event loop. It counts and logs the requests that it answers by itself."""

    def __init__(
        self, hits: HitLookup, access: Access, note: OnHit, metrics: Metrics, access_log: AccessLog,
        *, domains: tuple[str, ...] = (), heads_bytes: int, spans: ServerSpans | None = None,
    ) -> None:  # fmt: skip
        """`note` is called with each read that was answered here, in the thread that answers. `heads_bytes`: how many
        bytes of reply heads are kept ready."""
        self._hits = hits
        self._access = access
        self._note = note
        self._metrics = metrics
        self._access_log = access_log
        self._spans = spans
        self._domains = domains
        # Bounded in bytes by `_looked_up`: the lookup of a bounded cache class would cost each hit more.
        self._subjects: OrderedDict[bytes, Subject] = OrderedDict()
        self._subjects_bytes = 0
        self._heads_bytes = heads_bytes
        self._copied = memoryview(bytearray(COPIED_BYTES))
        self._harmless_queries: Memo[bytes, bool] = Memo(_QUERIES_MAX)
        self._harmless_hosts: Memo[str, bool] = Memo(_HOSTS_MAX)
        # Access keys and names that a grant covers. Grants do not change while the process runs.
        self._granted: Memo[tuple[str, bytes], bool] = Memo(_GRANTED_MAX)
        # The last request that was classified, and its operation: also for the slow path.
        self._classified: tuple[PlainRequest | None, Operation | None] = (None, None)
        # The last request that the cache must not answer, because no grant covers it as a plain read or it is unsigned,
        # and its sender: for the slow path.
        self._not_granted: tuple[PlainRequest | None, Who | None] = (None, None)
        self._second = 0
        self._date = b""
        self._first_byte_s = {op: metrics.first_byte_s.labels(op) for op in ("get", "head")}
        self._served_from_disk = metrics.served_bytes.labels("disk")
        # Requests by method and status, and bytes from disk; then the part of both that `metrics` has. Another thread
        # may read the first two while they grow.
        self._answered: dict[tuple[str, int], int] = {}
        self._served_bytes = 0
        self._counted_answered: dict[tuple[str, int], int] = {}
        self._counted_bytes = 0
        # By dataset and reader. A table that was replaced is handed on once more.
        self._tallies: dict[DatasetName, dict[str, HitTally]] = {}
        self._tallied = 0
        self._old_tallies: deque[dict[DatasetName, dict[str, HitTally]]] = deque()
        metrics.before_read.append(self._hand_on_counts)

    def answer(self, data: bytes, wire: SocketSender, cold: PageCold | None = None) -> Answered:
        """Answer `data`, a whole request, now. `cold`: the result before its pages were read; they are not waited for
        again."""
        started = time.perf_counter() if cold is None else cold.started
        read = recognise(data)
        if read is None:
            return False
        name = read.path if not self._domains else b"%s %s" % (read.host.encode(), read.path)
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
            return self._not_in_memory(self._recognised(data, read, who), subject, extent, started, cold)
        try:
            brought = self._bring(extent, pieces)
            if brought is None:
                return self._not_in_memory(self._recognised(data, read, who), subject, extent, started, cold)
            return self._send(read, subject, wire, extent, brought, started, who)
        finally:
            for lease, *_ in pieces:
                lease.release()

    def _not_in_memory(
        self, recognised: bool | Recognised, subject: Subject, extent: Extent, started: float, cold: PageCold | None
    ) -> bool | PageCold | Recognised:
        if cold is not None or extent.length > _PAGED_IN_BYTES or not isinstance(recognised, Recognised):
            return recognised
        page_in = self._hits.page_in(subject.known, extent)
        return recognised if page_in is None else PageCold(page_in, started, recognised)

    def _recognised(self, data: bytes, read: PlainRequest, who: Who | None) -> bool | Recognised:
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
        if old is not None and old.known.version is known.version:
            old.known = known
            subject = old
        else:
            tallies = self._tallies.setdefault(self._metrics.usage.dataset_of(*operation.ref), {})
            subject = Subject(operation, known, subject_of(*operation.ref), len(name), tallies)
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

    def _admitted(self, read: PlainRequest, name: bytes, known: Who | None) -> Who | None:
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
        if self._granted.get(asks) or self._is_granted(read, known, asks):
            return known
        self._not_granted = read, known
        return None

    def _is_granted(self, read: PlainRequest, who: Who, asks: tuple[str, bytes]) -> bool:
        operation = self._operation(read)
        try:
            if operation is None:
                return False
            self._access.check(who, operation, None)
        except S3Error:
            return False
        self._granted.put(asks, True)
        return True

    def _operation(self, read: PlainRequest) -> Operation | None:
        """The plain GET of the object that `read` names; None: it is no plain read."""
        if self._classified[0] is not read:
            self._classified = read, _classified(read, self._domains)
        operation = self._classified[1]
        if operation is None or operation.kind not in (Kind.GET, Kind.HEAD):
            return None
        return replace(operation, kind=Kind.GET, method="GET", query=())

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
            if length > COPIED_BYTES or begins_with_a_page(pieces):
                for _, fd, offset, count in pieces:
                    if not in_memory(fd, offset, count):
                        return None
                return pieces
            copy, start = self._copied[:length], 0
            for _, fd, offset, count in pieces:
                if not read_in_memory(fd, offset, copy[start : start + count]):
                    return None
                start += count
        except OSError as error:
            return error
        return copy

    # -- the reply -----------------------------------------------------------------------------------------------

    def _send(
        self, read: PlainRequest, subject: Subject, wire: SocketSender, extent: Extent,
        brought: Brought, started: float, who: Who,
    ) -> bool | Begun:  # fmt: skip
        request_id = new_request_id()
        status = 200 if read.range is None else 206
        head = self._head(read, subject, extent, request_id)
        taken, sent, disk_failed = send_at_once(wire, head, brought, extent.length)
        seconds = time.perf_counter() - started
        self._first_byte_s[read.method.lower()].observe(seconds)
        version = subject.known.version
        client = who.client.name if who.client is not None else "-"
        reader = reader_name(who, wire.address, read.app)
        if taken < len(head) or sent < extent.length:
            rest = Extent(extent.start + sent, extent.stop)
            operation = replace(subject.operation, kind=Kind(read.method.lower()), method=read.method)
            return Begun(operation, version, head[taken:], rest, read.range, status, sent, request_id, started, client,
                         wire.address, read.app, reader, min(started - wire.ended, AWAY_S_MAX), disk_failed=disk_failed,
                         first_byte_s=seconds, since=subject.known.changes,
                         traced=read.trace_headers() if self._spans is not None else ())  # fmt: skip
        answered = (read.method, status)
        self._answered[answered] = self._answered.get(answered, 0) + 1
        self._served_bytes += sent
        try:
            tally = subject.tallies[reader]
        except KeyError:
            tally = self._new_tally(subject, reader)
        away_s = started - wire.ended
        tally.sent_bytes += sent
        tally.wait_s += seconds
        tally.away_s += away_s if away_s < AWAY_S_MAX else AWAY_S_MAX
        # Last, as `HitTally` requires: another thread may read the tally between any two of these lines.
        tally.requests += 1
        wire.ended = started + seconds
        if extent.length:
            self._note(reader, version, extent)
        self._access_log.hit(subject.log, seconds, read.method, status, sent, request_id, client, wire.address,
                             read.app, read.range)  # fmt: skip
        if self._spans is not None:
            span = self._spans.begin(read.method, read.trace_headers(), started, current=False)
            if span.is_recording():
                end = Ended(request_id, read.method.lower(), read.method, subject.operation, read.range, client,
                            wire.address, status, "HIT", Counter(disk=sent), started, None, reader,
                            app=read.app, first_byte_s=seconds)  # fmt: skip
                self._spans.ended(end, span)
        return True

    def _head(self, read: PlainRequest, subject: Subject, extent: Extent, request_id: str) -> bytes:
        now = time.time()
        if int(now) != self._second:
            self._second = int(now)
            self._date = b"date: %s\r\n\r\n" % formatdate(now, usegmt=True).encode()
        ident = b"x-amz-request-id: %s\r\n" % request_id.encode()
        if read.range is None:
            head = subject.whole_with_checksums if read.checksums else subject.whole
            return head + ident + self._date
        if not subject.part:
            subject.prepare_part()
        size = subject.known.version.size
        return b"%scontent-range: bytes %d-%d/%d\r\ncontent-length: %d\r\n%s%s" % (
            subject.part, extent.start, extent.stop - 1, size, extent.stop - extent.start, ident, self._date,
        )  # fmt: skip

    def _new_tally(self, subject: Subject, reader: str) -> HitTally:
        if self._tallied >= _TALLIES_MAX:
            self._old_tallies.append(self._tallies)
            self._tallies, self._tallied = {}, 0
            self._subjects.clear()  # they hold the old tallies
            self._subjects_bytes = 0
            subject.tallies = self._tallies.setdefault(self._metrics.usage.dataset_of(*subject.operation.ref), {})
        self._tallied += 1
        tally = subject.tallies[reader] = HitTally()
        return tally

    def _hand_on_counts(self) -> None:
        for kind, number in list(self._answered.items()):
            more = number - self._counted_answered.get(kind, 0)
            if more:
                method, status = kind
                self._metrics.requests.labels(method.lower(), str(status), "HIT").inc(more)
                self._counted_answered[kind] = number
        served = self._served_bytes
        self._served_from_disk.inc(served - self._counted_bytes)
        self._counted_bytes = served
        self._hand_on_usage(self._tallies)
        while self._old_tallies:
            self._hand_on_usage(self._old_tallies.popleft())

    def _hand_on_usage(self, tallies: dict[DatasetName, dict[str, HitTally]]) -> None:
        for dataset, readers in list(tallies.items()):
            for reader, tally in list(readers.items()):
                if tally.requests != tally.reported.requests:
                    self._metrics.usage.served(reader, dataset, tally.take_unreported())


def _classified(read: PlainRequest, domains: tuple[str, ...]) -> Operation | None:
    """None: the request is refused; the slow path says why."""
    target = b"%s?%s" % (read.path, read.query) if read.query else read.path
    try:
        return operations.classify(read.method, target.decode("ascii"), read.headers(), domains)
    except S3Error:
        return None
