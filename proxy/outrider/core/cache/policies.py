"""Eviction policies: LRU, FIFO and none. The store asks a policy for victims, and skips blocks in use.

A policy is notified of each block once by `added`, then any number of times by `read`, then once by `removed`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from outrider.core.model import BlockKey, ObjectVersion


class EvictionPolicy(Protocol):
    """Not thread-safe: called from one thread. All but `victims` is at most O(log n)."""

    def added(self, block: BlockKey, version: ObjectVersion) -> None: ...

    def read(self, block: BlockKey) -> None: ...

    def removed(self, block: BlockKey) -> None: ...

    def victims(self, incoming: BlockKey | None = None, version: ObjectVersion | None = None) -> Iterator[BlockKey]:
        """The blocks that may be evicted for block `incoming` of `version`, best victim first. None: all blocks that
        may ever be evicted.

        The caller may stop at any point, and must not change the policy while iterating.
        """
        ...


class Fifo:
    """Evicts the oldest block."""

    def __init__(self) -> None:
        self._order: OrderedDict[BlockKey, None] = OrderedDict()

    def added(self, block: BlockKey, version: ObjectVersion) -> None:
        self._order[block] = None

    def read(self, block: BlockKey) -> None:
        pass

    def removed(self, block: BlockKey) -> None:
        self._order.pop(block, None)

    def victims(self, incoming: BlockKey | None = None, version: ObjectVersion | None = None) -> Iterator[BlockKey]:
        return iter(self._order)


class Lru(Fifo):
    """Evicts the least recently read block."""

    def read(self, block: BlockKey) -> None:
        if block in self._order:
            self._order.move_to_end(block)


class KeepAll:
    """Evicts nothing: blocks come in while there is room, and further reads are relayed."""

    def added(self, block: BlockKey, version: ObjectVersion) -> None:
        pass

    def read(self, block: BlockKey) -> None:
        pass

    def removed(self, block: BlockKey) -> None:
        pass

    def victims(self, incoming: BlockKey | None = None, version: ObjectVersion | None = None) -> Iterator[BlockKey]:
        return iter(())


POLICIES: dict[str, type[EvictionPolicy]] = {"lru": Lru, "fifo": Fifo, "none": KeepAll}
