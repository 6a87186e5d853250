"""The table of blocks on disk, in columns. An object for a block (`Slot`) lives while somebody uses it, or its file is
open."""

from __future__ import annotations

from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TypeVar
from weakref import ReferenceType, ref

from outrider.adapters.disk.disk import Disk, Stored
from outrider.adapters.disk.index_snapshot import OnDisk
from outrider.adapters.disk.leases import OpenFile
from outrider.adapters.disk.snapshot_page import SavedPage
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import PAGE_BYTES, BlockMeta, named_block
from outrider.core.model import BlockKey, ObjectVersion
from outrider.core.packed_version import pack, unpack
from outrider.core.rows import FreeRows, RowIndex, without

T = TypeVar("T")

_ID_BYTES = 16
VERIFIED, _PROVED, _LENT = 1, 2, 4
# A start found it in a snapshot: the policy does not know it yet; and the bucket had the same bytes.
_UNRANKED, _WAS_PROVED = 8, 16


class _SlotFlag:
    """A bit of `Slot.flags`, as an attribute."""

    def __init__(self, bit: int) -> None:
        self._bit = bit

    def __get__(self, slot: Slot, owner: type[Slot]) -> bool:
        return slot.flags & self._bit != 0

    def __set__(self, slot: Slot, is_set: bool) -> None:
        slot._set(self._bit, is_set)


class Slot:
    """One block on `disk`. There is at most one of these for a block at any time. `busy` counts readers that are
    opening it or use a file of their own: it is no victim then."""

    __slots__ = ("__weakref__", "_left", "_row", "_table", "busy", "disk", "file", "flags")

    verified = _SlotFlag(VERIFIED)
    # Its bytes were compared with what the bucket knows of the object.
    proved = _SlotFlag(_PROVED)
    # Others may have its file open, so that it is emptied when it is removed.
    lent = _SlotFlag(_LENT)

    def __init__(self, table: BlockRows, row: int) -> None:
        self._table = table
        self.disk = table.disk(row)
        # -1: the index has forgotten the block. Then `_left` has what stood in its row.
        self._row = row
        self._left: tuple[bytes, BlockLayout, int] | None = None
        self.flags = table.flags[row]
        self.file: OpenFile | None = None
        self.busy = 0

    def __del__(self) -> None:
        if self._row >= 0:
            self._table.live.pop(self._row, None)

    @property
    def _facts(self) -> tuple[bytes, BlockLayout, int]:
        return self._left or self._table.facts(self._row)

    @property
    def disk_bytes(self) -> int:
        return self._facts[2]

    @property
    def layout(self) -> BlockLayout:
        return self._facts[1]

    def stored(self, block: BlockKey) -> Stored:
        return block, self.disk_bytes, self.lent

    def _set(self, flag: int, is_set: bool) -> None:
        self.flags = self.flags | flag if is_set else self.flags & ~flag
        if self._row >= 0:
            self._table.flags[self._row] = self.flags

    @property
    def version(self) -> ObjectVersion:
        return unpack(self._facts[0])

    def meta(self, block: BlockKey) -> BlockMeta:
        return named_block(self.layout, self.version, block.index, block.version_id)

    @property
    def in_use(self) -> bool:
        return self.busy > 0 or (self.file is not None and self.file.leases > 0)

    def leave(self) -> int:
        """The index forgets the block. Returns its row."""
        self._left = self._facts
        row, self._row = self._row, -1
        return row


class BlockRows:
    """A mapping of blocks to slots; 50 bytes a block. The blocks of a version share its packed form.

    `open`: the slots whose files are open, the one used longest ago first. Each has its `file`, and no other has.
    """

    def __init__(self) -> None:
        self.open: OrderedDict[BlockKey, Slot] = OrderedDict()
        self.packed: list[bytes] = []
        """Empty: the row is not in use."""
        self.pages = array("I")
        self.flags = bytearray()
        self._layout_numbers = array("H")
        self.layouts: list[BlockLayout] = []
        self._disk_numbers = array("H")
        self._disks: list[Disk] = []
        self._rows = FreeRows()
        self._index = RowIndex()
        self._ids = bytearray()
        self._indexes = array("I")
        self.unnoted: defaultdict[Disk, array[int]] = defaultdict(partial(array, "I"))
        """The rows whose blocks came to a disk since the last note of them, and may have left again: see
        `landed_blocks`."""
        # The rows before this one are ranked, or were added one by one.
        self._ranked = 0
        self.live: dict[int, ReferenceType[Slot]] = {}
        """The slots that are in use. Not a WeakValueDictionary: it takes three times as long to enter one."""

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, block: BlockKey) -> bool:
        return block in self.open or self.row(block) >= 0

    def __iter__(self) -> Iterator[BlockKey]:
        """All blocks. They may come and go meanwhile."""
        for row in range(self._rows.count):
            if self.packed[row]:
                yield self.key(row)

    def values(self) -> list[Slot]:
        return [self[block] for block in self]

    def __getitem__(self, block: BlockKey) -> Slot:
        slot = self.get(block)
        if slot is None:
            raise KeyError(block)
        return slot

    def get(self, block: BlockKey) -> Slot | None:
        slot = self.open.get(block)
        if slot is not None:
            return slot
        row = self.row(block)
        return None if row < 0 else self.slot(row)

    def slot(self, row: int) -> Slot:
        known = self.live.get(row)
        slot = None if known is None else known()
        if slot is None:
            slot = Slot(self, row)
            self.live[row] = ref(slot)
        return slot

    def facts(self, row: int) -> tuple[bytes, BlockLayout, int]:
        """The packed version, the layout, and the bytes on disk."""
        return self.packed[row], self.layouts[self._layout_numbers[row]], self.pages[row] * PAGE_BYTES

    def row(self, block: BlockKey) -> int:
        """-1: it is not here."""
        return self._index.find(hash(block), partial(self._is, block))

    def _is(self, block: BlockKey, row: int) -> bool:
        return self._indexes[row] == block[1] and self._ids.startswith(block[0], row * _ID_BYTES)

    def key(self, row: int) -> BlockKey:
        return BlockKey(bytes(self._ids[row * _ID_BYTES : (row + 1) * _ID_BYTES]), self._indexes[row])

    def rows_of(self, first: Iterable[BlockKey]) -> array[int]:
        """The rows of all blocks: those of `first`, then the others."""
        rows, met = array("I"), bytearray(self._rows.count)
        for block in first:
            row = self.row(block)
            if row >= 0 and not met[row]:
                met[row] = 1
                rows.append(row)
        rows.extend(row for row in range(len(met)) if self.packed[row] and not met[row])
        return rows

    def metas(self, rows: Iterable[int]) -> Iterator[BlockMeta]:
        """To be iterated in any thread. Blocks that go meanwhile are left out."""
        for row in rows:
            packed, key = self.packed[row], self.key(row)
            layout = self.layouts[self._layout_numbers[row]]
            # This may run in a thread, and the row may have another block now.
            if packed and self.packed[row] is packed and self.key(row) == key:
                yield named_block(layout, unpack(packed), key.index, key.version_id)

    def on_disk(self, block: BlockKey) -> OnDisk:
        row = self.row(block)
        packed = self.packed[row] if row >= 0 else b""
        if packed:
            proved = self.flags[row] & (_PROVED | _WAS_PROVED) != 0
            found = OnDisk(self.pages[row] * PAGE_BYTES, packed, proved)
            # As in `metas`.
            if self.packed[row] is packed and self._is(block, row):
                return found
        return OnDisk(0, b"")

    def version(self, row: int) -> ObjectVersion:
        return unpack(self.packed[row])

    def disk(self, row: int) -> Disk:
        return self._disks[self._disk_numbers[row]]

    def on(self, disk: Disk) -> list[BlockKey]:
        return list(map(self.key, self.rows_on(disk)))

    def rows_on(self, disk: Disk, among: Iterable[int] | None = None) -> Iterator[int]:
        """Those whose blocks lie on the disk now. `among` None: of all rows."""
        rows = range(self._rows.count) if among is None else among
        return (row for row in rows if self.packed[row] and self.disk(row) is disk)

    def is_verified(self, row: int) -> bool:
        return self.flags[row] & VERIFIED != 0

    def unverified(self) -> Iterator[BlockKey]:
        """As of the moment at which each one is requested."""
        return (self.key(row) for row in range(self._rows.count) if self.packed[row] and not self.is_verified(row))

    def is_proved(self, row: int) -> bool:
        return self.flags[row] & _PROVED != 0

    def add(self, disk: Disk, block: BlockKey, meta: BlockMeta, disk_bytes: int, *, verified: bool) -> int:
        """The row of the block, which must not be here. Its file has whole pages."""
        assert len(block.version_id) == _ID_BYTES
        row, is_new = self._rows.take()
        if is_new:
            self.packed.append(b"")
            self.pages.append(0)
            self.flags.append(0)
            self._layout_numbers.append(0)
            self._disk_numbers.append(0)
            self._ids += bytes(_ID_BYTES)
            self._indexes.append(0)
        self.pages[row] = disk_bytes // PAGE_BYTES
        self.flags[row] = VERIFIED if verified else 0
        self._layout_numbers[row] = _number_of(meta.layout, self.layouts)
        self._disk_numbers[row] = _number_of(disk, self._disks)
        self._ids[row * _ID_BYTES : (row + 1) * _ID_BYTES] = block.version_id
        self._indexes[row] = block.index
        # The last of the columns: a thread passes the row over until then.
        self.packed[row] = pack(meta.version)
        self._index.add(hash(block), row)
        self.unnoted[disk].append(row)
        return row

    def expect(self, count: int) -> None:
        """So many blocks are to come."""
        self._index.reserve(len(self) + count)

    def add_all(self, disk: Disk, page: SavedPage, *, is_noted: bool) -> list[int]:
        """The blocks of a page, in the next rows: they are `to_rank`. Returns the places of those that are left
        for `add`: they may be here, or more is known of them."""
        numbers, indexes, pages = page.numbers, page.indexes, page.pages
        hashes = list(map(hash, zip(map(page.ids.__getitem__, numbers), indexes, strict=True)))
        more = {place for place, number in enumerate(numbers) if number in page.more} if page.more else ()
        if left := self._index.add_new(hashes, self._rows.count, more):
            numbers, indexes, pages = (without(left, column) for column in (numbers, indexes, pages))
        first = self._rows.take_many(len(numbers))
        if not is_noted:
            self.unnoted[disk].extend(range(first, self._rows.count))
        self.packed += map(page.packed.__getitem__, numbers)
        self.pages.extend(pages)
        self.flags += bytes([_UNRANKED | _WAS_PROVED if page.proved[number] else _UNRANKED for number in numbers])
        self._layout_numbers.extend([_number_of(page.layout, self.layouts)] * len(numbers))
        self._disk_numbers.extend([_number_of(disk, self._disks)] * len(numbers))
        self._ids += b"".join(map(page.ids.__getitem__, numbers))
        self._indexes.extend(indexes)
        return left

    def to_rank(self, at_once: int) -> Iterator[list[int]]:
        """The rows of `add_all` that still have their blocks, so many at once."""
        while (start := self._ranked) < self._rows.count:
            self._ranked = min(start + at_once, self._rows.count)
            rows = [row for row in range(start, self._ranked) if self.flags[row] & _UNRANKED and self.packed[row]]
            for row in rows:
                self.flags[row] &= ~_UNRANKED
            yield rows

    def was_proved(self, row: int) -> bool:
        """Whether the bucket had the same bytes at the last stop."""
        return self.flags[row] & _WAS_PROVED != 0

    def remove(self, block: BlockKey, slot: Slot) -> None:
        row = slot.leave()
        self.live.pop(row, None)
        self._index.discard(hash(block), row)
        self.packed[row] = b""
        self._rows.give_back(row)


def _number_of(value: T, known: list[T]) -> int:
    """The place of a layout or a disk among those that are known. There are few of both."""
    if value not in known:
        known.append(value)
    return known.index(value)
