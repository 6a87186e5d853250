"""Which blocks are on disk, and which of their files are open. All on the event loop's thread, but for what says so."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice

from outrider.adapters.disk.leases import Edition, OpenFile, Slot
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.model import BlockKey, ObjectRef

# Reads that the policy hears of late; of more than these it hears of the last.
_READS_MAX = 4096


class BlockIndex:
    """Keeps the policy in step with what is here. Knows nothing of room, and touches files only to close them."""

    def __init__(self, policy: EvictionPolicy, open_files: int, *, verify_always: bool) -> None:
        """`open_files`: how many idle ones stay open. `verify_always`: none of them is used as it is."""
        self._policy = policy
        self._verify_always = verify_always
        self._open_files = open_files
        self._slots: dict[BlockKey, Slot] = {}
        self._editions: dict[bytes, Edition] = {}
        self._open: OrderedDict[BlockKey, None] = OrderedDict()
        # Blocks read since the policy was last told: it lives on one thread, hits may come from several.
        self._reads: deque[BlockKey] = deque(maxlen=_READS_MAX)
        self.removals = 0

    # -- what is here -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._slots)

    def has(self, block: BlockKey) -> bool:
        return block in self._slots

    def blocks(self) -> list[BlockMeta]:
        """All blocks, first victim first; those that the policy does not rank come last."""
        self._note_reads()
        return [self._slots[block].meta(block) for block in self._ranked() if block in self._slots]

    def _ranked(self) -> list[BlockKey]:
        """First those that the policy lets go."""
        return list(dict.fromkeys([*self._policy.victims(), *self._slots]))

    def leases(self) -> int:
        """How many reads are under way of the blocks that are here."""
        return sum(slot.file.leases for slot in self._slots.values() if slot.file is not None)

    def present(self) -> list[BlockKey]:
        return list(self._slots)

    def blocks_of(self, wanted: Callable[[ObjectRef], bool]) -> list[BlockKey]:
        """All blocks of the objects that are `wanted`, whatever their version."""
        judged: dict[ObjectRef, bool] = {}
        found = []
        for block, slot in self._slots.items():
            ref = slot.edition.version.ref
            if (its := judged.get(ref)) is None:
                its = judged[ref] = wanted(ref)
            if its:
                found.append(block)
        return found

    def is_verified(self, block: BlockKey) -> bool:
        slot = self._slots.get(block)
        return slot is not None and slot.verified

    def unverified(self) -> list[BlockKey]:
        return [block for block, slot in self._slots.items() if not slot.verified]

    # -- what comes and goes ------------------------------------------------------------------------------------

    def _enter(self, block: BlockKey, meta: BlockMeta, disk_bytes: int, *, verified: bool) -> tuple[BlockKey, Slot]:
        """A block that is in nobody's place; its key, as it is kept."""
        edition = self._editions.get(block.version_id)
        if edition is None or not edition.fits(meta):
            edition = self._editions[block.version_id] = Edition(meta, block.version_id, disk_bytes)
        edition.blocks += 1
        block = BlockKey(edition.version_id, block.index)
        slot = self._slots[block] = Slot(edition, disk_bytes, verified=verified)
        self._policy.added(block, edition.version)
        return block, slot

    def _forget(self, block: BlockKey, slot: Slot) -> None:
        if self._slots.get(block) is slot:
            del self._slots[block]
            slot.edition.blocks -= 1
            if slot.edition.blocks == 0 and self._editions.get(block.version_id) is slot.edition:
                del self._editions[block.version_id]
            self._policy.removed(block)
            self.removals += 1
            self._close(block, slot)

    # -- open files ---------------------------------------------------------------------------------------------

    def _note_reads(self) -> None:
        """Tell the policy, on its own thread, what was read since it was last told."""
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
