"""One bit turns between bucket and proxy. It is found by what the bucket knows of the object, and does not stay."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import TYPE_CHECKING

import pytest

from outrider.core.s3.checksums import Kind
from tests.support.conditions import Fault, FaultKind
from tests.support.damage import block_files
from tests.support.odd_origin import OddOrigin
from tests.support.proxy import START_DEADLINE_S, Proxy
from tests.support.simulator import Simulator
from tests.trust.origin import BLOCK, NAME, RIGHT, World, WrongBytesError, place, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket
    from tests.support.trials import Trials


def turn(at: int, key: str = "", times: int = 1) -> Fault:
    return Fault(FaultKind.TURN, times, path_contains=key, after_bytes=at)


@pytest.mark.parametrize("kind", ["off", "epoch"])
def test_a_bit_turned_in_a_small_object_is_noticed_by_no_client(world: World, kind: str) -> None:
    proxy = world.proxies[kind]
    for size in (1, 1000, BLOCK - 1, BLOCK):
        trial = world.put(size)
        with world.conditions(turn(place(world.rng, size), trial.key)):
            assert trial.seen("a bit turned in a small object", proxy, "whole") == RIGHT
        for _ in range(2):
            assert trial.read(proxy) == RIGHT
        proxy.settle()


@pytest.fixture
def odd_world(bucket: Bucket) -> Iterator[tuple[OddOrigin, Simulator, Proxy]]:
    with (
        OddOrigin().on_thread() as origin,
        Simulator(origin.endpoint.removeprefix("http://")) as simulator,
        Proxy(bucket, simulator.endpoint, block_size=str(BLOCK)) as proxy,
    ):
        yield origin, simulator, proxy


def checksum(kind: Kind, data: bytes) -> tuple[str, str]:
    running = kind.begin()
    running.update(data)
    return f"x-amz-checksum-{kind.value}", b64encode(running.digest()).decode()


def wait_for_metric(proxy: Proxy, name: str, value: float) -> None:
    """Wait until the bucket was asked for its checksum, and the blocks were compared with it."""

    async def reached() -> None:
        async with asyncio.timeout(START_DEADLINE_S):
            while proxy.outrider.metrics.value(name) != value:
                await asyncio.sleep(0.001)

    proxy.on_loop(reached)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind.is_crc])
def test_a_bit_turned_in_a_large_object_is_dropped_reported_and_fetched_again(
    kind: Kind, odd_world: tuple[OddOrigin, Simulator, Proxy], trials: Trials
) -> None:
    origin, simulator, proxy = odd_world
    data = bytes(range(256)) * (5 * BLOCK // 256) + b"the end"
    origin.put(NAME, "a.tar", data, checksum(kind, data), ("x-amz-checksum-type", "FULL_OBJECT"))
    simulator.conditions.faults = [turn(BLOCK - 9, "a.tar")]
    try:
        saw = read(proxy, "a.tar", [data])
    except WrongBytesError:
        saw = "served before its last block was here"
    trials.record("origin", "a bit turned in a large object", saw)
    wait_for_metric(proxy, "outrider_origin_mismatches_total", 1)
    proxy.settle()
    assert proxy.metric("outrider_store_blocks") == 0
    assert not block_files(proxy.cache_dir)
    assert read(proxy, "a.tar", [data]) == RIGHT
    proxy.settle()
    wait_for_metric(proxy, "outrider_store_verified_bytes", proxy.metric("outrider_store_bytes"))
    assert proxy.metric("outrider_store_bytes") > 0
    assert proxy.metric("outrider_origin_mismatches_total") == 1
    while not proxy.on_loop(lambda: proxy.outrider.prefetch.tick()):
        pass
    status = proxy.status()
    (error,) = [error for error in status["errors"] if error["what"] == "content does not match the bucket"]
    assert "a.tar" in error["detail"]
    assert "blocks: 0-5" in error["detail"]
    (dataset,) = status["datasets"]
    assert (dataset["verified"], dataset["unverified_because"]) == (1.0, None)
    # A clean stop keeps that in mind; what was proved is not asked about again.
    proxy.restart()
    assert read(proxy, "a.tar", [data]) == RIGHT
    assert proxy.metric("outrider_store_verified_bytes") == proxy.metric("outrider_store_bytes") > 0
