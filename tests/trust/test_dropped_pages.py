"""Blocks that left the kernel's page cache: all bytes are right, and each client gets its replies in order.

No lease is left of clients that hang up meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from outrider import pagecache
from tests.support.fakes import ramp
from tests.support.proxy import Proxy
from tests.support.rawhttp import Client
from tests.support.trials import Trials, rounds

if TYPE_CHECKING:
    from tests.support.bucket import Bucket

KIB = 1024
NAME = "page-cold"
OBJECTS = {f"o{number}": ramp(KIB * number * 9 + number, start=number) for number in range(40)}
CLIENTS = 16


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    for key, body in OBJECTS.items():
        client.put_object(Bucket=NAME, Key=key, Body=body)
    client.close()


def forgets(chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some reads without waiting fail, as if the disk had to be read. A read that may wait gets its bytes."""
    preadv, open_known = os.preadv, pagecache.open_known

    def cold(fd: int, memory: Any, offset: int, flags: int = 0) -> int:
        if flags == os.RWF_NOWAIT and chance.random() < 0.4:
            raise BlockingIOError
        return preadv(fd, memory, offset, flags)

    def unknown(path: bytes) -> int | None:
        return None if chance.random() < 0.3 else open_known(path)

    monkeypatch.setattr(os, "preadv", cold)
    monkeypatch.setattr(pagecache, "open_known", unknown)


async def test_the_bytes_are_right_whichever_reads_have_to_wait_for_the_disk(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, trials: Trials
) -> None:
    chance = random.Random(1)
    with Proxy(bucket, block_size="64KiB", freshness="immutable") as proxy:
        proxy.outrider.store._open_files = 8
        for _ in range(2):
            await read_all(proxy)
        fills = proxy.metric("outrider_origin_requests_total", method="GET")
        forgets(chance, monkeypatch)
        readers = [reads(proxy.address, random.Random(100 + number)) for number in range(CLIENTS)]
        right = await asyncio.gather(*readers)
        await asyncio.to_thread(proxy.settle)
        monkeypatch.undo()
        asked = sum(count for _, count in right)
        trials.record(
            "disk", "pages and files that are not in memory", "the right bytes", times=asked,
            lost=asked - sum(good for good, _ in right),
        )  # fmt: skip
        assert all(good == count for good, count in right)
        assert proxy.metric("outrider_origin_requests_total", method="GET") == fills, "a block was filled twice"
        assert proxy.metric("outrider_bad_blocks_total") == 0
        assert leases(proxy) == 0


async def read_all(proxy: Proxy) -> None:
    client = await Client.connect(proxy.address)
    for key, body in OBJECTS.items():
        assert (await client.get(f"/{NAME}/{key}", body))[1]
    await client.close()
    await asyncio.to_thread(proxy.settle)


def leases(proxy: Proxy) -> int:
    async def count() -> int:
        return proxy.outrider.store.leases()

    return int(proxy.on_loop(count))


async def reads(address: tuple[str, int], chance: random.Random) -> tuple[int, int]:
    """The number of right answers, and the number of all."""
    client, right, count = await Client.connect(address), 0, 0
    for _ in range(rounds(12, of=40)):
        wanted = [_one(chance) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
        for key, _, line in wanted:
            client.ask("GET", f"/{NAME}/{key}", *line)
        if chance.random() < 0.05:
            await (client.hang_up if chance.random() < 0.5 else client.close)()
            client = await Client.connect(address)
            continue
        for _, body, line in wanted:
            head = await client.head()
            whole = await client.is_body(body)
            right += whole and head.length == len(body) and head.status == (206 if line else 200)
            count += 1
    await client.close()
    return right, count


def _one(chance: random.Random) -> tuple[str, bytes, tuple[str, ...]]:
    """A key, the bytes that the reply must have, and the header that asks for them."""
    key = chance.choice(list(OBJECTS))
    body = OBJECTS[key]
    if not body or chance.random() < 0.6:
        return key, body, ()
    start = chance.randrange(len(body))
    stop = chance.randrange(start, len(body)) + 1
    return key, body[start:stop], (f"range: bytes={start}-{stop - 1}",)
