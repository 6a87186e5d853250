"""Turns of tenants on one line: start-time fair queueing.

Source: P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queueing", SIGCOMM 1996.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

WeightOf = Callable[[str], float]
"""The weight of a tenant, above zero. It may change at any time, and counts for what is served from then on."""

LEAST_BYTES = 64 * 1024
"""A smaller work counts as so many bytes: it takes a round trip of the line."""


class FairTurns:
    """The next turn is that of the tenant whose `start` is the least.

    Among tenants that always have work, each gets its weight's share of the bytes, within one piece of work of each. A
    tenant that has none for a while is owed nothing for that time: the others share what it left.
    """

    def __init__(self, weight_of: WeightOf) -> None:
        self._weight_of = weight_of
        # The start of the last turn: that of a tenant that had no work lately is no earlier.
        self._now = 0.0
        self._ended: dict[str, float] = {}

    def start(self, tenant: str) -> float:
        return max(self._now, self._ended.get(tenant, 0.0))

    def served(self, tenant: str, work_bytes: int) -> None:
        """`tenant` had its turn, for work of so many bytes."""
        self._now = self.start(tenant)
        self._ended[tenant] = self._now + max(work_bytes, LEAST_BYTES) / self._weight_of(tenant)


class TurnQueue(Generic[T]):
    """Waiting work. That of the lowest level is first; within a level tenants take turns; the work of one tenant is
    first come, first served."""

    def __init__(self, weight_of: WeightOf) -> None:
        self._weight_of = weight_of
        self._levels: dict[int, dict[str, OrderedDict[T, int]]] = {}
        self._turns: dict[int, FairTurns] = {}
        self.waiting: dict[T, tuple[int, str]] = {}
        """The level and the tenant of all that waits."""

    def put(self, item: T, level: int, tenant: str = "", work_bytes: int = 0) -> None:
        """`item` waits from now on. It may not wait already."""
        assert item not in self.waiting, "it waits already"
        self._levels.setdefault(level, {}).setdefault(tenant, OrderedDict())[item] = work_bytes
        self.waiting[item] = level, tenant

    def first(self) -> T | None:
        """The item that is next; None: nothing waits."""
        if not self.waiting:
            return None
        level = min(self._levels)
        tenants = self._levels[level]
        return next(iter(tenants[min(tenants, key=self._turns_of(level).start)]))

    def take(self, item: T) -> None:
        """`item` has its turn: it does not wait any more, and counts as work of its tenant."""
        level, tenant = self.waiting[item]
        self._turns_of(level).served(tenant, self.discard(item))

    def discard(self, item: T) -> int:
        """`item` does not wait any more, and has had no turn. Returns its bytes."""
        level, tenant = self.waiting.pop(item)
        tenants = self._levels[level]
        work_bytes = tenants[tenant].pop(item)
        if not tenants[tenant]:
            del tenants[tenant]
        if not tenants:
            del self._levels[level]
        return work_bytes

    def _turns_of(self, level: int) -> FairTurns:
        if level not in self._turns:
            self._turns[level] = FairTurns(self._weight_of)
        return self._turns[level]
