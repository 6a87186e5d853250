"""Near blocks: those that this node keeps for its own readers, though another member of the cluster owns them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from outrider.core.cache.policies import EvictionPolicy
from outrider.core.model import BlockKey, ObjectVersion

# The other policy's order is looked at until so many owned blocks were passed by. After that the least recently read
# near blocks go first: an eviction takes no longer than that.
_PASSED = 256


class NearBlocks:
    """An eviction policy around another one. Near blocks go first, in the order of the other one: where each node reads
    the same part in each epoch, the least recently read of them would be the next one that it needs. A near block that
    comes in displaces near blocks alone: its owner has the bytes too, and nobody else has those of the blocks that this
    node owns."""

    def __init__(
        self, policy: EvictionPolicy, is_near: Callable[[ObjectVersion, int], bool],
        size_of: Callable[[ObjectVersion, int], int] = lambda version, index: 0,
    ) -> None:  # fmt: skip
        """`policy`: judges the owned blocks, and is notified of all. `is_near`: by the ring of now. `size_of`: the
        bytes of a block, for reports."""
        self._policy = policy
        self._is_near = is_near
        self._size_of = size_of
        self._near: OrderedDict[BlockKey, int] = OrderedDict()
        self.bytes = 0
        """The bytes of all near blocks."""

    def __len__(self) -> int:
        """How many near blocks there are."""
        return len(self._near)

    def added(self, block: BlockKey, version: ObjectVersion) -> None:
        if self._is_near(version, block.index):
            self._note(block, version)
        self._policy.added(block, version)

    def read(self, block: BlockKey) -> None:
        if block in self._near:
            self._near.move_to_end(block)
        self._policy.read(block)

    def removed(self, block: BlockKey) -> None:
        self._drop(block)
        self._policy.removed(block)

    def victims(self, incoming: BlockKey | None = None, version: ObjectVersion | None = None) -> Iterator[BlockKey]:
        order = self._policy.victims(incoming, version)
        passed: list[BlockKey] = []
        found: set[BlockKey] = set()
        while len(passed) < _PASSED and len(found) < len(self._near) and (block := next(order, None)) is not None:
            if block in self._near:
                found.add(block)
                yield block
            else:
                passed.append(block)
        yield from (block for block in self._near if block not in found)
        if incoming is not None and version is not None and self._is_near(version, incoming.index):
            return
        yield from (block for block in chain(passed, order) if block not in self._near)

    def judge(self, blocks: Iterable[tuple[BlockKey, ObjectVersion]]) -> None:
        """The ring has changed: judge these blocks, all of which are here, anew."""
        for block, version in blocks:
            if not self._is_near(version, block.index):
                self._drop(block)
            else:
                self._note(block, version)

    def _note(self, block: BlockKey, version: ObjectVersion) -> None:
        if block not in self._near:
            self._near[block] = size = self._size_of(version, block.index)
            self.bytes += size

    def _drop(self, block: BlockKey) -> None:
        self.bytes -= self._near.pop(block, 0)
