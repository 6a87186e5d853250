"""The zones whose caches are asked, and the one that begins a warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.core.operator.affinity import ZONE_LABEL
from outrider.core.operator.holdings import HeldDataset
from outrider.core.operator.pod_patch import wishes_in
from outrider.engine.operator.holdings_watch import Holdings
from outrider.engine.operator.warming import Warming
from outrider.operator_ports import CacheError, CachePod, Manifest
from tests.support.fake_kube import FakeKube
from tests.support.pods import DATA, Pod, near

NODES = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}


class ZonedKube(FakeKube):
    async def all_of(self, kind: str) -> Sequence[Manifest]:
        self._ask("list", kind)
        return [{"metadata": {"name": node, "labels": {ZONE_LABEL: zone}}} for node, zone in NODES.items()]

    async def endpoint_slices(self, namespace: str, service: str) -> Sequence[Manifest]:
        return [{"endpoints": [
            {"addresses": [node], "nodeName": node, "zone": zone, "conditions": {}} for node, zone in NODES.items()
        ]}]  # fmt: skip


class ZonedCaches:
    """`reports`: those of each zone. `away`: nodes that do not answer. `full`: zones that have no room."""

    def __init__(self) -> None:
        self.reports: dict[str, dict[str, Any]] = {}
        self.away: set[str] = set()
        self.full: set[str] = set()
        self.begun: list[str] = []

    async def warm(self, name: str, urls: Sequence[str], *, at: CachePod | None = None) -> None:
        assert at is not None
        assert at.zone is not None
        if at.node in self.away:
            raise CacheError("no route")
        self.begun.append(at.zone)
        failures = [{"object": "", "error": "no room", "passing": False}]
        state = {"state": "failed", "failures": failures} if at.zone in self.full else {"state": "running"}
        numbers = {"objects": {"wanted": 1, "unsized": 0}, "bytes": {"wanted": 1000, "on_disk": 0}}
        self.reports[at.zone] = {**numbers, "ended_s": None, **state}

    async def progress(self, name: str, *, at: CachePod | None = None) -> Manifest | None:
        assert at is not None
        if at.node in self.away:
            raise CacheError("no route")
        return self.reports.get(at.zone or "")

    async def datasets(self, pod: CachePod) -> Sequence[HeldDataset]:
        return []


class World:
    def __init__(self) -> None:
        self.kube, self.caches = ZonedKube(), ZonedCaches()
        self.holdings = Holdings(self.kube, self.caches, "cache", "peers")
        self.warming = Warming(self.kube, self.caches, self.holdings, lambda: 0.0)

    async def look_after(self, *pods: Pod) -> set[str | None]:
        """The zones that answered."""
        await self.holdings.refresh()
        return set(await self.warming.look_after((DATA,), [(pod, wishes_in(pod)) for pod in pods]))


def bound(zone: str) -> Pod:
    return near(warm="0.9", nodeSelector={ZONE_LABEL: zone})


async def test_pods_that_can_run_in_more_zones_wait_for_the_zone_of_those_that_can_run_in_one() -> None:
    world = World()
    assert await world.look_after(near(warm="0.9"), bound("b")) == {"a", "b"}
    assert world.caches.begun == ["b"]
    await world.look_after(near(warm="0.9"), bound("a"))
    assert world.caches.begun == ["b", "a"], "nobody can run in both"


async def test_a_zone_without_room_gives_way_to_the_next_one() -> None:
    world = World()
    world.caches.full = {"a"}
    await world.look_after(near(warm="0.9"))
    await world.look_after(near(warm="0.9"))
    assert world.caches.begun == ["a", "b"], "each operator begins with the same one"


async def test_another_cache_of_the_zone_is_asked_where_one_does_not_answer() -> None:
    for away in ("a1", "a2"):
        world = World()
        world.caches.away = {away}
        assert await world.look_after(bound("a")) == {"a"}
        assert world.caches.begun == ["a"]
    world.caches.away = {"a1", "a2"}
    assert await world.look_after(bound("a")) == set()
    assert await world.look_after(near(warm="0.9")) == {"b"}


async def test_without_the_nodes_the_zone_that_a_pod_names_counts() -> None:
    world = World()
    world.kube.refuses = {"list Node"}
    assert await world.look_after(bound("b")) == {"b"}
