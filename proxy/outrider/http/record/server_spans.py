"""An OpenTelemetry span for each request to the S3 port (`traces = true`). This module is imported only while traces
are on: it needs the extra `tracing`.

A hit of the fast path gets its span once it has been sent. Any other request gets its span when it begins, so that the
spans of its origin requests can be children of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from opentelemetry.context import Context, attach
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from outrider.core.insight.trace_attributes import subject, unicode_of
from outrider.core.model import Headers
from outrider.metrics import method_label

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from outrider.http.record.record import Ended

_OF_TRACES = ("traceparent", "tracestate")
_W3C = TraceContextTextMapPropagator()


class ServerSpans:
    """Called from any thread."""

    def __init__(self, tracer: Tracer, name_of: Callable[[str], str]) -> None:
        """`name_of`: a reader's name (see `access.reader_name`) as people may see it."""
        self._tracer = tracer
        self._name_of = name_of

    def begin(self, method: str, headers: Headers, started: float, *, current: bool) -> Span:
        """`started`: by `time.perf_counter`. `current`: origin requests of this task, and of tasks that it starts,
        become children of the span."""
        parent = _parent(headers)
        span = self._tracer.start_span(
            method_label(method), parent, SpanKind.SERVER, {"http.request.method": method_label(method)},
            start_time=_epoch_ns(started),
        )  # fmt: skip
        if current:
            # Never detached: the next request of the connection runs in the same task and sets its own span.
            attach(set_span_in_context(span, parent))
        return span

    def ended(self, end: Ended, span: Span | None) -> None:
        """`span` None: no span was begun, because the parser refused the request."""
        if span is None:
            span = self.begin(end.method, (), end.started, current=False)
        if span.is_recording():
            _describe(span, end, self._name_of)
        span.end()


def _describe(span: Span, end: Ended, name_of: Callable[[str], str]) -> None:
    said: dict[str, str | int | float] = {
        "outrider.request_id": end.request_id, "outrider.operation": end.op, "outrider.cache": end.cache,
        "outrider.client": unicode_of(end.client), "http.response.body.size": end.sent.total(),
    }  # fmt: skip
    if end.operation is not None:
        said.update(subject(end.operation.bucket, end.operation.key))
        if end.operation.bucket:
            span.update_name(f"{method_label(end.method)} {unicode_of(end.operation.bucket)}")
    if end.status is not None:
        said["http.response.status_code"] = end.status
    if end.reader is not None:
        said["outrider.reader"] = name_of(end.reader)
    if end.requested_range is not None:
        said["outrider.range"] = unicode_of(end.requested_range)
    if end.first_byte_s is not None:
        said["outrider.first_byte_s"] = round(end.first_byte_s, 6)
    for source, count in end.sent.items():
        said[f"outrider.bytes.{source}"] = count
    if end.cut is not None:
        said["outrider.cut"] = unicode_of(end.cut)
    if (failure := _failure(end)) is not None:
        said["error.type"] = failure
        span.set_status(StatusCode.ERROR)
    span.set_attributes(said)


def _failure(end: Ended) -> str | None:
    """The error type, in one word; None: the request did not fail, or the client alone is to blame.

    Source: OpenTelemetry semantic conventions, "HTTP server".
    """
    if end.cut is not None and end.cut != "client left":
        return end.cut.partition(":")[0]
    return str(end.status) if end.status is not None and end.status >= 500 else None


def _parent(headers: Headers) -> Context:
    """The client's own span, by its trace headers; an empty context if they are missing or malformed."""
    given = {name: value for name, value in headers if name in _OF_TRACES}
    return _W3C.extract(given, Context()) if given else Context()


def _epoch_ns(moment: float) -> int:
    """`moment` of `time.perf_counter`, in nanoseconds since 1970."""
    return time.time_ns() - int((time.perf_counter() - moment) * 1e9)
