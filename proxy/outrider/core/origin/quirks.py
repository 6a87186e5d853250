"""The oddities of each bucket that change how it is asked: learned from a reply, and forgotten after a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cachetools import TTLCache

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
