"""The entries of the version cache in columns: 160 bytes for each, of which the packed version is the most."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple

from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.packed_version import PACKING, is_of, pack, unpack
from outrider.core.rows import FreeRows, RowIndex, RowOrder, without

_ID_BYTES = 16
_NO_ID = bytes(_ID_BYTES)
_NO_MARK = -1


class Mark(NamedTuple):
    """Taken before the origin is asked. The answer is believed only if no write came in between."""

    generation: int
    """0: before this process began."""
    at: float


@dataclass(slots=True)
class Entry:
    """A copy of what stands in the columns."""

    version: ObjectVersion
    mark: Mark | None
    """The mark of the question that `version` answered. None: a start found the version on disk, and not when it was
    confirmed, or a LIST showed another one, so the origin must be asked in any mode of freshness."""
    settled_at: float = -inf
    """When it was known last that no headers of the object have changed. For some time from then on a LIST confirms the
    version; -inf: none does."""

    @property
    def known_mark(self) -> Mark:
        # An entry without a mark is older than any write that we know of.
        return self.mark or Mark(0, -inf)


class VersionRows:
    """By object, in the order of their last use. `identify`: the name of a version's blocks."""

    def __init__(self, identify: Callable[[ObjectVersion], bytes]) -> None:
        self._identify = identify
        self._rows = FreeRows()
        self._index = RowIndex()
        self._order = RowOrder()
        self._packed: list[bytes] = []
        self._generations = array("q")
        self._requested_at = array("d")
        self._settled_at = array("d")
        # Zeros until the first read: a name takes as long to compute as all the rest of a lookup.
        self._ids = bytearray()

    def __len__(self) -> int:
        return len(self._order)

    def find(self, ref: ObjectRef) -> int:
        """The row of an object; -1: it has none."""
        return self._index.find(hash(ref), partial(self._is_of, ref))

    def _is_of(self, ref: ObjectRef, row: int) -> bool:
        return is_of(self._packed[row], ref)

    def get(self, ref: ObjectRef) -> Entry | None:
        return self.entry(self.find(ref))

    def entry(self, row: int) -> Entry | None:
        if row < 0:
            return None
        # A thread may be asking, and the row change meanwhile: then the version is newer than its mark, and not older.
        mark, settled_at = self.mark(row), self._settled_at[row]
        return Entry(self.version(row), mark, settled_at)

    def version(self, row: int) -> ObjectVersion:
        return unpack(self._packed[row])

    def look(self, row: int) -> tuple[ObjectVersion, bytes]:
        """The version, and the name of its blocks, for a caller that keeps both."""
        start = row * _ID_BYTES
        version, found = PACKING.unpack_once(self._packed[row]), bytes(self._ids[start : start + _ID_BYTES])
        if found == _NO_ID:
            found = self._identify(version)
            self._ids[start : start + _ID_BYTES] = found
        return version, found

    def mark(self, row: int) -> Mark | None:
        generation = self._generations[row]
        return None if generation == _NO_MARK else Mark(generation, self._requested_at[row])

    def put(self, entry: Entry, row: int) -> None:
        """Its object is the one that was used last. `row`: where it is; -1: it has none."""
        ref = entry.version.ref
        packed = pack(entry.version)
        if row < 0:
            row, is_new = self._rows.take()
            if is_new:
                self._packed.append(packed)
                self._generations.append(0)
                self._requested_at.append(0.0)
                self._settled_at.append(0.0)
                self._ids += _NO_ID
            self._index.add(hash(ref), row)
            self._order.add(row)
        else:
            self._order.move_to_end(row)
        self._packed[row] = packed
        self._ids[row * _ID_BYTES : (row + 1) * _ID_BYTES] = _NO_ID
        self.confirm(row, entry.mark, entry.settled_at)

    def expect(self, count: int) -> None:
        """So many objects are to come."""
        self._index.reserve(len(self) + count)

    def add_all(self, refs: Sequence[ObjectRef], packed: Sequence[bytes], marks: Sequence[Mark | None],
                settled_at: Sequence[float]) -> list[int]:  # fmt: skip
        """Entries, the last one used last. Returns the places of those that are left for `put`: their objects may be
        here already, or come twice."""
        first = self._rows.count
        if left := self._index.add_new(list(map(hash, refs)), first):
            packed, marks, settled_at = without(left, packed), without(left, marks), without(left, settled_at)
        self._rows.take_many(len(packed))
        self._packed += packed
        self._generations.extend([_NO_MARK if mark is None else mark.generation for mark in marks])
        self._requested_at.extend([0.0 if mark is None else mark.at for mark in marks])
        self._settled_at.extend(settled_at)
        self._ids += bytes(_ID_BYTES * len(packed))
        self._order.add_all(first, len(packed))
        return left

    def confirm(self, row: int, mark: Mark | None, settled_at: float) -> None:
        """See `Entry`."""
        self._generations[row], self._requested_at[row] = (_NO_MARK, 0.0) if mark is None else mark
        self._settled_at[row] = settled_at

    def use(self, row: int) -> None:
        self._order.move_to_end(row)

    def pop(self, ref: ObjectRef) -> bool:
        """Whether the object was here."""
        row = self.find(ref)
        if row >= 0:
            self._drop(row, ref)
        return row >= 0

    def pop_oldest(self) -> Entry:
        """The entry that was not used for longest."""
        row = self._order.first()
        entry = Entry(self.version(row), self.mark(row), self._settled_at[row])
        self._drop(row, entry.version.ref)
        return entry

    def _drop(self, row: int, ref: ObjectRef) -> None:
        self._index.discard(hash(ref), row)
        self._order.remove(row)
        # The version stays, for a thread that has just found it.
        self.confirm(row, None, -inf)
        self._rows.give_back(row)

    def clear(self) -> None:
        while len(self):
            self.pop_oldest()
