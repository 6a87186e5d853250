"""Access hints that clients registered under a name, for as long as they may be looked up or withdrawn."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.order.epoch import JobEpoch
from outrider.core.ahead.order.epoch_handle import EpochHandle
from outrider.core.model import ObjectRef


@dataclass(frozen=True, slots=True)
class HintedObjects:
    """A part of the objects of a hint, each counted once."""

    # Read by the client that sent the hint.
    read: int
    # Not read yet, and still expected.
    unread: tuple[ObjectRef, ...]
    # Not known any more: the job is over, has come to read at random, or was forgotten.
    unknown: int


class Hint:
    """The objects that were hinted under one name, by epoch. An epoch that is over stays until `go_on`."""

    def __init__(self) -> None:
        self.ignored = 0
        """Hinted reads since `go_on` for which nothing is prefetched, by the settings."""
        self._indexes: dict[tuple[Dataset, EpochHandle], array[int]] = {}

    @property
    def bytes(self) -> int:
        return sum(indexes.itemsize * len(indexes) for indexes in self._indexes.values())

    def add(self, dataset: Dataset, epoch: JobEpoch, indexes: Sequence[int]) -> None:
        at = dataset, epoch.handle
        hinted = self._indexes.setdefault(at, array("i"))
        hinted.extend(indexes)
        if len(hinted) > 2 * len(epoch.place):
            # The same objects were hinted again and again.
            self._indexes[at] = array("i", dict.fromkeys(hinted))

    def go_on(self) -> None:
        """More is about to be hinted under this name: forget the epochs that are over."""
        self.ignored = 0
        self._indexes = {at: hinted for at, hinted in self._indexes.items() if at[0].epoch_of(at[1]) is not None}

    def indexes_of(self, epoch: JobEpoch) -> array[int]:
        hinted = (hinted for (_, handle), hinted in self._indexes.items() if handle is epoch.handle)
        return next(hinted, array("i"))

    def unread(self) -> Iterator[tuple[Dataset, JobEpoch, set[int]]]:
        """The objects that are still expected, by epoch."""
        for (dataset, handle), hinted in self._indexes.items():
            epoch = dataset.epoch_of(handle)
            if epoch is not None and epoch.announced:
                yield dataset, epoch, {index for index in hinted if epoch.to_come(index)}

    def pieces(self, at_once: int) -> Iterator[HintedObjects]:
        """All objects, in pieces of at most `at_once`. Each piece is computed when it is requested, so objects may be
        hinted or read between two pieces."""
        for (dataset, handle), hinted in list(self._indexes.items()):
            distinct = array("i", dict.fromkeys(hinted))
            for first in range(0, len(distinct), at_once):
                yield _progress_of(dataset, handle, distinct[first : first + at_once])


def _progress_of(dataset: Dataset, handle: EpochHandle, indexes: Sequence[int]) -> HintedObjects:
    epoch = dataset.epoch_of(handle)
    read = unknown = 0
    unread: list[ObjectRef] = []
    for index in indexes:
        if handle.ended or (epoch is not None and not epoch.unread(index)):
            read += 1
        elif epoch is not None and epoch.announced and epoch.to_come(index):
            unread.append(ObjectRef(dataset.bucket, dataset.names.keys[index]))
        else:
            unknown += 1
    return HintedObjects(read, tuple(unread), unknown)
