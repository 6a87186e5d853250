"""The limits of a disk: how many bytes the store keeps on it, with the free space that it leaves to others on the file
system, and how many fills it gets while it lags.

Reads beyond the limit of fills are relayed past the cache, since a cold read through the proxy must not be slower than
a read without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A look at the free space is valid for so long. Each look makes a cold read wait for a thread before its first byte.
_FREE_KNOWN_S = 1.0


@dataclass(frozen=True, slots=True)
class Room:
    """The room of a cache directory. `device` and `total_bytes`: of its file system. `most_bytes`: what its blocks take
    now and what is free beyond the floor, for all directories there together."""

    device: int
    total_bytes: int
    most_bytes: int


def capacities(amount_bytes: int, share: float, rooms: Sequence[Room]) -> list[int]:
    """The capacity of each directory, of a cache of `amount_bytes` in all and of `share` of each file system.

    The amount is divided in proportion to the rooms. Directories on one file system divide its room and its share
    evenly, so that together they take what one would.
    """
    beside = Counter(room.device for room in rooms)
    parts = [room.most_bytes // beside[room.device] for room in rooms]
    whole = sum(parts)
    if not whole:
        parts, whole = [1] * len(rooms), len(rooms)
    return [
        amount_bytes * part // whole + int(share * room.total_bytes) // beside[room.device]
        for room, part in zip(rooms, parts, strict=True)
    ]


class DiskBudget:
    """Counts bytes before they are written. The free space of the file system and the time are arguments."""

    def __init__(self, capacity_bytes: int, min_free_bytes: int = 0) -> None:
        if capacity_bytes < 0 or min_free_bytes < 0:
            raise ValueError(f"impossible limits: {capacity_bytes}, {min_free_bytes}")
        self.capacity_bytes = capacity_bytes
        """The most bytes on disk, headers and reservations included."""
        self.min_free_bytes = min_free_bytes
        """Left free for others on the file system."""
        # Blocks, reservations, and files that the scan at the start has not read yet.
        self.used_bytes = 0
        # Reserved, and perhaps not on disk yet: the file system still shows this space as free.
        self.pending_bytes = 0
        # The last look at the free space: its time, the free bytes beyond `min_free_bytes` and the reservations, and
        # the bytes reserved since.
        self._looked_at = float("-inf")
        self._free_beyond_floor = 0
        self._reserved_since_look = 0

    @property
    def room_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes)

    def take(self, amount: int) -> None:
        """Count `amount` bytes that are on disk already."""
        self.used_bytes += amount

    def give_back(self, amount: int) -> None:
        self.used_bytes -= amount
        assert self.used_bytes >= 0

    def reserve(self, need: int) -> None:
        self.used_bytes += need
        self.pending_bytes += need

    def unreserve(self, need: int) -> None:
        """Give back a reservation for which no file was written."""
        self.pending_bytes -= need
        self.give_back(need)

    def landed(self, need: int) -> None:
        """The file of the reservation is written."""
        self.pending_bytes -= need

    def excess(self, need: int, now: float) -> int | None:
        """By how many bytes `need` more would exceed the budget. None: look at the free space, and call
        `excess_after_look`.

        The last look is still valid if it is less than a second old, and if the space it showed is at least twice what
        was reserved since: the other half is for other writers. A `need` beyond the capacity takes no look.
        """
        if need > self.capacity_bytes:
            return need
        self._reserved_since_look += need
        fresh = now - self._looked_at < _FREE_KNOWN_S
        if not fresh or 2 * self._reserved_since_look >= self._free_beyond_floor:
            return None
        return self.used_bytes + need - self.capacity_bytes

    def reserve_at_once(self, need: int, now: float) -> bool:
        """Reserve `need` bytes if that exceeds nothing and takes no look; else False, and nothing changes."""
        is_known = now - self._looked_at < _FREE_KNOWN_S
        if not is_known or 2 * (self._reserved_since_look + need) >= self._free_beyond_floor:
            return False
        if self.used_bytes + need > self.capacity_bytes:
            return False
        self._reserved_since_look += need
        self.reserve(need)
        return True

    def excess_after_look(self, free_bytes: int, need: int, pending_before: int, now: float) -> int:
        """As `excess`, after a look that showed `free_bytes`. `pending_before`: `pending_bytes` when the look began."""
        # Files written since the look began are no longer pending, so the larger of the two counts.
        spoken_for = max(pending_before, self.pending_bytes)
        self._looked_at, self._reserved_since_look = now, need
        self._free_beyond_floor = free_bytes - self.min_free_bytes - spoken_for
        return max(self.used_bytes + need - self.capacity_bytes, need - self._free_beyond_floor)

    @property
    def on_disk_bytes(self) -> int:
        return self.used_bytes - self.pending_bytes


def most_bytes(free_bytes: int, budgets: Sequence[DiskBudget]) -> int:
    """The most bytes that directories on one file system could hold, by their budgets and its free space."""
    floor = max(budget.min_free_bytes for budget in budgets)
    held = sum(budget.on_disk_bytes for budget in budgets)
    return max(0, min(sum(budget.capacity_bytes for budget in budgets), held + free_bytes - floor))


# The half-life of the measured times: a short pause, as for a flush, does not make a disk slow.
_HALF_LIFE_S = 2.0
# The disk lags when three conditions hold. First, fills wait for it so many times longer than for the origin.
_TIMES_LONGER = 4.0
# Second, each write gets less than a connection to S3 brings (40-90 MB/s). A disk that is slower only than an origin
# close by is still worth using.
_SLOW_BYTES_S = 60e6
# Third, it has lasted: so many seconds, summed over all writers. One or two late writes do not count.
_SECONDS_MIN = 1.0
_STEP_S = 1.0


class WritePace:
    """How fast a disk took bytes of late, and the origin gave them."""

    def __init__(self) -> None:
        self.disk_s = 0.0
        self.origin_s = 0.0
        self._bytes = 0.0
        self._at: float | None = None

    def measured(self, disk_s: float, count: int, now: float, origin_s: float = 0.0) -> None:
        """The disk took `disk_s` for `count` bytes, for which the origin was waited for `origin_s`."""
        self._fade(now)
        self.disk_s += disk_s
        self.origin_s += origin_s
        self._bytes += count

    def is_slow(self, now: float) -> bool:
        """The second and the third condition. As nothing is written to a disk that lags, it ends after some seconds."""
        self._fade(now)
        return self.disk_s > _SECONDS_MIN and self._bytes < _SLOW_BYTES_S * self.disk_s

    def is_behind(self, others: Iterable[WritePace], now: float) -> bool:
        """Whether the disk is slow, and the fastest of the `others` is as many times faster as the first condition
        has it."""
        return self.is_slow(now) and any(
            other.disk_s > 0 and other._bytes * self.disk_s > _TIMES_LONGER * self._bytes * other.disk_s
            for other in others
        )

    def _fade(self, now: float) -> None:
        if self._at is not None and now > self._at:
            left = 0.5 ** ((now - self._at) / _HALF_LIFE_S)
            self.disk_s *= left
            self.origin_s *= left
            self._bytes *= left
        self._at = now


class DiskPressure:
    """`fills`: the limit of fills under way; None: no limit. It is halved each second while the disk lags, and doubled
    each second once the disk does not, until it limits nothing."""

    def __init__(self) -> None:
        self.fills: int | None = None
        self._pace = WritePace()
        self._stepped_at: float | None = None
        self._most = 0

    def measured(self, disk_s: float, origin_s: float, count: int, under_way: int, now: float) -> None:
        """A fill, one of `under_way`, waited `origin_s` for `count` bytes, and its writer took `disk_s` to write
        them."""
        self._pace.measured(disk_s, count, now, origin_s)
        self._step(under_way, now)

    def allows(self, under_way: int, now: float) -> bool:
        """Whether a fill may begin beside the `under_way` others."""
        if self.fills is None:
            return True
        self._step(under_way, now)
        return self.fills is None or under_way < self.fills

    def _step(self, under_way: int, now: float) -> None:
        if self._stepped_at is None:
            self._stepped_at = now
        self._most = max(self._most, under_way)
        if now - self._stepped_at < _STEP_S:
            return
        if self._pace.is_slow(now) and self._pace.disk_s > _TIMES_LONGER * self._pace.origin_s:
            self.fills = max(1, min(self._most, self._most if self.fills is None else self.fills) // 2)
        elif self.fills is not None:
            self.fills *= 2
            if self.fills > 2 * self._most:
                self.fills = None
        self._stepped_at, self._most = now, under_way
