"""Plain HTTP by hand: one connection, all answers to any bytes (`answers_to`), and many clients at once (`Client`)."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import re
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast
from xml.etree import ElementTree

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Iterator


# An upper bound for an operation that hangs, however slow the machine is.
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` have lower-case names; the values of a header that came twice are joined by a comma."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The S3 error code of the body, which must be a whole S3 error document."""
        return self.error["Code"]

    @property
    def error(self) -> dict[str, str]:
        root = ElementTree.fromstring(self.body)
        assert root.tag == "Error", root.tag
        return {child.tag: child.text or "" for child in root}


class _Kept(io.RawIOBase):
    """A response closes its file. This one stays open for the connection's next response."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto1(buffer)

    def read(self, size: int | None = -1) -> bytes:
        return self._file.read(size)

    def readline(self, size: int | None = -1) -> bytes:
        return self._file.readline(size)

    def close(self) -> None:
        pass


class RawConnection:
    """One TCP connection; each read of it is bounded in time."""

    def __init__(self, address: tuple[str, int], timeout_s: float = TIMEOUT_S) -> None:
        self.sock = socket.create_connection(address, timeout=timeout_s)
        self._file = self.sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def secure(self, trusting: ssl.SSLContext) -> None:
        """Speak TLS from now on."""
        self.sock = trusting.wrap_socket(self.sock, server_hostname="127.0.0.1")
        self._file = self.sock.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def ask(
        self, method: str, target: str, headers: Iterable[tuple[str, str]] = (), body: bytes = b"",
        *, version: str = "HTTP/1.1",
    ) -> Answer:  # fmt: skip
        """Send a request with the headers given and a Host, and read the answer."""
        self.send(request(method, target, headers, body, version=version))
        return self.read_answer(method)

    def read_head(self, method: str = "GET") -> http.client.HTTPResponse:
        """Read the next answer's head. The returned object reads its body."""
        response = http.client.HTTPResponse(cast("socket.socket", self), method=method)
        response.begin()
        return response

    def read_answer(self, method: str = "GET") -> Answer:
        """Raises http.client.HTTPException or OSError: the answer is not whole."""
        response = self.read_head(method)
        body = response.read()
        headers: dict[str, str] = {}
        for name, value in response.getheaders():
            headers[name.lower()] = f"{headers[name.lower()]},{value}" if name.lower() in headers else value
        return Answer(response.status, headers, body)

    def read_line(self) -> bytes:
        return self._file.readline()

    def makefile(self, *_: object) -> io.RawIOBase:
        return _Kept(self._file)

    def is_closed_by_peer(self) -> bool:
        """Whether the next event is the end of the connection; waits for it as long as for any read."""
        try:
            rest = self._file.read(1)
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        assert rest == b"", f"more came: {rest!r}"
        return True


def request(
    method: str, target: str, headers: Iterable[tuple[str, str]] = (), body: bytes = b"", *, version: str = "HTTP/1.1"
) -> bytes:
    lines = [f"{method} {target} {version}", "host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


def ask(
    address: tuple[str, int], method: str, target: str, headers: Iterable[tuple[str, str]] = (), body: bytes = b""
) -> Answer:
    """One request on a connection of its own."""
    with RawConnection(address) as connection:
        return connection.ask(method, target, headers, body)


def answers_to(address: tuple[str, int], *wire: bytes) -> list[Answer]:
    """All that comes back until the connection ends. The end is waited for; a connection that stays open is an
    error."""
    received = bytearray()
    with RawConnection(address) as connection:
        # The proxy closed the connection. Its bytes before that may be lost to the reset, or be here all the same.
        with contextlib.suppress(ConnectionError):
            for piece in wire:
                connection.send(piece)
        with contextlib.suppress(ConnectionError):
            while data := connection.sock.recv(65536):
                received += data
    return list(parsed(bytes(received), has_head=b"HEAD" in b"".join(wire)))


def parsed(received: bytes, *, has_head: bool) -> Iterator[Answer]:
    """`has_head`: one of the answers may be to a HEAD, which has no body whatever its length says."""
    while received:
        head, end, received = received.partition(b"\r\n\r\n")
        assert end, f"a reply ends in its head: {head[:200]!r}"
        first, *lines = head.decode("latin-1").split("\r\n")
        assert re.fullmatch(r"HTTP/1\.1 [1-5][0-9]{2} [A-Za-z -]*", first), first
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(first.split(" ")[1])
        if status == 100:
            continue
        length = int(headers.get("content-length", 0)) if status not in (204, 304) else 0
        if has_head and (not received or received.startswith(b"HTTP/1.1 ")):
            length = 0
        if "transfer-encoding" in headers and length == 0 and received and not received.startswith(b"HTTP/1.1 "):
            body, end, received = received.partition(b"0\r\n\r\n")
            assert end, "chunks without an end"
        else:
            body, received = received[:length], received[length:]
            assert len(body) == length, f"{len(body)} of {length} bytes came after {head[:200]!r}"
        yield Answer(status, headers, body)


def assert_correct(answer: Answer) -> None:
    assert answer.status != 500, answer
    assert answer.status in (501, 503) or answer.status < 500, answer
    if answer.status >= 400 and answer.body:
        assert answer.code
        assert "Traceback" not in answer.body.decode()


# An upper bound for an operation that hangs, however slow the machine is.
ANSWER_S = 600.0
# The size of one read of a connection. With a small receive buffer, the bytes that a slow reader leaves stay with the
# proxy.
_READ_BYTES = 256 * 1024
_SMALL_BUFFER_BYTES = 4096
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Head:
    """`headers` have lower-case names."""

    status: int
    headers: dict[str, str]

    @property
    def length(self) -> int:
        return int(self.headers.get("content-length", "0"))


class Client:
    """One connection. Each of its waits has a time limit."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: tuple[str, int], *, slow: bool = False) -> Self:
        sock = socket.socket()
        sock.setblocking(False)
        if slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER_BYTES)
        await asyncio.get_running_loop().sock_connect(sock, address)
        limit = _SMALL_BUFFER_BYTES if slow else _READ_BYTES
        return cls(*await asyncio.open_connection(sock=sock, limit=limit))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def ask(self, method: str, target: str, *lines: str) -> None:
        self.send("\r\n".join([f"{method} {target} HTTP/1.1", "host: x", *lines, "", ""]).encode())

    async def head(self) -> Head:
        async with asyncio.timeout(ANSWER_S):
            raw = await self._reader.readuntil(b"\r\n\r\n")
        start, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return Head(int(start.split(" ")[1]), {name.lower(): value.strip() for name, _, value in pairs})

    async def some(self, most: int = _READ_BYTES) -> bytes:
        """The next bytes of a body; empty at the connection's end."""
        async with asyncio.timeout(ANSWER_S):
            return await self._reader.read(most)

    async def skip(self, head: Head) -> None:
        """The body that `head` announces, by its length or in chunks; EOFError where it is cut off."""
        async with asyncio.timeout(ANSWER_S):
            if head.headers.get("transfer-encoding") != "chunked":
                await self._skip_bytes(head.length)
                return
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                await self._skip_bytes(size + len(b"\r\n"))
            await self._skip_bytes(len(b"\r\n"))

    async def _skip_bytes(self, count: int) -> None:
        while count:
            piece = await self._reader.read(min(_READ_BYTES, count))
            if not piece:
                raise EOFError
            count -= len(piece)

    async def is_body(self, expected: bytes) -> bool:
        """Whether exactly these bytes come. They are compared as they come, so that a crowd's bodies need no memory."""
        position = 0
        while position < len(expected):
            piece = await self.some(min(_READ_BYTES, len(expected) - position))
            if not piece or expected[position : position + len(piece)] != piece:
                return False
            position += len(piece)
        return True

    async def get(self, target: str, expected: bytes, *lines: str) -> tuple[Head, bool]:
        """Send a read, and say whether its body is `expected`."""
        self.ask("GET", target, *lines)
        head = await self.head()
        return head, head.length == len(expected) and await self.is_body(expected)

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def hang_up(self) -> None:
        """Close the connection so that the proxy gets a reset."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._writer.transport.abort()
        await asyncio.sleep(0)
