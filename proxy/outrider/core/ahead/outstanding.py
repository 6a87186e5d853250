"""What was handed out to be fetched ahead and is not here yet, and how long that takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.registry import Item
from outrider.core.model import ObjectRef


@dataclass(slots=True)
class Handed:
    """Of one object, the blocks that are still to come, as bits; `block_bytes`: what one will take on disk.

    `asked_for`: a client has asked since. `excused`: for a plan that was withdrawn since.
    """

    ref: ObjectRef
    missing: int
    at: float
    block_bytes: int
    asked_for: bool = False
    excused: bool = False


class Outstanding:
    """All of it: `blocks`, the `bytes` that they will take, how long an object took of late (`fill_s`), and by how much
    that varies (`spread_s`); 0: none has come yet."""

    def __init__(self) -> None:
        self._handed: dict[Item, Handed] = {}
        self._items: dict[ObjectRef, Item] = {}
        self.blocks = self.bytes = 0
        self.fill_s = self.spread_s = 0.0

    def __len__(self) -> int:
        return len(self._handed)

    def __contains__(self, item: Item) -> bool:
        return item in self._handed

    def get(self, item: Item) -> Handed | None:
        return self._handed.get(item)

    def of(self, ref: ObjectRef) -> Handed | None:
        """As whatever it was handed out: it was of another dataset then, perhaps."""
        item = self._items.get(ref)
        return None if item is None else self._handed.get(item)

    def has_any_of(self, dataset: Dataset) -> bool:
        return any(one is dataset for one, _ in self._handed)

    def hand_out(self, item: Item, ref: ObjectRef, missing: int, block_bytes: int, now: float) -> None:
        self._handed[item] = Handed(ref, missing, now, block_bytes)
        self._items[ref] = item
        self._count(missing.bit_count(), block_bytes)

    def found(self, handed: Handed, count: int, block_bytes: int) -> None:
        """It has so many blocks of this size; until now it was taken for one like the last."""
        self._count(-handed.missing.bit_count(), handed.block_bytes)
        handed.missing, handed.block_bytes = (1 << count) - 1, block_bytes
        self._count(count, block_bytes)

    def landed(self, ref: ObjectRef, bits: int, now: float) -> None:
        """These blocks are here."""
        handed = self.of(ref)
        if handed is None or not handed.missing & bits:
            return
        self._count(-(handed.missing & bits).bit_count(), handed.block_bytes)
        handed.missing &= ~bits
        if not handed.missing:
            del self._handed[self._items.pop(ref)]
            took_s = now - handed.at
            self.spread_s += (abs(took_s - self.fill_s) - self.spread_s) / 8
            self.fill_s += (took_s - self.fill_s) / 8

    def drop(self, ref: ObjectRef) -> None:
        """What is still missing of it will not come."""
        handed = self._handed.pop(self._items.pop(ref))
        self._count(-handed.missing.bit_count(), handed.block_bytes)

    def move(self, items: Mapping[Item, Item]) -> None:
        self._handed = {items.get(item, item): handed for item, handed in self._handed.items()}
        self._items = {ref: items.get(item, item) for ref, item in self._items.items()}

    def forget(self, dataset: Dataset) -> None:
        for ref in [handed.ref for (whose, _), handed in self._handed.items() if whose is dataset]:
            self.drop(ref)

    def _count(self, blocks: int, block_bytes: int) -> None:
        self.blocks += blocks
        self.bytes += blocks * block_bytes
