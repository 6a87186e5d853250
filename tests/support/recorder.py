"""An origin that records the requests it gets, byte by byte, and answers as a test demands."""

from __future__ import annotations

import socketserver
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Received:
    """One request: its first line, its headers with names in lower case, all as sent."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known == name]


@dataclass
class Recorder:
    """Answers each request with `answer(request)`, the bytes of a whole reply. Reads bodies by Content-Length only."""

    answer: Callable[[Received], bytes] = field(default=lambda _: OK)
    received: list[Received] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        recorder = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while line := self.rfile.readline():
                    request = _rest_of(line, self.rfile)
                    recorder.received.append(request)
                    self.wfile.write(recorder.answer(request))

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            block_on_close = False

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _rest_of(line: bytes, file: object) -> Received:
    headers = []
    while raw := file.readline().rstrip(b"\r\n"):  # type: ignore[attr-defined]
        name, _, value = raw.decode("latin-1").partition(":")
        headers.append((name.lower(), value.strip()))
    length = int(dict(headers).get("content-length", 0))
    return Received(line.decode("latin-1").strip(), headers, file.read(length))  # type: ignore[attr-defined]
