"""The identity of a version: whatever ETags a store sends, a body is of one content, on every member and for ever."""

from __future__ import annotations

import asyncio
import hashlib
import random
import tempfile
from email.utils import formatdate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.errors import VersionChanged
from outrider.engine.read.version_answers import NotCacheable
from tests.support.engine import BLOCK, REF
from tests.support.fakes import Stored, ramp
from tests.support.members import Cluster, Node, Time, cluster
from tests.support.trials import rounds

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
    """A bucket whose ETag of an object is always the same, and where only the date tells contents apart."""

    def __init__(self, nodes: Cluster, etag: str) -> None:
        self.nodes = nodes
        self.etag = etag
        self.content = b""
        self.writes = 0

    def write(self) -> None:
        """Write past the proxies; the date of the write is long gone when it is read."""
        self.writes += 1
        self.content = ramp(SIZE, 7 * self.writes)
        at = YEAR_S + 10 * self.writes
        headers = ("last-modified", formatdate(at, usegmt=True)), ("date", formatdate(at + 5, usegmt=True))
        self.nodes.origin.objects[REF] = Stored(self.content, self.etag, headers)
        self.nodes.clock.advance(TTL_S + 1)

    async def read(self, node: Node, start: int, stop: int) -> None:
        """A relay, or a body that is cut, is no wrong byte."""
        try:
            body = await node.engine.range(start, stop)
        except (NotCacheable, VersionChanged):
            return
        finally:
            await self.nodes.settle()
        assert body == self.content[start:stop], f"{node.name} gave bytes of an older content"


async def history(chance: random.Random, etag: str, root: Path, time: Time) -> None:
    with cluster(root, freshness=f"ttl:{TTL_S}", clock=time, sleep=time.sleep) as nodes:
        await nodes.meet()
        store = Store(nodes, etag)
        for _ in range(3):
            store.write()
            for _ in range(chance.randrange(1, 6)):
                start = chance.choice([0, BLOCK, 2 * BLOCK + 5])
                await store.read(chance.choice([*nodes]), start, chance.choice([start + 10, SIZE]))


@given(seed=st.integers(0, 2**32), etag=st.sampled_from([*ETAGS]))
@settings(max_examples=rounds(25))
def test_no_body_has_bytes_of_two_contents(seed: int, etag: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        time = Time()
        asyncio.run(time.run(history(random.Random(seed), ETAGS[etag], Path(root), time)))


@pytest.mark.parametrize("freshness", [f"ttl:{TTL_S}", "always"])
@pytest.mark.parametrize("etag", [*ETAGS])
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
