"""The clients that read at the other members of a cluster, as those tell it: how many, and the objects that they read.

A member reports an object as a client begins it, and not how far the client is. So the last objects that it reported,
one for each of its clients, are taken to be read still.
"""

from __future__ import annotations

from collections.abc import Mapping

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.registry import Item
from outrider.core.ahead.sequential_reads import ABANDONED_S


class PeerReaders:
    """A member that has reported nothing for a minute has no readers."""

    def __init__(self) -> None:
        # By member: how many readers, and when it reported them.
        self._reported: dict[str, tuple[int, float]] = {}
        # By member: the objects that are being read, the first begun first.
        self._open: dict[str, dict[Item, None]] = {}

    def __contains__(self, item: Item) -> bool:
        """Whether a client of another member reads it."""
        return any(item in items for items in self._open.values())

    def began(self, member: str, item: Item, readers: int, now: float) -> list[Item]:
        """A client of `member`, which has so many, begins to read the object. Returns those that nobody reads any
        more."""
        self._reported[member] = readers, now
        items = self._open.setdefault(member, {})
        items.pop(item, None)
        items[item] = None
        ended = list(items)[: -max(1, readers)]
        for past in ended:
            del items[past]
        return [past for past in ended if past not in self]

    def silent(self, now: float) -> list[Item]:
        """Forgets the members that are silent. Returns the objects that nobody reads any more."""
        silent = [member for member, (_, reported_at) in self._reported.items() if now - reported_at > ABANDONED_S]
        ended: list[Item] = []
        for member in silent:
            del self._reported[member]
            ended += self._open.pop(member, ())
        return [past for past in ended if past not in self]

    def count(self, now: float) -> int:
        """The readers at all other members."""
        return sum(readers for readers, reported_at in self._reported.values() if now - reported_at <= ABANDONED_S)

    def move(self, items: Mapping[Item, Item]) -> None:
        """Objects belong to other datasets now."""
        self._open = {
            member: {items.get(item, item): None for item in own} for member, own in self._open.items()
        }  # fmt: skip

    def forget(self, dataset: Dataset) -> None:
        self._open = {
            member: {item: None for item in own if item[0] is not dataset} for member, own in self._open.items()
        }  # fmt: skip
