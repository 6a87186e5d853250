"""The readers: each client's way through each object (whole, front to back, or at random), with its read-ahead
window; and which objects are being read now, with the number of readers that this makes, at this node and at the other
members of a cluster.

A reader is a client and an object, never a connection: `aws s3 cp` reads one object over ten connections and out of
order, `s5cmd` over one process per shard. A reader is recognised by the bytes that it asks for, and by how the gaps
between them close. Another member reports an object as a client begins it, and not how far the client is. So the last
objects that it reported, one for each of its clients, are taken to be read still.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.dataset.registry import Item
from outrider.core.model import Extent

# An unfinished reader that asks for nothing for so long has left: tools in a pipe die with their job.
ABANDONED_S = 60.0
# Readers remembered at most; the one that was silent for longest is forgotten first.
READERS_MAX = 4096
# Gaps that are remembered of a reader. The ten parallel ranges of `aws s3 cp` leave fewer, and these close; more gaps
# than this are random access.
_GAPS_MAX = 24
# The read-ahead window of a reader at its second request, and the widest: as far as the fills of one GET reach (see
# `core.cache.readahead`).
_AHEAD_FIRST_BYTES = 8 * 2**20
_AHEAD_MAX_BYTES = 128 * 2**20
# A reader that requested this part of an object has read it: the end of a tar is padding that no reader asks for.
_WHOLE = 0.95


class Shape(Enum):
    WHOLE = "whole"
    """One request for the whole object."""
    FORWARD = "forward"
    """Ranges from front to back, perhaps in parallel, so that the gaps close."""
    RANDOM = "random"


@dataclass(slots=True)
class Reader:
    """One client that reads one object once. `covered` has the bytes requested so far, as disjoint ascending extents.
    `jumps`: requests that neither went forward nor closed a gap. `ahead_bytes`: the read-ahead window."""

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
        return sum(max(0, min(extent.stop, known.stop) - max(extent.start, known.start)) for known in self.covered)

    def cover(self, extent: Extent) -> None:
        start, stop = extent.start, extent.stop
        apart = []
        for known in self.covered:
            if known.stop < start or known.start > stop:
                apart.append(known)
            else:
                start, stop = min(start, known.start), max(stop, known.stop)
        apart.append(Extent(start, stop))
        apart.sort()
        if len(apart) > 2 * _GAPS_MAX:
            # To bound the memory, the two extents nearest to the end become one.
            apart[-2:] = [Extent(apart[-2].start, apart[-1].stop)]
        self.covered = apart
        self.covered_bytes = sum(known.length for known in apart)


class RequestMeaning(NamedTuple):
    """`opened`: with this request the reader begins the object. `ahead`: the bytes that are worth a read-ahead; None:
    no bytes are."""

    opened: bool
    ahead: Extent | None


# One request does not show whether others will follow.
_BEGUN = RequestMeaning(opened=True, ahead=None)


class Readers:
    """Bounded: the readers that were silent for longest are forgotten first. A request costs O(gaps of its reader)."""

    def __init__(self) -> None:
        self._readers: OrderedDict[tuple[str, Hashable], Reader] = OrderedDict()

    def __len__(self) -> int:
        return len(self._readers)

    def reader(self, client: str, item: Hashable) -> Reader | None:
        return self._readers.get((client, item))

    def requested(self, client: str, item: Hashable, size: int, extent: Extent, now: float) -> RequestMeaning:
        """A request of `client` for `extent` of the object `item`."""
        pair = client, item
        reader = self._readers.get(pair)
        if reader is None or _begins_anew(reader, size, extent, now):
            self._readers[pair] = _begun_with(extent, size, now)
            if reader is not None:
                self._readers.move_to_end(pair)
            elif len(self._readers) > READERS_MAX:
                self._readers.popitem(last=False)
            return _BEGUN
        self._readers.move_to_end(pair)
        _advance(reader, extent, now)
        return RequestMeaning(opened=False, ahead=_ahead(reader))

    def move(self, items: Mapping[Any, Hashable]) -> None:
        """The objects have other names from now on."""
        moved = ((client, items.get(item, item)) for client, item in self._readers)
        self._readers = OrderedDict(zip(moved, self._readers.values(), strict=True))


def _begins_anew(reader: Reader, size: int, extent: Extent, now: float) -> bool:
    if reader.size != size or now - reader.last > ABANDONED_S:
        return True
    # The retry of a part that failed overlaps too. Only a reader that had nearly all of the object begins it again.
    return reader.complete and 2 * reader.overlap(extent) >= extent.length


def _begun_with(extent: Extent, size: int, now: float) -> Reader:
    jumps = extent.start > 0 and not _is_near(extent, 0)
    return Reader(size, now, [extent], extent.stop - extent.start, 1, jumps)


def _is_near(extent: Extent, end: int) -> bool:
    """Whether the extent begins at `end` or not far behind it."""
    return 0 <= extent.start - end <= 10 * max(extent.length, 1)


def _advance(reader: Reader, extent: Extent, now: float) -> None:
    end = reader.covered[-1].stop
    # A request goes forward if it is near the end of the bytes requested so far, or closes a gap before that.
    fills_a_gap = extent.start < end and any(known.stop == extent.start for known in reader.covered)
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
    """The window after the last byte requested."""
    if reader.ahead_bytes == 0:
        return None
    end = reader.covered[-1].stop
    stop = min(reader.size, end + reader.ahead_bytes)
    return Extent(end, stop) if stop > end else None


# The number of readers falls by at most this factor with each object that is opened.
_READERS_KEPT = 0.99


class OpenObjects:
    """Counts the clients that read each object, and remembers when a client last read of it."""

    def __init__(self) -> None:
        # Clients that read the object, and when one of them last read of it; the longest silent object first.
        self._open: OrderedDict[Item, tuple[int, float]] = OrderedDict()
        self._readers = 1.0
        self.readers = 1
        """The number of readers lately. It falls slowly, because a reader between two shards has no object open."""

    def __contains__(self, item: Item) -> bool:
        return item in self._open

    def opened(self, item: Item, now: float) -> None:
        before = self._open.get(item)
        if before is None:
            self._open[item] = 1, now
        else:
            self._open[item] = before[0] + 1, now
            self._open.move_to_end(item)
        _, since = next(iter(self._open.values()))
        if now - since > ABANDONED_S:
            self._close_abandoned(now)
        count, faded = len(self._open), self._readers * _READERS_KEPT
        self._readers = count if count > faded else faded
        self.readers = round(self._readers)

    def touched(self, item: Item, now: float) -> None:
        """A client has read some of the object."""
        if item in self._open:
            self._open[item] = (self._open[item][0], now)
            self._open.move_to_end(item)

    def ended(self, item: Item) -> None:
        """One of its clients has read the whole object."""
        count, since = self._open[item]
        if count > 1:
            self._open[item] = (count - 1, since)
        else:
            self._close(item)

    def move(self, items: Mapping[Item, Item]) -> None:
        self._open = OrderedDict((items.get(item, item), open_by) for item, open_by in self._open.items())

    def forget(self, dataset: Dataset) -> None:
        for item in [item for item in self._open if item[0] is dataset]:
            self._close(item)

    def _close_abandoned(self, now: float) -> None:
        while self._open:
            item, (_, since) = next(iter(self._open.items()))
            if now - since <= ABANDONED_S:
                return
            self._close(item)

    def _close(self, item: Item) -> None:
        self._open.pop(item, None)
        cached = item[0].cached.get(item[1])
        if cached is not None:
            cached.reading, cached.served = False, 0


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
        if not self._reported:
            return []
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
