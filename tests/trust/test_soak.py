"""Soak test: all kinds of requests in all kinds of weather, on a cache that is too small.

At the end the proxy holds no more memory, files, threads or tasks than at the beginning, and no client got a wrong
byte.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from tests.support.conditions import Fault, FaultKind
from tests.support.fakes import ramp
from tests.support.proxy import ServedProxy, Vitals
from tests.support.rawhttp import Client, Head
from tests.support.trials import SCALE, Trials

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

MIB = 1024 * 1024
NAME = "soak"
SEED = 6
CLIENTS = 12
# An hour takes about 330 times as many as 1200: `make soak SOAK=330 TESTS=tests/trust/test_soak.py`.
REQUESTS, LOOKS = (480, 8) if SCALE == 1 else (1200 * SCALE, 20)
# The shards have 40 MiB and the cache 24 MiB: almost each read evicts something.
SHARDS = {f"shard-{number:02}.tar": ramp(4 * MIB + number * 1001, start=number) for number in range(10)}
CACHE_SIZE = "24MiB"
BLOCKS = 24

# The allowance is for the memory that Python's allocator keeps of a busy second, and for the state of some hundred
# objects. A leak of one 64 KiB buffer in each request would be 30 MiB in the short run, and one in a hundred 22 MiB in
# that of `make soak`.
GROWTH_BYTES_MAX = 24 * MIB
# The allowance is for block files that stay open, and for idle connections to the bucket.
DESCRIPTORS_MORE_MAX = BLOCKS + 64
# Pools start a thread when they need it, 8 for the disk and 8 for sending.
THREADS_MORE_MAX = 16


def conditions() -> list[Fault]:
    return [
        Fault(FaultKind.RESET, times=None, probability=0.02, after_bytes=300_000),
        Fault(FaultKind.TRUNCATE, times=None, probability=0.02, after_bytes=70_000),
        Fault(FaultKind.DROP, times=None, probability=0.02),
        Fault(FaultKind.STATUS, times=None, probability=0.03, status=503),
        Fault(FaultKind.STALL, times=None, probability=0.02, after_bytes=1000, for_s=0.05),
        Fault(FaultKind.STATUS, times=None, probability=0.02, method="PUT", status=503),
        Fault(FaultKind.DROP, times=None, probability=0.02, method="PUT"),
        Fault(FaultKind.STATUS, times=None, probability=0.02, method="HEAD", status=500),
    ]


class Wrong(AssertionError):
    """A client got a wrong answer."""


class Customer:
    """One client with keys of its own. For each it knows the contents that the key may have; None is no object."""

    def __init__(self, address: tuple[str, int], number: int, trials: Trials) -> None:
        self._address = address
        self._chance = random.Random(f"{SEED} {number}")
        self._trials = trials
        self._number = number
        self._names = 0
        self._known: dict[str, list[bytes | None]] = {}
        for _ in range(4):
            self._take_a_new_key()
        self._connection: Client | None = None
        self._acts = (self._read_shard, self._read_range, self._head, self._list, self._write, self._read_own,
                      self._delete, self._leave_early)  # fmt: skip

    def _take_a_new_key(self) -> None:
        self._names += 1
        self._known[f"own-{self._number}-{self._names}"] = [None]

    async def live(self, requests: int) -> None:
        for _ in range(requests):
            (act,) = self._chance.choices(self._acts, weights=(2, 8, 3, 2, 3, 6, 1, 2))
            try:
                await act(await self._connected())
            except (OSError, EOFError):
                self._trials.record("load", "a mixed day in bad weather", "a broken connection")
                await self._disconnect()
                while len(self._known) < 4:
                    self._take_a_new_key()
        await self._disconnect()

    async def _connected(self) -> Client:
        if self._connection is None:
            self._connection = await Client.connect(self._address)
        return self._connection

    async def _disconnect(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _answer(self, client: Client, expected: list[bytes | None], *, head_only: bool = False) -> Head:
        """Check that the answer is one of `expected` (None: no object), or an error that the conditions explains."""
        head = await client.head()
        if head.status in (500, 503) or (head.status == 404 and None in expected):
            if not head_only:
                await client.skip(head)
        else:
            fitting = [data for data in expected if data is not None and len(data) == head.length]
            if head.status not in (200, 206) or not fitting:
                raise Wrong(f"{head} for {[data and len(data) for data in expected]}")
            if not head_only:
                await self._compare(client, head.length, fitting)
        if head.headers.get("connection") == "close":
            await self._disconnect()
        saw = "the right bytes" if head.status < 400 else "404, as it should be" if head.status == 404 else "500 or 503"
        self._trials.record("load", "a mixed day in bad weather", saw)
        return head

    async def _compare(self, client: Client, length: int, fitting: list[bytes]) -> None:
        position = 0
        while position < length:
            piece = await client.some(min(256 * 1024, length - position))
            if not piece:
                raise EOFError
            fitting = [data for data in fitting if data[position : position + len(piece)] == piece]
            if not fitting:
                self._trials.record("load", "a mixed day in bad weather", "a wrong byte", lost=1)
                raise Wrong(f"a wrong byte after {position}")
            position += len(piece)

    # -- what it does -------------------------------------------------------------------------------------------------

    def _shard(self) -> tuple[str, bytes]:
        name = self._chance.choice(list(SHARDS))
        return f"/{NAME}/{name}", SHARDS[name]

    async def _read_shard(self, client: Client) -> None:
        target, data = self._shard()
        client.ask("GET", target)
        await self._answer(client, [data])

    async def _read_range(self, client: Client) -> None:
        target, data = self._shard()
        start = self._chance.randrange(len(data))
        stop = min(len(data), start + self._chance.choice((1, 1000, 100_000, MIB, 2 * MIB)))
        client.ask("GET", target, f"range: bytes={start}-{stop - 1}")
        await self._answer(client, [data[start:stop]])

    async def _head(self, client: Client) -> None:
        target, data = self._shard()
        client.ask("HEAD", target)
        await self._answer(client, [data], head_only=True)

    async def _list(self, client: Client) -> None:
        client.ask("GET", f"/{NAME}?list-type=2&prefix=shard")
        head = await client.head()
        await client.skip(head)

    async def _leave_early(self, client: Client) -> None:
        target, data = self._shard()
        client.ask("GET", target, f"range: bytes={self._chance.randrange(len(data))}-")
        if self._chance.random() < 0.5:
            await client.head()
            await client.some(self._chance.choice((1, 10_000)))
        self._connection = None
        await (client.hang_up() if self._chance.random() < 0.5 else client.close())

    async def _read_own(self, client: Client) -> None:
        key = self._chance.choice(list(self._known))
        client.ask("GET", f"/{NAME}/{key}")
        await self._answer(client, self._known[key])

    async def _write(self, client: Client) -> None:
        key = self._chance.choice(list(self._known))
        size = self._chance.choice((1, 5000, 200_000, MIB + 1))
        data = ramp(size, start=self._chance.randrange(251))
        # An unacknowledged write may still take place at any later time, and so this key proves nothing any more.
        del self._known[key]
        client.ask("PUT", f"/{NAME}/{key}", f"content-length: {size}")
        client.send(data)
        head = await self._done(client)
        if head.status == 200:
            self._known[key] = [data]
        elif head.status >= 500:
            self._take_a_new_key()
        else:
            raise Wrong(f"{head} to a write")

    async def _delete(self, client: Client) -> None:
        key = self._chance.choice(list(self._known))
        del self._known[key]
        client.ask("DELETE", f"/{NAME}/{key}")
        if (await self._done(client)).status == 204:
            self._known[key] = [None]
        else:
            self._take_a_new_key()

    async def _done(self, client: Client) -> Head:
        head = await client.head()
        if head.status != 204:
            await client.skip(head)
        if head.headers.get("connection") == "close":
            await self._disconnect()
        saw = "acknowledged" if head.status < 300 else "500 or 503"
        self._trials.record("load", "writes in bad weather", saw)
        return head


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    for key, data in SHARDS.items():
        client.put_object(Bucket=NAME, Key=key, Body=data)
    client.close()


async def test_a_mixed_day_in_bad_weather_leaves_nothing_behind(
    bucket: Bucket, simulator: Simulator, tmp_path: Path, trials: Trials
) -> None:
    simulator.conditions.seed = SEED
    simulator.conditions.faults = conditions()
    flags = {"cache_size": CACHE_SIZE, "block_size": "1MiB"}
    proxy = ServedProxy(bucket, tmp_path, simulator.endpoint, **flags)
    proxy.forked = False  # its memory is measured
    with proxy:
        customers = [Customer(proxy.address, number, trials) for number in range(CLIENTS)]
        # The first measurement is made after a warm-up.
        numbers = [REQUESTS // SCALE // 2, *[REQUESTS // LOOKS] * LOOKS]
        curve = [await _looked(proxy, customers, numbers[0])]
        curve += [await _looked(proxy, customers, number, curve[0].tasks) for number in numbers[1:]]
        print("\nMiB of memory:", *(f"{look.anonymous_bytes / MIB:.1f}" for look in curve))
        print("descriptors:", *(look.descriptors for look in curve))
        begun, ended = curve[0], curve[-1]
        assert ended.anonymous_bytes - begun.anonymous_bytes < GROWTH_BYTES_MAX
        assert ended.descriptors - begun.descriptors <= DESCRIPTORS_MORE_MAX
        assert ended.threads - begun.threads <= THREADS_MORE_MAX
        assert max(look.tasks for look in curve) == begun.tasks
        assert {(look.connections, look.temporary_files) for look in curve} == {(0, 0)}
        assert proxy.stop() == 0
        with proxy.log.open() as log:
            assert not [line for line in log if '"level": "error"' in line or "Traceback" in line]


async def _looked(proxy: ServedProxy, customers: list[Customer], requests: int, tasks_max: int | None = None) -> Vitals:
    """Make so many requests, and measure the idle proxy, once it has no more than `tasks_max` tasks."""
    async with asyncio.TaskGroup() as day:
        for customer in customers:
            day.create_task(customer.live(requests // len(customers)))
    async with asyncio.timeout(600):
        while True:
            await asyncio.to_thread(proxy.settle)
            now = await asyncio.to_thread(Vitals.of, proxy)
            if now.connections == now.temporary_files == 0 and (tasks_max is None or now.tasks <= tasks_max):
                return now
