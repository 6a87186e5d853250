"""The index of blocks on disk, and of those whose files are open. It lives on the event loop's thread."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice

from outrider.adapters.disk.disk import Disk
from outrider.adapters.disk.index_snapshot import OnDisk
from outrider.adapters.disk.leases import OpenFile
from outrider.adapters.disk.slots import BlockRows, Slot
from outrider.adapters.disk.snapshot_page import SavedPage
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion
from outrider.core.packed_version import PACKING

# Reads that wait to be reported to the policy. Beyond this number the oldest ones are lost.
_READS_MAX = 4096


class BlockIndex:
    """Keeps the policy in step with the blocks on disk. It knows no budget, and touches files only to close them."""

    def __init__(self, policy: EvictionPolicy, open_files: int, *, verify_always: bool) -> None:
        """`open_files`: how many idle files stay open. `verify_always`: no file is used without being verified."""
        self._policy = policy
        self._verify_always = verify_always
        self._open_files = open_files
        self._slots = BlockRows()
        # Blocks read since the last report to the policy: a hit would pay for each report.
        self._reads: deque[BlockKey] = deque(maxlen=_READS_MAX)
        self.removals = 0
        self.proved_bytes = 0
        """The bytes on disk of blocks that were compared with what the bucket knows of them."""

    # -- lookup -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._slots)

    def has(self, block: BlockKey) -> bool:
        row = self._slots.row(block)
        return row >= 0 and not self._slots.disk(row).work.is_unreachable

    def metas_by_disk(self) -> dict[Disk, Iterator[BlockMeta]]:
        """All blocks of each disk, first victim first; blocks that the policy does not rank come last. They are made
        one by one: all at once would take a gigabyte for a million small objects. To be iterated in any thread; blocks
        that go meanwhile are left out."""
        self._note_reads()
        by_disk: dict[Disk, array[int]] = {}
        for row in self._slots.rows_of(self._policy.victims()):
            by_disk.setdefault(self._slots.disk(row), array("I")).append(row)
        return {disk: self._slots.metas(rows) for disk, rows in by_disk.items()}

    def _ranked(self) -> list[BlockKey]:
        """All blocks: first the victims of the policy, then those it would keep."""
        return list(dict.fromkeys([*self._policy.victims(), *self._slots]))

    def leases(self) -> int:
        """How many reads of indexed blocks are under way."""
        return sum(slot.file.leases for slot in self._slots.open.values() if slot.file is not None)

    def present(self) -> list[BlockKey]:
        return list(self._slots)

    def each(self, *, unverified: bool = False) -> Iterator[BlockKey]:
        """All blocks one by one, while they come and go: a list of a million takes 150 MB."""
        return self._slots.unverified() if unverified else iter(self._slots)

    def blocks_of(self, wanted: Callable[[ObjectRef], bool]) -> list[BlockKey]:
        """All blocks of the objects that are `wanted`, of any version."""
        judged: dict[ObjectRef, bool] = {}
        found = []
        for block in self._slots:
            ref = self._slots.version(self._slots.row(block)).ref
            if (is_wanted := judged.get(ref)) is None:
                is_wanted = judged[ref] = wanted(ref)
            if is_wanted:
                found.append(block)
        return found

    def version_of(self, block: BlockKey) -> ObjectVersion | None:
        """The version of a block; None: it is not here."""
        row = self._slots.row(block)
        return None if row < 0 else self._slots.version(row)

    def disk_of(self, block: BlockKey) -> Disk | None:
        """The disk that a block lies on; None: it is not here."""
        row = self._slots.row(block)
        return None if row < 0 else self._slots.disk(row)

    def on_disk(self, meta: BlockMeta) -> OnDisk:
        """See `OnDisk`; from any thread."""
        return self._slots.on_disk(meta.key)

    def is_verified(self, block: BlockKey) -> bool:
        row = self._slots.row(block)
        return row >= 0 and self._slots.is_verified(row)

    def _on(self, disk: Disk) -> list[tuple[BlockKey, Slot]]:
        return [(block, self._slots[block]) for block in self._slots.on(disk)]

    def is_proved(self, block: BlockKey) -> bool:
        row = self._slots.row(block)
        return row >= 0 and self._slots.is_proved(row)

    # -- changes ------------------------------------------------------------------------------------------------

    def prove(self, blocks: Iterable[BlockKey]) -> None:
        """The bytes of these blocks are those that the bucket has. Blocks that are not here are passed over."""
        for block in blocks:
            slot = self._slots.get(block)
            if slot is not None and not slot.proved:
                slot.proved = True
                self.proved_bytes += slot.disk_bytes

    def _enter(self, disk: Disk, block: BlockKey, meta: BlockMeta, disk_bytes: int, *, verified: bool) -> int:
        """Add a block that the index does not have. Returns its row."""
        row = self._slots.add(disk, block, meta, disk_bytes, verified=verified)
        disk.blocks += 1
        self._policy.added(block, meta.version)
        return row

    def expect(self, count: int) -> None:
        """So many blocks are to come: tables that grow at once do it at less cost."""
        self._slots.expect(count)

    def add_all(self, disk: Disk, page: SavedPage, *, is_noted: bool = True) -> list[int]:
        """Index the blocks of a snapshot's page, to be verified at their first use, and to be `rank`ed. Returns the
        places in the page of those that `adopt` has to index. `is_noted`: `notes` need not have them."""
        left = self._slots.add_all(disk, page, is_noted=is_noted)
        disk.blocks += len(page.numbers) - len(left)
        return left

    def unnoted(self, disk: Disk) -> Collection[int]:
        """The rows of blocks that came to the disk since the last call."""
        return dict.fromkeys(self._slots.unnoted.pop(disk, ()))

    def metas_on(self, disk: Disk, rows: Iterable[int] | None = None) -> Iterator[BlockMeta]:
        """The blocks in these rows that lie on the disk. `rows` None: all of the disk. To be iterated in any thread."""
        return self._slots.metas(self._slots.rows_on(disk, rows))

    def rank(self, at_once: int) -> Iterator[Iterator[BlockMeta]]:
        """Report the blocks of `add_all` to the policy, so many at once. They can be read before. Yields those of which
        the bucket had the same bytes at the last stop."""
        slots = self._slots
        for rows in slots.to_rank(at_once):
            for row in rows:
                self._policy.added(slots.key(row), PACKING.unpack_once(slots.packed[row]))
            yield slots.metas(filter(slots.was_proved, rows))

    def _forget(self, block: BlockKey, slot: Slot) -> None:
        if self._slots.get(block) is slot:
            self._close(block, slot)
            self._slots.remove(block, slot)
            slot.disk.blocks -= 1
            if slot.proved:
                self.proved_bytes -= slot.disk_bytes
            self._policy.removed(block)
            self.removals += 1

    # -- open files ---------------------------------------------------------------------------------------------

    def _note_reads(self) -> None:
        """Report the reads since the last call to the policy."""
        while self._reads:
            block = self._reads.popleft()
            if block in self._slots:
                self._policy.read(block)
            if block in self._slots.open:
                self._slots.open.move_to_end(block)

    def _keep_open(self, block: BlockKey, slot: Slot, opened: OpenFile) -> None:
        slot.file = opened
        slots = self._slots.open
        slots[block] = slot
        slots.move_to_end(block)
        spare = len(slots) - self._open_files
        for oldest, idle in list(islice(slots.items(), max(0, spare))):
            assert idle.file is not None
            if idle.file.leases == 0:
                self._close(oldest, idle)

    def _close(self, block: BlockKey, slot: Slot) -> None:
        self._slots.open.pop(block, None)
        if slot.file is not None:
            slot.file.doom()
            slot.file = None
