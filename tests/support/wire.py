"""HTTP/1.1 framing on blocking sockets, just enough to pass messages on byte for byte: heads, and the end of a body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.pacing import SLICE_BYTES_MAX

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

HEAD_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a message. `raw` goes on untouched, since clients sign it. Header names are lower case."""

    raw: bytes
    start: str
    headers: dict[str, str]

    @classmethod
    def parse(cls, raw: bytes) -> Head:
        start, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return cls(raw, start, {name.strip().lower(): value.strip() for name, _, value in pairs})

    @property
    def status(self) -> int:
        return int(self.start.split(" ", 2)[1])

    @property
    def chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def length(self) -> int | None:
        """Content-Length, or None when there is none."""
        text = self.headers.get("content-length")
        return None if text is None else int(text)

    @property
    def closes(self) -> bool:
        return "close" in self.headers.get("connection", "").lower() or self.start.endswith("HTTP/1.0")


class Stream:
    """The reading side of a socket, with the bytes that were read beyond the current message.

    Bodies move through one buffer by recv_into and sendall. Splicing through a pipe was tried and rejected: the same
    CPU a byte on loopback (0.2 s/GB), less throughput (2.4 against 2.9 GB/s on two cores), and no access to the bytes.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._rest = b""
        self._buffer = memoryview(bytearray(SLICE_BYTES_MAX))

    @property
    def has_rest(self) -> bool:
        return bool(self._rest)

    def read_head(self) -> Head | None:
        """The next head; None when the other side closed in between messages.

        Raises:
            ConnectionError: it closed within a head, or the head is too long.
        """
        raw = self._read_through(b"\r\n\r\n", eof_ok=True)
        return Head.parse(raw) if raw else None

    def move(self, size_bytes: int, send: Callable[[memoryview], None], slice_bytes: Callable[[], int]) -> None:
        """Pass on exactly `size_bytes`, at most `slice_bytes()` at once.

        Raises:
            ConnectionError: the other side closed before that.
        """
        left = size_bytes
        while left:
            view = self._some(min(left, slice_bytes()))
            if not view:
                raise ConnectionError(f"closed with {left} bytes to come")
            send(view)
            left -= len(view)

    def move_to_end(self, send: Callable[[memoryview], None], slice_bytes: Callable[[], int]) -> None:
        """Pass on all until the other side closes."""
        while view := self._some(slice_bytes()):
            send(view)

    def move_chunked(
        self, send: Callable[[memoryview], None], frame: Callable[[bytes], None], slice_bytes: Callable[[], int]
    ) -> None:
        """Pass on a chunked body: the data by `send`, sizes and trailers unchanged by `frame`."""
        while True:
            line = self._read_through(b"\r\n")
            frame(line)
            size = int(line.split(b";")[0], 16)
            if size == 0:
                break
            self.move(size, send, slice_bytes)
            frame(self._read_through(b"\r\n"))
        while line != b"\r\n":
            line = self._read_through(b"\r\n")
            frame(line)

    def _some(self, most_bytes: int) -> memoryview:
        """Between 1 and `most_bytes` bytes, valid until the next call; empty at the end."""
        if self._rest:
            some, self._rest = self._rest[:most_bytes], self._rest[most_bytes:]
            return memoryview(some)
        got = self.sock.recv_into(self._buffer[:most_bytes])
        return self._buffer[:got]

    def _read_through(self, mark: bytes, *, eof_ok: bool = False) -> bytes:
        while mark not in self._rest:
            if len(self._rest) > HEAD_BYTES_MAX:
                raise ConnectionError("a head without an end")
            more = self.sock.recv(HEAD_BYTES_MAX)
            if not more:
                if eof_ok and not self._rest:
                    return b""
                raise ConnectionError("closed in mid-head")
            self._rest += more
        end = self._rest.index(mark) + len(mark)
        found, self._rest = self._rest[:end], self._rest[end:]
        return found
