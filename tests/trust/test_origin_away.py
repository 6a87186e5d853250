"""An origin that cannot be reached: killed, without a DNS name, or in a storm of 5xx replies, and then back again."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from tests.support.proxy import Proxy
from tests.support.trials import rounds
from tests.support.weather import Fault, FaultKind
from tests.trust.origin import BLOCK, BROKEN, MODES, RIGHT, Trial, World, place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

DOWN = "503 ServiceUnavailable"
# The outcomes that a client may see once the origin is away for longer than the proxy retries. Error codes of S3 itself
# are passed on.
VISIBLE = {RIGHT, BROKEN, DOWN, "503 SlowDown", "500 InternalError"}


@pytest.mark.parametrize("prefetch", ["off", "epoch"])
def test_an_origin_that_is_killed_in_mid_body_and_comes_back(world: World, prefetch: str) -> None:
    proxy = world.proxies[prefetch]

    def restart() -> None:
        world.simulator.stop()
        world.simulator.start()

    for mode in MODES * rounds(2):
        trial = world.put()
        if mode == "mixed":
            trial.warm(proxy)
        at = place(world.rng, len(trial.data))
        with world.weather(Fault(FaultKind.ACT, path_contains=trial.key, after_bytes=at, act=restart)):
            assert trial.seen("origin killed in mid-body, back at once", proxy, mode) == RIGHT
        trial.recovers(proxy, RIGHT)


def test_an_origin_that_is_killed_in_mid_body_and_stays_away(world: World) -> None:
    proxy = world.proxies["off"]
    for mode in MODES * rounds(1):
        trial = world.put(9 * BLOCK)
        if mode == "mixed":
            trial.warm(proxy)
        at = place(world.rng, len(trial.data))
        with world.weather(Fault(FaultKind.ACT, path_contains=trial.key, after_bytes=at, act=world.simulator.stop)):
            saw = trial.seen("origin killed in mid-body, away", proxy, mode)
            assert saw in VISIBLE
            world.simulator.stop()
            again = trial.seen("origin away", proxy, mode)
            assert again in VISIBLE
            world.simulator.start()
        trial.recovers(proxy, RIGHT)


@pytest.fixture
def small(world: World, bucket: Bucket, request: pytest.FixtureRequest) -> Iterator[Proxy]:
    """A cache of a third of the epoch, so that reads miss until the end."""
    origin = world.simulator.endpoint
    with Proxy(
        bucket, origin, block_size=str(BLOCK), cache_size=str(12 * BLOCK), prefetch=request.param, origin_timeout_s="1"
    ) as proxy:
        yield proxy


def epochs(proxy: Proxy, dataset: list[Trial], fault: str) -> set[str]:
    """The outcomes of the readers of two epochs. The shards are dealt to three readers."""

    def reader(number: int) -> set[str]:
        return {trial.seen(fault, proxy, "whole") for trial in dataset[number::3]}

    with ThreadPoolExecutor(3) as readers:
        return set.union(*(seen for _ in range(2) for seen in readers.map(reader, range(3))))


STORMS = {
    "storm of 500": [Fault(FaultKind.STATUS, None, None, status=500, probability=0.4)],
    "storm of 503 SlowDown": [Fault(FaultKind.STATUS, None, None, status=503, probability=0.4, retry_after_s=1)],
    "all kinds of weather at once": [
        Fault(FaultKind.RESET, None, probability=0.1, after_bytes=BLOCK),
        Fault(FaultKind.TRUNCATE, None, probability=0.1, after_bytes=1000),
        Fault(FaultKind.STATUS, None, None, status=500, probability=0.1),
        Fault(FaultKind.STATUS, None, None, status=503, probability=0.1),
        Fault(FaultKind.WRONG_RANGE, None, probability=0.1),
        Fault(FaultKind.DEAF, None, probability=0.1),
        Fault(FaultKind.SHORTER, None, probability=0.1, after_bytes=70_000),
        Fault(FaultKind.LONGER, None, probability=0.1, by_bytes=BLOCK),
        Fault(FaultKind.DROP, None, None, probability=0.1),
    ],
}


@pytest.mark.parametrize("small", ["off", "epoch"], indirect=True)
@pytest.mark.parametrize("fault", STORMS)
def test_epochs_in_a_storm(world: World, small: Proxy, fault: str) -> None:
    for _ in range(rounds(1)):
        dataset = [world.put(world.rng.choice((3 * BLOCK, 3 * BLOCK + 1, 4 * BLOCK - 1))) for _ in range(9)]
        with world.weather(*STORMS[fault]):
            assert epochs(small, dataset, fault) <= VISIBLE
        small.settle()
        assert {trial.read(small) for trial in dataset} == {RIGHT}, "the storm is over"


class Names(AbstractResolver):
    """A DNS resolver that fails `failing` times; None means until the test says otherwise."""

    def __init__(self) -> None:
        self.failing: int | None = 0
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked += 1
        if self.failing is None or self.failing > 0:
            self.failing = None if self.failing is None else self.failing - 1
            raise OSError("Name or service not known")
        found = ResolveResult(hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0)
        return [found]

    async def close(self) -> None:
        pass


def test_an_origin_whose_name_is_gone(world: World, bucket: Bucket) -> None:
    port = urlsplit(world.simulator.endpoint).port
    for failing in [*range(1, 5), None] * rounds(1):
        names = Names()
        names.failing = failing
        with Proxy(bucket, f"http://bucket.test:{port}", resolver=names, block_size=str(BLOCK)) as proxy:
            trial = world.put(3 * BLOCK)
            saw = trial.seen("DNS gone" if failing is None else "DNS gone for a moment", proxy, "whole")
            assert saw == (DOWN if failing is None else RIGHT)
            assert names.asked > 1
            names.failing = 0
            assert trial.read(proxy) == RIGHT
            proxy.settle()
            # Cached objects need no name. The origin's address is still known for the others.
            names.failing = None
            other = world.put(3 * BLOCK)
            with world.weather(Fault(FaultKind.RESET, 2, path_contains=other.key, after_bytes=BLOCK)):
                assert trial.seen("DNS gone, cached", proxy, "whole") == RIGHT
                assert other.seen("DNS gone in mid-read", proxy, "whole") == RIGHT
