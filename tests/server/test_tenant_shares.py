"""A tenant that reads much more than the cache holds, beside one with a small dataset: shares of the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from outrider.cli.ls import of_tenant
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import BlockMeta
from outrider.core.model import ObjectRef, ObjectVersion
from tests.server.test_bottleneck_verdict import shown
from tests.support.nodes import until
from tests.support.proxy import Proxy
from tests.support.tenants import CLIENTS, NAME, OTHER, TEAM, answer_to, wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.proxy import Keys

BYTES = 64 * 1024
DISK_BYTES = BYTES + 4096
ROOM = 12
GREEDY, MODEST = [f"other/{number:02d}" for number in range(48)], [f"team/{number}" for number in range(4)]


def clients(team: str = "", other: str = "") -> str:
    """The clients file with these shares of two tenants."""
    text = CLIENTS.replace(f'"{TEAM[0]}"', f'"{TEAM[0]}"\n{team}').replace(f'"{OTHER[0]}"', f'"{OTHER[0]}"\n{other}')
    return text.replace('name = "team"', 'name = "modest"').replace('name = "other"', 'name = "greedy"')


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, {name: name.encode() * (BYTES // len(name)) for name in (*GREEDY, *MODEST)})


@pytest.fixture(params=[("lru", "off"), ("epoch", "epoch")], ids=lambda each: "-".join(each))
def proxy(bucket: Bucket, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Proxy]:
    file = tmp_path / "clients.toml"
    file.write_text(clients('cache_share = "40%"\nline_share = 0.5', "cache_share = 0.5"))
    policy, prefetch = request.param
    with Proxy(
        bucket, auth="sigv4", clients=file, policy=policy, prefetch=prefetch, cache_size=str(ROOM * DISK_BYTES),
        block_size="64KiB", freshness="immutable",
    ) as running:  # fmt: skip
        yield running


def read(proxy: Proxy, keys: Keys, names: Iterable[str]) -> int:
    """How many of these objects did not come whole from the disk."""
    missed = 0
    for name in names:
        answer = answer_to(proxy, wire(proxy, keys, "GET", f"/{NAME}/{name}"))
        assert answer.status == 200
        missed += answer.headers["x-cache"] != "HIT"
        proxy.settle()
    return missed


@pytest.mark.parametrize("proxy", [("lru", "off")], indirect=True)
def test_blocks_on_their_way_count_for_the_tenant_that_they_are_fetched_for(proxy: Proxy) -> None:
    read(proxy, TEAM, MODEST)
    read(proxy, OTHER, GREEDY[:3])

    async def reserve() -> None:
        store, writers = proxy.outrider.store, []
        layout = BlockLayout(proxy.settings["origin"], BYTES)
        for name in GREEDY[3:9]:
            version = ObjectVersion(ObjectRef(NAME, name), '"etag"', BYTES)
            writers.append(await store.create(BlockMeta(layout, version, 0)))
        for writer in writers:
            await writer.abort()

    proxy.on_loop(reserve)
    assert (read(proxy, TEAM, MODEST), read(proxy, OTHER, GREEDY[:3])) == (0, 1), "the tenant's own block has gone"


def test_a_small_dataset_stays_while_another_tenant_reads_many_times_the_cache(proxy: Proxy, tmp_path: Path) -> None:
    read(proxy, TEAM, MODEST)
    for _ in range(2):
        read(proxy, OTHER, GREEDY)
        assert read(proxy, TEAM, MODEST) == 0
    greedy, modest, _ = proxy.status()["tenants"]
    assert (greedy["name"], greedy["cache_share"], greedy["line_share"]) == ("greedy", 0.5, None)
    assert (modest["cache_share"], modest["line_share"]) == (0.4, 0.5)
    assert greedy["origin_bytes"] >= 2 * (len(GREEDY) - ROOM) * BYTES, "it fetches most of its data each time"
    assert modest["origin_bytes"] == sum(BYTES // len(name) * len(name) for name in MODEST), "the bucket gave it once"
    assert modest["served_bytes"] == 3 * modest["origin_bytes"]
    assert modest["cached_bytes"] == len(MODEST) * DISK_BYTES < greedy["cached_bytes"]
    assert proxy.metric("outrider_tenant_served_bytes_total", tenant="modest") == modest["served_bytes"]
    assert proxy.metric("outrider_tenant_origin_bytes_total", tenant="greedy") >= greedy["origin_bytes"]
    assert 'outrider_tenant_cached_bytes{tenant="modest"}' in proxy.outrider.metrics.text().decode()
    words = "modest: 279 kB here of a share of 334 kB (40 %), 786 kB read, 50 % of the line"
    assert of_tenant(modest, ROOM * DISK_BYTES) == words
    until(lambda: proxy.status()["tenants"][1]["bytes_s"] > 0, "a rate")
    status = proxy.status()
    lately = {tenant["name"]: tenant["bytes_s"] for tenant in status["tenants"]}
    assert lately == {name: sum(reader["bytes_s"] for reader in status["readers"] if f" {name}" in reader["name"])
                      for name in lately}  # fmt: skip
    # Some of its blocks may be on their way out at one moment.
    beyond = " here of a share of 418 kB (50 %), beyond its share, "
    until(lambda: any("greedy: " in line and beyond in line for line in shown(proxy.status())), "its share is passed")
    assert any(words in line and line.endswith("B/s now") for line in shown(status))
    proxy.restart()
    assert proxy.status()["tenants"][1]["cached_bytes"] == 0, "nobody has read since the start"
    assert read(proxy, TEAM, MODEST) == 0
    proxy.on_loop(lambda: proxy.outrider.prefetch.tick())
    assert proxy.status()["tenants"][1]["cached_bytes"] == modest["cached_bytes"]
    # Less than it has: now its blocks are the first to go.
    (tmp_path / "clients.toml").write_text(clients('cache_share = "5%"', "cache_share = 1.0"))
    assert proxy.outrider.senders.read()
    read(proxy, OTHER, GREEDY)
    assert read(proxy, TEAM, MODEST) > 0
