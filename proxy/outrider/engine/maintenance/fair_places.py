"""Places for the blocks that are on their way for warm-ups, given to tenants in turns."""

from __future__ import annotations

import asyncio

from outrider.core.cache.tenants import NOBODY, Tenants
from outrider.core.origin.fair_turns import TurnQueue


class FairPlaces:
    """A semaphore of so many places. Those who wait get them in the turns of their tenants."""

    def __init__(self, places: int, tenants: Tenants | None) -> None:
        """`tenants` None: the first come are the first served."""
        self._free = places
        self._tenants = tenants
        weight_of = (lambda tenant: 1.0) if tenants is None else tenants.weight_of
        self._waiting: TurnQueue[asyncio.Future[None]] = TurnQueue(weight_of)

    async def take(self, tenant: str = NOBODY, work_bytes: int = 0) -> None:
        """Wait for a place, for work of so many bytes; see `give_back`."""
        place = asyncio.get_running_loop().create_future()
        self._waiting.put(place, 0, NOBODY if self._tenants is None else self._tenants.in_line(tenant), work_bytes)
        self._give()
        try:
            await asyncio.shield(place)
        except asyncio.CancelledError:
            if place.done():
                self.give_back()  # it was given and cancelled in the same moment
            else:
                self._waiting.discard(place)
            raise

    def give_back(self) -> None:
        self._free += 1
        self._give()

    def _give(self) -> None:
        while self._free > 0 and (place := self._waiting.first()) is not None:
            self._waiting.take(place)
            self._free -= 1
            place.set_result(None)
