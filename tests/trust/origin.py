"""A bucket with injected faults, and its reader: each read ends with the right bytes or with a visible failure."""

from __future__ import annotations

import http.client
import random
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.conditions import Fault
    from tests.support.proxy import Proxy
    from tests.support.simulator import Simulator
    from tests.support.trials import Trials

NAME = "faults"
BLOCK = 64 * 1024
RIGHT, BROKEN = "the right bytes", "a broken connection"
MODES = ("whole", "ranged", "mixed")
# Longer than any timeout of the proxy: a client that waits for so long has been left without an answer.
CLIENT_TIMEOUT_S = 120.0
_numbers = count()


class WrongBytesError(AssertionError):
    """A client got wrong bytes. The tests of this folder look for exactly this."""


def content(rng: random.Random, size: int) -> bytes:
    """No two runs of these bytes are alike, so that a shift or a mixture of versions shows."""
    return rng.randbytes(size)


def sizes(rng: random.Random) -> int:
    """Some objects are small and some have several blocks; sizes lie at the edges of blocks and anywhere."""
    edge = rng.choice((1, 2, 3, 5, 9)) * BLOCK
    return rng.choice((rng.randrange(1, BLOCK), edge - 1, edge, edge + 1, edge + rng.randrange(2, BLOCK)))


def place(rng: random.Random, size: int) -> int:
    """The offset in an answer at which a fault strikes: an edge of a block, or anywhere."""
    at = rng.choice((0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, rng.randrange(size), rng.randrange(size)))
    return min(at, size - 1)


def some_extent(rng: random.Random, size: int) -> tuple[int, int]:
    start = place(rng, size)
    return start, rng.choice((start + 1, min(size, start + BLOCK), size, rng.randrange(start, size) + 1))


def read(proxy: Proxy, key: str, versions: list[bytes], extent: tuple[int, int] | None = None) -> str:
    """The outcome of one GET: RIGHT, BROKEN, or the code of the S3 error.

    Raises:
        WrongBytesError: the body, or the part of it that came, belongs to none of `versions`.
    """
    headers = {} if extent is None else {"range": f"bytes={extent[0]}-{extent[1] - 1}"}
    body, broken = bytearray(), False
    with closing(http.client.HTTPConnection(*proxy.address, timeout=CLIENT_TIMEOUT_S)) as connection:
        try:
            connection.request("GET", f"/{NAME}/{key}", headers=headers)
            response = connection.getresponse()
        except (http.client.HTTPException, ConnectionError):
            return BROKEN
        with response:
            length = response.getheader("content-length")
            try:
                while piece := response.read1(BLOCK):
                    body += piece
                broken = length is None or len(body) != int(length)
            except (http.client.HTTPException, ConnectionError):
                broken = True
        if not broken:
            # No byte of this answer may be left on the connection before the next answer.
            connection.request("HEAD", "/_outrider/status.json")
            assert connection.getresponse().status == 200
    if response.status in (200, 206):
        # The versions are looked at only now: an overwrite may have added one during the read.
        wanted = [data if extent is None else data[slice(*extent)] for data in versions]
        if not (any(version.startswith(body) for version in wanted) if broken else bytes(body) in wanted):
            raise WrongBytesError(f"{key}, {extent}: {len(body)} bytes, broken: {broken}")
        return BROKEN if broken else RIGHT
    if broken:
        return BROKEN
    return f"{response.status} {_code_of(bytes(body))}"


def _code_of(body: bytes) -> str:
    return body.partition(b"<Code>")[2].partition(b"</Code>")[0].decode()


class Proxies(dict[str, "Proxy"]):
    """The proxies by kind. Each is started when a test first uses it."""

    def __init__(self, start: Callable[[str], Proxy]) -> None:
        super().__init__()
        self._start = start

    def __missing__(self, kind: str) -> Proxy:
        self[kind] = started = self._start(kind)
        return started


@dataclass
class World:
    """A bucket, the faults of its conditions, and the proxies in front of it."""

    direct: Any
    simulator: Simulator
    proxies: Proxies
    trials: Trials
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def put(self, size: int | None = None) -> Trial:
        """A new object that no proxy knows."""
        data = content(self.rng, sizes(self.rng) if size is None else size)
        trial = Trial(self, f"shards/trial-{next(_numbers):05d}.tar", [data])
        self.direct.put_object(Bucket=NAME, Key=trial.key, Body=data)
        return trial

    @contextmanager
    def conditions(self, *faults: Fault) -> Iterator[None]:
        """Faults that have not struck by the end of the block are removed."""
        self.simulator.conditions.faults = [*faults]
        try:
            yield
        finally:
            self.simulator.conditions.faults = []
            self.simulator.release()

    def settle(self) -> None:
        for proxy in self.proxies.values():
            proxy.settle()


@dataclass
class Trial:
    """One object, with all the versions that it has had."""

    world: World
    key: str
    versions: list[bytes]

    @property
    def data(self) -> bytes:
        return self.versions[-1]

    def overwrite(self) -> None:
        new = content(self.world.rng, len(self.data))
        self.versions.append(new)
        self.world.direct.put_object(Bucket=NAME, Key=self.key, Body=new)

    def delete(self) -> None:
        self.world.direct.delete_object(Bucket=NAME, Key=self.key)

    def warm(self, proxy: Proxy) -> None:
        """Fill some blocks of the object, in no faults."""
        for _ in range(2):
            assert read(proxy, self.key, self.versions, some_extent(self.world.rng, len(self.data))) == RIGHT
        proxy.settle()

    def read(self, proxy: Proxy, extent: tuple[int, int] | None = None) -> str:
        return read(proxy, self.key, self.versions, extent)

    def recovers(self, proxy: Proxy, saw: str) -> None:
        """After a broken read the client's next read is whole and of the newest version. After a whole read the next
        may also be of the older version: a version is believed until its freshness ends or until one of its blocks is
        missing."""
        if saw == RIGHT:
            saw = self.read(proxy)
        if saw == BROKEN:
            del self.versions[:-1]
            saw = self.read(proxy)
        assert saw == RIGHT
        proxy.settle()

    def seen(self, fault: str, proxy: Proxy, mode: str) -> str:
        """The outcome of a read in bad weather, recorded as a trial."""
        extent = some_extent(self.world.rng, len(self.data)) if mode == "ranged" else None
        try:
            saw = self.read(proxy, extent)
        except WrongBytesError:
            self.world.trials.record("origin", fault, "wrong bytes", lost=1)
            raise
        self.world.trials.record("origin", fault, saw)
        return saw
