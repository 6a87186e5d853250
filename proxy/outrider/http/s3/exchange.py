"""One request to the S3 port: the facts that its reply, its log line and its metrics need, and what the fast path hands
on of it. That is a reply that it could not finish, one that has to wait for the disk, or all that it found out about a
request that it could not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import hdrs
from aiohttp.http import HttpVersion11
from aiohttp.web_request import BaseRequest

from outrider.core.auth.verification import SignedRequest
from outrider.core.model import Extent, Headers, ObjectRef, ObjectVersion
from outrider.core.s3 import operation as operations
from outrider.core.s3.operation import Operation, OperationKind
from outrider.engine.read.object_read import CacheStatus
from outrider.http.access import Access, Principal
from outrider.http.record.access_log import new_request_id
from outrider.http.record.record import BatchCounts, Ended, Sent
from outrider.http.wire.sender import WireSender
from outrider.metrics import method_label

if TYPE_CHECKING:
    from opentelemetry.trace import Span

# A disk that needs longer to bring pages is slow in any case: the slow path has time limits and error replies for it.
DISK_WAIT_S = 1.0


@dataclass(slots=True)
class Begun:
    """A reply whose socket was full: `head` has still to be sent, then the bytes of `rest`."""

    operation: Operation
    version: ObjectVersion
    head: bytes
    rest: Extent
    status: int
    sent: int
    request_id: str
    started: float
    client: str
    app: str
    reader: str
    away_s: float = 0.0
    """For how long the connection had been idle before this request."""
    disk_failed: bool = False
    """The first bytes of `rest` could not be read."""
    first_byte_s: float | None = None
    since: int = 0
    """The number of changes of the version cache when the version was looked up."""

    @property
    def extent(self) -> Extent:
        """All bytes that the request asked for."""
        return Extent(self.rest.start - self.sent, self.rest.stop)


@dataclass(frozen=True, slots=True)
class Recognised:
    """A request that the fast path understood but could not answer; its signature, where one is needed, was good. No
    web page sent it. It has the headers of a plain read alone, each once, so that its framing is clear.

    All of it follows from `head`, the whole request as it came, and holds for these bytes alone. Grants are not part of
    it: the slow path checks them for every request.
    """

    head: bytes
    who: Principal
    operation: Operation | None
    """None: the fast path did not need to classify it, or could not."""

    def is_about(self, request: BaseRequest) -> bool:
        """Whether `request` was parsed from exactly the bytes of `head`."""
        if request.version != HttpVersion11:
            return False
        lines = [f"{request.method} {request.raw_path} HTTP/1.1".encode("utf-8", "surrogateescape")]
        lines.extend([b"%b: %b" % pair for pair in request.raw_headers])
        return b"\r\n".join([*lines, b"", b""]) == self.head


@dataclass(slots=True)
class ColdHit:
    """A hit whose pages are not in memory, or whose block was not verified since the start; nothing was sent yet. After
    `page_in`, in a thread that may wait, or after `prepare` the fast path may be asked again. Both are None: now."""

    page_in: Callable[[], None] | None
    prepare: Callable[[], Coroutine[Any, Any, None]] | None
    started: float
    recognised: Recognised

    @property
    def is_ready(self) -> bool:
        return self.page_in is None and self.prepare is None


class Caller(Protocol):
    """A client's connection as the request handler sees it. A Protocol, as `connection` imports the handler."""

    begun: Begun | None
    """A reply that the fast path began to the request that is handled next."""
    recognised: Recognised | None
    """The fast path's knowledge of the request that is handled next, if that `is_about` it."""
    only_reads: bool
    """The request under way changes nothing, so it ends when the client leaves."""
    is_one_too_many: bool
    """There are as many connections as allowed without this one: its first request is refused, and it is closed."""

    @property
    def wire(self) -> WireSender: ...


@dataclass(slots=True)
class Exchange:
    """A request under way, from its head to the last byte of its reply."""

    request: BaseRequest
    wire: WireSender
    headers: Headers
    id: str = field(default_factory=new_request_id)
    started: float = field(default_factory=time.perf_counter)
    operation: Operation | None = None
    client: str = "-"
    """The name of the client key that signed the request."""
    app: str = ""
    """See `headers.app_of`."""
    requester: str | None = None
    """The reader that asks for an object (see `access.reader_name`); None: no object is read, or that is not known
    yet."""
    reader: str | None = None
    """`requester`, once the object was found."""
    away_s: float = 0.0
    full_s: float = 0.0
    """See `Ended`; of `full_s`, the part that the connection had seen before this request."""
    cache: CacheStatus = CacheStatus.BYPASS
    first_byte_s: float | None = None
    span: Span | None = None
    batch: BatchCounts | None = None
    """The objects that a batch has read."""
    recognised: Recognised | None = None
    """The fast path's knowledge of this very request; None: it has none."""

    @property
    def is_last(self) -> bool:
        """The connection ends with this request. aiohttp 3.14 loses the bytes of a packet that follow an Upgrade which
        nobody takes up, so the rest of a request behind it would be read as another request."""
        return hdrs.UPGRADE in self.request.headers

    @property
    def ref(self) -> ObjectRef | None:
        """The object that is read, or the first one of a batch."""
        if self.batch is not None:
            return self.batch.first
        operation = self.operation
        if operation is None or not operation.bucket or not operation.key:
            return None
        return ObjectRef(operation.bucket, operation.key)

    @property
    def is_hit(self) -> bool:
        return self.cache is CacheStatus.HIT

    @property
    def is_full(self) -> bool:
        return self.wire.full_since is not None

    @property
    def full_now_s(self) -> float:
        """As `full_s` of `Ended`, while the request is under way."""
        since = self.wire.full_since
        return self.wire.full_s - self.full_s + (0.0 if since is None else time.perf_counter() - since)

    @property
    def op(self) -> str:
        """A metric's label; a method that a client made up must not become one."""
        if self.operation is None:
            return "bad"
        if self.operation.kind is not OperationKind.FORWARD:
            return str(self.operation.kind.value)
        return f"forward {method_label(self.operation.method)}"

    def identified(self, access: Access, bucket_of_host: str | None) -> Principal:
        """The sender of the request. The signature is verified here unless the fast path has done so.

        Raises S3Error: the signature is missing or wrong.
        """
        if self.recognised is not None:
            who = self.recognised.who
        else:
            path, _, query = self.request.raw_path.partition("?")
            who = access.identify(SignedRequest(self.request.method, path, query, self.headers), bucket_of_host)
        self.client = who.client.name if who.client else "-"
        return who

    def classified(self, domains: Sequence[str]) -> Operation:
        """The meaning of the request. It is classified here unless the fast path has done so.

        Raises S3Error: see `operation.classify`.
        """
        if self.recognised is not None and self.recognised.operation is not None:
            return self.recognised.operation
        return operations.classify(self.request.method, self.request.raw_path, self.headers, domains)

    def resume(self, begun: Begun) -> None:
        """Take over the facts of a reply that the fast path began."""
        self.operation, self.cache = begun.operation, CacheStatus.HIT
        self.id, self.started, self.client, self.app = begun.request_id, begun.started, begun.client, begun.app
        self.reader = self.requester = begun.reader
        self.away_s, self.first_byte_s = begun.away_s, begun.first_byte_s

    def ended(self, status: int | None, sent: Sent, cut: str | None) -> Ended:
        """The record of this exchange; see `Ended` for the arguments."""
        if self.batch is not None:
            sent = self.batch.sent
        return Ended(
            request_id=self.id, op=self.op, method=self.request.method, operation=self.operation,
            requested_range=dict(self.headers).get("range"), client=self.client, address=self.wire.address,
            status=status, cache=self.cache.value, sent=sent, started=self.started, cut=cut, reader=self.requester,
            away_s=self.away_s, full_s=self.wire.full_s - self.full_s, app=self.app, first_byte_s=self.first_byte_s,
            batch=self.batch,
        )  # fmt: skip
