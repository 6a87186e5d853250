"""The datasets that the caches hold, requested now and then, so that no pod that is created waits for a cache."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from outrider.core.operator.affinity import Holding
from outrider.core.operator.holdings import Held, NodeDatasets
from outrider.operator_ports import CacheError, CachePod, Caches, Kube

log = logging.getLogger(__name__)

REFRESH_S = 15.0
# Caches that are asked at once.
_AT_ONCE = 16
# Lists of URLs whose answer is kept until the caches are asked again: the pods of a job have one.
_ANSWERS_MAX = 1024


class Holdings:
    """All on one loop, apart from `of`, which any thread may ask."""

    def __init__(self, kube: Kube, caches: Caches, namespace: str, service: str, *, has_zones: bool = True) -> None:
        """The Service has the pods of the cache; headless or not. `has_zones`: the caches of each zone are one, and
        not those of the whole cluster."""
        self._kube = kube
        self._caches = caches
        self._of = namespace, service
        self._has_zones = has_zones
        self._pods: dict[str, CachePod] = {}
        # Replaced together.
        self._held: tuple[Held, dict[tuple[str, ...], list[Holding]]] = Held(()), {}

    def of(self, urls: Sequence[str]) -> Sequence[Holding]:
        """Empty: no cache knows the data, or none was asked yet."""
        held, answers = self._held
        found = answers.get(wanted := tuple(urls))
        if found is None:
            found = held.of(urls)
            if len(answers) < _ANSWERS_MAX:
                answers[wanted] = found
        return found

    def pod_on(self, node: str) -> CachePod | None:
        return self._pods.get(node)

    def zones(self) -> dict[str | None, list[CachePod]]:
        """The caches that are one, by their zone. Under None those of unknown zone, or of all."""
        found: dict[str | None, list[CachePod]] = {}
        for pod in self._pods.values():
            found.setdefault(pod.zone if self._has_zones else None, []).append(pod)
        return found

    def share_in(self, zone: str | None, urls: Sequence[str]) -> float:
        """The share of the data that the caches of `zone` hold together."""
        zones = [each for each in self.of(urls) if each.node is None]
        return min(1.0, sum(each.share for each in zones if not self._has_zones or each.zone == zone))

    async def refresh(self) -> None:
        """A cache that does not answer holds nothing. Raises KubeError."""
        self._pods = {pod.node: pod for pod in pods_of(await self._kube.endpoint_slices(*self._of))}
        gate = asyncio.Semaphore(_AT_ONCE)

        async def ask(pod: CachePod) -> NodeDatasets:
            async with gate:
                try:
                    return NodeDatasets(pod.node, pod.zone, await self._caches.datasets(pod))
                except CacheError as error:
                    log.debug("a cache did not report what it holds", extra={"node": pod.node, "why": str(error)})
                    return NodeDatasets(pod.node, pod.zone, ())

        answers = await asyncio.gather(*map(ask, self._pods.values()))
        self._held = await asyncio.to_thread(Held, answers), {}


def pods_of(slices: Sequence[Mapping[str, Any]]) -> list[CachePod]:
    """The caches that serve, one for each node."""
    found: dict[str, CachePod] = {}
    for part in slices:
        for endpoint in part.get("endpoints") or ():
            node, addresses = endpoint.get("nodeName"), endpoint.get("addresses")
            # Unknown counts as ready (discovery.k8s.io/v1 EndpointConditions).
            is_ready = (endpoint.get("conditions") or {}).get("ready") is not False
            if node and addresses and is_ready:
                found.setdefault(node, CachePod(addresses[0], node, endpoint.get("zone")))
    return list(found.values())
