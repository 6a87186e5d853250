"""The keys of one dataset as numbers, and how far it is known which keys there are."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from outrider.core.ahead.numbered_names import NumberedNames

# After a LIST that failed; twice as long after each in a row.
_LIST_REST_S, _LIST_REST_MAX_S = 60.0, 3600.0


class Names:
    """The keys of one dataset as numbers, in the order in which they were met; `listed` has those that a LIST, an
    earlier run or their own numbers have shown, in the order of their names. Sizes in bytes, -1: not known."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.sizes: array[int] = array("q")
        self.listed: array[int] = array("i")
        self._rank: array[int] = array("i")
        # Those that a LIST shows, page by page, which is to take the place of what is listed.
        self._listed_anew: array[int] | None = None
        self._numbers: dict[str, int] = {}

    def number(self, key: str) -> int:
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.keys)
            self.keys.append(key)
            self.sizes.append(-1)
            self._rank.append(-1)
        return found

    def known(self, key: str) -> int | None:
        return self._numbers.get(key)

    def rank_of(self, key: int) -> int:
        """Which of the listed it is; -1: none."""
        return self._rank[key]

    def list(self, entries: Iterable[tuple[str, int]]) -> None:
        """Keys and sizes, in the order of the names."""
        self._list(self._sized(entries))

    def list_anew(self, entries: Iterable[tuple[str, int]]) -> None:
        """The same; what is listed so far stays until `replace`."""
        if self._listed_anew is None:
            self._listed_anew = array("i")
        self._listed_anew.extend(self._sized(entries))

    def _sized(self, entries: Iterable[tuple[str, int]]) -> Iterator[int]:
        for name, size in entries:
            key = self.number(name)
            if size >= 0:
                self.sizes[key] = size
            yield key

    def _list(self, keys: Iterable[int]) -> None:
        for key in keys:
            if self._rank[key] < 0:
                self._rank[key] = len(self.listed)
                self.listed.append(key)

    @property
    def is_listed_anew(self) -> bool:
        return self._listed_anew is not None

    def replace(self) -> bool:
        """What was listed anew is all that is listed. False: nothing was."""
        anew, self._listed_anew = self._listed_anew, None
        if anew is None:
            return False
        self.unlist()
        self._list(anew)
        return True

    def keep(self) -> None:
        """What was listed anew was not all: what was listed before it stays."""
        self._listed_anew = None

    def unlist(self) -> None:
        """Nothing is listed any more."""
        self.listed = array("i")
        self._rank = array("i", [-1]) * len(self.keys)


@dataclass(slots=True, eq=False)
class DiscoveryState:
    """How far it is known which names a dataset has: what is asked of the origin, and when it may be asked again.
    `discovery` decides."""

    # A LIST, or a count in its place, is asked for and not answered; the last LIST failed, be it after its first pages.
    wanted: bool = False
    cut: bool = False
    # There are more names than may be known.
    too_many: bool = False
    # No LIST before that; one was refused, and would be until then.
    not_before: float = 0.0
    refused_until: float = 0.0
    # How long a LIST is, in pages, when the last one was asked for, how many objects were opened since, and how many of
    # those had been here for so long that a LIST in time would have spared a question.
    pages: int = 1
    begun_at: float = 0.0
    reads_since: int = 0
    spared_since: int = 0
    # Of names that count: they are being asked about, as these; whether they were; whether what is listed goes by them,
    # and a LIST was asked for as they are not all; those that there are none of.
    counting: NumberedNames | None = None
    count_tried: bool = False
    counted: bool = False
    doubted: bool = False
    holes: set[int] = field(default_factory=set)
    _rest_s: float = _LIST_REST_S

    def begin(self, now: float) -> None:
        self.begun_at, self.reads_since, self.spared_since = now, 0, 0

    def failed(self, now: float) -> None:
        self.wanted, self.cut, self.not_before = False, True, now + self._rest_s
        self._rest_s = min(2 * self._rest_s, _LIST_REST_MAX_S)

    def no_longer_counted(self) -> None:
        self.counting, self.counted, self.doubted = None, False, False
        self.holes.clear()

    def forgotten(self) -> None:
        """The names are: they may be counted anew."""
        self.no_longer_counted()
        self.wanted = self.count_tried = False
