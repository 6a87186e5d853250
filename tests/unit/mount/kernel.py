"""A mount as the kernel sees it, and the proxy behind it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from outrider.core.model import ObjectRef
from outrider.mount.bucket import MountBucket
from outrider.mount.file_system import FileSystem
from outrider.mount.messages import HEADER, READ, Op
from outrider.mount.nodes import ROOT
from tests.support.fakes import FakeClock, FakeOrigin, FakeReply, Fault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from outrider.core.model import Headers
    from outrider.ports import OriginRequest

MIB = 1024 * 1024
TUESDAY: Headers = (("last-modified", "Tue, 06 Jan 2026 00:00:00 GMT"),)
TUESDAY_S = 1767657600
MODIFIED = "2026-01-06T00:00:00.519Z"


@dataclass
class Proxy(FakeOrigin):
    """`FakeOrigin` that also answers LISTs, `page` keys and groups at a time."""

    page: int = 1000
    listed: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    """Size, ETag and date of objects in LISTs, where these are not the right ones."""
    heeds_prefix: bool = True
    """And the delimiter."""

    def _read(self, request: OriginRequest, ref: ObjectRef, fault: Fault | None) -> FakeReply:
        if ref.key:
            return super()._read(request, ref, fault)
        asked = dict(request.query)
        prefix, delimiter = asked["prefix"], asked.get("delimiter")
        if not self.heeds_prefix:
            prefix, delimiter = "", None
        rows: dict[str, str] = {}
        for (_, key), stored in sorted(self.objects.items()):
            name, slash, _ = key.removeprefix(prefix).partition("/")
            if not key.startswith(prefix):
                continue
            if delimiter and slash:
                group = f"{prefix}{name}/"
                rows[group] = f"<CommonPrefixes><Prefix>{_quoted(group)}</Prefix></CommonPrefixes>"
            else:
                size, etag, date = self.listed.get(key, (len(stored.data), stored.etag, MODIFIED))
                rows[key] = (
                    f"<Contents><Key>{_quoted(key)}</Key><Size>{size}</Size><ETag>{etag}</ETag>"
                    f"<LastModified>{date}</LastModified></Contents>"
                )
        begin = int(asked.get("continuation-token", "0"))
        end = begin + int(asked.get("max-keys", self.page))
        more = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < len(rows) else ""
        facts = f"<EncodingType>url</EncodingType><IsTruncated>{'true' if more else 'false'}</IsTruncated>{more}"
        body = f"<ListBucketResult>{facts}{''.join(list(rows.values())[begin:end])}</ListBucketResult>".encode()
        return FakeReply(200, (), len(body), body, fault, self)

    @property
    def lists(self) -> int:
        return sum(request.method == "GET" and not request.key for request in self.log)


def _quoted(key: str) -> str:
    return quote(key, errors="surrogateescape")


class Answer(NamedTuple):
    error: int
    body: bytes


class Entry(NamedTuple):
    """`valid_s`: of the name; `attributes_valid_s`: of the rest."""

    number: int
    valid_s: float
    attributes_valid_s: float
    size: int
    time_ns: int
    is_directory: bool


def entry_of(body: bytes) -> Entry:
    number, _, valid_s, attributes_valid_s, rest, attributes_rest = struct.unpack_from("=QQQQII", body)
    return Entry(number, valid_s + rest / 1e9, attributes_valid_s + attributes_rest / 1e9, *attributes_of(body[40:]))


def attributes_of(body: bytes) -> tuple[int, int, bool]:
    _, size, _, _, seconds, _, _, rest, _, mode = struct.unpack_from("=QQQQQQIIII", body)
    return size, seconds * 10**9 + rest, stat.S_ISDIR(mode)


class Kernel:
    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.unique = 0
        self.notices: list[bytes] = []

    async def send(self, op: int, number: int, body: bytes) -> None:
        head = HEADER.pack(HEADER.size + len(body), op, self.unique, number, 0, 0, 0, 0, 0)
        await asyncio.get_running_loop().sock_sendall(self._end, head + body)

    async def ask(self, op: int, number: int, body: bytes = b"") -> Answer:
        self.unique += 1
        unique = self.unique
        await self.send(op, number, body)
        reply = await self.answer()
        assert struct.unpack_from("=Q", reply, 8)[0] == unique
        return Answer(-struct.unpack_from("=i", reply, 4)[0], reply[16:])

    async def answer(self) -> bytes:
        """The next reply to a request, with its head."""
        while True:
            reply = await asyncio.get_running_loop().sock_recv(self._end, 2 * MIB)
            length, _, unique = struct.unpack_from("=IiQ", reply)
            assert length == len(reply)
            if unique:
                return reply
            self.notices.append(reply)

    async def forget(self, *nodes: int) -> None:
        """As for one telling of each."""
        batch = b"".join(struct.pack("=QQ", node, 1) for node in nodes[1:])
        await self.send(Op.FORGET, nodes[0], struct.pack("=Q", 1))
        await self.send(Op.BATCH_FORGET, 0, struct.pack("=II", len(nodes) - 1, 0) + batch)

    async def knows(self, number: int) -> bool:
        """Whether the file system still has the node."""
        return (await self.ask(Op.GETATTR, number, bytes(16))).error != errno.ESTALE

    async def look(self, name: str, parent: int = ROOT) -> Entry | None:
        error, body = await self.ask(Op.LOOKUP, parent, os.fsencode(name) + b"\0")
        assert error == 0
        return entry_of(body) if entry_of(body).number else None

    async def found(self, name: str, parent: int = ROOT) -> Entry:
        entry = await self.look(name, parent)
        assert entry is not None
        return entry

    async def stat(self, number: int) -> int:
        """The size."""
        error, body = await self.ask(Op.GETATTR, number, bytes(16))
        assert error == 0
        return attributes_of(body[16:])[0]

    async def read(self, number: int, start: int, size: int) -> Answer:
        return await self.ask(Op.READ, number, READ.pack(0, start, size, 0, 0, 0, 0))

    async def names(self, number: int = ROOT, size: int = 4096) -> dict[str, Entry]:
        error, body = await self.ask(Op.OPENDIR, number, bytes(8))
        assert error == 0
        handle, offset, found = struct.unpack_from("=Q", body)[0], 0, {}
        while part := (await self.ask(Op.READDIRPLUS, number, READ.pack(handle, offset, size, 0, 0, 0, 0))).body:
            at = 0
            while at < len(part):
                _, offset, length, _ = struct.unpack_from("=QQII", part, at + 128)
                name = os.fsdecode(part[at + 152 : at + 152 + length])
                found[name] = entry_of(part[at:])
                at += (152 + length + 7) // 8 * 8
        return found


class World(NamedTuple):
    proxy: Proxy
    kernel: Kernel
    clock: FakeClock

    def put(self, key: str, data: bytes = b"image") -> None:
        self.proxy.put(ObjectRef("pets", key), data, TUESDAY)

    @property
    def reads(self) -> list[str]:
        """The Range of each GET of an object."""
        return [dict(sent.headers).get("range", "") for sent in self.proxy.log if sent.method == "GET" and sent.key]

    @property
    def requests(self) -> int:
        return len(self.proxy.log)

    @property
    def read_bytes(self) -> int:
        """The bytes that the GETs of ranges asked for."""
        ends = [read.removeprefix("bytes=").split("-") for read in self.reads]
        return sum(int(last) - int(first) + 1 for first, last in ends)


async def _at_once(_: float) -> None:
    await asyncio.sleep(0)


@asynccontextmanager
async def mounted(believed_s: float = 60.0, prefix: str = "train/") -> AsyncIterator[World]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
    with ours, theirs:
        proxy, clock = Proxy(chunk_bytes=256 * 1024), FakeClock()
        bucket = MountBucket(proxy, "pets", _at_once)
        files = FileSystem(ours.fileno(), bucket, prefix, believed_s, clock)
        files.start()
        yield World(proxy, Kernel(theirs), clock)
        await files.stop()
