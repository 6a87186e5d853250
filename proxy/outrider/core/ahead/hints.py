"""What clients told under a name, as long as it may be asked about or taken back."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.order.epoch import Epoch, Round
from outrider.core.model import ObjectRef


@dataclass(frozen=True, slots=True)
class Told:
    """Objects that were told of, each counted once: `read` by who told, `unread` and still expected, or `unknown`,
    since the job is over, was given up, or was forgotten."""

    read: int
    unread: tuple[ObjectRef, ...]
    unknown: int


class Hint:
    """Of each epoch that was told of, the keys. An epoch that is over stays until `go_on`.

    `ignored`: reads that nothing is fetched ahead for, by the settings; since `go_on`.
    """

    def __init__(self) -> None:
        self.ignored = 0
        self._keys: dict[tuple[Dataset, Round], array[int]] = {}

    @property
    def bytes(self) -> int:
        return sum(keys.itemsize * len(keys) for keys in self._keys.values())

    def add(self, dataset: Dataset, one: Epoch, keys: Sequence[int]) -> None:
        at = dataset, one.round
        told = self._keys.setdefault(at, array("i"))
        told.extend(keys)
        if len(told) > 2 * len(one.place):
            # Told again and again.
            self._keys[at] = array("i", dict.fromkeys(told))

    def go_on(self) -> None:
        """More is about to be told under this name: forget what is over."""
        self.ignored = 0
        self._keys = {at: keys for at, keys in self._keys.items() if at[0].pass_in(at[1]) is not None}

    def keys_of(self, one: Epoch) -> array[int]:
        return next((keys for (_, one_round), keys in self._keys.items() if one_round is one.round), array("i"))

    def unread(self) -> Iterator[tuple[Dataset, Epoch, set[int]]]:
        """What is still expected."""
        for (dataset, one_round), keys in self._keys.items():
            one = dataset.pass_in(one_round)
            if one is not None and one.told:
                yield dataset, one, {key for key in keys if one.to_come(key)}

    def told(self, at_once: int) -> Iterator[Told]:
        """In pieces of so many objects at most, each as it is when it is asked for: what is told or read between two of
        them does no harm."""
        for (dataset, one_round), keys in list(self._keys.items()):
            distinct = array("i", dict.fromkeys(keys))
            for first in range(0, len(distinct), at_once):
                yield _told(dataset, one_round, distinct[first : first + at_once])


def _told(dataset: Dataset, one_round: Round, keys: Sequence[int]) -> Told:
    one = dataset.pass_in(one_round)
    read = unknown = 0
    unread: list[ObjectRef] = []
    for key in keys:
        if one_round.ended or (one is not None and not one.unread(key)):
            read += 1
        elif one is not None and one.told and one.to_come(key):
            unread.append(ObjectRef(dataset.bucket, dataset.names.keys[key]))
        else:
            unknown += 1
    return Told(read, tuple(unread), unknown)
