"""How origins differ, as far as it changes how a bucket is asked: oddities that were learned from a reply, and
forgotten after a while; names that stay uncached; and validators that prove nothing.

A version is named by its ETag, its size and its date. All come from the origin, so each reply is compared with the
earlier ones. A date has a resolution of one second: an ETag that is no hash, and was seen with two, names nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cachetools import LRUCache, TTLCache

from outrider.core.model import is_hash
from outrider.core.origin.oddities import Oddity, Uncached

# An origin may be mended, or a gateway before it taken away. To learn a quirk anew costs one request.
_KEPT_S = 3600.0
_QUIRKS_MAX = 10_000
# An object that stays uncached is not looked up for so long. After so many of one kind in a row, none of the kind is.
_UNASKED_S = 60.0
_ROW = 3


class Quirks:
    """Bounded. A quirk holds for a bucket: buckets of one endpoint may lie in stores of different kinds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: in seconds, monotonic."""
        self._known: TTLCache[tuple[str, Oddity], None] = TTLCache(_QUIRKS_MAX, _KEPT_S, clock)
        # Most origins have none, and each miss asks.
        self._has_any = False

    def has(self, bucket: str | None, *kinds: Oddity) -> bool:
        """Whether the bucket is known for one of these."""
        return self._has_any and any((bucket or "", kind) in self._known for kind in kinds)

    def learn(self, bucket: str | None, kind: Oddity) -> None:
        self._has_any = True
        self._known[bucket or "", kind] = None

    def unlearn(self, bucket: str, kind: Oddity) -> None:
        if self._has_any:
            self._known.pop((bucket, kind), None)


class UncachedNames:
    """Objects that stay uncached because of an oddity. They are not looked up again for a while: the question would
    be put to the origin in vain, beside the request that is forwarded.

    After three such objects of one kind (see `note`) without a cacheable one between them, none of the kind is asked
    about for as long.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._names: TTLCache[object, Oddity | Uncached] = TTLCache(_QUIRKS_MAX, _UNASKED_S, clock)
        # How many names of each kind stayed uncached in a row. The count outlives `_names`: after the pause one object
        # that stays uncached is enough for the next pause.
        self._in_row: TTLCache[object, int] = TTLCache(_QUIRKS_MAX, _KEPT_S, clock)
        self.has_any = False
        """False: no name stays uncached. Each miss looks."""

    def note(self, name: object, kinds: Iterable[object], why: Oddity | Uncached) -> None:
        """`name` stays uncached. `kinds`: names for the objects that are like it."""
        self.has_any = True
        known = self._names.get(name) is not None
        self._names[name] = why
        for kind in kinds:
            count = self._in_row[kind] = self._in_row.get(kind, 0) + (not known)
            if count >= _ROW:
                self._names[kind] = why

    def cached(self, kinds: Iterable[object]) -> None:
        """An object of these kinds can be cached."""
        for kind in kinds:
            self._in_row.pop(kind, None)

    def why(self, name: object, kinds: Iterable[object]) -> Oddity | Uncached | None:
        """Why the object is not to be looked up; None: look it up."""
        found = self._names.get(name)
        return found or next((self._names[kind] for kind in kinds if kind in self._names), None)


_NAMES_MAX = 10_000
# An object may be uploaded once or twice more, and be read within two seconds each time.
_DATES_MAX = 3
_OF_NOTHING = "d41d8cd98f00b204e9800998ecf8427e"


def is_of_nothing(etag: str) -> bool:
    """Whether this is the ETag of an empty object."""
    return etag[1:-1].lower() == _OF_NOTHING


@dataclass(frozen=True, slots=True)
class ReplyFacts:
    """The facts about an object in one reply. `encoding`: its Content-Encoding; None: it has none, as `modified`, its
    Last-Modified. `settled`: a later write must have another date (`core.cache.freshness.is_settled`). `by_head`: the
    reply was to a HEAD."""

    etag: str
    size: int
    encoding: str | None
    modified: str | None
    settled: bool
    by_head: bool


class Witnesses:
    """Bounded: what falls out is no witness any more."""

    def __init__(self) -> None:
        self._by_get: LRUCache[object, ReplyFacts] = LRUCache(_NAMES_MAX)
        self._by_head: LRUCache[object, ReplyFacts] = LRUCache(_NAMES_MAX)
        # The object and the size that each ETag was last seen with.
        self._sizes: LRUCache[tuple[str, str], tuple[object, int]] = LRUCache(_NAMES_MAX)
        self._shared: LRUCache[tuple[str, str], None] = LRUCache(_NAMES_MAX)
        # The date that an ETag last came with, and how often it was another one: of objects that seem to have just been
        # written.
        self._dates: LRUCache[tuple[object, str], tuple[str | None, int]] = LRUCache(_NAMES_MAX)

    def judge(self, bucket: str, name: object, facts: ReplyFacts) -> Oddity | None:
        """The oddity of the validator in a reply about the object `name`; None: none is known.

        HEAD_SIZE_OTHER and HEAD_ETAG_OTHER blame the reply to a HEAD, be that this one or the one before it.
        """
        same, other = (self._by_head, self._by_get) if facts.by_head else (self._by_get, self._by_head)
        before, beside = same.get(name), other.get(name)
        same[name] = facts
        etag = bucket, facts.etag
        last, self._sizes[etag] = self._sizes.get(etag), (name, facts.size)
        # Replies to the same method first: only where these agree is it the method that makes the difference.
        odd = None if before is None else _compared(before, facts)
        if odd is None and beside is not None:
            odd = _compared(beside, facts)
        if last is not None and last[0] != name and last[1] != facts.size:
            odd = Oddity.ETAG_SHARED
        if odd is Oddity.ETAG_SHARED:
            self._shared[etag] = None
        if self._dates_anew(name, facts) and odd is None:
            odd = Oddity.DATE_CHANGES
        return Oddity.ETAG_SHARED if etag in self._shared else odd

    def _dates_anew(self, name: object, facts: ReplyFacts) -> bool:
        """Whether the store gives the time of the reply for want of another date."""
        if facts.settled:
            self._dates.pop((name, facts.etag), None)
            return False
        modified, changes = self._dates.get((name, facts.etag), (facts.modified, 0))
        changes += facts.modified != modified
        self._dates[name, facts.etag] = facts.modified, changes
        return changes >= _DATES_MAX


def _compared(before: ReplyFacts, now: ReplyFacts) -> Oddity | None:
    dated = before.modified is not None and now.modified is not None
    rewritten = dated and before.modified != now.modified
    if before.etag == now.etag:
        if before.size != now.size:
            if before.by_head != now.by_head and not rewritten:
                return Oddity.HEAD_SIZE_OTHER
            return Oddity.ETAG_SHARED if rewritten else Oddity.SIZES_DIFFER
        if before.encoding != now.encoding and not rewritten:
            # A strong ETag names the encoded bytes (RFC 9110 section 8.8.1): here it names others as well.
            return Oddity.ENCODED
        return Oddity.ETAG_SHARED if rewritten and not is_hash(now.etag) else None
    # Another ETag is another version, unless the origin says itself that nothing was written.
    if not dated or rewritten or not before.settled:
        return None
    if before.by_head != now.by_head:
        return Oddity.HEAD_ETAG_OTHER
    return Oddity.ETAG_CHANGES if before.size == now.size else None
