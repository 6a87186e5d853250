"""Outstanding prefetches, which are not all on disk yet, and those that came in vain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.registry import Item
from outrider.core.model import ObjectRef

# Prefetch for a dataset pauses once so much of the cache was prefetched for it in vain lately.
_WASTE = 0.02
# With each object that is opened, so much of that waste is forgiven.
_FORGIVEN = 1 / 16


@dataclass(slots=True)
class PendingPart:
    """Blocks that were handed out at one time. `missing`: those that have not landed, as bits."""

    missing: int
    began_at: float


@dataclass(slots=True)
class PendingPrefetch:
    """One object on its way. `block_bytes` is what each of its blocks will take on disk."""

    ref: ObjectRef
    # The blocks that have not landed, as bits.
    missing: int
    block_bytes: int
    parts: list[PendingPart] = field(default_factory=list)
    # More of its blocks are to be handed out.
    goes_on: bool = False
    # A client has requested the object since.
    is_requested: bool = False
    # The hint that it was prefetched for was withdrawn since.
    excused: bool = False
    # Only blocks that this node owns are wanted.
    is_shared: bool = False
    # See `Want`.
    is_guess: bool = False


class Outstanding:
    """All prefetches on their way. Invariant: `blocks` is the sum of their missing blocks, `guessed` that of guesses,
    and `bytes` is what these will take on disk."""

    def __init__(self) -> None:
        self._prefetches: dict[Item, PendingPrefetch] = {}
        self._items: dict[ObjectRef, Item] = {}
        self.blocks = self.guessed = self.bytes = 0
        self.fill_s = self.spread_s = 0.0
        """How long the recent prefetches took on average, and their mean deviation from it. 0: none has ended yet."""

    def __len__(self) -> int:
        return len(self._prefetches)

    def __contains__(self, item: Item) -> bool:
        return item in self._prefetches

    def get(self, item: Item) -> PendingPrefetch | None:
        return self._prefetches.get(item)

    def of(self, ref: ObjectRef) -> PendingPrefetch | None:
        """Unlike `get`, this finds an object that was handed out as part of another dataset."""
        item = self._items.get(ref)
        return None if item is None else self._prefetches.get(item)

    def has_any_of(self, dataset: Dataset) -> bool:
        return any(other is dataset for other, _ in self._prefetches)

    def hand_out(
        self, item: Item, ref: ObjectRef, missing: int, block_bytes: int, now: float, *, is_shared: bool = False,
        goes_on: bool = False, is_requested: bool = False, is_guess: bool = False,
    ) -> None:  # fmt: skip
        """These blocks, as bits, are to be fetched, none of which is on its way. `goes_on`: and later more of them."""
        prefetch = self._prefetches.get(item)
        if prefetch is None:
            prefetch = self._prefetches[item] = PendingPrefetch(
                ref, 0, block_bytes, is_shared=is_shared, is_guess=is_guess
            )  # fmt: skip
            self._items[ref] = item
        prefetch.missing |= missing
        prefetch.parts.append(PendingPart(missing, now))
        prefetch.goes_on = goes_on
        prefetch.is_requested |= is_requested
        self._count(prefetch, missing.bit_count())

    def found(self, prefetch: PendingPrefetch, missing: int, block_bytes: int) -> None:
        """These blocks of the object, as bits, are wanted; they have this size. Until now its size was a guess."""
        self._count(prefetch, -prefetch.missing.bit_count())
        prefetch.missing, prefetch.block_bytes = missing, block_bytes
        prefetch.parts = [PendingPart(missing, prefetch.parts[0].began_at)]
        self._count(prefetch, missing.bit_count())
        if not missing:
            del self._prefetches[self._items.pop(prefetch.ref)]

    def landed(self, ref: ObjectRef, bits: int, now: float) -> None:
        """These blocks of the object are on disk."""
        prefetch = self.of(ref)
        if prefetch is None or not prefetch.missing & bits:
            return
        self._count(prefetch, -(prefetch.missing & bits).bit_count())
        prefetch.missing &= ~bits
        for part in prefetch.parts:
            if part.missing & bits:
                part.missing &= ~bits
                if not part.missing:
                    took_s = now - part.began_at
                    self.spread_s += (abs(took_s - self.fill_s) - self.spread_s) / 8
                    self.fill_s += (took_s - self.fill_s) / 8
        if not prefetch.missing:
            del self._prefetches[self._items.pop(ref)]

    def drop(self, ref: ObjectRef, bits: int = -1) -> None:
        """These of the missing blocks of the object will not come: all of them by default."""
        prefetch = self._prefetches[self._items[ref]]
        self._count(prefetch, -(prefetch.missing & bits).bit_count())
        prefetch.missing &= ~bits
        for part in prefetch.parts:
            part.missing &= ~bits
        if not prefetch.missing:
            del self._prefetches[self._items.pop(ref)]

    def move(self, items: Mapping[Item, Item]) -> None:
        """Objects belong to other datasets now."""
        self._prefetches = {items.get(item, item): prefetch for item, prefetch in self._prefetches.items()}
        self._items = {ref: items.get(item, item) for ref, item in self._items.items()}

    def forget(self, dataset: Dataset) -> None:
        for ref in [prefetch.ref for (other, _), prefetch in self._prefetches.items() if other is dataset]:
            self.drop(ref)

    def _count(self, prefetch: PendingPrefetch, blocks: int) -> None:
        self.blocks += blocks
        self.bytes += blocks * prefetch.block_bytes
        if prefetch.is_guess:
            self.guessed += blocks


class PrefetchWaste:
    """Bytes prefetched in vain and not forgiven yet, by dataset."""

    def __init__(self, capacity_bytes: int, block_bytes: int) -> None:
        self._max_bytes = _WASTE * capacity_bytes + 2 * block_bytes
        self._bytes: dict[Dataset, float] = {}

    def add(self, dataset: Dataset, wasted_bytes: float) -> None:
        self._bytes[dataset] = self._bytes.get(dataset, 0.0) + wasted_bytes

    def opened(self, dataset: Dataset) -> None:
        """A client begins to read an object of the dataset."""
        if dataset in self._bytes:
            self._bytes[dataset] *= 1 - _FORGIVEN

    def pauses(self, dataset: Dataset) -> bool:
        """So much was in vain that nothing more is to be prefetched for the dataset."""
        return self._bytes.get(dataset, 0.0) > self._max_bytes

    def move(self, items: Mapping[Item, Item]) -> None:
        """Objects belong to other datasets now."""
        for (old, _), (new, _) in items.items():
            if wasted_bytes := self._bytes.pop(old, 0.0):
                self.add(new, wasted_bytes)

    def forget(self, dataset: Dataset) -> None:
        self._bytes.pop(dataset, None)
