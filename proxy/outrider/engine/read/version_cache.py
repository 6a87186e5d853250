"""The version cache: the version of each object, when the origin was last asked about it, and which names a write made
doubtful."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.freshness import DOUBT_S, Freshness, is_fresh
from outrider.core.cluster.peer_messages import Confirmed
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.packed_version import unpack
from outrider.core.s3.list_page import ListedObject
from outrider.core.s3.operation import without_tenant
from outrider.engine.read.forget_log import ForgetLog, GenerationTimes
from outrider.engine.read.version_rows import Entry, Mark, VersionRows
from outrider.ports import Belief, Clock, Name

_DOUBTS_MAX = 10_000
_DROPPED_MAX = 10_000
AGE_UNKNOWN_S = 1e9
"""The age of a version that nobody is to believe without a question to the origin."""
# LISTs confirm a version for this many times its time to live; then a HEAD looks the object up. A LIST comes
# after three quarters of each time to live, and a page of 1,000 names costs as much as a dozen HEADs (S3's price list):
# one HEAD for each name after so many LISTs costs the same again.
_LISTS_PER_HEAD = 60


@dataclass(slots=True)
class Known:
    """A version that may be served without asking until the clock says `until`, as long as `VersionCache.changes` is
    `changes`. `HitLookup.is_current` says whether that is so."""

    version: ObjectVersion
    version_id: bytes
    """The name of its blocks."""
    until: float
    changes: int


def _without_tenant(ref: ObjectRef) -> ObjectRef:
    """The name under which a write of `ref` is noted: it may be seen by any other tenant's name of the bucket."""
    return ref if ":" not in ref.bucket else ObjectRef(without_tenant(ref.bucket), ref.key)


class VersionCache:
    """Bounded, LRU."""

    def __init__(
        self, origin: str, freshness_of: Callable[[ObjectRef], Freshness], clock: Clock, capacity: int,
        identify: Callable[[ObjectVersion], bytes] = lambda version: bytes(16),
    ) -> None:  # fmt: skip
        """`identify`: see `Known.version_id`."""
        self._origin = origin
        self._freshness_of = freshness_of
        self._clock = clock
        self._entries = VersionRows(identify)
        self._capacity = capacity
        self._began = clock()
        self._generation = 1
        self._recalling = True
        self.on_other: Callable[[ObjectRef], None] = lambda ref: None
        """Called when the origin turned out to have another version of a name than was believed, or none."""
        self.changes = 0
        """Grows whenever a belief about any name ends: what was looked up before may not hold any more."""
        self.on_change: Callable[[int], None] = lambda changes: None
        """Called at once with each new value of `changes`."""
        self._times = GenerationTimes()
        self._forgotten = ForgetLog(capacity)
        self._forgotten_buckets = ForgetLog(10_000)
        # Names that left `_entries` while they may have blocks on disk.
        self._dropped = ForgetLog(_DROPPED_MAX)
        # Until when no answer about a name, or about a bucket, is believed.
        self._doubted: dict[Name, float] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def _change(self) -> None:
        self.changes += 1
        self.on_change(self.changes)

    def mark(self) -> Mark:
        return Mark(self._generation, self._clock())

    def may_take_from_peers(self, ref: ObjectRef) -> bool:
        """Whether an answer that another member got from the origin earlier may do: not where each read must ask."""
        return self._freshness_of(ref).ttl_s > 0

    def mark_at(self, moment: float) -> Mark:
        """The mark of a question that another member put to the origin at `moment`, by this node's clock, or later."""
        return Mark(self._times.at(moment, self._generation), moment)

    def believes(self, ref: ObjectRef, mark: Mark) -> bool:
        """Whether an answer to a question put at `mark` holds: `ref` was not forgotten since."""
        if mark.generation == self._generation and not self._doubted:
            return True  # nothing was forgotten since
        if ":" in ref.bucket:
            ref = _without_tenant(ref)
        last = max(self._forgotten.last(ref), self._forgotten_buckets.last(ref.bucket))
        if self._doubted and mark.at < max(self._doubted.get(ref, -inf), self._doubted.get(ref.bucket, -inf)):
            return False
        return last <= mark.generation

    def will_be_fresh(self, ref: ObjectRef, mark: Mark) -> bool:
        """Whether the answer to a question put at `mark` is fresh enough for a read that comes now."""
        return self.believes(ref, mark) and is_fresh(mark.at, self._clock(), self._freshness_of(ref))

    def fresh(self, ref: ObjectRef) -> ObjectVersion | None:
        """The version to serve without asking; None: ask first."""
        row = self._entries.find(ref)
        if row < 0 or self._fresh_mark(ref, row) is None:
            return None
        self._entries.use(row)
        return self._entries.version(row)

    def look(self, ref: ObjectRef) -> Known | None:
        """As `fresh`, without counting as a use for the LRU order."""
        # Read before the entry: a change in between makes the answer one that no longer holds.
        changes = self.changes
        row = self._entries.find(ref)
        mark = None if row < 0 else self._fresh_mark(ref, row)
        if mark is None:
            return None
        freshness = self._freshness_of(ref)
        until = inf if freshness.ttl_s == inf else mark.at + freshness.ttl_s
        return Known(*self._entries.look(row), until, changes)

    def _fresh_mark(self, ref: ObjectRef, row: int) -> Mark | None:
        """The mark of the object's entry; None: it is not fresh."""
        mark = self._entries.mark(row)
        return mark if mark is not None and self.will_be_fresh(ref, mark) else None

    def stale(self, ref: ObjectRef) -> ObjectVersion | None:
        """The version last known, unless a write made it doubtful. It may stand in while the origin is down."""
        entry = self._entries.get(ref)
        if entry is None or not self.believes(ref, entry.known_mark):
            return None
        return entry.version

    def likely(self, ref: ObjectRef) -> ObjectVersion | None:
        """As `stale`. A doubt about all names does not count: most of them were not written."""
        entry = None if (row := self._entries.find(ref)) < 0 else self._entries.entry(row)
        if entry is None or self._last_write(ref) > entry.known_mark.generation:
            return None
        return entry.version

    def was_written(self, ref: ObjectRef, since: float) -> bool:
        """Whether a write of `ref` is known that began or ended at this moment, or later."""
        return self._last_write(ref) > self.mark_at(since).generation

    def _last_write(self, ref: ObjectRef) -> int:
        ref = _without_tenant(ref)
        return max(self._forgotten.last_by_name(ref), self._forgotten_buckets.last_by_name(ref.bucket))

    def age_s(self, version: ObjectVersion) -> float:
        """The seconds since the origin confirmed the version, as far as is known."""
        entry = self._entries.get(version.ref)
        if entry is None or entry.mark is None or entry.version.identity != version.identity:
            return AGE_UNKNOWN_S
        return min(self._clock() - entry.mark.at, AGE_UNKNOWN_S)

    def confirmed(self, ref: ObjectRef) -> Confirmed | None:
        """The version to give another member without asking; None: ask first."""
        fresh, entry = self.look(ref), self._entries.get(ref)
        if fresh is None or entry is None:
            return None
        return Confirmed(fresh.version, self._clock() - entry.known_mark.at, entry.settled_at > -inf)

    def learn(self, version: ObjectVersion, mark: Mark, *, settled: bool = False) -> None:
        """The origin answered with `version` to a question put at `mark`. `settled`: a later overwrite will have
        another date (`freshness.is_settled`)."""
        row = self._entries.find(version.ref)
        entry = None if row < 0 else self._entries.entry(row)
        if entry is not None and entry.mark is not None and entry.mark > mark:
            return  # a question put later was answered earlier
        if entry is not None and entry.version != version:
            self._change()
            if entry.version.identity != version.identity:
                self.on_other(version.ref)
        # An answer from before a write is kept as well. It is not fresh, but the next question may confirm it.
        self._enter(Entry(version, mark, mark.at if settled else -inf), row)

    def gone(self, ref: ObjectRef) -> None:
        """The origin has no such object. That is not remembered: the next read asks again."""
        if self._entries.pop(ref):
            self._dropped.note(ref, 1)
            self._change()
            self.on_other(ref)
        self._keep_from_recall(ref)

    def _keep_from_recall(self, ref: ObjectRef) -> None:
        """The origin was asked about `ref`, and no entry says so: a block that the start still finds is older."""
        if self._recalling:
            self._forgotten.note(_without_tenant(ref), self._generation)

    def may_have(self, ref: ObjectRef) -> bool:
        """Whether `ref` may have blocks on disk. Never wrongly False once all blocks that a start found were
        recalled."""
        return self._entries.find(ref) >= 0 or self._dropped.last(ref) > 0

    def recall(self, origin: str, belief: Belief) -> None:
        """Blocks of a version were found on disk: see `ports.Versions`. `belief.vouched`: a LIST entry with the same
        ETag, size and date confirms it without a HEAD, as nothing was written through us since that changes headers and
        not the date."""
        version, age_s, vouched = belief
        if origin != self._origin:
            return
        mark = None if age_s is None else self._mark_before(age_s)
        known = self._entries.get(version.ref)
        if known is not None and not self._supersedes(known, Entry(version, mark), vouched=vouched):
            return
        self._enter(Entry(version, mark, self._clock() if vouched else -inf), self._entries.find(version.ref))

    def expect(self, count: int) -> None:
        """See `ports.Versions`."""
        self._entries.expect(min(count, self._capacity))

    def recall_all(
        self, origin: str, refs: Sequence[ObjectRef], packed: Sequence[bytes], ages_s: Sequence[float | None],
        vouched: Sequence[bool],
    ) -> None:  # fmt: skip
        """As `recall` for each of many versions, by their packed forms."""
        if origin != self._origin:
            return
        left: Iterable[int] = range(len(refs))
        if len(self._entries) + len(refs) <= self._capacity:
            now = self._clock()
            marks = {age_s: None if age_s is None else self._mark_before(age_s) for age_s in set(ages_s)}
            left = self._entries.add_all(
                refs, packed, [marks[age_s] for age_s in ages_s],
                [now if is_vouched else -inf for is_vouched in vouched],
            )  # fmt: skip
        for place in left:
            self.recall(origin, Belief(unpack(packed[place]), ages_s[place], vouched[place]))

    def _supersedes(self, known: Entry, found: Entry, *, vouched: bool) -> bool:
        """Whether `found`, of which the start found one more block, takes the place of `known`."""
        if known.known_mark.generation:
            return False  # the origin was asked already
        if known.mark is None and found.mark is None:
            return vouched and known.version != found.version
        if known.mark and found.mark and known.version.identity != found.version.identity:
            self.forget(found.version.ref)
        # The headers that were confirmed last are the newest.
        return found.known_mark > known.known_mark

    def recalled(self) -> None:
        """All blocks that the start found were recalled."""
        self._recalling = False

    def _mark_before(self, age_s: float) -> Mark:
        """The mark of a question that was put so long ago, before this process began."""
        return Mark(0, min(self._clock() - age_s, self._began))

    def belief(self, origin: str, version: ObjectVersion) -> Belief:
        """The belief in `version` after a stop and a start: see `ports.Versions`."""
        entry = self._entries.get(version.ref)
        if origin != self._origin or entry is None:
            return Belief(version)
        if entry.version is not version and entry.version.identity != version.identity:
            return Belief(version)
        if not self.believes(version.ref, entry.known_mark):
            return Belief(version)
        age_s = None if entry.mark is None else self._clock() - entry.mark.at
        return Belief(entry.version, age_s, entry.settled_at > -inf)

    def confirmed_at(self, wall_clock: Clock, meta: BlockMeta) -> float:
        """See `ports.Versions`."""
        age_s = self.belief(meta.layout.origin, meta.version).age_s
        return 0.0 if age_s is None else wall_clock() - age_s

    def listed(self, bucket: str, objects: Iterable[ListedObject], mark: Mark) -> None:
        """A LIST that was requested at `mark` shows these objects. It confirms an entry that has the listed version. An
        object with another version is looked up when it is read.

        Source: S3 user guide, "Amazon S3 data consistency model": LIST is as good as HEAD. Three cases need a HEAD all
        the same, as a LIST does not show headers. After a write through us the object itself is asked, also when the
        write was before a start: the headers of the fill may be older than the write, as with tags. Now and then each
        object is asked itself, since others may write headers without a change of the date. And as long as a second
        PUT could have the same date, a LIST confirms nothing.
        """
        for listed in objects:
            row = self._entries.find(ref := ObjectRef(bucket, listed.key))
            entry = self._entries.entry(row)
            if entry is None or entry.known_mark > mark:
                continue
            if not self.believes(ref, mark) or not self.believes(ref, entry.known_mark):
                continue
            version = entry.version
            if not listed.etag and listed.size in (-1, version.size):
                # A store that lists no ETags says nothing of the version.
                continue
            if not listed.is_version(version.etag, version.size, dict(version.headers).get("last-modified")):
                self._entries.confirm(row, None, -inf)
                self._change()
                self._keep_from_recall(ref)
                self.on_other(ref)
            elif mark.at < entry.settled_at + _LISTS_PER_HEAD * self._freshness_of(ref).ttl_s:
                self._entries.confirm(row, mark, entry.settled_at)

    def _enter(self, entry: Entry, row: int) -> None:
        """`row`: that of the object, as it was found."""
        self._entries.put(entry, row)
        if len(self._entries) > self._capacity:
            dropped = self._entries.pop_oldest()
            ref = dropped.version.ref
            self._dropped.note(ref, 1)
            if dropped.known_mark.generation:
                self._keep_from_recall(ref)
            # An answer about a name that has fallen out would not show as a change of it.
            self._change()

    def forget(self, ref: ObjectRef) -> None:
        """A write is about to change `ref`, or has changed it: the next read asks the origin, and no older answer is
        believed."""
        self._next_generation()
        self._forgotten.note(_without_tenant(ref), self._generation)
        self._change()

    def forget_now(self, ref: ObjectRef) -> int:
        """As `forget`; returns the number of changes afterwards."""
        self.forget(ref)
        return self.changes

    def _next_generation(self) -> None:
        self._times.note(self._clock(), self._generation)
        self._generation += 1

    def forget_all(self) -> None:
        """Writes may have been missed: each name is looked up before it is served again, `immutable` ones too."""
        self._next_generation()
        self._forgotten.note_all(self._generation)
        self._change()

    def forget_bucket(self, bucket: str) -> None:
        self._next_generation()
        self._forgotten_buckets.note(without_tenant(bucket), self._generation)
        self._change()

    def doubt(self, name: Name, for_s: float = DOUBT_S) -> None:
        """A write ended without an answer, and the origin may still carry it out: for a while each read of the name, or
        of the bucket, asks the origin."""
        if isinstance(name, str):
            self.forget_bucket(name)
            name = without_tenant(name)
        else:
            self.forget(name)
            name = _without_tenant(name)
        self._doubted.pop(name, None)
        self._doubted[name] = self._clock() + for_s
        if len(self._doubted) > _DOUBTS_MAX:
            del self._doubted[next(iter(self._doubted))]

    def doubts(self) -> list[tuple[Name, float]]:
        """The names, and buckets, that are in doubt, and for how long they still are."""
        now = self._clock()
        return [(name, until - now) for name, until in self._doubted.items() if until > now]
