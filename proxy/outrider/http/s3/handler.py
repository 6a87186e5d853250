"""The slow path of the S3 port: each request is understood, authorised, and answered from the cache, by the control
bucket or from the origin."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from aiohttp.http import HttpVersion11
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.errors import (
    AccessDenied,
    BadRequest,
    IncompleteBody,
    InternalError,
    InvalidRange,
    InvalidRequest,
    PreconditionFailed,
    RequestTimeout,
    S3Error,
    SlowDown,
)
from outrider.core.insight.usage import AWAY_S_MAX
from outrider.core.model import Extent, Headers, ObjectRef, ObjectVersion
from outrider.core.s3 import operation as operations
from outrider.core.s3 import xml
from outrider.core.s3.form_fields import is_form
from outrider.core.s3.headers import app_of, known, passed_down, wants_checksums
from outrider.core.s3.operation import ForgetScope, Operation, OperationKind
from outrider.engine.ahead.prefetch import Prefetch
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.listing.lists import Lists
from outrider.engine.read.body_pieces import Body
from outrider.engine.read.object_read import ObjectReads, ReadAnswer
from outrider.engine.read.version_answers import NotCacheable
from outrider.engine.write.form_upload import incoming_form
from outrider.engine.write.passthrough import ForwardAnswer, Passthrough
from outrider.engine.write.upload import Upload, one_chunk, upload_of, whole_body
from outrider.http.access import Access, Principal, reader_name
from outrider.http.control.control_bucket import ControlBucket, is_batch
from outrider.http.control.objects import ControlRequest
from outrider.http.record.access_log import AccessLog
from outrider.http.record.record import Sent
from outrider.http.record.request_end import RequestRecorder
from outrider.http.s3.exchange import Begun, Caller, Exchange
from outrider.http.wire.body_socket import BodyConnection, BodySocket
from outrider.http.wire.reply import OnEnd, Rest, WireReply
from outrider.http.wire.request_body import client_body, send_continue
from outrider.http.wire.request_guards import well_framed
from outrider.http.wire.sender import WireSender
from outrider.metrics import Metrics

if TYPE_CHECKING:
    from outrider.http.record.server_spans import ServerSpans

log = logging.getLogger(__name__)

# The memory of an upload under way: the parser's buffers (see `server`) and the piece that is being sent.
_UPLOAD_BYTES = 512 * 1024
# The end of a CONNECT's tunnel would not be seen here. A TRACE's echo would show the proxy's own signature.
_NOT_PASSED_ON = ("CONNECT", "TRACE")


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of the engine that requests are answered by. `warm`: fetch this object in the background."""

    reads: ObjectReads
    lists: Lists
    passthrough: Passthrough
    prefetch: Prefetch
    warm: Callable[[ObjectRef], None]


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """`domains`: the names of the port for virtual-host style requests. `requests_max`: how many requests may be under
    way. `client_timeout_s`: how long a client may send nothing of a body."""

    domains: tuple[str, ...]
    requests_max: int
    client_timeout_s: float


class S3Handler:
    """Called on the engine's loop."""

    def __init__(
        self, services: Services, access: Access, control: ControlBucket, metrics: Metrics, memory: MemoryBudget,
        settings: HandlerSettings, spans: ServerSpans | None = None,
    ) -> None:  # fmt: skip
        """`spans` None: traces are off."""
        self.access_log = AccessLog()
        self._recorder = RequestRecorder(metrics, self.access_log, spans)
        self._spans = spans
        self._services = services
        self._access = access
        self._control = control
        self._metrics = metrics
        self._memory = memory
        self._domains = settings.domains
        self._requests_max = settings.requests_max
        self._client_timeout_s = settings.client_timeout_s

    @property
    def in_flight(self) -> int:
        """How many requests are under way."""
        return self._recorder.in_flight

    @property
    def are_full(self) -> bool:
        """As many requests are under way as the settings allow: the next one is refused."""
        return self._recorder.in_flight >= self._requests_max

    async def idle(self) -> None:
        """Returns once no request is under way."""
        await self._recorder.idle()

    async def handle(self, request: BaseRequest) -> StreamResponse:
        """Called by aiohttp with each request that its parser accepted."""
        caller = cast(Caller, request.protocol)
        caller.only_reads = request.method in ("GET", "HEAD") and not request.body_exists
        exchange = self._begin(request, caller)
        if caller.begun is not None:
            begun, caller.begun = caller.begun, None
            return self._resumed(exchange, begun)
        try:
            if exchange.recognised is None and not request.body_exists:
                # RFC 9110 section 10.1.1 asks for none of this. But botocore sends Expect without a body, and an old
                # one (in awscli 1.46.2) takes a final answer without a 100 before it for an early answer: it keeps the
                # status line for the next answer on the connection, and hangs there.
                await send_continue(request, exchange.wire)
            if caller.is_one_too_many or self._recorder.in_flight > self._requests_max:
                raise SlowDown(headers=(("retry-after", "1"),))
            return await self._answer(exchange)
        except S3Error as error:
            return self._refuse(exchange, error)
        except OriginRefused as refused:
            # The refusal of a HEAD has no body, but states how long the refusal of a GET would be.
            length = dict(refused.headers).get("content-length", "") if request.method == "HEAD" else ""
            body, length_bytes = (None, int(length)) if length.isdecimal() else (refused.body, None)
            return self._reply(exchange, refused.status, passed_down(refused.headers), body, length_bytes)
        except ConnectionError:
            self._ended(exchange, None, Sent(), "client left")
            raise
        except asyncio.CancelledError:
            # A write goes on when its client leaves, and only a stop ends it.
            left = caller.only_reads and exchange.wire.is_lost
            self._ended(exchange, None, Sent(), "client left" if left else "stopped")
            raise
        except Exception:
            log.exception("request failed", extra={"request": exchange.id})
            return self._refuse(exchange, InternalError())

    def refuse_unparsed(self, request: BaseRequest, wire: WireSender, why: str) -> WireReply:
        """The reply to bytes that aiohttp's parser refused. `why`: a phrase; empty: not known."""
        exchange = Exchange(request, wire, ())
        self._recorder.began()
        error = BadRequest(f"The request is not valid HTTP: {why}." if why else None)
        return _error_reply(exchange, error, "", close=True, on_end=partial(self._ended, exchange))

    def _begin(self, request: BaseRequest, caller: Caller) -> Exchange:
        headers = tuple([
            (name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape").strip())
            for name, value in request.raw_headers
        ])  # fmt: skip
        wire = caller.wire
        exchange = Exchange(request, wire, headers, full_s=wire.full_s)
        exchange.away_s = min(max(0.0, exchange.started - wire.ended), AWAY_S_MAX)
        self._recorder.began()
        if self._spans is not None:
            started = exchange.started if caller.begun is None else caller.begun.started
            exchange.span = self._spans.begin(request.method, headers, started, current=True)
        recognised, caller.recognised = caller.recognised, None
        if recognised is not None and recognised.is_about(request):
            exchange.recognised = recognised
        return exchange

    async def _answer(self, exchange: Exchange) -> WireReply:
        request = exchange.request
        if exchange.recognised is None:
            self._check(exchange)
        named = dict(exchange.headers)
        target, host = request.raw_path, named.get("host", "")
        exchange.app = app_of(named.get("user-agent", ""))
        if (control := operations.control_request_of(request.method, target, host, self._domains)) is not None:
            return await self._answer_control(exchange, control)
        operation = exchange.classified(self._domains)
        if operation.method == "POST" and is_form(operation, exchange.headers):
            return await self._post_form(exchange, operation)
        if request.method == "OPTIONS":
            exchange.operation, exchange.headers = operations.preflight_of(operation, exchange.headers)
            return await self._send_up(exchange, exchange.operation, Upload(), None, None)
        who = exchange.identified(self._access, operations.bucket_of_host(host, self._domains))
        exchange.operation = operation
        if not self._access.is_open:
            exchange.headers = known(exchange.headers)
        if operation.forgets is ForgetScope.KEYS_IN_BODY:
            return await self._delete_objects(exchange, operation, who)
        self._access.check(who, operation, None)
        if who.is_anonymous:
            # Only the origin knows whether everybody may have this: not from the cache, and not with our credentials.
            exchange.operation = replace(operation, kind=OperationKind.FORWARD)
            return await self._forward(exchange, exchange.operation, who)
        if operation.kind is OperationKind.FORWARD:
            if operations.is_warming_head(operation, exchange.headers):
                self._services.warm(operation.ref)
            return await self._forward(exchange, operation, who)
        return await self._read(exchange, operation, who)

    def _check(self, exchange: Exchange) -> None:
        """Raises S3Error: its framing is ambiguous, its method unknown, or a web page sent it."""
        exchange.headers = well_framed(exchange.headers, exchange.request.version)
        if exchange.request.method in _NOT_PASSED_ON:
            raise BadRequest("S3 knows no such method.")
        self._access.check_sender(exchange.headers)

    async def _read(self, exchange: Exchange, operation: Operation, who: Principal) -> WireReply:
        exchange.requester = reader_name(who, exchange.wire.address, exchange.app)
        self._recorder.reading(exchange)
        headers = dict(exchange.headers)
        try:
            if operation.kind is OperationKind.HEAD:
                return self._answered(exchange, await self._services.reads.head(operation.ref, headers))
            on_requested = partial(self._on_requested, exchange, headers)
            return self._answered(exchange, await self._services.reads.get(operation.ref, headers, on_requested))
        except (NotCacheable, InvalidRange, PreconditionFailed):
            # The origin gives the refusal, in its own words: it may know of a newer version, and stores differ in
            # their readings of a Range past the end.
            return await self._forward(exchange, operation, who)

    async def _answer_control(self, exchange: Exchange, operation: Operation) -> WireReply:
        """A request to the control bucket: the origin never sees it."""
        who = exchange.identified(self._access, None)
        exchange.operation = operation
        if who.is_anonymous:
            raise AccessDenied("The control bucket takes signed requests alone.")

        async def read_body(limit: int) -> bytes:
            request = exchange.request
            body, length = client_body(request, exchange.wire, self._client_timeout_s), request.content_length
            with self._memory.held(_bytes_at_most(length, limit)):
                return (await whole_body(exchange.headers, who.payload, who.identity, body, length, limit=limit))[0]

        client = reader_name(who, exchange.wire.address, exchange.app)
        if is_batch(operation):
            if exchange.request.version < HttpVersion11:
                raise InvalidRequest("A batch is sent in chunks: use HTTP/1.1.")
            # It changes nothing, so it ends when the client leaves.
            cast(Caller, exchange.request.protocol).only_reads = True
            exchange.requester = client
        answer = await self._control.answer(ControlRequest(operation, exchange.headers, who, client, read_body))
        if answer.batch is not None:
            exchange.batch = answer.batch.counts
            self._recorder.reading(exchange)
            await answer.batch.begin()
        return self._reply(exchange, answer.status, answer.headers, answer.batch or answer.body, None)

    def _on_requested(
        self, exchange: Exchange, headers: dict[str, str], version: ObjectVersion, extent: Extent
    ) -> None:  # fmt: skip
        assert exchange.requester is not None
        exchange.reader = exchange.requester
        self._services.prefetch.requested(exchange.reader, version, extent, checksums=wants_checksums(headers))

    # -- replies ---------------------------------------------------------------------------------------------------

    def _answered(self, exchange: Exchange, answer: ReadAnswer | ForwardAnswer) -> WireReply:
        exchange.cache = answer.cache
        reply = self._reply(exchange, answer.status, answer.headers, answer.body, answer.length)
        return reply if isinstance(answer, ReadAnswer) else reply.of_source(answer.source)

    def _reply(
        self, exchange: Exchange, status: int, headers: Headers, body: bytes | Body | None, length: int | None
    ) -> WireReply:
        """The head is certain now: this is the time to the first byte."""
        if "x-amz-request-id" not in dict(headers):
            headers = (*headers, ("x-amz-request-id", exchange.id))
        headers = (*headers, ("x-cache", exchange.cache.value))
        exchange.first_byte_s = time.perf_counter() - exchange.started
        self._metrics.first_byte_s.labels(exchange.op).observe(exchange.first_byte_s)
        return WireReply(status, headers, wire=exchange.wire, body=body, length=length, close=exchange.is_last,
                     on_end=partial(self._ended, exchange), is_in_chunks=exchange.batch is not None)  # fmt: skip

    def _refuse(self, exchange: Exchange, error: S3Error) -> WireReply:
        request = exchange.request
        unread = request.body_exists and not request.content.is_eof()
        close = unread or exchange.is_last or isinstance(error, BadRequest | IncompleteBody | RequestTimeout)
        close = close or cast(Caller, request.protocol).is_one_too_many
        return _error_reply(exchange, error, request.raw_path.partition("?")[0], close=close,
                            on_end=partial(self._ended, exchange))  # fmt: skip

    def _ended(self, exchange: Exchange, status: int | None, sent: Sent, cut: str | None) -> None:
        if exchange.reader is not None and exchange.operation is not None:
            self._services.prefetch.sent(exchange.reader, exchange.operation.ref)
        exchange.wire.ended = time.perf_counter()
        self._recorder.ended(exchange.ended(status, sent, cut), exchange.span)

    # -- to the origin ---------------------------------------------------------------------------------------------

    async def _forward(self, exchange: Exchange, operation: Operation, who: Principal) -> WireReply:
        has_body = exchange.request.body_exists
        # An empty body is a body as well: a signature over another body must not store an empty object.
        if not has_body and operation.method in operations.SAFE_METHODS:
            return await self._send_up(exchange, operation, Upload(), None, who)
        with self._memory.held(_UPLOAD_BYTES):
            length = exchange.request.content_length if has_body else 0
            body = client_body(exchange.request, exchange.wire, self._client_timeout_s)
            on_socket = BodySocket(
                exchange.request, cast(BodyConnection, exchange.request.protocol), self._client_timeout_s
            )
            upload = upload_of(exchange.headers, who.payload, who.identity, body, length, on_socket)
            return await self._send_up(exchange, operation, upload, None, who)

    async def _send_up(
        self, exchange: Exchange, operation: Operation, upload: Upload, deleted_keys: list[str] | None,
        who: Principal | None,
    ) -> WireReply:  # fmt: skip
        """`who` None: a preflight, which the proxy signs for any sender."""
        unsigned = who is not None and who.is_anonymous
        answer = None if unsigned else await self._services.lists.answer(operation, exchange.headers, upload)
        if answer is None:
            answer = await self._services.passthrough.send(
                operation, exchange.headers, upload, deleted_keys, unsigned=unsigned
            )  # fmt: skip
        return self._answered(exchange, answer)

    async def _delete_objects(self, exchange: Exchange, operation: Operation, who: Principal) -> WireReply:
        """DeleteObjects: the keys stand in the body, which is read first for the grants and for the version cache."""
        length, limit = exchange.request.content_length, xml.DELETE_BODY_BYTES_MAX
        with self._memory.held(_bytes_at_most(length, limit)):
            incoming = client_body(exchange.request, exchange.wire, self._client_timeout_s)
            body, trailers = await whole_body(
                exchange.headers, who.payload, who.identity, incoming, length, limit=limit
            )
            keys = xml.keys_to_delete(body)
            self._access.check(who, operation, keys)
            upload = Upload(one_chunk(body), len(body), headers=trailers) if body else Upload()
            return await self._send_up(exchange, operation, upload, keys, who)

    async def _post_form(self, exchange: Exchange, operation: Operation) -> WireReply:
        """An upload by form: its signer and its key stand in the body, which is read up to the file."""
        exchange.operation = operation
        assert operation.bucket is not None
        kind = dict(exchange.headers)["content-type"]
        with self._memory.held(_UPLOAD_BYTES):
            body = client_body(exchange.request, exchange.wire, self._client_timeout_s)
            incoming = await incoming_form(kind, body, exchange.request.content_length)
            who, sizes = self._access.identify_form(incoming.form, operation.bucket, exchange.headers)
            if not self._access.is_open:
                exchange.headers = known(exchange.headers)
            exchange.client = who.client.name if who.client else "-"
            fields = (name.lower() for name, _ in incoming.form.fields)
            operation = exchange.operation = operations.of_form(operation, incoming.form.key, fields)
            self._access.check(who, operation, None)
            return await self._send_up(exchange, operation, incoming.upload(sizes), None, who)

    # -- begun by the fast path ------------------------------------------------------------------------------------

    def _resumed(self, exchange: Exchange, begun: Begun) -> WireReply:
        """The rest of a reply that the socket did not take at once."""
        exchange.resume(begun)
        self._recorder.reading(exchange)
        try:
            if begun.disk_failed:
                self._services.reads.doubt(begun.version, begun.rest.start)
            if begun.extent.length:
                self._services.prefetch.requested(begun.reader, begun.version, begun.extent, checksums=False)
            body = self._services.reads.resume(begun.version, begun.rest, begun.since) if begun.rest.length else None
        except Exception as error:
            # A part of the reply may be out: its client would take an error reply for more of the body.
            log.exception("reply failed", extra={"request": exchange.id})
            self._ended(exchange, begun.status, Counter(disk=begun.sent), "our own error")
            raise ConnectionResetError from error
        return WireReply(begun.status, (), wire=exchange.wire, body=body, length=begun.rest.length,
                         on_end=partial(self._ended, exchange),
                         rest=Rest(begun.head, Counter(disk=begun.sent)))  # fmt: skip


def _bytes_at_most(length: int | None, limit: int) -> int:
    """How long a body of `length` bytes (None: unknown) may get before it is refused."""
    return limit if length is None else min(length, limit)


def _error_reply(exchange: Exchange, error: S3Error, resource: str, *, close: bool, on_end: OnEnd) -> WireReply:
    body = xml.error_xml(error, resource=resource, request_id=exchange.id)
    headers = (
        ("content-type", "application/xml"), ("x-amz-request-id", exchange.id), *error.headers,
        ("x-cache", exchange.cache.value),
    )  # fmt: skip
    return WireReply(error.status, headers, wire=exchange.wire, body=body, close=close, on_end=on_end)
