"""The requests of the S3 port: each is understood, let in or not, and answered from the cache or from the origin."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from aiohttp import hdrs
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from outrider.core.auth.sigv4 import SignedRequest
from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.errors import (
    BadRequest,
    IncompleteBody,
    InternalError,
    InvalidRange,
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
from outrider.core.s3.headers import asks_checksums, passed_down
from outrider.core.s3.operation import Forgets, Kind, Operation
from outrider.core.s3.user_agent import app_of
from outrider.engine.ahead.prefetch import Prefetch
from outrider.engine.fill.origin_reader import OriginRefused
from outrider.engine.listing.lists import Lists
from outrider.engine.read.body import Body
from outrider.engine.read.object_read import CacheStatus, ObjectReads, OnAsked, ReadAnswer
from outrider.engine.read.version_lookup import NotCacheable
from outrider.engine.write.form_upload import incoming_form
from outrider.engine.write.passthrough import Passthrough
from outrider.engine.write.upload import Upload, upload_of, whole_body
from outrider.http.access import Access, Who, reader_name
from outrider.http.control.control_bucket import ControlBucket
from outrider.http.control.objects import Asked as ControlAsked
from outrider.http.record.access_log import AccessLog, new_request_id
from outrider.http.record.record import Ended, Sent
from outrider.http.record.request_end import RequestRecorder
from outrider.http.s3.handoff import Begun, Caller
from outrider.http.wire.reply import OnEnd, Reply
from outrider.http.wire.request_body import client_body, send_leave
from outrider.http.wire.sender import Sender
from outrider.http.wire.smuggling_guard import well_framed
from outrider.metrics import Metrics, method_label

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from outrider.http.record.server_spans import ServerSpans

log = logging.getLogger(__name__)

# With what the parser holds of it (see `server`) and the piece in hand, an upload under way.
_UPLOAD_BYTES = 512 * 1024
# A tunnel would have no end that is seen here; an echo would show what went up with our signature.
_NOT_PASSED_ON = ("CONNECT", "TRACE")


@dataclass(slots=True)
class _Asked:
    """One request on its way, and what its log line will say."""

    request: BaseRequest
    wire: Sender
    headers: Headers
    id: str = field(default_factory=new_request_id)
    started: float = field(default_factory=time.perf_counter)
    operation: Operation | None = None
    client: str = "-"
    app: str = ""
    """See `useragent.app_of`."""
    who: str | None = None
    """Who asks to read (see `access.reader_name`); None: nobody does, or it is not known yet."""
    away_s: float = 0.0
    full_s: float = 0.0
    """See `Ended`; of `full_s`, what the connection had seen before."""
    reader: str | None = None
    """Who reads, once it is known that and what (see `access.reader_name`)."""
    cache: CacheStatus = CacheStatus.BYPASS
    first_byte_s: float | None = None
    span: Span | None = None

    @property
    def is_last(self) -> bool:
        """On its connection. aiohttp 3.14 loses what came in one packet behind an Upgrade that nobody takes up: the
        rest of it would be read as another request."""
        return hdrs.UPGRADE in self.request.headers

    @property
    def op(self) -> str:
        """A metric's label: a client's own words, a made-up method among them, have no place in it."""
        if self.operation is None:
            return "bad"
        if self.operation.kind is not Kind.FORWARD:
            return str(self.operation.kind.value)
        return f"forward {method_label(self.operation.method)}"


class S3Handler:
    """Called on the engine's loop."""

    def __init__(
        self, reads: ObjectReads, lists: Lists, passthrough: Passthrough, prefetch: Prefetch, access: Access,
        control: ControlBucket, metrics: Metrics, memory: MemoryBudget, warm: Callable[[ObjectRef], None], *,
        domains: tuple[str, ...] = (), most: int, client_timeout_s: float, spans: ServerSpans | None = None,
    ) -> None:  # fmt: skip
        """`warm`: bring an object, some time soon. `most`: how many may be under way. `spans` None: there are no
        traces."""
        self.access_log = AccessLog()
        self._recorder = RequestRecorder(metrics, self.access_log, spans)
        self._spans = spans
        self._reads = reads
        self._lists = lists
        self._passthrough = passthrough
        self._prefetch = prefetch
        self._access = access
        self._control = control
        self._warm = warm
        self._metrics = metrics
        self._memory = memory
        self._domains = domains
        self._most = most
        self._client_timeout_s = client_timeout_s

    @property
    def in_flight(self) -> int:
        return self._recorder.in_flight

    @property
    def are_full(self) -> bool:
        """As many are under way as may be: the next is refused."""
        return self._recorder.in_flight >= self._most

    async def idle(self) -> None:
        """Returns once none is under way."""
        await self._recorder.idle()

    async def handle(self, request: BaseRequest) -> StreamResponse:
        caller = cast(Caller, request.protocol)
        headers = tuple(
            (name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape").strip())
            for name, value in request.raw_headers
        )
        wire = caller.wire
        asked = _Asked(request, wire, headers, full_s=wire.full_s)
        asked.away_s = min(max(0.0, asked.started - wire.ended), AWAY_S_MAX)
        self._recorder.began()
        begun = caller.begun
        if self._spans is not None:
            started = asked.started if begun is None else begun.started
            asked.span = self._spans.begin(request.method, headers, started, current=True)
        if begun is not None:
            caller.begun = None
            return self._resumed(asked, begun)
        try:
            if not request.body_exists:
                # RFC 9110 section 10.1.1 asks for none of this. But botocore expects with nothing to send; an old one
                # (in awscli 1.46.2) takes a final answer without a 100 before it for an early one, keeps
                # its status line for the next answer on the connection, and hangs there.
                await send_leave(request, wire)
            if caller.is_one_too_many or self._recorder.in_flight > self._most:
                raise SlowDown(headers=(("retry-after", "1"),))
            return await self._answer(asked)
        except S3Error as error:
            return self._refuse(asked, error)
        except OriginRefused as refused:
            # A HEAD's refusal has no body, but tells how long the one to a GET would be.
            length = dict(refused.headers).get("content-length", "") if request.method == "HEAD" else ""
            body, length_bytes = (None, int(length)) if length.isdecimal() else (refused.body, None)
            return self._reply(asked, refused.status, passed_down(refused.headers), body, length_bytes)
        except ConnectionError:
            self._ended(asked, None, Sent(), "client left")
            raise
        except asyncio.CancelledError:
            self._ended(asked, None, Sent(), "stopped")
            raise
        except Exception:
            log.exception("request failed", extra={"request": asked.id})
            return self._refuse(asked, InternalError())

    def refuse_unparsed(self, request: BaseRequest, wire: Sender) -> Reply:
        asked = _Asked(request, wire, ())
        self._recorder.began()
        return _error_reply(asked, BadRequest(), "", close=True, on_end=self._on_end(asked))

    async def _answer(self, asked: _Asked) -> Reply:
        request = asked.request
        asked.headers = well_framed(asked.headers, request.version)
        if request.method in _NOT_PASSED_ON:
            raise BadRequest("S3 knows no such method.")
        self._access.check_sender(asked.headers)
        target = request.raw_path
        path, _, query = target.partition("?")
        host, asked.app = _first(asked.headers, "host"), app_of(_first(asked.headers, "user-agent"))
        if (control := operations.control_request_of(request.method, target, host, self._domains)) is not None:
            return await self._answer_control(asked, control, SignedRequest(request.method, path, query, asked.headers))
        operation = operations.classify(request.method, target, asked.headers, self._domains)
        if is_form(operation, asked.headers):
            return await self._post_form(asked, operation)
        if operations.is_preflight(request.method, asked.headers):
            asked.operation, asked.headers = operations.preflight_alone(operation, asked.headers)
            return await self._send_up(asked, asked.operation, Upload(), None)
        signed = SignedRequest(request.method, path, query, asked.headers)
        who = self._access.identify(signed, operations.bucket_of_host(host, self._domains))
        asked.client = who.client.name if who.client else "-"
        asked.operation = operation
        if operation.forgets is Forgets.KEYS_IN_BODY:
            return await self._delete_objects(asked, operation, who)
        self._access.check(who, operation, None)
        if operation.kind is Kind.FORWARD:
            if operations.is_warming_head(operation, asked.headers):
                self._warm(operation.ref)
            return await self._forward(asked, operation, who)
        asked.who = reader_name(who, asked.wire.address, asked.app)
        plain = dict(asked.headers)
        try:
            if operation.kind is Kind.HEAD:
                return self._read_reply(asked, await self._reads.head(operation.ref, plain))
            return self._read_reply(asked, await self._reads.get(operation.ref, plain, self._on_asked(asked, plain)))
        except (NotCacheable, InvalidRange, PreconditionFailed):
            # A refusal is the origin's to give, in its own words: it may know of a newer version, and its readings of
            # a Range past the end differ from store to store.
            return await self._forward(asked, operation, who)

    async def _answer_control(self, asked: _Asked, operation: Operation, signed: SignedRequest) -> Reply:
        """For the proxy itself: the origin never hears of it."""
        who = self._access.identify(signed, None)
        asked.client = who.client.name if who.client else "-"
        asked.operation = operation

        async def read_body(limit: int) -> bytes:
            request = asked.request
            body, length = client_body(request, asked.wire, self._client_timeout_s), request.content_length
            with self._memory.held(_most(length, limit)):
                return (await whole_body(asked.headers, who.payload, who.identity, body, length, limit=limit))[0]

        client = reader_name(who, asked.wire.address, asked.app)
        answer = await self._control.answer(ControlAsked(operation, asked.headers, who, client, read_body))
        return self._reply(asked, answer.status, answer.headers, answer.body, None)

    def _on_asked(self, asked: _Asked, headers: dict[str, str]) -> OnAsked:
        reader = asked.who
        assert reader is not None

        def tell(version: ObjectVersion, extent: Extent) -> None:
            asked.reader = reader
            self._prefetch.asked(reader, version, extent, checksums=asks_checksums(headers))

        return tell

    def _resumed(self, asked: _Asked, begun: Begun) -> Reply:
        """What the fast lane began, and its socket did not take at once."""
        asked.operation, asked.cache = begun.operation, CacheStatus.HIT
        asked.id, asked.started, asked.client, asked.app = begun.request_id, begun.started, begun.client, begun.app
        self._begun_again(begun)
        asked.reader = asked.who = begun.reader
        asked.away_s, asked.first_byte_s = begun.away_s, begun.first_byte_s
        body = self._reads.resume(begun.version, begun.rest) if begun.rest.length else None
        return Reply(begun.status, (), wire=asked.wire, body=body, length=begun.rest.length, on_end=self._on_end(asked),
                     head=begun.head, sent=Counter(disk=begun.sent))  # fmt: skip

    def _read_reply(self, asked: _Asked, answer: ReadAnswer) -> Reply:
        asked.cache = answer.cache
        return self._reply(asked, answer.status, answer.headers, answer.body, answer.length)

    def _reply(
        self, asked: _Asked, status: int, headers: Headers, body: bytes | Body | None, length: int | None
    ) -> Reply:
        """The head is certain: this is the time to the first byte."""
        if not _has(headers, "x-amz-request-id"):
            headers = (*headers, ("x-amz-request-id", asked.id))
        headers = (*headers, ("x-cache", asked.cache.value))
        asked.first_byte_s = time.perf_counter() - asked.started
        self._metrics.first_byte_s.labels(asked.op).observe(asked.first_byte_s)
        return Reply(status, headers, wire=asked.wire, body=body, length=length, close=asked.is_last,
                     on_end=self._on_end(asked))  # fmt: skip

    async def _forward(self, asked: _Asked, operation: Operation, who: Who) -> Reply:
        has_body = asked.request.body_exists
        # No body is one as well: what was signed for another one must not store an empty object.
        if not has_body and operation.method in operations.SAFE_METHODS:
            return await self._send_up(asked, operation, Upload(), None)
        with self._memory.held(_UPLOAD_BYTES):
            length = asked.request.content_length if has_body else 0
            body = client_body(asked.request, asked.wire, self._client_timeout_s)
            upload = upload_of(asked.headers, who.payload, who.identity, body, length)
            return await self._send_up(asked, operation, upload, None)

    async def _send_up(
        self, asked: _Asked, operation: Operation, upload: Upload, deleted_keys: list[str] | None
    ) -> Reply:
        answer = await self._lists.answer(operation, asked.headers, upload)
        if answer is None:
            answer = await self._passthrough.send(operation, asked.headers, upload, deleted_keys)
        asked.cache = answer.cache
        return self._reply(asked, answer.status, answer.headers, answer.body, answer.length)

    async def _delete_objects(self, asked: _Asked, operation: Operation, who: Who) -> Reply:
        """Its keys stand in its body: read that first, for the grants and for the catalog."""
        length, limit = asked.request.content_length, xml.DELETE_BODY_BYTES_MAX
        with self._memory.held(_most(length, limit)):
            outstanding = client_body(asked.request, asked.wire, self._client_timeout_s)
            body, trailers = await whole_body(
                asked.headers, who.payload, who.identity, outstanding, length, limit=limit
            )
            keys = xml.keys_to_delete(body)
            self._access.check(who, operation, keys)
            upload = Upload(_once(body), len(body), headers=trailers) if body else Upload()
            return await self._send_up(asked, operation, upload, keys)

    async def _post_form(self, asked: _Asked, operation: Operation) -> Reply:
        """Who sends it, and to which key, stands in its body: read that up to the file."""
        asked.operation = operation
        assert operation.bucket is not None
        kind = dict(asked.headers)["content-type"]
        with self._memory.held(_UPLOAD_BYTES):
            body = client_body(asked.request, asked.wire, self._client_timeout_s)
            incoming = await incoming_form(kind, body, asked.request.content_length)
            who, sizes = self._access.identify_form(incoming.form, operation.bucket, asked.headers)
            asked.client = who.client.name if who.client else "-"
            operation = asked.operation = replace(operation, key=incoming.form.key, forgets=Forgets.KEY)
            self._access.check(who, operation, None)
            return await self._send_up(asked, operation, incoming.upload(sizes), None)

    def _refuse(self, asked: _Asked, error: S3Error) -> Reply:
        unread = asked.request.body_exists and not asked.request.content.is_eof()
        close = unread or asked.is_last or isinstance(error, BadRequest | IncompleteBody | RequestTimeout)
        close = close or cast(Caller, asked.request.protocol).is_one_too_many
        return _error_reply(asked, error, asked.request.raw_path.partition("?")[0], close=close,
                            on_end=self._on_end(asked))  # fmt: skip

    def _on_end(self, asked: _Asked) -> OnEnd:
        return lambda reply, sent, cut: self._ended(asked, reply.status, sent, cut)

    def _ended(self, asked: _Asked, status: int | None, sent: Sent, cut: str | None) -> None:
        if asked.reader is not None and asked.operation is not None:
            self._prefetch.sent(asked.reader, asked.operation.ref)
        asked.wire.ended = time.perf_counter()
        self._recorder.ended(
            Ended(
                asked.id, asked.op, asked.request.method, asked.operation, dict(asked.headers).get("range"),
                asked.client, asked.wire.address, status, asked.cache.value, sent, asked.started, cut, asked.who,
                asked.away_s, asked.wire.full_s - asked.full_s, asked.app, asked.first_byte_s,
            ),
            asked.span,
        )  # fmt: skip

    # -- begun in the fast lane ------------------------------------------------------------------------------------

    def _begun_again(self, begun: Begun) -> None:
        if begun.disk_failed:
            self._reads.doubt(begun.version, begun.rest.start)
        if begun.extent.length:
            self._prefetch.asked(begun.reader, begun.version, begun.extent, checksums=False)

    def lend(self, begun: Begun) -> Body:
        self._recorder.began()
        self._begun_again(begun)
        return self._reads.resume(begun.version, begun.rest)

    def returned(self, begun: Begun, sent: Sent, cut: str | None) -> None:
        operation = begun.operation
        self._prefetch.sent(begun.reader, operation.ref)
        span = None
        if self._spans is not None:
            span = self._spans.begin(operation.method, begun.traced, begun.started, current=False)
        self._recorder.ended(
            Ended(
                begun.request_id, operation.kind.value, operation.method, operation, begun.asked_range, begun.client,
                begun.address, begun.status, CacheStatus.HIT.value, sent, begun.started, cut, begun.reader,
                begun.away_s, begun.full_s, begun.app, begun.first_byte_s,
            ),
            span,
        )  # fmt: skip


def _most(length: int | None, limit: int) -> int:
    """How long a body of `length` bytes (None: unknown) may get before it is refused."""
    return limit if length is None else min(length, limit)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _first(headers: Headers, name: str) -> str:
    return next((value for known, value in headers if known == name), "")


def _has(headers: Headers, name: str) -> bool:
    return any(known == name for known, _ in headers)


def _error_reply(asked: _Asked, error: S3Error, resource: str, *, close: bool, on_end: OnEnd) -> Reply:
    body = xml.error_xml(error, resource=resource, request_id=asked.id)
    headers = (
        ("content-type", "application/xml"), ("x-amz-request-id", asked.id), *error.headers,
        ("x-cache", asked.cache.value),
    )  # fmt: skip
    return Reply(error.status, headers, wire=asked.wire, body=body, close=close, on_end=on_end)
