"""One connection of the bucket simulator: requests and answers as bytes, and what the conditions do to them."""

from __future__ import annotations

import array
import contextlib
import fcntl
import select
import socket
import struct
import termios
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from xml.sax.saxutils import escape

from outrider.core.auth.sigv4 import Credentials, SigningKeys, sign_headers
from outrider.core.s3.encoding import parse_query
from tests.support.conditions import SLICE_BYTES_MAX, Fault, FaultKind, Line, Request, slice_bytes

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from tests.support.conditions import Conditions, Tally


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


CONNECT_TIMEOUT_S = 60.0
# A reset waits this long for the bytes before it to be acknowledged. A client that does not read loses them.
DRAIN_S = 1.0


class CutError(Exception):
    """A fault ended this connection."""


class Shared(Protocol):
    """The state that all connections of one simulator share."""

    conditions: Conditions
    recorder: Tally
    total: Line
    origin: tuple[str, int]
    keys: tuple[str, str] | None
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def holding(self) -> Callable[[float | None], object]:
        """Waits until the next release after this call, or for this many seconds."""
        ...


class Connection:
    """Owns the socket to the bucket: one for each client, as long as both keep it open. The client's socket belongs to
    the caller."""

    def __init__(self, shared: Shared, client: socket.socket) -> None:
        self._shared = shared
        self._client = Stream(client)
        self._origin: Stream | None = None

    def run(self) -> None:
        """Serve until either side ends it. Broken connections are this class's purpose, so none is an error here."""
        try:
            with contextlib.suppress(OSError, CutError):
                while self._one_request():
                    pass
        finally:
            self._leave_origin()

    def _one_request(self) -> bool:
        """Returns whether another request may follow on this connection."""
        head = self._client.read_head()
        if head is None:
            return False
        request = as_request(head)
        # A release frees each request that is counted, also one that has yet to come to its wait.
        held = self._shared.holding()
        self._shared.recorder.begin(request)
        try:
            return self._exchange(head, request, held)
        finally:
            self._shared.recorder.end()

    def _exchange(self, head: Head, request: Request, held: Callable[[float | None], object]) -> bool:
        shared = self._shared
        fault = shared.conditions.draw(request)
        if fault is not None and fault.kind is FaultKind.STATUS:
            return self._answer_status(head, request, fault)
        origin = self._ask_origin()
        if fault is not None and fault.kind in (FaultKind.DEAF, FaultKind.ASTRAY):
            head = self._changed_request(head, request, fault)
        whole, answer = self._pass_request(origin, head, fault)
        if fault is not None and fault.kind is FaultKind.DROP:
            raise CutError
        first_byte_at = shared.clock() + shared.conditions.ttfb_s
        answer = answer or read_answer(origin)
        self._sleep_until(first_byte_at)
        if fault is not None and fault.kind is FaultKind.LOSE:
            raise CutError
        if fault is not None and fault.kind is FaultKind.LATE:
            held(fault.for_s)
        self._pass_answer(origin, request, answer, fault)
        if answer.closes:
            self._leave_origin()
        return whole and not head.closes and not answer.closes

    def _changed_request(self, head: Head, request: Request, fault: Fault) -> Head:
        """The same request without some of its headers, or with another Range, signed anew for the bucket."""
        assert self._shared.keys is not None
        deaf_to = fault.deaf_to if fault.kind is FaultKind.DEAF else ()
        cached = {name: value for name, value in head.headers.items() if name not in deaf_to}
        first, dash, last = cached.get("range", "").removeprefix("bytes=").partition("-")
        if fault.kind is FaultKind.ASTRAY and first and dash:
            cached["range"] = f"bytes={int(first) + fault.by_bytes}-{int(last) + fault.by_bytes if last else ''}"
        cached.update(
            sign_headers(
                method=request.method, host=cached["host"], path=request.path, query=parse_query(request.query),
                headers=cached, payload_hash=cached["x-amz-content-sha256"], credentials=Credentials(*self._shared.keys,
                None),
                region=cached["authorization"].split("/")[2], now=time.time(), keys=SigningKeys(),
            )
        )  # fmt: skip
        lines = "".join(f"{name}: {value}\r\n" for name, value in cached.items())
        return Head.parse(f"{head.start}\r\n{lines}\r\n".encode("latin-1"))

    def _pass_request(self, origin: Stream, head: Head, fault: Fault | None) -> tuple[bool, Head | None]:
        """Returns whether the whole request was passed on, and the answer if it came before the end of the body."""
        origin.sock.sendall(head.raw)
        if "100-continue" in head.headers.get("expect", "").lower():
            interim = read_answer(origin, interim=True)
            if interim.status != 100:
                return False, interim
            self._client.sock.sendall(interim.raw)
        try:
            self._move_request_body(head, origin.sock.sendall, fault)
        except (BrokenPipeError, ConnectionResetError):
            # The bucket may have answered (with a 403, for example) and closed without waiting for the body.
            return False, None
        return True, None

    def _move_request_body(
        self, head: Head, send: Callable[[memoryview | bytes], None], fault: Fault | None = None
    ) -> None:
        left = fault.after_bytes if fault is not None and fault.kind is FaultKind.CUT_UPLOAD else None

        def counted(view: memoryview) -> None:
            nonlocal left
            self._shared.recorder.received(len(view))
            if left is not None and len(view) >= left:
                send(view[:left])
                # SeaweedFS stores an empty object when a connection ends in good order before the first byte of the
                # body.
                for stream in (self._client, self._origin):
                    if stream is not None:
                        reset(stream.sock)
                raise CutError
            send(view)
            left = None if left is None else left - len(view)

        if head.chunked:
            self._client.move_chunked(counted, send, unhurried)
        else:
            self._client.move(head.length or 0, counted, unhurried)

    def _pass_answer(self, origin: Stream, request: Request, answer: Head, fault: Fault | None) -> None:
        self._client.sock.sendall(altered(answer, fault))
        if request.method == "HEAD" or answer.status in (204, 304):
            return
        body = Body(self._shared, self._client.sock, fault)
        if answer.chunked:
            origin.move_chunked(body.send, self._client.sock.sendall, body.slice_bytes)
        elif answer.length is not None:
            more = b"#" * fault.by_bytes if fault is not None and fault.kind is FaultKind.LONGER else b""
            origin.move(answer.length, body.followed_by(more, answer.length), body.slice_bytes)
        else:
            origin.move_to_end(body.send, body.slice_bytes)
            raise CutError

    def _answer_status(self, head: Head, request: Request, fault: Fault) -> bool:
        shared = self._shared
        expects = "expect" in head.headers
        if not expects:
            self._move_request_body(head, lambda _: None)
        self._sleep_until(shared.clock() + shared.conditions.ttfb_s)
        xml = b"" if request.method == "HEAD" else error_xml(fault.status, request.path, fault.code)
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(xml), xml) if xml else b""
        self._client.sock.sendall(error_head(fault, close=expects) + body)
        shared.recorder.sent(len(xml))
        return not head.closes and not expects

    def _sleep_until(self, then: float) -> None:
        wait_s = then - self._shared.clock()
        if wait_s > 0:
            self._shared.sleep(wait_s)

    def _ask_origin(self) -> Stream:
        """Returns a connection to the bucket that the bucket has not closed."""
        if self._origin is not None and _is_readable(self._origin.sock):
            # A connection that is readable between messages has been closed. Waiting until the write fails would lose
            # the request.
            self._leave_origin()
        if self._origin is None:
            sock = socket.create_connection(self._shared.origin, timeout=CONNECT_TIMEOUT_S)
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._origin = Stream(sock)
        return self._origin

    def _leave_origin(self) -> None:
        if self._origin is not None:
            self._origin.sock.close()
            self._origin = None


class Body:
    """Sends the body of one answer: paced, counted, and cut where the fault says."""

    def __init__(self, shared: Shared, client: socket.socket, fault: Fault | None) -> None:
        self._shared = shared
        self._client = client
        self._line = Line(shared.clock())
        bodily = (FaultKind.RESET, FaultKind.STALL, FaultKind.TRUNCATE, FaultKind.ACT, FaultKind.SHORTER,
                  FaultKind.TURN)  # fmt: skip
        self._fault = fault if fault is not None and fault.kind in bodily else None
        # Registered before the first byte goes out: a client that has read the bytes before a stall may release it at
        # once.
        self._hold = shared.holding()
        self._sent_bytes = 0

    def slice_bytes(self) -> int:
        conditions = self._shared.conditions
        return slice_bytes(conditions.connection_bytes_s, conditions.total_bytes_s)

    def send(self, view: memoryview) -> None:
        """Pass on a slice.

        Raises:
            CutError: the fault struck; the bytes before it were sent.
        """
        fault = self._fault
        if fault is not None and self._sent_bytes + len(view) > fault.after_bytes:
            before = fault.after_bytes - self._sent_bytes
            if fault.kind is FaultKind.TURN:
                self._fault = None
                turned = bytearray(view)
                turned[before] ^= 1
                view = memoryview(turned)
            else:
                self._send(view[:before])
                self._strike(fault)
                view = view[before:]
        self._send(view)

    def followed_by(self, more: bytes, length: int) -> Callable[[memoryview], None]:
        """Like `send`, but `more` goes out in one piece with the last of `length` bytes."""

        def send(view: memoryview) -> None:
            last = self._sent_bytes + len(view) == length
            self.send(memoryview(bytes(view) + more) if more and last else view)

        return send

    def _send(self, view: memoryview) -> None:
        shared = self._shared
        now = shared.clock()
        passed_at = max(
            self._line.take(len(view), shared.conditions.connection_bytes_s, now),
            shared.total.take(len(view), shared.conditions.total_bytes_s, now),
        )
        if passed_at > now:
            shared.sleep(passed_at - now)
        # Counted first: a client that has read all of it must find all of it counted.
        shared.recorder.sent(len(view))
        self._sent_bytes += len(view)
        self._client.sendall(view)

    def _strike(self, fault: Fault) -> None:
        self._fault = None
        if fault.kind is FaultKind.STALL:
            self._hold(fault.for_s)
            return
        if fault.kind is FaultKind.ACT:
            assert fault.act is not None
            fault.act()
            return
        if fault.kind is FaultKind.RESET:
            reset(self._client)
        raise CutError


def _is_readable(sock: socket.socket) -> bool:
    poll = select.poll()  # select() accepts no descriptors above 1023, and a proxy in this process may have many
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def as_request(head: Head) -> Request:
    method, target, _ = head.start.split(" ", 2)
    path, _, query = target.partition("?")
    return Request(method, path, query, head.headers)


def read_answer(origin: Stream, *, interim: bool = False) -> Head:
    """The final answer; with `interim`, the first of any kind.

    Raises:
        ConnectionError: the bucket closed without one.
    """
    while True:
        head = origin.read_head()
        if head is None:
            raise ConnectionError("the bucket gave no answer")
        if interim or head.status >= 200:
            return head


def unhurried() -> int:
    return SLICE_BYTES_MAX


def reset(sock: socket.socket) -> None:
    """Close by RST, after the bytes sent so far have reached the other side's kernel."""
    until = time.monotonic() + DRAIN_S
    pending = array.array("i", [1])
    while pending[0] and time.monotonic() < until:
        fcntl.ioctl(sock, termios.TIOCOUTQ, pending)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def altered(answer: Head, fault: Fault | None) -> bytes:
    """The head as the fault changes it; the same head where the fault changes nothing."""
    if fault is None:
        return answer.raw
    kind, length = fault.kind, answer.length
    if kind is FaultKind.OTHER_ETAG:
        return replaced(answer, "etag", '"0123456789abcdef0123456789abcdef"')
    if kind is FaultKind.LONGER and length is not None:
        return replaced(answer, "content-length", str(length + fault.by_bytes))
    if kind is FaultKind.SHORTER and length is not None:
        return replaced(answer, "content-length", str(min(length, fault.after_bytes)))
    unit, _, rest = answer.headers.get("content-range", "").partition(" ")
    extent, _, size = rest.partition("/")
    first, _, last = extent.partition("-")
    if not last:
        return answer.raw
    wrong = {
        FaultKind.WRONG_RANGE: f"{unit} {int(first) + 1}-{int(last) + 1}/{size}",
        FaultKind.OTHER_TOTAL: f"{unit} {extent}/{int(size) + fault.by_bytes}",
        FaultKind.OTHER_LENGTH: f"{unit} {first}-{int(last) + fault.by_bytes}/{size}",
    }
    return replaced(answer, "content-range", wrong[kind]) if kind in wrong else answer.raw


def replaced(head: Head, name: str, value: str) -> bytes:
    """The head with another value in the header of this name, if it has one."""
    start, *lines = head.raw.split(b"\r\n")
    prefix = name.encode() + b":"
    new = [prefix + b" " + value.encode() if line.lower().startswith(prefix) else line for line in lines]
    return b"\r\n".join([start, *new])


_CODES = {500: "InternalError", 503: "SlowDown", 403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed"}


def error_xml(status: int, path: str, code: str | None = None) -> bytes:
    code = code or _CODES.get(status, "InternalError")
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>Please slow down.</Message>'
        f"<Resource>{escape(path)}</Resource><RequestId>SIMULATED</RequestId></Error>"
    ).encode()


def error_head(fault: Fault, *, close: bool) -> bytes:
    """Framed as AWS does it: in chunks, and the same head without them for a HEAD."""
    retry = "" if fault.retry_after_s is None else f"Retry-After: {fault.retry_after_s}\r\n"
    return (
        f"HTTP/1.1 {fault.status} Simulated\r\nContent-Type: application/xml\r\nTransfer-Encoding: chunked\r\n"
        f"x-amz-request-id: SIMULATED\r\n{retry}{'Connection: close' if close else 'Connection: keep-alive'}\r\n\r\n"
    ).encode()
