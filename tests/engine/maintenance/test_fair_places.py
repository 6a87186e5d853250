"""Places of warm-ups: tenants take turns, and no place is lost or given twice."""

from __future__ import annotations

import asyncio

import pytest

from outrider.core.cache.tenants import Tenants, TenantShare
from outrider.engine.maintenance.fair_places import FairPlaces


class Waiting:
    """Those who wait for the only place, by name, in the order in which they get it."""

    def __init__(self, shares: dict[str, TenantShare]) -> None:
        tenants = Tenants()
        tenants.renew(shares)
        self.places = FairPlaces(1, tenants)
        self.order = ""
        self.tasks: list[asyncio.Task[None]] = []

    async def add(self, names: str) -> None:
        for name in names:
            self.tasks.append(asyncio.create_task(self._take(name)))
        await asyncio.sleep(0)

    async def _take(self, name: str) -> None:
        await self.places.take(name, 10**6)
        self.order += name

    async def give_back(self, count: int) -> None:
        for _ in range(count):
            self.places.give_back()
            for _ in range(3):
                await asyncio.sleep(0)


@pytest.mark.parametrize(("line", "order"), [({"g": 0.25, "m": 0.75}, "gmmmgg"), ({"g": None, "m": None}, "gggmmm")])
async def test_tenants_get_places_in_turns(line: dict[str, float | None], order: str) -> None:
    waiting = Waiting({name: TenantShare(line=share) for name, share in line.items()})
    await waiting.add("gggmmm")
    await waiting.give_back(6)
    assert waiting.order == order


async def test_who_leaves_takes_no_place_along() -> None:
    waiting = Waiting({})
    await waiting.add("abcd")
    waiting.tasks[1].cancel()
    waiting.places.give_back()
    # `b` has the place, or `c` has it: it is given and cancelled in the same moment.
    for _ in range(3):
        await asyncio.sleep(0)
    await waiting.give_back(1)
    waiting.tasks[3].cancel()
    assert waiting.order == "acd"
    await waiting.add("e")
    await waiting.give_back(1)
    assert waiting.order == "acde"
