"""Many clients of one proxy at once, as plain connections: readers, slow readers, and clients that hang up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from typing import Self

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
