"""Worlds with an odd origin and a proxy before it, all on one event loop: the same requests go to both, and the replies
and the traffic are compared."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import zlib
from base64 import b64encode
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest.mock import patch

from outrider import settings as outrider_settings
from outrider.app import running
from tests.support.bucket import REGION
from tests.support.fakes import FakeClock, no_wait_patience
from tests.support.odd_origin import OddOrigin
from tests.support.oddities import AWS, MORE_BYTES, Body, ETag, Oddities, etag_of, extent_of
from tests.support.proxy import settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from outrider.composition import Outrider

BLOCK = 64 * 1024
TTL_S = 60.0
NAME = "train"
# Longer than any wait of the proxy: a client that waits for so long has been left without an answer.
ANSWER_S = 60.0
MORE = 1.1
"""A proxy fetches at most so many times the bytes that clients without it fetch."""
LESSONS_MAX = 1
"""So many reads of a history may fail although a direct client would have got them; with ETags that change at each
reply, so many more of each object."""
_KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}
_DIRECT = ("x-direct", "1")
_REFUSAL_BYTES = 512
# An oddity shows at the first blocks of a read, three at once. A reply without a proof is tried twice.
_LEARNING_BLOCKS = 6


class OddError(AssertionError):
    """The proxy gave what no direct client would get, or fetched too much."""


@dataclass(frozen=True, slots=True)
class Ask:
    method: str
    key: str
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def named(self) -> dict[str, str]:
        return dict(self.headers)


@dataclass(frozen=True, slots=True)
class Got:
    """A reply. `whole` False: it is visibly broken, and `body` is the part that came. `status` 0: nothing came."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False

    def __repr__(self) -> str:
        kept = ("content-range", "content-length", "etag", "x-cache")
        headers = {name: value for name, value in self.headers.items() if name in kept}
        return f"{self.status} {headers} {len(self.body)} bytes {'' if self.whole else 'and broken'}"


class Client:
    """One connection at a time, kept as long as both sides keep it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, ask: Ask, bucket: str, *more: tuple[str, str]) -> Got:
        async with asyncio.timeout(ANSWER_S):
            try:
                return await self._ask(ask, bucket, *more)
            except (OSError, EOFError, ValueError):
                self.close()
                return Got()

    async def _ask(self, ask: Ask, bucket: str, *more: tuple[str, str]) -> Got:
        if self._open is None:
            self._open = await asyncio.open_connection(*self._address, limit=1 << 20)
        reader, writer = self._open
        lines = [f"{ask.method} /{bucket}/{ask.key} HTTP/1.1", "host: 127.0.0.1"]
        lines += [f"{name}: {value}" for name, value in (*ask.headers, *more)]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
        version, status, _ = start.split(" ", 2)
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        body, whole = bytearray(), True
        if ask.method != "HEAD" and int(status) not in (204, 304):
            try:
                await _read_body(reader, headers, body)
            except (OSError, EOFError):
                whole = False
        keeps = version == "HTTP/1.1" and headers.get("connection") != "close"
        if not whole or not keeps or not {"content-length", "transfer-encoding"} & headers.keys():
            self.close()
        return Got(int(status), headers, bytes(body), whole)

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str], body: bytearray) -> None:
    """Raises EOFError: the body is not whole."""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await _read_exactly(reader, size, body)
            await reader.readexactly(2)
        await reader.readexactly(2)
    elif "content-length" in headers:
        await _read_exactly(reader, int(headers["content-length"]), body)
    else:
        body += await reader.read()


async def _read_exactly(reader: asyncio.StreamReader, size: int, body: bytearray) -> None:
    left = size
    while left:
        piece = await reader.read(left)
        if not piece:
            raise EOFError
        body += piece
        left -= len(piece)


class OddWorld:
    """The contents of objects that a read may bring now, the requests so far, and what they cost."""

    def __init__(self, origin: OddOrigin, outrider: Outrider, clock: FakeClock, *, always: bool) -> None:
        """`always`: each read asks the origin, so that only the newest content is right."""
        self.origin = origin
        self.outrider = outrider
        self.clock = clock
        self.contents: dict[str, list[bytes]] = {}
        self.log: list[str] = []
        self.saw: Counter[str] = Counter()
        self._always = always
        self._odd = origin.oddities
        self._numbers = random.Random(1)
        host, _, port = outrider.listen.rpartition(":")
        self._client = Client((host, int(port)))
        self._direct_bytes = self._direct_requests = self._asked = 0
        self._failed = False
        self._learning: list[Ask] = []
        self._lessons = 0
        self.etags: dict[str, str] = {}

    # -- events ---------------------------------------------------------------------------------------------------

    def put(self, key: str, size: int | None = None) -> None:
        """Store other bytes than any before; None: as many as before. A shadow of each content that is still right
        keeps what the origin says of it."""
        if size is None:
            size = len(self.contents[key][-1])
        if self._odd.hides_overwrites and self.contents.get(key) and size == len(self.contents[key][-1]):
            size += 1
        self._say(f"put {key}: {size} bytes")
        body = self._numbers.randbytes(size)
        kept = [] if self._always else self.contents.get(key, [])
        self.contents[key] = [*kept, body]
        self.origin.put(NAME, key, body)
        newest = self.origin.objects[NAME, key]
        self.origin.put(_shadow(len(self.contents[key]) - 1), key, body, modified=newest.modified)

    def expire(self) -> None:
        """The time to live of all that is known runs out."""
        self._say("expire")
        self.clock.advance(TTL_S + 1)
        for key, contents in self.contents.items():
            newest = self.origin.objects[NAME, key]
            self.contents[key] = contents[-1:]
            self.origin.put(_shadow(0), key, contents[-1], modified=newest.modified)

    def mend(self) -> None:
        """The origin is no longer odd."""
        self._say("mend")
        self.origin.oddities = AWS

    def spoil(self) -> None:
        self._say("spoil")
        self.origin.oddities = self._odd

    async def ask(self, ask: Ask) -> Got:
        """Put a request to both, and compare the replies."""
        got = await self._client.ask(ask, NAME)
        await settled(self.outrider)
        await self._judge(ask, got)
        return got

    async def ask_at_once(self, asks: list[Ask]) -> None:
        """As `ask`, with several requests on connections of their own."""
        clients = [Client(self._client._address) for _ in asks]
        replies = await asyncio.gather(*(client.ask(ask, NAME) for client, ask in zip(clients, asks, strict=True)))
        for client in clients:
            client.close()
        await settled(self.outrider)
        for ask, got in zip(asks, replies, strict=True):
            await self._judge(ask, got)

    async def last(self) -> None:
        """The origin is odd no more, and all is asked about again: nothing wrong was kept. Then traffic is compared."""
        self.mend()
        self.expire()
        for key in self.contents:
            for _ in range(2):
                got = await self.ask(Ask("GET", key))
                if got.status != 200 or got.body != self.contents[key][-1]:
                    raise self._error(f"the mended origin is read wrongly: {got!r}")
        self._check_traffic()

    def close(self) -> None:
        self._client.close()

    # -- judgement -------------------------------------------------------------------------------------------------

    async def _judge(self, ask: Ask, got: Got) -> None:
        contents, before = self.contents[ask.key], len(self.origin.seen)
        directs = [await self._ask_direct(ask, _shadow(index)) for index in range(len(contents))]
        self._count(ask, max(seen.sent_bytes for seen in self.origin.seen[before:]))
        self._say(f"{ask.method} {ask.key} {ask.named}: {got!r}; direct: {directs}")
        complete = all(self._is_right(ask, direct, [body]) for direct, body in zip(directs, contents, strict=True))
        failed = got.status >= 400 or not got.whole
        self._failed |= not complete or not got.whole or got.status >= 500
        if not failed:
            right = self._is_right(ask, got, [*contents, *self._as_sent(contents)])
            if not right and not any(_alike(got, direct) for direct in directs):
                raise self._error("other bytes than any direct client gets")
            self.saw["the right bytes" if right else "what the origin sends to anybody"] += 1
        elif got.status in (200, 206):
            wanted = [*(_from_start(got, body, ask) for body in contents), *(direct.body for direct in directs)]
            if not any(body.startswith(got.body) for body in wanted):
                raise self._error("wrong bytes before the connection broke")
        if failed:
            self.saw["a broken connection" if not got.whole else f"{got.status // 100}xx"] += 1
        self._check_headers(ask, got, directs)
        if "etag" in got.headers and got.status in (200, 206):
            self.etags[ask.key] = got.headers["etag"]
        if failed and complete and not self._odd.forged and all(direct.status < 400 for direct in directs):
            await self._learned(ask)

    def _count(self, ask: Ask, sent_bytes: int) -> None:
        """Count what a direct client fetched, rounded to blocks."""
        extents = [(extent_of(ask.named.get("range", ""), len(body)), body) for body in self.contents[ask.key]]
        fetched = max(sent_bytes, *(_rounded(extent, len(body)) for extent, body in extents))
        self._direct_bytes += fetched
        self._direct_requests += 2 + fetched // BLOCK
        self._asked += 1

    async def _learned(self, ask: Ask) -> None:
        """A read failed that a direct client would have got. The proxy has learned of an oddity: the next succeeds."""
        if self._learning.count(ask) >= (2 if self._odd.etag is ETag.CHANGING else 1):
            raise self._error("errors again and again, though a direct client gets what is right")
        self._learning.append(ask)
        self._lessons += 1
        most = LESSONS_MAX + (2 * len(self.contents) if self._odd.etag is ETag.CHANGING else 0)
        if self._lessons > most:
            raise self._error("errors at other requests, though a direct client gets what is right")
        await self.ask(ask)
        self._learning.remove(ask)

    async def _ask_direct(self, ask: Ask, bucket: str) -> Got:
        """On a connection of its own: odd origins leave bytes on one, or close it."""
        direct = Client(self.origin.address)
        try:
            return await direct.ask(ask, bucket, _DIRECT)
        finally:
            direct.close()

    def _is_right(self, ask: Ask, got: Got, contents: list[bytes]) -> bool:
        """Whether a reply is right by what the origin holds."""
        if got.status >= 400 or not got.whole:
            return got.whole
        if got.status == 304:
            return any(etag in ask.named.get("if-none-match", "") for etag in self._etags(ask.key))
        if ask.method == "HEAD":
            # Where lengths are forged, one lie is as good as the other.
            stated = int(got.headers.get("content-length", "-1"))
            return stated in {len(body) for body in contents} or self._odd.forged
        if got.status == 206 or "content-range" in got.headers:
            asked = ask.named.get("range", "")
            return any(_is_part(got, body, extent_of(asked, len(body)), self._odd) for body in contents)
        return got.status == 200 and "range" not in ask.named and got.body in contents

    def _as_sent(self, contents: list[bytes]) -> list[bytes]:
        """The bytes that a GET without a Range brings to anybody, under a length that fits."""
        changed = {Body.SHORT: lambda body: body[: len(body) // 2], Body.LONG: lambda body: body + MORE_BYTES}
        return [changed[self._odd.body](body) for body in contents] if self._odd.body in changed else []

    def _etags(self, key: str) -> set[str]:
        """The ETags that the origin states, or stated before it was mended or spoilt, of contents that are right."""
        stored = [self.origin.objects[_shadow(index), key] for index in range(len(self.contents[key]))]
        stated = {etag_of(odd, one, method) for odd in (self._odd, AWS) for one in stored for method in ("GET", "HEAD")}
        return {etag for etag in stated if etag}

    def _check_headers(self, ask: Ask, got: Got, directs: list[Got]) -> None:
        """The headers that describe the bytes describe these bytes, or the same as the origin."""
        if got.status not in (200, 206):
            return
        if self._odd.etag is not ETag.CHANGING and got.headers.get("etag", "") not in {"", *self._etags(ask.key)}:
            raise self._error("an ETag that the origin does not state")
        crc = got.headers.get("x-amz-checksum-crc32")
        right = b64encode(zlib.crc32(got.body).to_bytes(4, "big")).decode()
        if crc is not None and crc != right and not any(crc == d.headers.get("x-amz-checksum-crc32") for d in directs):
            raise self._error("a checksum of other bytes")

    def _check_traffic(self) -> None:
        """Ranges are rounded to blocks. A first look at an object may cost two blocks, and each request an error
        document. Bytes count as fetched when they are sent, also where the proxy hangs up at the head. Where direct
        clients get broken replies, each is tried again."""
        seen = [seen for seen in self.origin.seen if _DIRECT[0] not in seen.headers]
        tries = 6 if self._failed or self._odd.forged else 1
        blocks = 2 * (len(self.contents) + self._lessons) + _LEARNING_BLOCKS
        slack = blocks * BLOCK + self._asked * _REFUSAL_BYTES
        most = tries * (MORE * self._direct_bytes + slack)
        sent = sum(request.sent_bytes for request in seen)
        if sent > most:
            raise self._error(f"{sent:,} bytes were fetched; direct clients fetch {self._direct_bytes:,}")
        if len(seen) > tries * (MORE * self._direct_requests + 4 * len(self.contents)):
            raise self._error(f"{len(seen)} requests, for {self._asked} with {self._direct_requests} blocks")

    def _say(self, line: str) -> None:
        self.log.append(line)

    def _error(self, why: str) -> OddError:
        requests = [
            f"  {seen.method} {seen.target} {seen.headers.get('range', '')} {seen.headers.get('if-match', '')}: "
            f"{seen.status}, {seen.sent_bytes:,} bytes"
            for seen in self.origin.seen
            if _DIRECT[0] not in seen.headers
        ]
        return OddError("\n".join([why, repr(self._odd), *self.log, "at the origin:", *requests[-60:]]))


def _shadow(index: int) -> str:
    return f"shadow-{index}"


def _from_start(got: Got, body: bytes, ask: Ask) -> bytes:
    """The bytes of `body` from where the reply says that it begins."""
    first, dash, _ = got.headers.get("content-range", "").removeprefix("bytes ").partition("-")
    asked = extent_of(ask.named.get("range", ""), len(body)) or (0, 0)
    return body[int(first) if dash and first.isdecimal() else asked[0] :]


def _rounded(extent: tuple[int, int] | None, size: int) -> int:
    """The bytes of all blocks that `extent` touches."""
    if extent is None:
        return 0
    return min(size, -(-extent[1] // BLOCK) * BLOCK) - extent[0] // BLOCK * BLOCK


def _alike(got: Got, direct: Got) -> bool:
    length = "content-length"
    return (
        direct.whole
        and (got.status, got.body) == (direct.status, direct.body)
        and got.headers.get("content-range") == direct.headers.get("content-range")
        and (got.body != b"" or got.headers.get(length) in (direct.headers.get(length), None))
    )


def _is_part(got: Got, body: bytes, extent: tuple[int, int] | None, odd: Oddities) -> bool:
    """Whether the reply is a part that names itself: the one that was asked for. A total that the origin forges may be
    repeated."""
    first, _, rest = got.headers.get("content-range", "").removeprefix("bytes ").partition("-")
    last, _, total = rest.partition("/")
    if not (first + last).isdecimal() or not (odd.forged or total in ("*", str(len(body)))):
        return False
    found = int(first), int(last) + 1
    return found == (extent or (0, len(body))) and got.body == body[slice(*found)]


@asynccontextmanager
async def odd_world(oddities: Oddities, freshness: str) -> AsyncIterator[OddWorld]:
    clock = FakeClock()
    with tempfile.TemporaryDirectory(prefix="outrider-odd-", dir=_memory()) as directory:
        given = {
            "region": REGION, "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "cache_dir": directory,
            "cache_size": "64MiB", "min_free": "0", "prefetch": "off", "block_size": str(BLOCK), "freshness": freshness,
        }  # fmt: skip
        async with OddOrigin(oddities).serving() as origin:
            settings = outrider_settings.load({"origin": origin.endpoint, **given}, environ={})
            with patch.dict(os.environ, _KEYS):
                # A bundle of certificates takes longer to load than a proxy to start.
                for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
                    os.environ.pop(name, None)
                async with running(settings, clock=clock, patience=no_wait_patience()) as outrider:
                    world = OddWorld(origin, outrider, clock, always=freshness == "always")
                    try:
                        yield world
                    finally:
                        world.close()


def _memory() -> str | None:
    """A directory in memory, where there is one: the disk is not what is tried."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
