"""One request to the S3 port and the facts that its reply, its log line and its metrics need."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiohttp import hdrs
from aiohttp.web_request import BaseRequest

from outrider.core.auth.verification import SignedRequest
from outrider.core.model import Headers, ObjectRef
from outrider.core.s3 import operation as operations
from outrider.core.s3.operation import Operation, OperationKind
from outrider.engine.read.object_read import CacheStatus
from outrider.http.access import Access, Principal
from outrider.http.record.access_log import new_request_id
from outrider.http.record.record import BatchCounts, Ended, Sent
from outrider.http.s3.slow_path_handoff import Begun, Recognised
from outrider.http.wire.sender import WireSender
from outrider.metrics import method_label

if TYPE_CHECKING:
    from opentelemetry.trace import Span


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
