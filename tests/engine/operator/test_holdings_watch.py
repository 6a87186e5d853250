"""The caches that are asked, and the answers that count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outrider.core.cluster.object_samples import KnownObject, ObjectSample
from outrider.core.operator.affinity import Holding
from outrider.core.operator.holdings import HeldDataset
from outrider.engine.operator.holdings_watch import Holdings, pods_of
from outrider.operator_ports import CacheError, CachePod, KubeError, Manifest
from tests.support.fake_kube import FakeKube


def endpoint(address: str, node: str | None, *, zone: str | None = None, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "nodeName": node, "zone": zone, "conditions": conditions or None}


def test_each_node_has_one_cache_that_serves() -> None:
    slices: list[dict[str, Any]] = [
        {"endpoints": [endpoint("10.0.0.1", "a", zone="z", ready=True), endpoint("10.0.0.2", "b", ready=False)]},
        # The same pods by their other family; a pod whose readiness is not known; one without a node.
        {"endpoints": [endpoint("fd00::1", "a"), endpoint("10.0.0.3", "c"), endpoint("10.0.0.4", None)]},
        {"endpoints": None},
    ]
    assert pods_of(slices) == [CachePod("10.0.0.1", "a", "z"), CachePod("10.0.0.3", "c", None)]


class Slices(FakeKube):
    async def endpoint_slices(self, namespace: str, service: str) -> Sequence[Manifest]:
        if self.away:
            raise KubeError(0, "no answer")
        assert (namespace, service) == ("cache", "peers")
        return [{"endpoints": [endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "b")]}]


class Answers:
    def __init__(self) -> None:
        self.away: set[str] = set()

    async def datasets(self, pod: CachePod) -> Sequence[HeldDataset]:
        if pod.node in self.away:
            raise CacheError("no route")
        # Each knows an object of its own.
        known = KnownObject(1 if pod.node == "a" else 2, 100, 50)
        return [HeldDataset("datasets", "imagenet/", ObjectSample([known]))]

    async def warm(self, name: str, urls: Sequence[str], *, at: CachePod | None = None) -> None:
        raise AssertionError

    async def progress(self, name: str, *, at: CachePod | None = None) -> Manifest | None:
        raise AssertionError


async def test_a_cache_that_is_away_holds_nothing_and_without_the_api_server_the_last_answers_count() -> None:
    kube, caches = Slices(), Answers()
    holdings = Holdings(kube, caches, "cache", "peers")
    urls = ["s3://datasets/imagenet/"]
    assert holdings.of(urls) == []
    caches.away = {"b"}
    await holdings.refresh()
    expected = [Holding("a", None, 0.5), Holding("b", None, 0.0), Holding(None, None, 0.5)]
    assert holdings.of(urls) == expected
    assert holdings.of(urls) is holdings.of(urls), "the pods of a job are answered from memory"
    caches.away = set()
    await holdings.refresh()
    expected = [Holding("a", None, 0.25), Holding("b", None, 0.25), Holding(None, None, 0.5)]
    assert holdings.of(urls) == expected
    kube.away = True
    with pytest.raises(KubeError):
        await holdings.refresh()
    assert holdings.of(urls) == expected
    assert holdings.pod_on("a") == CachePod("10.0.0.1", "a", None)
