"""HTTP as bytes on a socket: for requests that no client library sends, and answers read exactly as they come."""

from __future__ import annotations

import http.client
import io
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast
from xml.etree import ElementTree

if TYPE_CHECKING:
    from collections.abc import Iterable

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
