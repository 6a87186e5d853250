"""Tables of rows: what is known of a million objects stands in columns, in place of a million objects of Python.

A row is a small number. The table that owns the columns takes rows from `FreeRows`, finds them again by `RowIndex`, and
keeps them in order of use by `RowOrder`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from struct import Struct
from typing import TypeVar

T = TypeVar("T")

# In the byte order of the machine, as columns are.
_PAIR = Struct("=II")
_PAIR_BYTES = _PAIR.size
_HASH = Struct("=I")
_HASH_BITS = 2**32 - 1
# Entries in a bucket on average, when it is split. A longer bucket takes less memory (a `bytes` object has 33 bytes of
# its own), and `bytes.find` looks through it at some bytes a nanosecond.
_BUCKET_ENTRIES = 24


class RowIndex:
    """Finds a row by the hash of its name, in 10 to 12 bytes a row: the names stand in the columns of the caller.

    A hash table whose buckets are split one by one (linear hashing), so that no call takes longer than another by more
    than a few microseconds. A dictionary takes 100 bytes for the same, and the memory of its keys.
    """

    __slots__ = ("_buckets", "_count", "_mask", "_split")

    def __init__(self) -> None:
        # Pairs of hash and row, four bytes each.
        self._buckets: list[bytes] = [b""]
        self._count = 0
        # Buckets before `_split` have been split in this round, by one more bit of the hash than `_mask` has.
        self._mask = self._split = 0

    def __len__(self) -> int:
        return self._count

    def find(self, hashed: int, is_it: Callable[[int], bool]) -> int:
        """The row that was added with this hash and is the right one; -1: there is none."""
        hashed &= _HASH_BITS
        at = hashed & self._mask
        if at < self._split:
            at = hashed & (2 * self._mask + 1)
        bucket = self._buckets[at]
        raw = _HASH.pack(hashed)
        place = bucket.find(raw)
        while place >= 0:
            if not place % _PAIR_BYTES:
                row = _HASH.unpack_from(bucket, place + 4)[0]
                if is_it(row):
                    return int(row)
            place = bucket.find(raw, place + 1)
        return -1

    def add(self, hashed: int, row: int) -> None:
        """`row` must not be here."""
        hashed &= _HASH_BITS
        at = hashed & self._mask
        if at < self._split:
            at = hashed & (2 * self._mask + 1)
        self._buckets[at] += _PAIR.pack(hashed, row)
        self._count += 1
        if self._count > _BUCKET_ENTRIES * len(self._buckets):
            self._split_next()

    def add_new(self, hashes: Sequence[int], first_row: int, but: Collection[int] = ()) -> list[int]:
        """Add rows in a row. The places `but`, and those whose names may be here already, or come twice, get none.
        Returns these places."""
        # As few steps as possible: a start does this a million times, and each bucket has to come from memory.
        buckets, mask, split, pack = self._buckets, self._mask, self._split, _HASH.pack
        row, left = first_row, list[int]()
        for place, hashed in enumerate(hashes):
            at = hashed & mask
            if at < split:
                at = hashed & (2 * mask + 1)
            bucket, raw = buckets[at], pack(hashed & _HASH_BITS)
            if raw in bucket or place in but:
                left.append(place)
            else:
                buckets[at] = bucket + raw + pack(row)
                row += 1
        self._count += row - first_row
        self.reserve(self._count)
        return left

    def reserve(self, count: int) -> None:
        """So many rows are to come: a bucket is split at less cost while it is empty."""
        while count > _BUCKET_ENTRIES * len(self._buckets):
            self._split_next()

    def discard(self, hashed: int, row: int) -> None:
        """`row` must be here, with this hash. Buckets are not joined again."""
        hashed &= _HASH_BITS
        at = hashed & self._mask
        if at < self._split:
            at = hashed & (2 * self._mask + 1)
        bucket, pair = self._buckets[at], _PAIR.pack(hashed, row)
        place = bucket.find(pair)
        while place % _PAIR_BYTES:
            place = bucket.index(pair, place + 1)
        self._buckets[at] = bucket[:place] + bucket[place + _PAIR_BYTES :]
        self._count -= 1

    def _split_next(self) -> None:
        bit = self._mask + 1
        kept: list[bytes] = []
        moved: list[bytes] = []
        for pair in _PAIR.iter_unpack(self._buckets[self._split]):
            (moved if pair[0] & bit else kept).append(_PAIR.pack(*pair))
        self._buckets[self._split] = b"".join(kept)
        self._buckets.append(b"".join(moved))
        self._split += 1
        if self._split == bit:
            self._mask, self._split = 2 * self._mask + 1, 0


def without(places: Collection[int], column: Sequence[T]) -> list[T]:
    """The column without these places."""
    left = set(places)
    return [value for place, value in enumerate(column) if place not in left]


class FreeRows:
    """Which rows of a table are in use. `count`: how many rows its columns have."""

    __slots__ = ("_free", "count")

    def __init__(self) -> None:
        self.count = 0
        self._free = array("I")

    def take(self) -> tuple[int, bool]:
        """A row that is not in use, and whether it is a new one, by which each column grows."""
        if self._free:
            return self._free.pop(), False
        self.count += 1
        return self.count - 1, True

    def take_many(self, count: int) -> int:
        """The first of so many new rows."""
        self.count += count
        return self.count - count

    def give_back(self, row: int) -> None:
        self._free.append(row)


class RowOrder:
    """Rows in the order in which they were added, or moved to the end: a doubly linked list in 8 bytes a row.

    It must not be changed while it is iterated.
    """

    __slots__ = ("_after", "_before", "count")

    def __init__(self) -> None:
        # Place 0 stands for both ends, row `i` for place `i + 1`. -1: the row is not here.
        self._before = array("i", [0])
        self._after = array("i", [0])
        self.count = 0
        """How many rows there are: an attribute, as a search for victims reads it of thousands of these."""

    def __len__(self) -> int:
        return self.count

    def __contains__(self, row: int) -> bool:
        return row + 1 < len(self._after) and self._after[row + 1] >= 0

    def __iter__(self) -> Iterator[int]:
        place = self._after[0]
        while place:
            yield place - 1
            place = self._after[place]

    def add(self, row: int, *, last: bool = True) -> None:
        """`row` must not be here. `last` False: it becomes the first one."""
        place, missing = row + 1, row + 2 - len(self._after)
        if missing > 0:
            self._after.extend([-1] * missing)
            self._before.extend([-1] * missing)
        before = self._before[0] if last else 0
        after = self._after[before]
        self._before[place], self._after[place] = before, after
        self._after[before] = self._before[after] = place
        self.count += 1

    def add_all(self, first_row: int, count: int) -> None:
        """Rows that were never here, in their order."""
        first, stop = first_row + 1, first_row + 1 + count
        if (missing := first - len(self._after)) > 0:
            self._after.extend([-1] * missing)
            self._before.extend([-1] * missing)
        last = self._before[0]
        self._after[first:stop] = array("i", [*range(first + 1, stop), 0])
        self._before[first:stop] = array("i", [last, *range(first, stop - 1)])
        self._after[last], self._before[0] = first, stop - 1
        self.count += count

    def remove(self, row: int) -> None:
        """`row` must be here."""
        place = row + 1
        before, after = self._before[place], self._after[place]
        self._after[before], self._before[after] = after, before
        self._after[place] = -1
        self.count -= 1

    def move_to_end(self, row: int) -> None:
        # Spelled out: each read does this.
        place, befores, afters = row + 1, self._before, self._after
        last = befores[0]
        if last != place:
            before, after = befores[place], afters[place]
            afters[before], befores[after] = after, before
            befores[place], afters[place] = last, 0
            afters[last] = befores[0] = place

    def first(self) -> int:
        """-1: there is none."""
        return self._after[0] - 1
