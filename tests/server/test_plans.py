"""Plans (hints of coming reads) before a real bucket: their progress, and their withdrawal."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.control_bucket import wait_until
from tests.support.proxy import Proxy
from tests.support.rawhttp import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

NAME = "plans"
SHARDS = 40
SHARD = bytes(range(256)) * 512  # 128 KiB
ORDER = random.Random(1).sample([f"train/shard-{number:06d}.tar" for number in range(SHARDS)], SHARDS)
# Room for a quarter.
ROOM = 10


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, dict.fromkeys(ORDER, SHARD))


@pytest.fixture
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy(bucket, block_size="64KiB", cache_size="1450KiB", freshness="immutable", prefetch="epoch") as running:
        yield running


def announce(proxy: Proxy, keys: list[str], name: str = "a", **more: int) -> None:
    body = json.dumps({"reads": [f"s3://{NAME}/{key}" for key in keys], **more}).encode()
    head = [("content-length", str(len(body)))]
    assert ask(proxy.address, "PUT", f"/_outrider/plan/{name}", head, body).status == 200
    settle(proxy)


def settle(proxy: Proxy) -> None:
    """Wait until the planner has received all hits, and the prefetches that it wanted have ended."""

    async def tick() -> None:
        while not await proxy.outrider.prefetch.tick():
            pass

    proxy.on_loop(tick)
    proxy.settle()


def announce_until(proxy: Proxy, here: int, keys: list[str], name: str = "a") -> None:
    """Announce the plan again while fewer objects are here: prefetch stops after a second for a client that announces
    and does not read."""

    def are_here() -> bool:
        announce(proxy, keys, name, total=len(keys))
        cached: int = progress(proxy, name)["here"]
        return cached >= here

    wait_until(are_here)


def read(proxy: Proxy, keys: list[str]) -> list[str]:
    """Returns the `x-cache` of each."""
    seen = []
    for key in keys:
        answer = ask(proxy.address, "GET", f"/{NAME}/{key}")
        assert answer.body == SHARD
        seen.append(answer.headers["x-cache"])
        settle(proxy)
    return seen


def progress(proxy: Proxy, name: str = "a") -> dict[str, Any]:
    report: dict[str, Any] = json.loads(ask(proxy.address, "GET", f"/_outrider/plan/{name}").body)["progress"]
    return report


def withdraw(proxy: Proxy, name: str = "a") -> int:
    """Returns the number of objects withdrawn."""
    answer = ask(proxy.address, "DELETE", f"/_outrider/plan/{name}")
    assert (answer.status, answer.body) == (204, b"")
    return int(answer.headers["x-outrider-withdrawn"])


def test_a_plan_shows_how_much_of_it_was_read_is_cached_and_is_left(proxy: Proxy) -> None:
    announce_until(proxy, ROOM - 2, ORDER)
    first = progress(proxy)
    assert (first["told"], first["read"], first["unknown"], first["ignored"]) == (SHARDS, 0, 0, 0)
    assert first["here"] <= ROOM + 1
    assert first["left"] == SHARDS - first["here"]
    read(proxy, ORDER[:15])
    later = progress(proxy)
    assert (later["told"], later["read"]) == (SHARDS, 15)
    assert later["here"] + later["left"] == SHARDS - 15
    read(proxy, ORDER[15:])
    assert progress(proxy) == {"told": SHARDS, "read": SHARDS, "here": 0, "left": 0, "unknown": 0, "ignored": 0}


def test_a_plan_announced_in_parts_under_one_name_is_counted_together(proxy: Proxy) -> None:
    for first in range(0, SHARDS, 10):
        announce(proxy, ORDER[first : first + 10], start=first, total=SHARDS)
    read(proxy, ORDER[:3])
    report = progress(proxy)
    assert (report["told"], report["read"]) == (SHARDS, 3)
    assert withdraw(proxy) == SHARDS - 3


def test_a_plan_has_the_length_that_the_listing_states(proxy: Proxy) -> None:
    announce(proxy, ORDER, total=SHARDS)
    lengths = set()
    for key in ORDER[:4]:
        head = ask(proxy.address, "HEAD", "/_outrider/plan/a").headers["content-length"]
        lengths |= {int(head), len(ask(proxy.address, "GET", "/_outrider/plan/a").body)}
        read(proxy, [key])
    [entry] = proxy.client().list_objects_v2(Bucket="_outrider", Prefix="plan/")["Contents"]
    assert lengths == {entry["Size"]}


def test_a_plan_that_was_withdrawn_makes_room_for_the_next_of_its_name(proxy: Proxy) -> None:
    announce_until(proxy, ROOM - 2, ORDER)
    assert read(proxy, ORDER[:2]) == ["HIT"] * 2
    assert withdraw(proxy) == SHARDS - 2
    assert ask(proxy.address, "GET", "/_outrider/plan/a").status == 404
    assert withdraw(proxy) == 0
    # A client that reads slowly, as on a busy machine, gets the others just in time.
    announce_until(proxy, 1, ORDER[-8:])
    assert read(proxy, ORDER[-8:]).count("HIT") >= 4


def test_another_plan_goes_on_as_it_was(bucket: Bucket) -> None:
    with Proxy(bucket, freshness="immutable", prefetch="epoch") as proxy:
        announce(proxy, ORDER[:20], "a")
        announce(proxy, ORDER[20:], "b")
        assert withdraw(proxy, "a") == 20
        other = progress(proxy, "b")
        assert (other["told"], other["here"] + other["left"]) == (20, 20)
        announce_until(proxy, 20, ORDER[20:], "b")
        assert read(proxy, ORDER[20:]) == ["HIT"] * 20


def test_without_prefetch_the_status_of_a_plan_says_so(bucket: Bucket) -> None:
    with Proxy(bucket, prefetch="off") as proxy:
        announce(proxy, ORDER[:5])
        assert progress(proxy) == {"told": 0, "read": 0, "here": 0, "left": 0, "unknown": 0, "ignored": 5}
        assert withdraw(proxy) == 0


def test_a_restart_forgets_plans_and_they_can_be_announced_again(proxy: Proxy) -> None:
    announce(proxy, ORDER)
    proxy.restart()
    assert ask(proxy.address, "GET", "/_outrider/plan/a").status == 404
    announce(proxy, ORDER)
    assert progress(proxy)["told"] == SHARDS
