"""How many bytes a store may take: its own budget, and the free space that it leaves to others on the file system."""

from __future__ import annotations

# Free space is looked at again after this long: each look costs the first byte of a cold read a turn of a thread.
_FREE_KNOWN_S = 1.0


class DiskBudget:
    """Counts what is taken before a byte of it is written. What the file system shows, and when, are arguments."""

    def __init__(self, capacity_bytes: int, min_free_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._min_free_bytes = min_free_bytes
        # Blocks, reservations, and files that the scan has yet to read.
        self.used_bytes = 0
        # Reserved and maybe not yet on disk: free space that the file system still shows but that is spoken for.
        self.pending_bytes = 0
        # The last look at the free space: when, what it showed beyond the floor and all that was spoken for, and what
        # was reserved since.
        self._looked_at = float("-inf")
        self._free_beyond_floor = 0
        self._reserved_since_look = 0

    @property
    def room_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes)

    def take(self, amount: int) -> None:
        """Of what lies on disk already."""
        self.used_bytes += amount

    def give_back(self, amount: int) -> None:
        self.used_bytes -= amount
        assert self.used_bytes >= 0

    def reserve(self, need: int) -> None:
        self.used_bytes += need
        self.pending_bytes += need

    def unreserve(self, need: int) -> None:
        """Give back a reservation that no file stands for."""
        self.pending_bytes -= need
        self.give_back(need)

    def landed(self, need: int) -> None:
        """A file stands for the reservation now."""
        self.pending_bytes -= need

    def over(self, need: int, now: float) -> int | None:
        """By how many bytes it is exceeded with `need` more; None: the free space has to be looked at (`looked`).

        The last look tells that there is enough of it if it was a moment ago, and what was reserved since fits in
        beside as much again for others. What can never fit needs no look.
        """
        if need > self.capacity_bytes:
            return need
        self._reserved_since_look += need
        fresh = now - self._looked_at < _FREE_KNOWN_S
        if not fresh or 2 * self._reserved_since_look >= self._free_beyond_floor:
            return None
        return self.used_bytes + need - self.capacity_bytes

    def looked(self, free_bytes: int, need: int, pending_before: int, now: float) -> int:
        """The same as `over`, by what the file system shows. `pending_before`: `pending_bytes` when it was asked."""
        # What was written since then is no longer pending: count the larger of the two.
        spoken_for = max(pending_before, self.pending_bytes)
        self._looked_at, self._reserved_since_look = now, need
        self._free_beyond_floor = free_bytes - self._min_free_bytes - spoken_for
        return max(self.used_bytes + need - self.capacity_bytes, need - self._free_beyond_floor)

    def most_bytes(self, free_bytes: int) -> int:
        """How much could be taken in all, as far as budget and file system go."""
        on_disk = self.used_bytes - self.pending_bytes
        return max(0, min(self.capacity_bytes, on_disk + free_bytes - self._min_free_bytes))
