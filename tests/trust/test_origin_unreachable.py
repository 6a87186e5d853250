"""An origin that cannot be reached: killed, without a DNS name, or in a storm of 5xx replies, and then back again."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from tests.support.conditions import Fault, FaultKind, Request
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection
from tests.support.rawhttp import request as raw_request
from tests.support.trials import SCALE, rounds
from tests.trust.origin import BLOCK, BROKEN, MODES, NAME, RIGHT, Trial, World, place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

DOWN = "503 ServiceUnavailable"
# The outcomes that a client may see once the origin is away for longer than the proxy is patient. Error codes of S3
# itself are passed on.
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
        with world.conditions(Fault(FaultKind.ACT, path_contains=trial.key, after_bytes=at, act=restart)):
            assert trial.seen("origin killed in mid-body, back at once", proxy, mode) == RIGHT
        trial.recovers(proxy, RIGHT)


def test_an_origin_that_is_killed_in_mid_body_and_stays_away(world: World) -> None:
    proxy = world.proxies["hasty"]
    for mode in MODES * rounds(1):
        trial = world.put(9 * BLOCK)
        if mode == "mixed":
            trial.warm(proxy)
        at = place(world.rng, len(trial.data))
        with world.conditions(Fault(FaultKind.ACT, path_contains=trial.key, after_bytes=at, act=world.simulator.stop)):
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


ALL_KINDS = "all kinds of weather at once"


def is_ranged(request: Request) -> bool:
    """Otherwise it is a read that goes past the cache. Nothing shows whether its Content-Length lies."""
    return "range" in request.headers


STORMS = {
    "storm of 500": [Fault(FaultKind.STATUS, None, None, status=500, probability=0.4)],
    "storm of 503 SlowDown": [Fault(FaultKind.STATUS, None, None, status=503, probability=0.4)],
    ALL_KINDS: [
        Fault(FaultKind.RESET, None, probability=0.1, after_bytes=BLOCK),
        Fault(FaultKind.TRUNCATE, None, probability=0.1, after_bytes=1000),
        Fault(FaultKind.STATUS, None, None, status=500, probability=0.1),
        Fault(FaultKind.STATUS, None, None, status=503, probability=0.1),
        Fault(FaultKind.WRONG_RANGE, None, probability=0.1),
        Fault(FaultKind.DEAF, None, probability=0.1),
        Fault(FaultKind.SHORTER, None, when=is_ranged, probability=0.1, after_bytes=70_000),
        Fault(FaultKind.LONGER, None, when=is_ranged, probability=0.1, by_bytes=BLOCK),
        Fault(FaultKind.DROP, None, None, probability=0.1),
    ],
}


@pytest.mark.parametrize(
    ("fault", "small"),
    [(fault, "off" if fault == "storm of 500" else "epoch") for fault in STORMS]
    if SCALE == 1
    else [(fault, prefetch) for fault in STORMS for prefetch in ("off", "epoch")],
    indirect=["small"],
)
def test_epochs_in_a_storm(world: World, small: Proxy, fault: str) -> None:
    for _ in range(rounds(1)):
        dataset = [world.put(world.rng.choice((3 * BLOCK, 3 * BLOCK + 1, 4 * BLOCK - 1))) for _ in range(9)]
        # Reads outlast a storm that strikes some requests. Several odd replies in a row may cut them.
        seen = VISIBLE if fault == ALL_KINDS else {RIGHT}
        with world.conditions(*STORMS[fault]):
            assert epochs(small, dataset, fault) <= seen
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
    for failing in [1, 4, 6, None] * rounds(1):
        names = Names()
        names.failing = failing
        endpoint, patience_s = f"http://bucket.test:{port}", "60" if failing is not None else "0.5"
        with Proxy(
            bucket, endpoint, resolver=names, block_size=str(BLOCK), origin_patience_s=patience_s
        ) as proxy:  # fmt: skip
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
            with world.conditions(Fault(FaultKind.RESET, 2, path_contains=other.key, after_bytes=BLOCK)):
                assert trial.seen("DNS gone, cached", proxy, "whole") == RIGHT
                assert other.seen("DNS gone in mid-read", proxy, "whole") == RIGHT


@pytest.mark.parametrize("kind", ["off", "relay"])
def test_a_bucket_that_says_slow_down_for_longer_than_a_few_tries_cuts_no_read(world: World, kind: str) -> None:
    proxy, trial = world.proxies[kind], world.put(9 * BLOCK)

    def is_inside(request: Request) -> bool:
        return kind == "relay" or request.headers["range"].startswith(f"bytes={4 * BLOCK}-")

    busy = Fault(FaultKind.STATUS, 5, path_contains=trial.key, retry_after_s=0, when=is_inside)
    with world.conditions(busy):
        assert trial.seen("503 SlowDown for longer than a few tries", proxy, "whole") == RIGHT
    assert busy.times == 0, "the storm struck"


@pytest.fixture
def waiting(world: World, bucket: Bucket, request: pytest.FixtureRequest) -> Iterator[tuple[Proxy, RawConnection]]:
    """A client that waits for an origin that is away: for its head, or for the second block."""
    trial = world.put(3 * BLOCK)
    target = {"list": f"/{NAME}?list-type=2"}.get(request.param, f"/{NAME}/{trial.key}")
    with Proxy(bucket, world.simulator.endpoint, block_size=str(BLOCK), drain_s="600") as proxy:
        if request.param == "body":
            trial.read(proxy, (0, 1))
            proxy.settle()
        with world.simulator.outage(), RawConnection(proxy.address) as client:
            client.send(raw_request("GET", target))
            if request.param == "body":
                assert client.read_head().read(BLOCK) == trial.data[:BLOCK]
            # Until all of its fills wait for longer than for nobody.
            under_way = 2 if request.param == "body" else 1
            while (waits := proxy.outrider.origin_reader.long_wait) is None or waits.reads < under_way:
                proxy.on_loop(partial(asyncio.sleep, 0.001))
            yield proxy, client


WAITING = pytest.mark.parametrize("waiting", ["head", "body", "list"], indirect=True)
RETRIES = "outrider_origin_retries_total"
# Tries that may be under way as the wait ends. There would be some fifteen if it took as long as clients wait.
LAST_TRIES = 2


@WAITING
def test_a_client_that_leaves_waits_for_the_origin_no_longer(waiting: tuple[Proxy, RawConnection]) -> None:
    proxy, client = waiting
    retries = proxy.metric(RETRIES)
    client.close()
    proxy.settle()
    assert proxy.metric(RETRIES) <= retries + LAST_TRIES


@WAITING
def test_a_stop_waits_for_no_client_of_an_origin_that_is_away(waiting: tuple[Proxy, RawConnection]) -> None:
    proxy, client = waiting
    metrics, retries = proxy.outrider.metrics, proxy.metric(RETRIES)
    proxy.stop()
    assert metrics.total(RETRIES) <= retries + LAST_TRIES
    try:
        assert client.read_answer().status == 503
    except ConnectionError:
        assert client.is_closed_by_peer()
