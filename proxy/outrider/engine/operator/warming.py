"""Warm-ups for pods that wait: the caches of each zone where such a pod can run are queried themselves, and one zone
begins.

The caches that are asked about some data are always the same ones, so that another operator finds a warm-up where this
one began it.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from outrider.core.operator.placement import NodeFacts, Zone, facts_of, zones_of
from outrider.core.operator.warm_gate import ZoneWarmth, warmup_name, zone_to_begin
from outrider.core.operator.wishes import Wishes
from outrider.engine.operator.holdings_watch import Holdings
from outrider.operator_ports import CacheError, CachePod, CacheRefusedError, Caches, Kube, KubeError, Manifest
from outrider.ports import Clock

log = logging.getLogger(__name__)

Data = tuple[str, ...]
Waiting = Sequence[tuple[Manifest, Wishes]]
"""Pods that wait for the same data."""

# All nodes of a large cluster are some megabytes.
_NODES_S = 30.0
# Caches of a zone that are asked in turn, where one does not answer.
_ASKED = 2


class Warming:
    """All on one loop. `clock`: seconds."""

    def __init__(self, kube: Kube, caches: Caches, holdings: Holdings, clock: Clock) -> None:
        self._kube = kube
        self._caches = caches
        self._holdings = holdings
        self._clock = clock
        self._nodes: Sequence[NodeFacts] = ()
        self._nodes_at: float | None = None
        # How often in a row the warm-up of some data failed in a zone, and was begun anew.
        self._tries: Counter[tuple[Data, Zone]] = Counter()
        self.begun = 0
        """Warm-ups that were begun so far."""

    def forget(self, but: Iterable[Data]) -> None:
        """No pod waits for other data than these."""
        kept = frozenset(but)
        self._tries = Counter({of: tries for of, tries in self._tries.items() if of[0] in kept})

    def zones_of(self, pod: Manifest) -> frozenset[Zone]:
        """The zones with caches where the pod can run."""
        zones = self._holdings.zones() or {None: []}
        return zones_of(pod["spec"], self._nodes, zones) if len(zones) > 1 else frozenset(zones)

    async def look_after(self, data: Data, waiting: Waiting) -> Mapping[Zone, ZoneWarmth]:
        """The warm-up in each zone where one of the pods can run, begun where it is due. Zones whose caches do not
        answer are left out."""
        if len(self._holdings.zones()) > 1:
            await self._refresh_nodes()
        # By the zones where they can run, the largest share that pods wait for.
        wanted: dict[frozenset[Zone], float] = {}
        for pod, wishes in waiting:
            zones = self.zones_of(pod)
            wanted[zones] = max(wanted.get(zones, 0.0), wishes.warm or 0.0)
        ranked_zones = sorted(frozenset[Zone]().union(*wanted), key=str)
        reports = await asyncio.gather(*(self._report(data, zone) for zone in ranked_zones))
        found = {warmth.zone: warmth for warmth in reports if warmth is not None}
        # Pods that can run in few zones come first: those that can run in more do with one of these.
        for zones in sorted(wanted, key=len):
            # Each operator begins with the same one of equal zones.
            ranked = sorted(zones, key=str)
            while (due := zone_to_begin([found[each] for each in ranked if each in found], wanted[zones])) is not None:
                begun = await self._begin(data, due)
                if begun is not None:
                    found[due.zone] = begun
                    if begun.failure is None:
                        break
                else:
                    del found[due.zone]
        return found

    async def _report(self, data: Data, zone: Zone) -> ZoneWarmth | None:
        """None: its caches do not answer."""
        warmth = ZoneWarmth(zone, held=self._holdings.share_in(zone, data), tries=self._tries[data, zone])
        for cache in self._caches_of(data, zone):
            try:
                return replace(warmth, report=await self._caches.progress(warmup_name(data), at=cache))
            except CacheRefusedError as error:
                return replace(warmth, refusal=str(error))
            except CacheError as error:
                _log_silence(cache, error)
        return None

    async def _begin(self, data: Data, due: ZoneWarmth) -> ZoneWarmth | None:
        """None: its caches do not answer."""
        self._tries[data, due.zone] = self._tries[data, due.zone] + 1 if due.has_failed else 0
        for cache in self._caches_of(data, due.zone):
            try:
                await self._caches.warm(warmup_name(data), data, at=cache)
                self.begun += 1
                return replace(due, report=await self._caches.progress(warmup_name(data), at=cache))
            except CacheRefusedError as error:
                return replace(due, refusal=str(error))
            except CacheError as error:
                _log_silence(cache, error)
        return None

    def _caches_of(self, data: Data, zone: Zone) -> Sequence[CachePod | None]:
        """Those to ask, in turn. None: any, as none is known."""
        pods = self._holdings.zones().get(zone, [])
        ranked = sorted(pods, key=lambda pod: zlib.crc32(f"{warmup_name(data)} {pod.node}".encode()))
        return ranked[:_ASKED] or [None]

    async def _refresh_nodes(self) -> None:
        """Without an answer those count that are known."""
        now = self._clock()
        if self._nodes_at is not None and now - self._nodes_at < _NODES_S:
            return
        self._nodes_at = now
        try:
            self._nodes = [facts_of(node) for node in await self._kube.all_of("Node")]
        except KubeError as error:
            log.warning("the nodes were not listed", extra={"why": str(error)})


def _log_silence(cache: CachePod | None, error: CacheError) -> None:
    log.warning("a cache does not answer", extra={"node": None if cache is None else cache.node, "why": str(error)})
