"""The clients of a round: writers by all forms of writes, through members at random and past them, and readers at all
members. Each request is recorded."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from tests.support import forms
from tests.trust.histories.bucket import FOLDERS, IS_OWN, NAME
from tests.trust.histories.record import CELL_BYTES, Look, Read, Write, content, is_part, numbers_in

if TYPE_CHECKING:
    from tests.support.nodes import Node
    from tests.trust.histories.bucket import Bucket
    from tests.trust.histories.record import History

BLOCK = 64 * 1024
SIZES = (5000, 10 * BLOCK, 2 * BLOCK + 1000, 100, 6 * BLOCK + 8, 9 * BLOCK + 24)
"""The sizes of the objects in each folder, and of most of their writes: an overwrite of the same size is the hardest to
see."""
WRITTEN = (8, 6, 4, 1, 1, 4)
"""How often they are written, each beside the others. A write that a member missed shows at one that is written
rarely."""
PAST = "past the members"
WAYS = {"PUT": 6, "multipart": 2, "COPY": 2, "form": 1, "DELETE": 1, "DeleteObjects": 1, PAST: 1}
WAYS_PAST = {"PUT": 1, PAST: 9}
"""Those of the last object of each folder, at which the time to live shows."""
SLOW_READS = 0.1
"""The share of reads that take a while, so that the object may be overwritten meanwhile."""
READS = {"GET": 9, "range": 6, "HEAD": 2, "If-Match": 2}
WRITERS = 3
READERS = 2
"""Readers of each member."""
WRITE_PAUSE_S = 1.2
# More than one whole cell, wherever they begin.
_RANGE_BYTES = 2 * CELL_BYTES
# A client that waits for longer was left without an answer.
_ANSWER_S = 75.0
_LOOK_EVERY_S = 0.5
_LOOK_S = 5.0
_LAG_S = 0.02
_DEAD = (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError)


@dataclass(frozen=True, slots=True)
class _Reply:
    """`status` 0: none came."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """One round. `folders`: the forms of ETags. `longest_s`: no fault is longer. `hello_s` None: as often as members
    do. `read_pause_s`: of each reader, in the mean."""

    seed: str
    seconds: float
    freshness: str
    folders: tuple[str, ...] = FOLDERS
    members: int = 3
    longest_s: float = 8.0
    hello_s: float | None = None
    read_pause_s: float = 0.03


class Clients:
    """As a context. `up`: the members that serve."""

    def __init__(
        self, nodes: dict[str, Node], up: set[str], bucket: Bucket, history: History, plan: Plan
    ) -> None:  # fmt: skip
        self._nodes = nodes
        self._up = up
        self._bucket = bucket
        self._history = history
        self._plan = plan
        self._numbers = count(1)
        self._generations = {(folder, slot): 0 for folder in plan.folders for slot in range(len(SIZES))}
        # The heads that readers saw last.
        self._seen: dict[str, tuple[str, int]] = {}
        self._readers: dict[str, aiohttp.ClientSession] = {}
        self._writers: dict[str, aiohttp.ClientSession] = {}
        self._stack = AsyncExitStack()
        self.stopping = False
        for slot in self._generations:
            self._begin(slot)

    async def __aenter__(self) -> Self:
        for name, node in self._nodes.items():
            # A write that is sent again by the client would be a second write.
            for sessions, closes in ((self._readers, False), (self._writers, True)):
                connector = aiohttp.TCPConnector(socket_factory=_sockets(node), force_close=closes, limit=0)
                sessions[name] = await self._stack.enter_async_context(
                    aiohttp.ClientSession(
                        connector=connector, timeout=aiohttp.ClientTimeout(total=_ANSWER_S), auto_decompress=False
                    )
                )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def tasks(self, group: asyncio.TaskGroup) -> None:
        for number in range(WRITERS):
            group.create_task(self._write_on(random.Random(f"{self._plan.seed} writer {number}")))
        for name in self._nodes:
            for number in range(READERS):
                group.create_task(self._read_on(name, random.Random(f"{self._plan.seed} reader {name} {number}")))
            group.create_task(self._look_on(name))
        group.create_task(self._watch_the_clock())

    async def _ask(
        self, session: aiohttp.ClientSession, node: Node, method: str, target: str,
        headers: Mapping[str, str] | None = None, body: bytes = b"", pause_s: float = 0.0,
    ) -> _Reply:  # fmt: skip
        """`pause_s`: between any two pieces of the body."""
        received, status, fields = bytearray(), 0, dict[str, str]()
        try:
            async with session.request(
                method, f"{node.endpoint}/{NAME}{target}", headers=headers, data=body or None,
                skip_auto_headers=("content-type",),
            ) as reply:  # fmt: skip
                status, fields = reply.status, {name.lower(): value for name, value in reply.headers.items()}
                async for chunk in reply.content.iter_any():
                    received += chunk
                    if pause_s:
                        await asyncio.sleep(pause_s)
        except _DEAD:
            return _Reply(status, fields, bytes(received))
        return _Reply(status, fields, bytes(received), is_whole=True)

    # -- reads --------------------------------------------------------------------------------------------------------

    async def _read_on(self, name: str, chance: random.Random) -> None:
        while not self.stopping:
            await asyncio.sleep(chance.expovariate(1 / self._plan.read_pause_s))
            if name in self._up:
                (way,) = chance.choices([*READS], [*READS.values()])
                await self.read(name, self._key(chance.choice([*self._generations])), way, chance)

    async def read(self, name: str, key: str, way: str, chance: random.Random) -> None:
        etag, size = self._seen.get(key, ("", 0))
        headers, start = {}, 0
        if way == "range" and size >= 2 * _RANGE_BYTES:
            start = chance.choice((0, chance.randrange(size - _RANGE_BYTES), size // BLOCK * BLOCK - 1))
            start = max(0, min(start, size - _RANGE_BYTES))
            stop = chance.choice((start + _RANGE_BYTES, start + BLOCK, size))
            headers["range"] = f"bytes={start}-{stop - 1}"
        elif way == "If-Match" and etag:
            headers["if-match"] = etag
        method = "HEAD" if way == "HEAD" else "GET"
        pause_s = chance.uniform(0.01, 0.1) if chance.random() < SLOW_READS else 0.0
        began = time.monotonic()
        reply = await self._ask(self._readers[name], self._nodes[name], method, f"/{key}", headers, pause_s=pause_s)
        fields = reply.headers
        head = (fields.get("etag", ""), fields.get("last-modified", ""), _size(reply, start))
        is_relayed = fields.get("x-cache") == "BYPASS" and (way == "HEAD" or reply.status < 400 or IS_OWN in reply.body)
        read = Read(
            key, name, way, began, time.monotonic(), reply.status, head, start=start, is_whole=reply.is_whole,
            if_match=headers.get("if-match", ""), is_relayed=is_relayed,
        )  # fmt: skip
        if reply.status in (200, 206):
            first = start if reply.status == 206 else 0
            numbers = numbers_in(reply.body, first)
            is_misplaced = len(numbers) == 1 and not is_part(reply.body, numbers[0], first)
            read = replace(read, numbers=numbers, is_misplaced=is_misplaced)
            self._seen[key] = head[0], head[2] or 0
        else:
            read = replace(read, refusal=reply.body.decode(errors="replace"))
        self._history.reads.append(read)

    async def read_all(self) -> None:
        """Each object at each member, in calm."""
        chance = random.Random(0)
        for slot in self._generations:
            for name in self._nodes:
                await self.read(name, self._key(slot), "GET", chance)

    # -- writes -------------------------------------------------------------------------------------------------------

    def _key(self, slot: tuple[str, int]) -> str:
        folder, number = slot
        return f"{folder}/{number}-{self._generations[slot]}"

    async def _write_on(self, chance: random.Random) -> None:
        while not self.stopping:
            await asyncio.sleep(chance.expovariate(1 / WRITE_PAUSE_S))
            (slot,) = chance.choices([*self._generations], WRITTEN * len(self._plan.folders))
            ways = WAYS_PAST if slot[1] == len(SIZES) - 1 else WAYS
            (way,) = chance.choices([*ways], [*ways.values()])
            name = chance.choice([*self._nodes])
            size = SIZES[slot[1]] if chance.random() < 0.8 else chance.choice(SIZES)
            is_new = chance.random() < 0.03
            if way == PAST:
                self._write_past(self._key(slot), size, is_delete=chance.random() < 0.1)
            elif name in self._up:
                is_new |= not await self._write(name, way, self._key(slot), size)
            if is_new:
                # A write in doubt keeps members from believing anything of the name for long. Objects that are new are
                # wanted anyway.
                self._generations[slot] += 1
                self._begin(slot)

    def _begin(self, slot: tuple[str, int]) -> None:
        """Each object is there from its beginning."""
        self._write_past(self._key(slot), SIZES[slot[1]], is_delete=False)

    def _write_past(self, key: str, size: int, *, is_delete: bool) -> None:
        if is_delete and key in self._bucket.deletes:
            return
        number, now = next(self._numbers), time.monotonic()
        self._history.writes[number] = Write(number, key, PAST, "", now, now, is_acknowledged=True)
        if is_delete:
            self._bucket.deletes[key] = number
            self._bucket.delete(NAME, key)
            del self._bucket.deletes[key]
        else:
            self._bucket.apply(key, content(number, size))

    async def _write(self, name: str, way: str, key: str, size: int) -> bool:
        """Returns whether it was acknowledged."""
        if "DELETE" in way.upper():
            if key in self._bucket.deletes:
                return True
            number = self._bucket.deletes[key] = next(self._numbers)
        else:
            number = next(self._numbers)
        write = Write(number, key, way, name, time.monotonic())
        self._history.writes[number] = write
        ways: dict[str, Callable[..., Any]] = {
            "PUT": self._put, "multipart": self._put_parts, "COPY": self._copy, "form": self._post,
            "DELETE": self._delete, "DeleteObjects": self._delete_many,
        }  # fmt: skip
        reply: _Reply = await ways[way](name, key, number, size)
        if reply.status not in (200, 204) or not reply.is_whole or b"<Error" in reply.body:
            return False
        self._history.writes[number] = replace(write, ended=time.monotonic(), is_acknowledged=True)
        if self._bucket.deletes.get(key) == number:
            del self._bucket.deletes[key]
        return True

    async def _send(self, name: str, method: str, target: str, body: bytes = b"", **headers: str) -> _Reply:
        named = {header.replace("_", "-"): value for header, value in headers.items()}
        return await self._ask(self._writers[name], self._nodes[name], method, target, named, body)

    async def _put(self, name: str, key: str, number: int, size: int) -> _Reply:
        return await self._send(name, "PUT", f"/{key}", content(number, size))

    async def _put_parts(self, name: str, key: str, number: int, size: int) -> _Reply:
        begun = await self._send(name, "POST", f"/{key}?uploads")
        if not begun.is_whole or begun.status != 200:
            return _Reply()
        upload = begun.body.decode().partition("<UploadId>")[2].partition("</UploadId>")[0]
        body, parts = content(number, size), ""
        for part, piece in enumerate((body[: size // 2], body[size // 2 :]), 1):
            stored = await self._send(name, "PUT", f"/{key}?partNumber={part}&uploadId={upload}", piece)
            if stored.status != 200:
                return _Reply()
            parts += f"<Part><PartNumber>{part}</PartNumber><ETag>{stored.headers['etag']}</ETag></Part>"
        document = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        return await self._send(name, "POST", f"/{key}?uploadId={upload}", document)

    async def _copy(self, name: str, key: str, number: int, size: int) -> _Reply:
        source = f"sources/{number}"
        self._bucket.apply(source, content(number, size))
        del self._bucket.versions[source]
        try:
            return await self._send(name, "PUT", f"/{key}", x_amz_copy_source=f"/{NAME}/{source}")
        finally:
            self._bucket.delete(NAME, source)

    async def _post(self, name: str, key: str, number: int, size: int) -> _Reply:
        document = forms.policy([{"bucket": NAME}, ["starts-with", "$key", ""]])
        fields = forms.signed({"key": key}, document, ("anybody", "anything"))
        body = forms.encoded(fields.items(), content(number, size))
        return await self._send(name, "POST", "", body, content_type=f"multipart/form-data; boundary={forms.BOUNDARY}")

    async def _delete(self, name: str, key: str, number: int, size: int) -> _Reply:
        return await self._send(name, "DELETE", f"/{key}")

    async def _delete_many(self, name: str, key: str, number: int, size: int) -> _Reply:
        keys = (key, f"never/{number}")
        document = "".join(f"<Object><Key>{each}</Key></Object>" for each in keys)
        return await self._send(name, "POST", "?delete", f"<Delete>{document}</Delete>".encode())

    # -- what members report of themselves ----------------------------------------------------------------------------

    async def _look_on(self, name: str) -> None:
        while not self.stopping:
            await asyncio.sleep(_LOOK_EVERY_S)
            if name not in self._up:
                continue
            began, admin = time.monotonic(), self._nodes[name].admin
            try:
                async with asyncio.timeout(_LOOK_S):
                    async with self._readers[name].get(f"{admin}/status") as reply:
                        cluster = (await reply.json(content_type=None))["cluster"]
                    async with self._readers[name].get(f"{admin}/metrics") as reply:
                        metrics = await reply.text()
            except _DEAD:
                continue
            ended = time.monotonic()
            alive = frozenset(member["name"] for member in cluster["members"] if member["state"] == "alive")
            self._history.looks.append(Look(name, began, ended, cluster["boot"], _unconfirmed(metrics), alive))
            self._history.lags.append((ended, ended - began))

    async def _watch_the_clock(self) -> None:
        while not self.stopping:
            due = time.monotonic() + _LOOK_EVERY_S
            await asyncio.sleep(_LOOK_EVERY_S)
            if (lag_s := time.monotonic() - due) > _LAG_S:
                self._history.lags.append((due, lag_s))


def _sockets(node: Node) -> Any:
    """Makes sockets on the node's host."""

    def made(address: Any) -> socket.socket:
        family, kind, protocol, *_ = address
        with node.inside():
            sock = socket.socket(family, kind, protocol)
        # Bytes that a slow reader leaves stay with the member.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BLOCK // 2)
        return sock

    return made


def _size(reply: _Reply, start: int) -> int | None:
    """The size of the whole object. -1: the reply contradicts itself, or the request."""
    length = reply.headers.get("content-length")
    if reply.status != 206:
        return None if length is None else int(length)
    extent, _, size = reply.headers.get("content-range", "").removeprefix("bytes ").partition("/")
    first, _, last = extent.partition("-")
    if not size.isdecimal() or int(first) != start or (length and int(last) - int(first) + 1 != int(length)):
        return -1
    return int(size)


def _unconfirmed(metrics: str) -> int:
    lines = [line for line in metrics.splitlines() if line.startswith("outrider_peer_forgets_total")]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines if '"late"' in line or '"unacknowledged"' in line))
