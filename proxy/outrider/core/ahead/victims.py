"""Which cached objects may be evicted: those of outdated versions, and then those that are needed last."""

from __future__ import annotations

from collections.abc import Iterator

from outrider.core.ahead.dataset.cached_objects import CachedObject
from outrider.core.ahead.dataset.registry import DatasetRegistry
from outrider.core.cache.pins import Pins


class Victims:
    """Objects that `pins` hold are never victims."""

    def __init__(self, registry: DatasetRegistry, pins: Pins) -> None:
        self._registry = registry
        self._pins = pins
        self._pins_released = 0
        self.outdated: dict[bytes, CachedObject] = {}
        """Versions that another version has replaced. No client will ask for them."""

    def farthest(self, later_than_s: float, now: float) -> Iterator[CachedObject]:
        """The outdated versions, and then the objects that are needed later than in so many
        seconds, about the farthest first."""
        if self._pins_released != self._pins.released:
            self._pins_released = self._pins.released
            for dataset in self._registry.datasets():
                dataset.next_use.put_back(now)
        holds = self._pins.holds
        if self.outdated:
            yield from (cached for cached in self.outdated.values() if not holds(cached.version_id))
        pinned: list[CachedObject] = []
        try:
            for seconds, cached in self._registry.farthest(now):
                if seconds <= later_than_s:
                    if cached.broken:
                        continue
                    return
                if holds(cached.version_id):
                    pinned.append(cached)
                else:
                    yield cached
        finally:
            for cached in pinned:
                cached.dataset.next_use.set_aside(cached)
