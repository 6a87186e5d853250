"""The names of one dataset's objects, numbered, and how far it is known which objects the dataset has."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import overload

from outrider.core.ahead.numbered_names_search import NumberedNames
from outrider.core.rows import RowIndex

# The rest after a LIST that failed; it doubles with each failure in a row.
_LIST_REST_S, _LIST_REST_MAX_S = 60.0, 3600.0


class ObjectKeys(Sequence[str]):
    """Keys one behind the other in UTF-8: 16 bytes for each beside its letters. A list and a dictionary of strings
    would take 150 more. Keys are added, and never removed."""

    def __init__(self) -> None:
        self._letters = bytearray()
        # Where each key ends.
        self._stops = array("Q")
        self._index = RowIndex()

    def __len__(self) -> int:
        return len(self._stops)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        if at < 0:
            at = range(len(self))[at]
        start = self._stops[at - 1] if at else 0
        # Each text has bytes of its own, as with "surrogateescape" it would not.
        return self._letters[start : self._stops[at]].decode("utf-8", "surrogatepass")

    def find(self, key: str) -> int:
        """The index of a key; -1: it is not here."""
        return self._index.find(hash(key), partial(self._is, key.encode("utf-8", "surrogatepass")))

    def _is(self, raw: bytes, index: int) -> bool:
        start = self._stops[index - 1] if index else 0
        return self._stops[index] - start == len(raw) and self._letters.startswith(raw, start)

    def add(self, key: str) -> None:
        """It must not be here."""
        self._letters += key.encode("utf-8", "surrogatepass")
        self._stops.append(len(self._letters))
        self._index.add(hash(key), len(self._stops) - 1)


class Names:
    """Each key of a dataset has an index: its place in the order in which the keys were met.

    `keys` and `sizes` are by index; sizes are bytes, -1: not known. `listed` has the indexes of the keys that a LIST,
    an earlier run or their numbering has shown, in the order of the keys.
    """

    def __init__(self) -> None:
        self.keys = ObjectKeys()
        self.sizes: array[int] = array("q")
        self.listed: array[int] = array("i")
        # By index: the place in `listed`, -1: not listed.
        self._places: array[int] = array("i")
        # The keys of a LIST that is under way and will replace `listed`; None: there is none.
        self._staged: array[int] | None = None

    def add(self, key: str) -> int:
        """The index of the key, which need not be new."""
        index = self.keys.find(key)
        return self.append(key) if index < 0 else index

    def append(self, key: str) -> int:
        """The index of a key that is not here."""
        self.keys.add(key)
        self.sizes.append(-1)
        self._places.append(-1)
        return len(self.keys) - 1

    def find(self, key: str) -> int | None:
        index = self.keys.find(key)
        return None if index < 0 else index

    def place_of(self, index: int) -> int:
        """The place in `listed`; -1: not listed."""
        return self._places[index]

    def list(self, entries: Iterable[tuple[str, int]]) -> None:
        """Adds keys and sizes to `listed`. They come in the order of the keys."""
        self._list(self._add_all(entries))

    def stage(self, entries: Iterable[tuple[str, int]]) -> None:
        """As `list`, but `listed` stays as it is until `commit_staged`."""
        if self._staged is None:
            self._staged = array("i")
        self._staged.extend(self._add_all(entries))

    @property
    def has_staged(self) -> bool:
        return self._staged is not None

    def commit_staged(self) -> bool:
        """The LIST is complete: the staged keys replace `listed`. False: nothing was staged."""
        staged, self._staged = self._staged, None
        if staged is None:
            return False
        self.unlist()
        self._list(staged)
        return True

    def discard_staged(self) -> None:
        """The LIST has failed: `listed` stays as it is."""
        self._staged = None

    def unlist(self) -> None:
        """Empties `listed`."""
        self.listed = array("i")
        self._places = array("i", [-1]) * len(self.keys)

    def _add_all(self, entries: Iterable[tuple[str, int]]) -> Iterator[int]:
        for key, size in entries:
            index = self.add(key)
            if size >= 0:
                self.sizes[index] = size
            yield index

    def _list(self, indexes: Iterable[int]) -> None:
        for index in indexes:
            if self._places[index] < 0:
                self._places[index] = len(self.listed)
                self.listed.append(index)


@dataclass(slots=True, eq=False)
class DiscoveryState:
    """How far it is known which objects a dataset has, and when the origin may be asked again.

    `Discovery` decides by it, and changes it. "Numbered" means that the names differ in one number that counts up (see
    `numbered_names_search`), so that a few HEADs show which objects there are.
    """

    # A LIST, or HEADs of numbered names in its place, was requested.
    requested: bool = False
    # The last LIST failed, perhaps after its first pages.
    list_failed: bool = False
    # The names were listed to their end once: for people, who else take the names met so far for all.
    is_whole: bool = False
    # The dataset has more names than may be remembered.
    too_many_names: bool = False
    # No LIST before this time, as the last one failed.
    list_not_before: float = 0.0
    # No LIST before this time, as the last one was refused.
    refused_until: float = 0.0
    # The pages of a LIST of the dataset.
    pages: int = 1
    # When the origin was last asked which objects there are.
    requested_at: float = 0.0
    # The objects opened since then.
    opened_since: int = 0
    # Those of them that had been here for so long that a LIST in time would have spared a HEAD.
    spared_since: int = 0
    # The numbering that is being looked up.
    numbering: NumberedNames | None = None
    # A numbering of these names was looked up, whatever the result.
    numbering_tried: bool = False
    # The listed names come from their numbering, not from a LIST.
    is_numbered: bool = False
    # A LIST was requested, because the numbered names are not exactly the objects that there are.
    is_doubted: bool = False
    # The indexes of numbered names for which there is no object.
    missing: set[int] = field(default_factory=set)
    _rest_s: float = _LIST_REST_S

    def looked_up(self, now: float) -> None:
        """The origin is asked which objects there are."""
        self.requested_at, self.opened_since, self.spared_since = now, 0, 0

    def failed(self, now: float) -> None:
        """A LIST has failed."""
        self.requested, self.list_failed, self.list_not_before = False, True, now + self._rest_s
        self._rest_s = min(2 * self._rest_s, _LIST_REST_MAX_S)

    def forget_numbering(self) -> None:
        self.numbering, self.is_numbered, self.is_doubted = None, False, False
        self.missing.clear()

    def forget_names(self) -> None:
        """The names were forgotten: the origin may be asked about them again."""
        self.forget_numbering()
        self.requested = self.numbering_tried = self.is_whole = False
