"""The index of blocks on disk, and of those whose files are open. It lives on the event loop's thread."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import islice

from outrider.adapters.disk.disk import Disk
from outrider.adapters.disk.leases import Edition, OpenFile, Slot
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion

# Reads that wait to be reported to the policy. Beyond this number the oldest ones are lost.
_READS_MAX = 4096


class BlockIndex:
    """Keeps the policy in step with the blocks on disk. It knows no budget, and touches files only to close them."""

    def __init__(self, policy: EvictionPolicy, open_files: int, *, verify_always: bool) -> None:
        """`open_files`: how many idle files stay open. `verify_always`: no file is used without being verified."""
        self._policy = policy
        self._verify_always = verify_always
        self._open_files = open_files
        self._slots: dict[BlockKey, Slot] = {}
        self._editions: dict[bytes, Edition] = {}
        self._open: OrderedDict[BlockKey, None] = OrderedDict()
        # Blocks read since the last report to the policy: a hit would pay for each report.
        self._reads: deque[BlockKey] = deque(maxlen=_READS_MAX)
        self.removals = 0
        self.proved_bytes = 0
        """The bytes on disk of blocks that were compared with what the bucket knows of them."""

    # -- lookup -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._slots)

    def has(self, block: BlockKey) -> bool:
        slot = self._slots.get(block)
        return slot is not None and not slot.disk.work.is_away

    def blocks(self) -> list[BlockMeta]:
        """All blocks, first victim first. Blocks that the policy does not rank come last."""
        self._note_reads()
        return [self._slots[block].meta(block) for block in self._ranked() if block in self._slots]

    def _ranked(self) -> list[BlockKey]:
        """All blocks: first the victims of the policy, then those it would keep."""
        return list(dict.fromkeys([*self._policy.victims(), *self._slots]))

    def leases(self) -> int:
        """How many reads of indexed blocks are under way."""
        return sum(slot.file.leases for slot in self._slots.values() if slot.file is not None)

    def present(self) -> list[BlockKey]:
        return list(self._slots)

    def blocks_of(self, wanted: Callable[[ObjectRef], bool]) -> list[BlockKey]:
        """All blocks of the objects that are `wanted`, of any version."""
        judged: dict[ObjectRef, bool] = {}
        found = []
        for block, slot in self._slots.items():
            ref = slot.edition.version.ref
            if (is_wanted := judged.get(ref)) is None:
                is_wanted = judged[ref] = wanted(ref)
            if is_wanted:
                found.append(block)
        return found

    def version_of(self, block: BlockKey) -> ObjectVersion | None:
        """The version of a block; None: it is not here."""
        slot = self._slots.get(block)
        return None if slot is None else slot.edition.version

    def disk_of(self, block: BlockKey) -> Disk | None:
        """The disk that a block lies on; None: it is not here."""
        slot = self._slots.get(block)
        return None if slot is None else slot.disk

    def disk_bytes_of(self, meta: BlockMeta) -> int:
        """The bytes of the block's file on disk; 0: it is not here."""
        slot = self._slots.get(meta.key)
        return 0 if slot is None else slot.disk_bytes

    def is_verified(self, block: BlockKey) -> bool:
        slot = self._slots.get(block)
        return slot is not None and slot.verified

    def unverified(self) -> list[BlockKey]:
        return [block for block, slot in self._slots.items() if not slot.verified]

    def _on(self, disk: Disk) -> list[tuple[BlockKey, Slot]]:
        return [(block, slot) for block, slot in self._slots.items() if slot.disk is disk]

    def is_proved(self, block: BlockKey) -> bool:
        slot = self._slots.get(block)
        return slot is not None and slot.proved

    # -- changes ------------------------------------------------------------------------------------------------

    def prove(self, blocks: Iterable[BlockKey]) -> None:
        """The bytes of these blocks are those that the bucket has. Blocks that are not here are passed over."""
        for block in blocks:
            slot = self._slots.get(block)
            if slot is not None and not slot.proved:
                slot.proved = True
                self.proved_bytes += slot.disk_bytes

    def _enter(
        self, disk: Disk, block: BlockKey, meta: BlockMeta, disk_bytes: int, *, verified: bool
    ) -> tuple[BlockKey, Slot]:
        """Add a block that the index does not have. Returns its key, with the shared version id, and its slot."""
        edition = self._editions.get(block.version_id)
        if edition is None or not edition.fits(meta):
            edition = self._editions[block.version_id] = Edition(meta, block.version_id, disk_bytes)
        edition.blocks += 1
        block = BlockKey(edition.version_id, block.index)
        slot = self._slots[block] = Slot(edition, disk, disk_bytes, verified=verified)
        disk.blocks += 1
        self._policy.added(block, edition.version)
        return block, slot

    def _forget(self, block: BlockKey, slot: Slot) -> None:
        if self._slots.get(block) is slot:
            del self._slots[block]
            slot.disk.blocks -= 1
            slot.edition.blocks -= 1
            if slot.proved:
                self.proved_bytes -= slot.disk_bytes
            if slot.edition.blocks == 0 and self._editions.get(block.version_id) is slot.edition:
                del self._editions[block.version_id]
            self._policy.removed(block)
            self.removals += 1
            self._close(block, slot)

    # -- open files ---------------------------------------------------------------------------------------------

    def _note_reads(self) -> None:
        """Report the reads since the last call to the policy."""
        while self._reads:
            block = self._reads.popleft()
            if block in self._slots:
                self._policy.read(block)
            if block in self._open:
                self._open.move_to_end(block)

    def _keep_open(self, block: BlockKey, slot: Slot, opened: OpenFile) -> None:
        slot.file = opened
        self._open[block] = None
        self._open.move_to_end(block)
        spare = len(self._open) - self._open_files
        for oldest in list(islice(self._open, max(0, spare))):
            idle = self._slots[oldest]
            assert idle.file is not None
            if idle.file.leases == 0:
                self._close(oldest, idle)

    def _close(self, block: BlockKey, slot: Slot) -> None:
        self._open.pop(block, None)
        if slot.file is not None:
            slot.file.doom()
            slot.file = None
