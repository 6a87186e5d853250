"""Who goes when room is needed. The store asks a policy for victims and skips those in use.

Every policy sees each block once on `added`, then `read` any number of times, then once `removed`.
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
        """Those that may go for block `incoming` of `version`, best victim first; None: all that may ever go.

        The caller may stop at any point, and must not change the policy while iterating.
        """
        ...


class Fifo:
    """The block that came first goes first."""

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
    """The block that was not read for longest goes first."""

    def read(self, block: BlockKey) -> None:
        if block in self._order:
            self._order.move_to_end(block)


class KeepAll:
    """Nobody goes: blocks come in while there is room, the rest is relayed."""

    def added(self, block: BlockKey, version: ObjectVersion) -> None:
        pass

    def read(self, block: BlockKey) -> None:
        pass

    def removed(self, block: BlockKey) -> None:
        pass

    def victims(self, incoming: BlockKey | None = None, version: ObjectVersion | None = None) -> Iterator[BlockKey]:
        return iter(())


POLICIES: dict[str, type[EvictionPolicy]] = {"lru": Lru, "fifo": Fifo, "none": KeepAll}
