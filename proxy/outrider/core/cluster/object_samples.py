"""The objects of a dataset that members know, and how much of each they hold: samples of bounded size, and their union.

No member knows all objects. Each draws those whose names have the smallest numbers, so that all of them draw the same
ones, and the union of their samples is a sample of all objects. With few objects it has each of them. Source: Cohen and
Kaplan, "Summarizing Data using Bottom-k Sketches" (PODC 2007).
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Generic, NamedTuple, TypeVar

M = TypeVar("M")

SAMPLED_MAX = 256
"""Objects of a dataset in one sample: shares of a larger dataset are right within a few hundredths."""
REPORTED_MAX = 8192
"""Objects in all samples of one report."""
NUMBERS = 2**32
# An odd factor: checksums of similar names are similar.
_FACTOR = 0x9E3779B1


class KnownObject(NamedTuple):
    """`number`: that of its name. `size`: bytes. `held`: how many of them the member holds."""

    number: int
    size: int
    held: int


@dataclass(frozen=True, slots=True)
class ObjectSample:
    """All objects that the member knows and whose numbers are less than `below`."""

    objects: Sequence[KnownObject] = ()
    below: int = NUMBERS


def number_of(bucket: str, key: str) -> int:
    return zlib.crc32(f"{bucket}/{key}".encode("utf-8", "surrogatepass")) * _FACTOR % NUMBERS


def drawn(objects: Iterable[KnownObject], most: int) -> ObjectSample:
    """The sample of `most` objects at most."""
    smallest = nsmallest(most + 1, objects)
    return ObjectSample(smallest) if len(smallest) <= most else ObjectSample(smallest[:most], smallest[most].number)


class Union(Generic[M]):
    """All objects that any member knows, from their samples. Numbers are estimates, unless all objects were drawn."""

    def __init__(self, samples: Mapping[M, ObjectSample]) -> None:
        below = min((sample.below for sample in samples.values()), default=NUMBERS)
        self._scale = NUMBERS / max(1, below)
        self._sizes: dict[int, int] = {}
        self._held: dict[M, dict[int, int]] = {}
        for member, sample in samples.items():
            known = [each for each in sample.objects if each.number < below]
            self._held[member] = {each.number: each.held for each in known if each.held}
            for each in known:
                self._sizes[each.number] = max(each.size, self._sizes.get(each.number, 0))

    @property
    def objects(self) -> int:
        return round(len(self._sizes) * self._scale)

    @property
    def size(self) -> int:
        """In bytes."""
        return round(sum(self._sizes.values()) * self._scale)

    def held_by(self, members: Collection[M]) -> int:
        """The bytes that these members hold together; a copy of an object counts once."""
        held: dict[int, int] = {}
        for member in members:
            for number, count in self._held.get(member, {}).items():
                held[number] = min(self._sizes[number], held.get(number, 0) + count)
        return round(sum(held.values()) * self._scale)
