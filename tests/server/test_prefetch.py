"""Prefetch end to end: an unmodified client, a real bucket, and objects cached before they are requested."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import random
import time
from contextlib import closing
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.bucket import GETTER
from tests.support.faulty_disk import SickDisk
from tests.support.proxy import START_DEADLINE_S, Proxy
from tests.support.rawhttp import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

NAME = "ahead"
SHARDS = 40
SHARD = bytes(range(256)) * 512  # 128 KiB
KEYS = [f"train/shard-{number:06d}.tar" for number in range(SHARDS)]


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, {key: SHARD[number:] for number, key in enumerate(KEYS)})


@pytest.fixture
def proxies(bucket: Bucket, simulator: Simulator) -> Iterator[Callable[..., Proxy]]:
    """A factory of proxies whose cache holds a quarter of the shards by default."""
    made: list[Proxy] = []

    def make(**settings: Any) -> Proxy:
        given: dict[str, Any] = {
            "block_size": "64KiB",
            "cache_size": "1375KiB",
            "freshness": "immutable",
            "prefetch": "epoch",
            # It sends HEADs in the background, and tests here count those that confirm versions.
            "verify_origin": "off",
        }
        proxy = Proxy(bucket, origin=simulator.endpoint, **{**given, **settings})
        proxy.__enter__()
        made.append(proxy)
        return proxy

    yield make
    for proxy in made:
        proxy.__exit__()


def epoch(proxy: Proxy, keys: list[str]) -> list[str]:
    """Read all keys once, and let the consequences of each read end before the next; returns the `x-cache` of each."""
    seen = []
    for key in keys:
        answer = ask(proxy.address, "GET", f"/{NAME}/{key}")
        assert answer.body == SHARD[KEYS.index(key[key.index("train/") :]) :]
        seen.append(answer.headers["x-cache"])
        settle(proxy)
    return seen


def settle(proxy: Proxy) -> None:
    """Wait until the planner has learned of all hits, and the prefetches that it wanted have ended."""

    async def planned() -> None:
        while not await proxy.outrider.prefetch.tick():
            pass
        # The lookup of an unknown object is not a flight yet, nor is the discovery of a dataset's objects.
        names = "prefetch ", "list s3://", "count s3://"
        async with asyncio.timeout(START_DEADLINE_S):
            while any(task.get_name().startswith(names) for task in asyncio.all_tasks()):
                await asyncio.sleep(0.001)

    proxy.settle()
    proxy.on_loop(planned)
    proxy.settle()


def shuffled(seed: int) -> list[str]:
    keys = list(KEYS)
    random.Random(seed).shuffle(keys)
    return keys


def seedless() -> list[str]:
    """An order that no draw of a random generator gives, so that no others follow from its first reads."""
    return sorted(KEYS, key=lambda key: hashlib.sha256(key.encode()).digest())


def test_a_repeated_order_is_prefetched_from_the_second_epoch_on(proxies: Callable[..., Proxy]) -> None:
    proxy, order = proxies(), shuffled(1)
    epoch(proxy, order[:-1])
    assert proxy.status()["hit_ratio_by_size"] == {}, "nothing is read a second time yet"
    epoch(proxy, order[-1:])
    assert epoch(proxy, order).count("HIT") >= 0.9 * SHARDS
    assert epoch(proxy, order).count("HIT") >= 0.95 * SHARDS
    status = proxy.status()
    assert status["prefetch"]["blocks"] > 0
    assert status["prefetch"]["wasted_bytes"] <= 0.1 * status["prefetch"]["fetched_bytes"]
    by_size = status["hit_ratio_by_size"]
    assert list(by_size) == ["0.5", "1", "2", "4"]
    assert by_size["4"] >= by_size["1"] > 0


def test_a_cache_that_fetches_nothing_ahead_keeps_its_share_of_a_repeated_order(proxies: Callable[..., Proxy]) -> None:
    proxy, order = proxies(prefetch="object"), shuffled(1)
    epoch(proxy, order)
    hits = [epoch(proxy, order).count("HIT") for _ in range(2)]
    assert min(hits) >= 0.2 * SHARDS, "the cache holds a quarter, some of it for the shard under way"


def test_a_new_order_each_epoch_hits_more_than_the_cache_alone_could(proxies: Callable[..., Proxy]) -> None:
    proxy = proxies()
    epoch(proxy, shuffled(1))
    hits = [epoch(proxy, shuffled(seed)).count("HIT") for seed in (2, 3, 4)]
    assert sum(hits) >= 3 * 0.4 * SHARDS, "a quarter by eviction alone"


def test_an_announced_order_is_prefetched_in_the_first_epoch(proxies: Callable[..., Proxy]) -> None:
    proxy, order = proxies(), shuffled(1)
    plan = json.dumps({"reads": [f"s3://{NAME}/{key}" for key in order], "total": SHARDS}).encode()
    assert ask(proxy.address, "PUT", "/_outrider/plan/a", [("content-length", str(len(plan)))], plan).status == 200
    settle(proxy)
    assert epoch(proxy, order).count("HIT") >= 0.9 * SHARDS


def test_a_key_that_may_not_list_prefetches_in_the_first_epoch_by_the_numbers_in_names(
    bucket: Bucket, proxies: Callable[..., Proxy]
) -> None:
    """Such a key belongs to a job whose role has `s3:GetObject` alone."""
    client, order = bucket.client(identity=GETTER), shuffled(1)
    with closing(client), pytest.raises(client.exceptions.ClientError, match="AccessDenied"):
        client.list_objects_v2(Bucket=NAME)
    proxy = proxies(environment=bucket.environment(GETTER), cache_size="1GiB")
    assert epoch(proxy, order)[4:].count("HIT") >= 0.9 * (SHARDS - 4)


def test_learned_orders_outlive_a_restart(proxies: Callable[..., Proxy]) -> None:
    proxy, order = proxies(), seedless()
    epoch(proxy, order)
    epoch(proxy, order)
    proxy.restart()
    epoch(proxy, order[: SHARDS // 4])
    # How many of the others become hits in so small a cache depends on the pace of the machine, too.
    assert proxy.outrider.planner.registry.outlook().ordered_bytes > 0


def test_without_prefetch_the_bucket_gets_no_request_that_no_client_made(
    proxies: Callable[..., Proxy], simulator: Simulator
) -> None:
    proxy = proxies(prefetch="off", cache_size="1GiB")
    simulator.reset()
    epoch(proxy, KEYS[:10])
    assert {request.path for request in simulator.log()} == {f"/{NAME}/{key}" for key in KEYS[:10]}
    assert proxy.metric("outrider_prefetched_blocks_total") == 0


def settled(bucket: Bucket, proxy: Proxy) -> None:
    """Make all objects look old: by the bucket's clock, and by the dates of block files."""
    client = bucket.client()
    last = client.head_object(Bucket=NAME, Key=KEYS[-1])["LastModified"]
    while True:
        date = client.head_object(Bucket=NAME, Key=KEYS[-1])["ResponseMetadata"]["HTTPHeaders"]["date"]
        if parsedate_to_datetime(date) - last >= timedelta(seconds=2):
            break
        time.sleep(0.1)
    client.close()
    epoch(proxy, KEYS)
    aged(proxy.cache_dir)


def aged(cache_dir: Path) -> None:
    later = time.time() + 3600
    for path in (cache_dir / "v2").rglob("*"):
        os.utime(path, (later, later))


def heads(simulator: Simulator) -> int:
    return sum(request.method == "HEAD" for request in simulator.log())


@pytest.mark.parametrize("crashed", [False, True])
def test_after_a_restart_one_list_replaces_a_head_for_each_object(
    crashed: bool, proxies: Callable[..., Proxy], bucket: Bucket, simulator: Simulator
) -> None:
    off_s = 0.0
    proxy = proxies(freshness="ttl:60", cache_size="1GiB", wall_clock=lambda: time.time() + off_s)
    settled(bucket, proxy)
    # Neither an object that is not cached nor one that was written through the proxy adds requests: it is noted once
    # only.
    client = proxy.client()
    client.put_object(Bucket=NAME, Key="of its own", Body=b"x")
    for _ in range(2):
        proxy.stop()
        off_s += 61  # what was confirmed before is stale by the start
        proxy.restart(crashed=crashed)
        simulator.reset()
        assert set(epoch(proxy, KEYS)) == {"HIT"}
        lists = [request for request in simulator.log() if request.method == "GET" and "list-type" in request.query]
        assert len(lists) == 1
        assert heads(simulator) < SHARDS / 2
        assert simulator.counts().body_bytes < len(SHARD), "the list and no object"


TAGS = {"TagSet": [{"Key": "a", "Value": "b"}]}


def tag_count(address: tuple[str, int]) -> str | None:
    return ask(address, "HEAD", f"/{NAME}/{KEYS[-1]}").headers.get("x-amz-tagging-count")


@pytest.fixture
def untagged(bucket: Bucket) -> Iterator[None]:
    yield
    client = bucket.client()
    client.delete_object_tagging(Bucket=NAME, Key=KEYS[-1])
    client.close()


@pytest.mark.parametrize(("crashed", "read_again"), [(False, True), (True, False)])
@pytest.mark.usefixtures("untagged")
def test_tags_put_through_the_proxy_show_after_restarts_however_often_the_dataset_is_listed(
    crashed: bool, read_again: bool, proxies: Callable[..., Proxy], bucket: Bucket, simulator: Simulator
) -> None:
    off_s = 0.0
    proxy = proxies(freshness="ttl:60", cache_size="1GiB", wall_clock=lambda: time.time() + off_s)
    settled(bucket, proxy)
    proxy.client().put_object_tagging(Bucket=NAME, Key=KEYS[-1], Tagging=TAGS)
    for _ in range(2):
        if read_again:
            assert tag_count(proxy.address) == "1"
        proxy.stop()
        off_s += 61  # as above
        proxy.restart(crashed=crashed)
        simulator.reset()
        epoch(proxy, KEYS[:-1])
        assert any("list-type" in request.query for request in simulator.log())
        assert heads(simulator) < SHARDS / 2, "the list confirms the others"
    assert tag_count(proxy.address) == "1"


@pytest.mark.usefixtures("untagged")
def test_a_write_that_cannot_be_recorded_is_carried_out_and_all_is_revalidated_after_a_crash(
    proxies: Callable[..., Proxy], bucket: Bucket, simulator: Simulator
) -> None:
    proxy = proxies(freshness="ttl:60", cache_size="1GiB")
    settled(bucket, proxy)
    with SickDisk(proxy.cache_dir) as disk:
        disk.fail(["open", "unlink", "rename"], errno.EROFS)
        proxy.client().put_object_tagging(Bucket=NAME, Key=KEYS[-1], Tagging=TAGS)
        assert disk.failed
    assert proxy.metric("outrider_store_errors_total", act="note") >= 1
    proxy.restart(crashed=True)
    simulator.reset()
    epoch(proxy, KEYS[:-1])
    assert heads(simulator) == SHARDS - 1
    assert tag_count(proxy.address) == "1"
