"""The memory budget: its shares for origin exchanges and caches, and the part that the requests under way share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from outrider.core.errors import SlowDown

# One exchange with the origin: 512 KiB in the HTTP client, 512 KiB held for the disk, 512 KiB being written.
EXCHANGE_BYTES = 1536 * 1024
_PARTS = 24
_LISTING_PARTS, _HEAD_PARTS = 4, 1


@dataclass(frozen=True, slots=True)
class MemoryShares:
    """The division of the budget: at most half for exchanges with the origin, the rest for caches and for clients."""

    exchanges: int
    """The most exchanges with the origin at once."""
    listings_bytes: int
    """Cached LIST pages."""
    heads_bytes: int
    """Prepared reply heads of the fast path."""
    clients_bytes: int
    """For the requests under way, see `MemoryBudget`."""

    @classmethod
    def of(cls, budget_bytes: int, exchanges_max: int) -> MemoryShares:
        """`exchanges_max`: the limit of exchanges for any budget."""
        part = budget_bytes // _PARTS
        exchanges = max(1, min(exchanges_max, budget_bytes // 2 // EXCHANGE_BYTES))
        list_cache, heads = _LISTING_PARTS * part, _HEAD_PARTS * part
        return cls(exchanges, list_cache, heads, budget_bytes - exchanges * EXCHANGE_BYTES - list_cache - heads)


class MemoryBudget:
    """The memory that all requests under way may hold together.

    No request waits for memory, since a request that holds some may be waiting for its client.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self.used_bytes = 0

    def take(self, count: int) -> bool:
        """False: there is no room for `count` bytes more, and nothing was taken."""
        if self.used_bytes + count > self._capacity_bytes:
            return False
        self.used_bytes += count
        return True

    def take_spare(self, count: int) -> bool:
        """As `take`, for work that can wait: half of the capacity is left to all other."""
        return self.used_bytes + count <= self._capacity_bytes // 2 and self.take(count)

    def give_back(self, count: int) -> None:
        self.used_bytes -= count
        assert self.used_bytes >= 0

    @contextmanager
    def held(self, count: int) -> Iterator[None]:
        """Take `count` bytes for a while. Raises SlowDown: there is no room for them."""
        if not self.take(count):
            raise SlowDown(headers=(("retry-after", "1"),))
        try:
            yield
        finally:
            self.give_back(count)
