"""The state of one warm-up: the objects that are wanted, and how much of each is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

from outrider.core.block_layout import BlockLayout
from outrider.core.errors import InvalidRequest
from outrider.core.maintenance.copies import in_words, too_many
from outrider.core.maintenance.object_list import ObjectList
from outrider.core.maintenance.progress import FAILURES_REPORTED_MAX, Progress, State
from outrider.core.maintenance.progress_sum import warmup_sum
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion, VersionIdentity
from outrider.core.origin.token_bucket import TokenBucket
from outrider.engine.maintenance.own_part import OwnPart

May = Callable[[ObjectRef], bool]
"""Whether the client that asked for the warm-up may read an object."""

# So many objects are counted anew before other tasks of the loop run.
_COUNTED_AT_ONCE = 500
# Recounts take at most this share of the time.
_RECOUNT_SHARE = 0.05


@dataclass(slots=True)
class Item:
    """One object. `size` -1: unknown. `version_id` empty: the names of its blocks are unknown. `on_disk`: how many of
    its bytes were seen on disk. `wanted_bytes`: how many of them this node is to have; 0 while the size is unknown.
    `counts`: this node counts the object. `room_bytes`: the room that was found for it. `etag`: as the LIST shows it;
    empty: unknown. `modified`: see `VersionIdentity`."""

    ref: ObjectRef
    size: int = -1
    wanted_bytes: int = 0
    counts: bool = True
    etag: str = ""
    modified: str = ""
    version_id: bytes = b""
    on_disk: int = 0
    whole: bool = False
    failed: bool = False
    room_bytes: int = 0

    def is_now(self, version: ObjectVersion, version_id: bytes) -> None:
        self.is_named(version.identity)
        self.size, self.version_id = version.size, version_id
        self.on_disk, self.whole = 0, False

    def is_named(self, identity: VersionIdentity) -> None:
        """A LIST, or another member, has named its version."""
        self.etag, self.modified = identity.etag, identity.modified

    @property
    def identity(self) -> VersionIdentity:
        return VersionIdentity(self.etag, self.size, self.modified)


@dataclass(slots=True)
class Warmup:
    """`owner`: the access key of the client that asked, and `client` that key's name; both are empty where clients have
    no keys. `body`: the list as it was sent. `at`: seconds since 1970; `now`: of the runner's clock. `bytes_per_s`: its
    bandwidth limit; 0: none."""

    owner: str
    client: str
    name: str
    body: bytes
    at: float
    wanted: ObjectList
    may: May
    now: InitVar[float]
    bytes_per_s: InitVar[float]
    progress: Progress = field(init=False)
    allowance: TokenBucket = field(init=False)
    items: dict[ObjectRef, Item] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    copies: int = 1
    """The members that keep each block; see `core.maintenance.copies`."""
    need_bytes: int = 0
    """How much of the cache the objects take, as far as their sizes are known."""
    room_bytes: int = 0
    """How much there is for them."""
    is_copying: bool = False
    """All that this node owns was fetched, and copies of others are fetched now."""
    trusting: bool = False
    """Blocks that a start found on disk count without a check: they are verified before they are read."""
    is_divided: bool = False
    """Each member of the cluster fetches the blocks that it owns."""
    part: OwnPart | None = None
    """The blocks that are wanted here; None: all."""
    is_led: bool = False
    """This member sees to it that all members do their parts."""
    is_passed_on: bool = False
    """Another member passed it on to this one, and sees to it."""
    other_parts: Sequence[Mapping[str, Any]] = ()
    """The parts of the other members, as they were last reported."""
    _removals: int = -1
    _count_after: float = 0.0

    def __post_init__(self, now: float, bytes_per_s: float) -> None:
        self.progress, self.allowance = Progress(now), TokenBucket(bytes_per_s, now)

    @property
    def running(self) -> bool:
        return self.progress.state is State.RUNNING

    def add(self, refs: Iterable[tuple[ObjectRef, int]]) -> None:
        """Want these objects, too, unless they are wanted already; each with its size (-1: unknown)."""
        own = None if self.part is None else self.part.own
        for ref, size in refs:
            if ref not in self.items:
                # The owner of an object's first block counts the object.
                counts = own is None or own.has(ref, 0)
                item = self.items[ref] = Item(ref, counts=counts)
                self.progress.wanted_objects += counts
                self.progress.unsized += counts
                self._is_sized(item, size)

    def divide_anew(self, now: float) -> None:
        """Begin again with no object, since blocks have other owners."""
        self.progress, self.items, self.need_bytes = Progress(now), {}, 0

    async def divide_known(self, part: OwnPart, now: float) -> None:
        """Begin again with the same objects, of which this node keeps `part`. In steps: there may be many."""
        anew = replace(self, now=now, bytes_per_s=0.0, part=part, items={}, need_bytes=0)
        items = list(self.items.values())
        for start in range(0, len(items), _COUNTED_AT_ONCE):
            some = items[start : start + _COUNTED_AT_ONCE]
            anew.add((item.ref, item.size) for item in some)
            for item in some:
                anew.items[item.ref].is_named(item.identity)
                anew.items[item.ref].version_id = item.version_id
            await asyncio.sleep(0)
        self.part, self.progress, self.items = part, anew.progress, anew.items

    @property
    def fetching(self) -> OwnPart | None:
        """The blocks that are fetched now: the own ones before copies of others, so that nobody asks an owner for
        blocks that it does not have yet while it could fetch them. None: all."""
        return self.part if self.part is None or self.is_copying else self.part.own

    def fetching_bytes(self, item: Item, size: int) -> int:
        """How many bytes of an object of `size` bytes are fetched now."""
        part = self.fetching
        if part is self.part and size == item.size:
            return item.wanted_bytes
        return size if part is None else part.share(item.ref, size).size

    def fetching_blocks(self, item: Item, layout: BlockLayout) -> Iterable[tuple[BlockKey, int]]:
        """As `blocks`, those that are fetched now; copies of others in the turns of `View.turn`."""
        part = self.fetching
        blocks = self.blocks(item, layout, part)
        if part is None or part.copies == 1:
            return blocks
        return sorted(blocks, key=lambda block: part.view.turn(item.ref, block[0].index))

    def blocks(self, item: Item, layout: BlockLayout, part: OwnPart | None) -> Iterator[tuple[BlockKey, int]]:
        """The blocks in `part` of an object whose size is known, each with its length in bytes."""
        for index in range(layout.count(item.size)):
            if part is None or part.has(item.ref, index):
                yield BlockKey(item.version_id, index), layout.extent(index, item.size).length

    def _is_sized(self, item: Item, size: int) -> None:
        if size != item.size:
            wanted = max(0, size) if self.part is None else self.part.share(item.ref, max(0, size)).size
            self.progress.wanted_bytes += wanted - item.wanted_bytes
            self.progress.unsized -= item.counts * ((item.size < 0) - (size < 0))
            item.size, item.wanted_bytes = size, wanted

    def again(self, now: float) -> None:
        """Begin again with the same objects."""
        progress = self.progress = Progress(now)
        for ref, item in self.items.items():
            # Which of it is wanted here takes a while to compute, for many objects.
            self.items[ref] = Item(ref, item.size, item.wanted_bytes, item.counts, item.etag, item.modified)
            progress.wanted_objects += item.counts
            progress.unsized += item.counts * (item.size < 0)
            progress.wanted_bytes += item.wanted_bytes

    def sized(self, item: Item, listed: VersionIdentity) -> None:
        """A LIST has named the version of `item`."""
        self._is_sized(item, listed.size)
        item.is_named(listed)

    def found(self, item: Item, version: ObjectVersion, version_id: bytes) -> None:
        """`version` of `item` is the one that is fetched."""
        self._is_sized(item, version.size)
        self.progress.bytes -= item.on_disk
        item.is_now(version, version_id)

    def confirm(self, item: Item, count: int, now: float, *, fetched: bool) -> None:
        """`count` more bytes of `item` were seen on disk. `fetched`: for this warm-up."""
        item.on_disk += count
        self.progress.bytes += count
        if fetched:
            self.progress.fetched(count, now)

    def completed(self, item: Item) -> None:
        if not item.whole:
            item.whole = True
            self.progress.objects += item.counts

    def recount(self, has: Callable[[BlockKey], bool], layout: BlockLayout, removals: int, clock: Callable[[], float],
                *, at_once: bool = False) -> None:  # fmt: skip
        """Count again which objects are whole, unless that was done a moment ago: blocks may have been evicted since
        they were seen."""
        if removals == self._removals or (clock() < self._count_after and not at_once):
            return
        began, self._removals = clock(), removals
        for item in self.items.values():
            if item.version_id and (item.whole or not self.running):
                on_disk = sum(length for key, length in self.blocks(item, layout, self.part) if has(key))
                self.progress.bytes += on_disk - item.on_disk
                self.progress.objects += item.counts * ((on_disk == item.wanted_bytes) - item.whole)
                item.on_disk, item.whole = on_disk, on_disk == item.wanted_bytes
        self._count_after = clock() + (clock() - began) / _RECOUNT_SHARE

    def report(self, now: float, failures_max: int = FAILURES_REPORTED_MAX) -> dict[str, Any]:
        """The progress; of a warm-up that is divided among members, that of all of them."""
        part = self.own_report(now, failures_max)
        return warmup_sum([part, *self.other_parts], under_way=self.is_led) if self.is_led or self.other_parts else part

    def own_report(self, now: float, failures_max: int = FAILURES_REPORTED_MAX) -> dict[str, Any]:
        """The progress of this node's part."""
        note = too_many(self.copies, 1 if self.part is None else len(self.part.view.ring.members))
        return {"name": self.name, "client": self.client, "copies": in_words(self.copies),
                **self.progress.report(now, failures_max), "notes": [] if note is None else [note]}  # fmt: skip


# Warm-ups of one owner. With plans and stalls they fit on one page of a LIST.
NAMES_MAX = 60
# Objects of all warm-ups of all owners together: some 250 bytes each.
_OBJECTS_HELD_MAX = 500_000


class Book:
    """Warm-ups by owner and name. Warm-ups that have ended make room for new ones, unless `keeps_ended`."""

    def __init__(self, *, keeps_ended: bool = False) -> None:
        self._keeps_ended = keeps_ended
        self._entries: dict[tuple[str, str], Warmup] = {}

    def get(self, owner: str, name: str) -> Warmup | None:
        return self._entries.get((owner, name))

    def of(self, owner: str) -> list[Warmup]:
        return [entry for entry in self._entries.values() if entry.owner == owner]

    def all(self) -> list[Warmup]:
        return list(self._entries.values())

    def put(self, warmup: Warmup) -> None:
        """Enter a warm-up; it replaces one of the same owner and name. Raises InvalidRequest: there are too many, and
        none has ended."""
        key = warmup.owner, warmup.name
        self._make_room([entry for entry in self.of(warmup.owner) if entry.name != warmup.name], NAMES_MAX - 1, len)
        others = [entry for entry in self.all() if (entry.owner, entry.name) != key]
        self._make_room(others, _OBJECTS_HELD_MAX - len(warmup.items) - len(warmup.wanted.refs), _objects)
        self._entries.pop(key, None)
        self._entries[key] = warmup

    def _make_room(self, entries: list[Warmup], most: int, measure: Callable[[list[Warmup]], int]) -> None:
        while measure(entries) > most:
            ended = None if self._keeps_ended else next((entry for entry in entries if not entry.running), None)
            if ended is None:
                raise InvalidRequest("There are too many here, or they name too many objects: delete some of them.")
            entries.remove(ended)
            self.pop(ended.owner, ended.name)

    def pop(self, owner: str, name: str) -> Warmup | None:
        return self._entries.pop((owner, name), None)


def _objects(entries: list[Warmup]) -> int:
    return sum(len(entry.items) for entry in entries)
