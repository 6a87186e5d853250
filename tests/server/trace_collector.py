"""A trace collector: it receives OTLP over HTTP as protobuf, keeps the spans, or fails as a test demands."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

SERVER, CLIENT = 2, 3  # kinds of spans
ERROR = 2  # a status


@dataclass(frozen=True, slots=True)
class Span:
    """Ids are hexadecimal, `parent` is empty for a root; times are nanoseconds since 1970."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    status: int
    events: tuple[str, ...]
    said: dict[str, Any]


class Collector:
    """`hold`: requests are not answered before `let_go`."""

    def __init__(self, *, hold: bool = False) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.asked = threading.Event()
        self._go = threading.Event()
        if not hold:
            self._go.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def let_go(self) -> None:
        self._go.set()

    def of(self, kind: int) -> list[Span]:
        """The spans in the order in which they began."""
        return sorted((span for span in self.spans if span.kind == kind), key=lambda span: span.start_ns)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._go.set()
        self._server.shutdown()
        self._thread.join(60)
        self._server.server_close()

    def _handler(collector) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - `self` is the handler's
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.asked.set()
                collector._go.wait()
                collector._take(body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        return Handler

    def _take(self, body: bytes) -> None:
        self.bodies.append(body)
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(_plain(of_resource.resource.attributes))
            for of_scope in of_resource.scope_spans:
                self.spans += [
                    Span(
                        span.name, span.kind, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                        span.start_time_unix_nano, span.end_time_unix_nano, span.status.code,
                        tuple(event.name for event in span.events), _plain(span.attributes),
                    )
                    for span in of_scope.spans
                ]  # fmt: skip


def _plain(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value") or "string_value")
        for attribute in attributes
    }
