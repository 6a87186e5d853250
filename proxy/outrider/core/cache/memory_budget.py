"""One budget for all bytes that wait in memory: what kept things may take of it, and what requests under way share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from outrider.core.errors import SlowDown

# One exchange with the origin: 512 KiB in the HTTP client, as much held for the disk, as much on its way there.
EXCHANGE_BYTES = 1536 * 1024
_PARTS = 24
_LISTING_PARTS, _HEAD_PARTS = 4, 1


@dataclass(frozen=True, slots=True)
class Shares:
    """How the budget is divided: half for exchanges with the origin, the rest for what is kept and for clients."""

    exchanges: int
    """Exchanges with the origin at once, at most."""
    listings_bytes: int
    heads_bytes: int
    """Reply heads kept ready."""
    clients_bytes: int
    """What requests under way share: see `MemoryBudget`."""

    @classmethod
    def of(cls, budget_bytes: int, exchanges_max: int) -> Shares:
        """`exchanges_max`: more are not wanted, whatever the budget."""
        part = budget_bytes // _PARTS
        exchanges = max(1, min(exchanges_max, budget_bytes // 2 // EXCHANGE_BYTES))
        list_cache, heads = _LISTING_PARTS * part, _HEAD_PARTS * part
        return cls(exchanges, list_cache, heads, budget_bytes - exchanges * EXCHANGE_BYTES - list_cache - heads)


class MemoryBudget:
    """What requests under way may hold in memory, all together. Nobody waits for it: whoever holds some might wait for
    a client."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self.used_bytes = 0

    def take(self, count: int) -> bool:
        """False: there is no room for `count` bytes more, and nothing was taken."""
        if self.used_bytes + count > self._capacity_bytes:
            return False
        self.used_bytes += count
        return True

    def give_back(self, count: int) -> None:
        self.used_bytes -= count
        assert self.used_bytes >= 0

    @contextmanager
    def held(self, count: int) -> Iterator[None]:
        """Raises SlowDown: there is no room."""
        if not self.take(count):
            raise SlowDown(headers=(("retry-after", "1"),))
        try:
            yield
        finally:
            self.give_back(count)
