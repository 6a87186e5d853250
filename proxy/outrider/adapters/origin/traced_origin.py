"""Makes a client span for each request to the origin, and sends spans to an OpenTelemetry collector (`traces = true`).

This module needs the extra `tracing`, and is not imported while traces are off.

Spans are sent by OTLP over HTTP. The variables OTEL_* name the collector, the sampling and the service, as in the
OpenTelemetry specification. Spans wait in a bounded queue for a thread of the SDK; without a collector they are lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer

from outrider import __version__
from outrider.core.errors import OriginBroke
from outrider.core.insight.trace_attributes import subject, unicode_of
from outrider.core.model import Headers
from outrider.metrics import method_label
from outrider.ports import Buffer, ByteSink, Origin, OriginReply, OriginRequest
from outrider.settings import SettingsError

log = logging.getLogger(__name__)

# The longest wait of a stop for a collector that is slow or away.
_FLUSH_S = 2.0
# Loggers of the SDK that would write lines for each batch that cannot be sent.
_CHATTY = ("opentelemetry.exporter.otlp", "opentelemetry.sdk._shared_internal", "opentelemetry.sdk.trace.export")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"


class Traces:
    """Owns the tracer, the queue of spans and their exporter, until `close`."""

    def __init__(self) -> None:
        """Raises SettingsError: a variable OTEL_* has an invalid value."""
        for name in _PROTOCOLS:
            if os.environ.get(name, _PROTOCOL) != _PROTOCOL:
                raise SettingsError(f"{name}={os.environ[name]}: traces are sent by {_PROTOCOL} alone.")
        try:
            self._exporter = _Exporter(OTLPSpanExporter())
            self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
            self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        except ValueError as error:
            raise SettingsError(f"--traces: {error}") from error
        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.tracer: Tracer = self._provider.get_tracer("outrider", __version__)

    async def close(self) -> None:
        """Send the queued spans. Spans that the collector does not accept in time are lost."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop may be gone
                loop.call_soon_threadsafe(ended.set)

        # A daemon thread: its connection attempt cannot be ended, and the process must not wait for it.
        threading.Thread(target=flush, name="outrider-traces", daemon=True).start()
        try:
            async with asyncio.timeout(_FLUSH_S):
                await ended.wait()
        except TimeoutError:
            self._exporter.give_up()


class _Exporter(SpanExporter):
    """Logs once when the collector stops accepting spans, and once when it accepts them again. On the SDK's thread."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._lost = 0
        self._given_up = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._given_up:
            return SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - the SDK's thread must go on
            log.debug("spans not sent", extra={"error": repr(error)})
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            if self._lost:
                log.info("traces are taken again", extra={"collector": _collector(), "lost": self._lost})
            self._lost = 0
        else:
            if not self._lost:
                log.warning("traces are not taken", extra={"collector": _collector()})
            self._lost += len(spans)
        return result

    def give_up(self) -> None:
        """Drop the spans that wait for a retry. Callable from another thread."""
        self._given_up = True
        self._exporter.shutdown()

    def shutdown(self) -> None:
        if not self._given_up:
            self._exporter.shutdown()


def _collector() -> str:
    """Host and port of the collector, without the rest of its URL, which may hold a secret."""
    url = urlsplit(next((value for name in _ENDPOINTS if (value := os.environ.get(name))), "http://localhost:4318"))
    return url.netloc.rpartition("@")[2]


def _resource() -> Resource:
    resource = Resource.create({SERVICE_VERSION: __version__})
    named = not str(resource.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service")
    return resource if named else resource.merge(Resource({SERVICE_NAME: "outrider"}))


class TracedOrigin:
    """An origin with a client span for each attempt, from the wait for a connection to the end of the body.

    The parent of the span is the client request that caused it. A prefetch has no parent.
    """

    def __init__(self, origin: Origin, tracer: Tracer) -> None:
        self._origin = origin
        self._tracer = tracer
        url = urlsplit(origin.endpoint)
        self._server: dict[str, str | int] = {"server.address": url.hostname or ""}
        if url.port is not None:
            self._server["server.port"] = url.port

    @property
    def endpoint(self) -> str:
        return self._origin.endpoint

    async def ask(self, request: OriginRequest) -> OriginReply:
        method = method_label(request.method)
        name = f"{method} {unicode_of(request.bucket)}" if request.bucket else method
        attributes = {"http.request.method": method, **self._server, **subject(request.bucket, request.key)}
        if (requested_range := dict(request.headers).get("range")) is not None:
            attributes["outrider.range"] = unicode_of(requested_range)
        # The span is not made the current one: the context may be left in another task than it was entered in.
        span = self._tracer.start_span(f"{name} (origin)", kind=SpanKind.CLIENT, attributes=attributes)
        try:
            return _TracedReply(await self._origin.ask(request), span)
        except BaseException as error:
            if isinstance(error, OriginBroke):
                _failed(span, type(error).__name__)
            span.end()
            raise


class _TracedReply:
    def __init__(self, reply: OriginReply, span: Span) -> None:
        self._reply = reply
        self._span = span
        self._received_bytes = 0
        span.add_event("first byte")
        span.set_attribute("http.response.status_code", reply.status)
        if reply.status >= 400:
            _failed(span, str(reply.status))

    @property
    def status(self) -> int:
        return self._reply.status

    @property
    def headers(self) -> Headers:
        return self._reply.headers

    @property
    def content_length(self) -> int | None:
        return self._reply.content_length

    @property
    def in_thread(self) -> bool:
        return self._reply.in_thread

    def give_up(self, cause: str) -> None:
        self._reply.give_up(cause)

    def close(self) -> None:
        self._reply.close()
        if self._span.is_recording():
            self._span.set_attribute("http.response.body.size", self._received_bytes)
            self._span.end()

    async def some(self) -> Buffer:
        try:
            piece = await self._reply.some()
        except OriginBroke as error:
            _failed(self._span, type(error).__name__)
            raise
        self._received_bytes += len(piece)
        return piece

    async def receive(self, count: int, sink: ByteSink, received: Callable[[int], None]) -> None:
        def count_received(more: int) -> None:
            self._received_bytes += more
            received(more)

        try:
            await self._reply.receive(count, sink, count_received)
        except OriginBroke as error:
            _failed(self._span, type(error).__name__)
            raise


def _failed(span: Span, why: str) -> None:
    """Source: semantic conventions, "HTTP client"."""
    span.set_attribute("error.type", why)
    span.set_status(StatusCode.ERROR)
