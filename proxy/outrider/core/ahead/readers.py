"""Who reads which object, how, and how fast: readers are seen per client and object, never per connection.

`aws s3 cp` reads one object over ten connections and out of order, `s5cmd` over one process per shard: what tells a
reader is which bytes of the object were asked for, and how the gaps close.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from outrider.core.model import Extent

# An unfinished reader that asks for nothing for so long has left: piped tools die with their job.
ABANDONED_S = 60.0
# Readers remembered at most; the one that was silent for longest goes first.
READERS_MAX = 4096
# Ten parallel ranges of `aws s3 cp` leave gaps that close; more gaps than this are random access.
_GAPS_MAX = 24
# The first read-ahead of a reader that goes on, and the widest: the latter is what the fills of one GET reach (window).
_AHEAD_FIRST_BYTES = 8 * 2**20
_AHEAD_MAX_BYTES = 128 * 2**20
# A reader that took this part of an object has read it; the tail of a tar is padding that nobody asks for.
_WHOLE = 0.95


class Shape(Enum):
    WHOLE = "whole"
    """One request for all of it."""
    FORWARD = "forward"
    """Ranges that go front to back, perhaps in parallel: the gaps close."""
    RANDOM = "random"


@dataclass(slots=True)
class Reader:
    """One client's pass over one object. `covered` are the bytes asked for so far, as disjoint ascending extents."""

    size: int
    last: float
    covered: list[Extent]
    covered_bytes: int
    requests: int
    jumps: int
    ahead_bytes: int = 0

    @property
    def complete(self) -> bool:
        return self.covered_bytes >= _WHOLE * self.size

    @property
    def shape(self) -> Shape:
        if self.requests == 1:
            only = self.covered[0]
            return Shape.WHOLE if only.length == self.size else Shape.FORWARD if only.start == 0 else Shape.RANDOM
        if self.jumps > 2 and 4 * self.jumps > self.requests:
            return Shape.RANDOM
        return Shape.FORWARD

    def overlap(self, extent: Extent) -> int:
        return sum(max(0, min(extent.stop, one.stop) - max(extent.start, one.start)) for one in self.covered)

    def cover(self, extent: Extent) -> None:
        start, stop = extent.start, extent.stop
        apart = []
        for one in self.covered:
            if one.stop < start or one.start > stop:
                apart.append(one)
            else:
                start, stop = min(start, one.start), max(stop, one.stop)
        apart.append(Extent(start, stop))
        apart.sort()
        if len(apart) > 2 * _GAPS_MAX:  # remembered in bounded memory: the two nearest to the end become one
            apart[-2:] = [Extent(apart[-2].start, apart[-1].stop)]
        self.covered = apart
        self.covered_bytes = sum(one.length for one in apart)


class Asked(NamedTuple):
    """What one request means. `opened`: a pass over the object begins; `ahead`: bytes of the object worth bringing
    before they are asked for, None: none."""

    opened: bool
    ahead: Extent | None


# One request tells nothing of what follows.
_BEGUN = Asked(opened=True, ahead=None)


class Readers:
    """Bounded: readers that were silent for longest are forgotten first. A request costs O(gaps of its reader)."""

    def __init__(self) -> None:
        self._readers: OrderedDict[tuple[str, Hashable], Reader] = OrderedDict()

    def __len__(self) -> int:
        return len(self._readers)

    def reader(self, client: str, item: Hashable) -> Reader | None:
        return self._readers.get((client, item))

    def asked(self, client: str, item: Hashable, size: int, extent: Extent, now: float) -> Asked:
        """`item` names the object; `extent` what the request asks for."""
        who = client, item
        reader = self._readers.get(who)
        if reader is None or _begins_anew(reader, size, extent, now):
            self._readers[who] = _begun_with(extent, size, now)
            if reader is not None:
                self._readers.move_to_end(who)
            elif len(self._readers) > READERS_MAX:
                self._readers.popitem(last=False)
            return _BEGUN
        self._readers.move_to_end(who)
        _advance(reader, extent, now)
        return Asked(opened=False, ahead=_ahead(reader))

    def move(self, items: Mapping[Any, Hashable]) -> None:
        """Objects that go by other names from now on."""
        moved = ((client, items.get(item, item)) for client, item in self._readers)
        self._readers = OrderedDict(zip(moved, self._readers.values(), strict=True))


def _begins_anew(reader: Reader, size: int, extent: Extent, now: float) -> bool:
    if reader.size != size or now - reader.last > ABANDONED_S:
        return True
    # A retry of a part that broke overlaps too: only a reader that had (nearly) all begins once more.
    return reader.complete and 2 * reader.overlap(extent) >= extent.length


def _begun_with(extent: Extent, size: int, now: float) -> Reader:
    jumps = extent.start > 0 and not _is_near(extent, 0)
    return Reader(size, now, [extent], extent.stop - extent.start, 1, jumps)


def _is_near(extent: Extent, end: int) -> bool:
    """It begins at `end` or not far behind it."""
    return 0 <= extent.start - end <= 10 * max(extent.length, 1)


def _advance(reader: Reader, extent: Extent, now: float) -> None:
    end = reader.covered[-1].stop
    # Forward: near the end of what was asked so far, or into a gap before it, which thereby closes.
    fills_a_gap = extent.start < end and any(one.stop == extent.start for one in reader.covered)
    if not (fills_a_gap or _is_near(extent, end)):
        reader.jumps += 1
    reader.cover(extent)
    reader.requests += 1
    reader.last = now
    if reader.shape is Shape.RANDOM:
        reader.ahead_bytes = 0
    else:
        reader.ahead_bytes = min(_AHEAD_MAX_BYTES, max(_AHEAD_FIRST_BYTES, 2 * reader.ahead_bytes))


def _ahead(reader: Reader) -> Extent | None:
    """What lies after the furthest byte asked for."""
    if reader.ahead_bytes == 0:
        return None
    end = reader.covered[-1].stop
    stop = min(reader.size, end + reader.ahead_bytes)
    return Extent(end, stop) if stop > end else None
