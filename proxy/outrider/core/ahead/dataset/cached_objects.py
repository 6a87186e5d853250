"""The cached objects of all datasets, in columns: 80 bytes for each. An object of Python would take 500."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence
from functools import partial
from itertools import compress
from operator import attrgetter
from typing import Any, Generic, TypeVar, overload

from outrider.core.rows import FreeRows, RowIndex

_ID_BYTES = 16
# The blocks of an object with so many are bits of one byte in a column. Those of a larger one are an int of its own.
_FEW_BLOCKS = 8
_AHEAD, _EXCUSED, _ASIDE, _READING, _BROKEN = 1, 2, 4, 8, 16

T = TypeVar("T")


class _Column(Generic[T]):
    """An attribute of `CachedObject` that stands in a column of its table."""

    def __init__(self, name: str) -> None:
        self._of: Callable[[CachedObjects], MutableSequence[T]] = attrgetter(name)

    @overload
    def __get__(self, cached: None, owner: object) -> _Column[T]: ...
    @overload
    def __get__(self, cached: CachedObject, owner: object) -> T: ...
    def __get__(self, cached: CachedObject | None, owner: object) -> T | _Column[T]:
        return self if cached is None else self._of(cached.table)[cached.row]

    def __set__(self, cached: CachedObject, value: T) -> None:
        self._of(cached.table)[cached.row] = value


class _RowFlag:
    def __init__(self, bit: int) -> None:
        self._bit = bit

    @overload
    def __get__(self, cached: None, owner: object) -> _RowFlag: ...
    @overload
    def __get__(self, cached: CachedObject, owner: object) -> bool: ...
    def __get__(self, cached: CachedObject | None, owner: object) -> bool | _RowFlag:
        return self if cached is None else cached.table.flags[cached.row] & self._bit != 0

    def __set__(self, cached: CachedObject, value: bool) -> None:
        flags = cached.table.flags
        flags[cached.row] = flags[cached.row] | self._bit if value else flags[cached.row] & ~self._bit


class _Blocks:
    """Blocks as bits."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._of: Callable[[CachedObjects], bytearray] = attrgetter(name)

    @overload
    def __get__(self, cached: None, owner: object) -> _Blocks: ...
    @overload
    def __get__(self, cached: CachedObject, owner: object) -> int: ...
    def __get__(self, cached: CachedObject | None, owner: object) -> int | _Blocks:
        if cached is None:
            return self
        table, row = cached.table, cached.row
        return self._of(table)[row] if table.blocks[row] <= _FEW_BLOCKS else table.many.get((row, self._name), 0)

    def __set__(self, cached: CachedObject, value: int) -> None:
        table, row = cached.table, cached.row
        if table.blocks[row] <= _FEW_BLOCKS:
            self._of(table)[row] = value
        elif value:
            table.many[row, self._name] = value
        else:
            table.many.pop((row, self._name), None)


class CachedObject:
    """A cached version of an object: a view of its row, made when it is needed. Two views of one row are equal.

    `index` is the object's number in its dataset. `block_bytes` is the average room of one block on disk.
    """

    __slots__ = ("row", "table")

    def __init__(self, table: CachedObjects, row: int) -> None:
        self.table = table
        self.row = row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CachedObject) and other.row == self.row and other.table is self.table

    def __hash__(self) -> int:
        return hash(self.row)

    # A `Dataset`, whose module imports this one.
    dataset = _Column[Any]("datasets")
    blocks = _Column[int]("blocks")
    block_bytes = _Column[int]("block_bytes")
    # When its first block landed, or when the start of the proxy found it on disk.
    cached_at = _Column[float]("cached_at")
    used_at = _Column[float]("used_at")
    # It was prefetched, and no client has requested it since.
    ahead = _RowFlag(_AHEAD)
    # It was prefetched for a hint that was withdrawn since: evicting it unread is no waste.
    excused = _RowFlag(_EXCUSED)
    # It is pinned, so it is not ranked and is never offered as a victim (see `NextUse.set_aside`).
    aside = _RowFlag(_ASIDE)
    # A client is reading it.
    reading = _RowFlag(_READING)
    # Some of its blocks were evicted, and none has landed since.
    broken = _RowFlag(_BROKEN)
    # The blocks on disk.
    present = _Blocks("present")
    # The blocks that were read since the object was last opened.
    served = _Blocks("served")
    # The blocks on disk that were compared with what the bucket knows of the object.
    proved = _Blocks("proved")

    # Asked for several times with each read: as a property, it takes half the time of a column.
    @property
    def index(self) -> int:
        return self.table.indexes[self.row]

    @index.setter
    def index(self, value: int) -> None:
        self.table.indexes[self.row] = value

    @property
    def rank(self) -> float:
        """The dataset's clock at its expected next read (see `NextUse`)."""
        return self.table.ranks[self.row]

    @rank.setter
    def rank(self, value: float) -> None:
        self.table.ranks[self.row] = value

    def opened(self, now: float) -> None:
        """A client begins to read it."""
        table, row = self.table, self.row
        table.flags[row] = table.flags[row] & ~(_AHEAD | _BROKEN) | _READING
        table.used_at[row] = now
        self.served = 0

    @property
    def version_id(self) -> bytes:
        return bytes(self.table.ids[self.row * _ID_BYTES : (self.row + 1) * _ID_BYTES])


class CachedObjects:
    """The table. It has one row for each version of which blocks are cached, found by its version id."""

    def __init__(self) -> None:
        self.datasets: list[Any] = []
        self.ids = bytearray()
        self.indexes = array("i")
        self.blocks = array("I")
        self.block_bytes = array("Q")
        self.cached_at = array("d")
        self.used_at = array("d")
        self.ranks = array("d")
        self.flags = bytearray()
        self.present = bytearray()
        self.served = bytearray()
        self.proved = bytearray()
        self.many: dict[tuple[int, str], int] = {}
        """The blocks of large objects, by row and attribute."""
        self._rows = FreeRows()
        self._index = RowIndex()

    def __len__(self) -> int:
        return len(self._index)

    def get(self, version_id: bytes) -> CachedObject | None:
        row = self._index.find(hash(version_id), partial(self._is, version_id))
        return None if row < 0 else CachedObject(self, row)

    def _is(self, version_id: bytes, row: int) -> bool:
        return self.ids.startswith(version_id, row * _ID_BYTES)

    def add(
        self, dataset: Any, index: int, version_id: bytes, blocks: int, block_bytes: int, now: float,
        *, ahead: bool, excused: bool, reading: bool,
    ) -> CachedObject:  # fmt: skip
        """A version that is not here. None of its blocks is present yet."""
        assert len(version_id) == _ID_BYTES
        row, is_new = self._rows.take()
        if is_new:
            self.datasets.append(None)
            self.ids += bytes(_ID_BYTES)
            for numbers in (self.indexes, self.blocks, self.block_bytes, self.cached_at, self.used_at, self.ranks):
                numbers.append(0)
            for each in (self.flags, self.present, self.served, self.proved):
                each.append(0)
        self.datasets[row] = dataset
        self.ids[row * _ID_BYTES : (row + 1) * _ID_BYTES] = version_id
        self.indexes[row], self.blocks[row], self.block_bytes[row] = index, blocks, block_bytes
        self.cached_at[row] = self.used_at[row] = now
        self.flags[row] = ahead * _AHEAD | excused * _EXCUSED | reading * _READING
        self.present[row] = self.served[row] = self.proved[row] = 0
        self._index.add(hash(version_id), row)
        return CachedObject(self, row)

    def remove(self, cached: CachedObject) -> None:
        """No view of it may be used any more."""
        for name in ("present", "served", "proved"):
            self.many.pop((cached.row, name), None)
        self._index.discard(hash(cached.version_id), cached.row)
        self.datasets[cached.row] = None
        self._rows.give_back(cached.row)


class CachedByIndex(MutableMapping[int, CachedObject]):
    """The cached objects of one dataset by their index there, in 4 bytes for each name."""

    def __init__(self) -> None:
        self._table: CachedObjects | None = None
        # -1: not cached.
        self._rows = array("i")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        # Without a step of Python for each of a million names.
        return compress(range(len(self._rows)), map((-1).__lt__, self._rows))

    def __getitem__(self, index: int) -> CachedObject:
        # Not by `get`: a search for victims calls this for each object that it passes.
        if index >= len(self._rows) or (row := self._rows[index]) < 0:
            raise KeyError(index)
        assert self._table is not None
        return CachedObject(self._table, row)

    def get(self, index: int, default: object = None) -> CachedObject | None:  # type: ignore[override]
        if index >= len(self._rows) or (row := self._rows[index]) < 0:
            return None
        assert self._table is not None
        return CachedObject(self._table, row)

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and index < len(self._rows) and self._rows[index] >= 0

    def __setitem__(self, index: int, cached: CachedObject) -> None:
        self._table = cached.table
        missing = index + 1 - len(self._rows)
        if missing > 0:
            self._rows.extend([-1] * missing)
        self._count += self._rows[index] < 0
        self._rows[index] = cached.row

    def __delitem__(self, index: int) -> None:
        self._rows[index] = -1
        self._count -= 1

    def clear(self) -> None:
        self._rows, self._count = array("i"), 0
