"""The identity of a version: whatever ETags a store sends, a body is of one content, on every member and for ever."""

from __future__ import annotations

import asyncio
import hashlib
import random
import tempfile
from collections.abc import Callable
from email.utils import formatdate
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.errors import VersionChanged
from outrider.engine.read.version_answers import NotCacheable
from tests.support.engine import BLOCK, REF, pieces_of
from tests.support.fakes import Stored, ramp
from tests.support.members import Cluster, Node, Time, cluster
from tests.support.trials import rounds

pytestmark = pytest.mark.one_python

SIZE = 4 * BLOCK
TTL_S = 60
YEAR_S = 1_767_225_600

ETAGS = {
    "opaque": '"constant"',
    "zeros": f'"{32 * "0"}-1"',
    "repeated": f'"{16 * "c3"}"',
    "an MD5 of another content": f'"{hashlib.md5(b"another").hexdigest()}"',
    "an MD5 of parts": f'"{hashlib.md5(b"parts").hexdigest()}-4"',
}


class Store:
    """A bucket whose ETag of an object is always the same, and where contents differ in the date alone."""

    def __init__(self, nodes: Cluster, etag: str) -> None:
        self.nodes = nodes
        self.etag = etag
        # Each content, and when it was overwritten.
        self.contents: list[tuple[bytes, float]] = []

    def write(self, content: bytes | None = None, *, after_s: float = TTL_S + 1) -> None:
        """Write past the proxies, and let so much time pass; the date of the write is long gone when it is read.
        `content` None: another one each time."""
        count = len(self.contents) + 1
        if self.contents:
            self.contents[-1] = self.contents[-1][0], self.nodes.clock()
        self.contents.append((ramp(SIZE, 7 * count) if content is None else content, inf))
        at = YEAR_S + 10 * count
        headers = ("last-modified", formatdate(at, usegmt=True)), ("date", formatdate(at + 5, usegmt=True))
        self.nodes.origin.objects[REF] = Stored(self.contents[-1][0], self.etag, headers)
        self.nodes.clock.advance(after_s)

    async def read(self, node: Node, start: int, stop: int, amid: Callable[[], None] | None = None) -> None:
        """A relay, or a body that is cut, is no wrong byte. `amid`: called after the first piece of the body."""
        body, began = bytearray(), self.nodes.clock()
        try:
            answer = await node.engine.reads.get(REF, {"range": f"bytes={start}-{stop - 1}"})
            assert answer.body is not None
            async for piece in pieces_of(answer.body):
                body += piece
                if amid is not None:
                    amid()
                    amid = None
        except (NotCacheable, VersionChanged):
            pass
        finally:
            await self.nodes.settle()
        believed = [content for content, until in self.contents if until >= began - TTL_S]
        assert any(content[start:stop].startswith(body) for content in believed), f"{node.name} mixed contents"


async def history(chance: random.Random, etag: str, names: str, root: Path, time: Time) -> None:
    with cluster(root, names, freshness=f"ttl:{TTL_S}", clock=time, sleep=time.sleep) as nodes:
        await nodes.meet()
        store = Store(nodes, etag)

        def write() -> None:
            store.write(after_s=chance.choice([0, 1, TTL_S + 1]))

        for _ in range(3):
            write()
            for _ in range(chance.randrange(1, 6)):
                start = chance.choice([0, BLOCK, 2 * BLOCK + 5])
                amid = chance.choice([None, None, write])
                await store.read(chance.choice([*nodes]), start, chance.choice([start + 10, SIZE]), amid)


@given(seed=st.integers(0, 2**32), etag=st.sampled_from([*ETAGS]), names=st.sampled_from(["a", "abc"]))
@settings(max_examples=rounds(15))
def test_no_body_has_bytes_of_two_contents(seed: int, etag: str, names: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        time = Time()
        asyncio.run(time.run(history(random.Random(seed), ETAGS[etag], names, Path(root), time)))


@pytest.mark.parametrize(("etag", "freshness"), [*((etag, f"ttl:{TTL_S}") for etag in ETAGS), ("opaque", "always")])
async def test_a_member_with_older_blocks_gives_none_of_them_for_a_newer_version(
    etag: str, freshness: str, tmp_path: Path
) -> None:
    with cluster(tmp_path, freshness=freshness) as nodes:
        await nodes.meet()
        store = Store(nodes, ETAGS[etag])
        store.write()
        # The owner of each block has it, and learned nothing else of the object.
        for index in range(SIZE // BLOCK):
            await store.read(nodes.owner_of(REF, index), index * BLOCK, (index + 1) * BLOCK)
        store.write()
        for node in nodes:
            for start in (0, SIZE - BLOCK):
                await store.read(node, start, SIZE)
            await store.read(node, 0, SIZE)


@pytest.mark.parametrize(("first", "second"), ["aa", "ab", "bc", "ca"])
async def test_an_upload_of_the_same_bytes_cuts_no_read_at_any_member(first: str, second: str, tmp_path: Path) -> None:
    with cluster(tmp_path, freshness=f"ttl:{TTL_S}") as nodes:
        await nodes.meet()
        store, content = Store(nodes, ETAGS["an MD5 of another content"]), ramp(SIZE)
        store.write(content, after_s=0)
        for name in (first, second):
            await nodes[name].engine.range(0, 10)
            await nodes.settle()
        store.write(content, after_s=0)
        for name in (second, first):
            assert await nodes[name].get() == content
            await nodes.settle()
