"""Riding ahead for real: an unmodified client, a real bucket, and what is here before it is asked for."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.proxy import START_DEADLINE_S, Proxy
from tests.support.rawhttp import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

NAME = "ahead"
SHARDS = 40
SHARD = bytes(range(256)) * 1024  # 256 KiB
KEYS = [f"train/shard-{number:06d}.tar" for number in range(SHARDS)]


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    for number, key in enumerate(KEYS):
        client.put_object(Bucket=NAME, Key=key, Body=SHARD[number:])
    client.close()


@pytest.fixture
def proxies(bucket: Bucket, simulator: Simulator) -> Iterator[Callable[..., Proxy]]:
    """Proxies whose cache holds a quarter of the shards, unless told otherwise."""
    made: list[Proxy] = []

    def make(**settings: str) -> Proxy:
        given: dict[str, Any] = {
            "block_size": "64KiB",
            "cache_size": "2750KiB",
            "freshness": "immutable",
            "prefetch": "epoch",
        }
        proxy = Proxy(bucket, origin=simulator.endpoint, **{**given, **settings})
        proxy.__enter__()
        made.append(proxy)
        return proxy

    yield make
    for proxy in made:
        proxy.__exit__()


def epoch(proxy: Proxy, keys: list[str]) -> list[str]:
    """Read all of them once, and let what follows from each read happen before the next; x-cache of each."""
    seen = []
    for key in keys:
        answer = ask(proxy.address, "GET", f"/{NAME}/{key}")
        assert answer.body == SHARD[KEYS.index(key) :]
        seen.append(answer.headers["x-cache"])
        settle(proxy)
    return seen


def settle(proxy: Proxy) -> None:
    """The planner has heard of all hits, and what it wanted is here."""

    async def rode() -> None:
        while not await proxy.outrider.prefetch.tick():
            pass
        # No flight yet is the question for an object that nobody knows, nor a LIST.
        async with asyncio.timeout(START_DEADLINE_S):
            while any(task.get_name().startswith(("prefetch ", "list s3://")) for task in asyncio.all_tasks()):
                await asyncio.sleep(0.001)

    proxy.settle()
    proxy.on_loop(rode)
    proxy.settle()


def shuffled(seed: int) -> list[str]:
    keys = list(KEYS)
    random.Random(seed).shuffle(keys)
    return keys


def test_an_order_that_repeats_is_ridden_ahead_of_from_the_second_epoch_on(proxies: Callable[..., Proxy]) -> None:
    proxy, order = proxies(), shuffled(1)
    epoch(proxy, order)
    assert epoch(proxy, order).count("HIT") >= 0.9 * SHARDS
    assert epoch(proxy, order).count("HIT") >= 0.95 * SHARDS


def test_lru_hits_nothing_of_the_same(proxies: Callable[..., Proxy]) -> None:
    proxy, order = proxies(policy="lru", prefetch="off"), shuffled(1)
    epoch(proxy, order)
    assert epoch(proxy, order).count("HIT") == 0


def test_a_new_order_each_epoch_hits_more_than_the_cache_alone_could(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies()
    epoch(proxy, shuffled(1))
    hits = [epoch(proxy, shuffled(seed)).count("HIT") for seed in (2, 3, 4)]
    assert sum(hits) >= 3 * 0.4 * SHARDS, "a quarter by eviction alone"


def test_a_told_order_is_known_in_the_first_epoch(proxies: Callable[..., Proxy]) -> None:
    proxy, order = proxies(), shuffled(1)
    plan = json.dumps({"reads": [f"s3://{NAME}/{key}" for key in order], "total": SHARDS}).encode()
    assert ask(proxy.address, "PUT", "/_outrider/plan/a", [("content-length", str(len(plan)))], plan).status == 200
    settle(proxy)
    assert epoch(proxy, order).count("HIT") >= 0.9 * SHARDS


def test_what_was_learned_outlives_a_restart(proxies: Callable[..., Proxy]) -> None:
    proxy, order = proxies(), shuffled(1)
    epoch(proxy, order)
    epoch(proxy, order)
    proxy.restart()
    assert epoch(proxy, order).count("HIT") >= 0.7 * SHARDS


def test_a_file_of_orders_that_is_damaged_costs_only_what_was_learned(proxies: Callable[..., Proxy]) -> None:
    proxy, order = proxies(), shuffled(1)
    epoch(proxy, order)
    proxy.stop()
    path = proxy.cache_dir / "orders"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    proxy.start()
    epoch(proxy, order)
    assert epoch(proxy, order).count("HIT") >= 0.9 * SHARDS


def test_without_prefetch_nothing_is_asked_of_the_bucket_that_no_client_asked_for(
    proxies: Callable[..., Proxy], simulator: Simulator
) -> None:
    proxy = proxies(prefetch="off", cache_size="1GiB")
    simulator.reset()
    epoch(proxy, KEYS[:10])
    assert {request.path for request in simulator.log()} == {f"/{NAME}/{key}" for key in KEYS[:10]}
    assert proxy.metric("outrider_prefetched_blocks_total") == 0


def test_the_status_tells_how_far_it_rides_and_what_another_size_would_hit(proxies: Callable[..., Proxy]) -> None:
    proxy, order = proxies(), shuffled(1)
    epoch(proxy, order)
    epoch(proxy, order)
    status = proxy.status()
    ahead = status["prefetch"]
    assert isinstance(ahead, dict)
    assert ahead["blocks"] > 0
    assert ahead["wasted_bytes"] <= 0.1 * ahead["fetched_bytes"]
    by_size = status["hit_ratio_by_size"]
    assert isinstance(by_size, dict)
    assert list(by_size) == ["0.5", "1", "2", "4"]
    assert by_size["4"] >= by_size["1"] > 0


def test_what_a_start_found_is_asked_about_once_each_and_nothing_is_fetched_for_it(
    proxies: Callable[..., Proxy], simulator: Simulator
) -> None:
    proxy = proxies(freshness="ttl:60", cache_size="1GiB")
    epoch(proxy, KEYS)
    proxy.restart()
    simulator.reset()
    for _ in range(2):
        assert set(epoch(proxy, KEYS)) == {"HIT"}
    assert sum(request.method == "HEAD" for request in simulator.log()) == SHARDS
    assert simulator.counts().body_bytes < len(SHARD), "nothing but the list"


def test_tags_put_through_it_show_after_a_restart_however_often_the_dataset_is_listed(
    proxies: Callable[..., Proxy], simulator: Simulator
) -> None:
    proxy = proxies(freshness="ttl:60", cache_size="1GiB")
    epoch(proxy, KEYS)
    tags = {"TagSet": [{"Key": "a", "Value": "b"}]}
    proxy.client().put_object_tagging(Bucket=NAME, Key=KEYS[-1], Tagging=tags)

    def count() -> str | None:
        return ask(proxy.address, "HEAD", f"/{NAME}/{KEYS[-1]}").headers.get("x-amz-tagging-count")

    try:
        assert count() == "1"
        proxy.restart()
        simulator.reset()
        epoch(proxy, KEYS[:-1])
        assert any("list-type" in request.query for request in simulator.log())
        assert count() == "1"
    finally:
        proxy.client().delete_object_tagging(Bucket=NAME, Key=KEYS[-1])
