"""Which objects belong together: names with one template are a dataset, and its keys are numbered."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from outrider.core.memo import Memo
from outrider.core.model import shared_text

# The long hexadecimal names that tools give to parts, and numbers that count: short ones (`v2/`, `train2-`) name a set,
# but for the last in a name, and for one of so many (`3-of-8`).
_VARIES = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[a-f]*[0-9])[0-9a-f]{16,}"
    r"|[0-9]{3,}|[0-9]+(?=[-_.]?of[-_.]?[0-9])|[0-9]+(?=[^0-9]*\Z)"
)
_VARIES_IN_FOLDERS = re.compile(r"[0-9]{3,}")
# Objects named by a hash lie in folders by its first digits (`ab/cd/`), as git, DVC and many others have it.
_HASH = re.compile(r"[0-9a-f]{16,}\Z")
_BY_FIRST_DIGITS = re.compile(r"(?<![^/])[0-9a-f]{1,3}(?=(?:/[0-9a-f]{1,3})*\Z)")
# Names in a folder, of one ending, that have nothing in common with any other: of more than so many it is clear that
# such names are what is in there.
_ODD_NAMES_MAX = 32
# Folders beside each other with one name each: of a folder for each class, all have one for a while.
_ODD_FOLDERS_MAX = 1024
# The same among those that a job tells at once.
_ODD_NAMES_TOLD, _ODD_FOLDERS_TOLD = 8, 64
# Templates, or folders, of which each has several names.
_SHARED_MAX = 1024
# Folders of odd names after which all those beside them are taken for the same.
_ALIKE = 4
# Folders above a name that may be anything.
_DEPTH = 3
_ANY_FOLDER = "*/"
_PLACES_MAX = 4096
_FIRSTS_MAX = 32768
# Places that are passed by, at most, to find one that can be found anew.
_TRIES = 16
_SETTLED_MAX = 65536
# Keys of a set of an earlier run that tell how it came by its name.
_LOOKED_AT = 4096


@lru_cache(maxsize=65536)
def template_of(key: str) -> str:
    """What a key shares with the others of its dataset: `train-000123.tar` is of `train-{}.tar`.

    A name without a number belongs to its folder and ending: `cats/tom.jpg` is of `cats/*.jpg`.
    """
    folder, slash, name = key.rpartition("/")
    stem, dot, ending = name.rpartition(".")
    if not dot:
        stem, ending = name, ""
    varied = _VARIES.sub("{}", stem)
    if varied == stem:
        varied = "*"
    if _HASH.match(stem):
        folder = _BY_FIRST_DIGITS.sub("{}", folder)
    # One string for all of them: it is kept for each of the keys.
    return shared_text(_VARIES_IN_FOLDERS.sub("{}", folder) + slash + varied + dot + ending)


def prefix_of(template: str) -> str:
    """What all keys of a template begin with: the prefix to LIST."""
    return re.split(r"\{\}|\*", template, maxsplit=1)[0]


class _Parts(NamedTuple):
    """Of a template: `folders` with their slashes, `name`, and what that is where only folders and ending tell."""

    folders: tuple[str, ...]
    name: str
    any_name: str

    @property
    def path(self) -> str:
        return "".join(self.folders)

    @property
    def beside(self) -> str:
        """What it has in common with the folders beside its own."""
        return "".join(self.folders[:-1]) + self.any_name


@lru_cache(maxsize=65536)
def _parts_of(template: str) -> _Parts:
    *folders, name = template.split("/")
    _, dot, ending = name.rpartition(".")
    return _Parts(tuple(folder + "/" for folder in folders), name, "*" + dot + ending)


@dataclass(slots=True)
class _Siblings:
    """Templates that differ in one place. `first`: the key that was met of each, "" once there was a second one; `odd`:
    how many have but one."""

    first: dict[str, str] = field(default_factory=dict)
    odd: int = 0


class _Place(NamedTuple):
    """Where templates differ. `name` is what they have in common, with `*` in that place."""

    bucket: str
    name: str
    in_folder: bool


class Templates:
    """The name of each key's dataset, given what other keys there are: its template, as a rule.

    Where names have nothing in common but their folder and ending (`dQw4w9WgXcQ.mp4`), or folders nothing but what is
    above them, each would be a set of its own; so beyond some they are one (`clips/*.mp4`, `users/*/*.jpg`).
    """

    def __init__(self, lock: AbstractContextManager[object] | None = None) -> None:
        """`lock`: with it any thread may ask; None: one."""
        self._lock = nullcontext() if lock is None else lock
        self._siblings: OrderedDict[_Place, _Siblings] = OrderedDict()
        # How many keys they hold.
        self._firsts = 0
        # Where all is one set that is not known for one of its own.
        self._merged: Memo[_Place, bool] = Memo(_PLACES_MAX)
        # Of folders beside each other, how many are merged.
        self._alike: Memo[tuple[str, str], int] = Memo(_PLACES_MAX)
        # What only a merger would change.
        self._settled: Memo[tuple[str, str], str] = Memo(_SETTLED_MAX)
        self.mergers = 0
        """How often many sets became one: what named a set of one key before may name none now."""

    def of(self, bucket: str, key: str) -> str:
        template = template_of(key)
        settled = self._settled.get((bucket, template))
        if settled is not None:
            return settled
        with self._lock:
            return self._found(bucket, key, template)

    def told_together(self, bucket: str, keys: Iterable[str]) -> None:
        """A job has told that it reads these, which `of` has heard of: fewer of them will do."""
        with self._lock:
            odd: Counter[_Place] = Counter()
            for key in keys:
                template = template_of(key)
                if (bucket, template) in self._settled:
                    continue
                parts = _parts_of(template)
                folders = ((_in_folder(bucket, parts.folders, at, parts.name), parts.folders[at])
                           for at in _depths(parts.folders))  # fmt: skip
                for place, what in (
                    (_Place(bucket, parts.path + parts.any_name, in_folder=False), parts.name),
                    *folders,
                ):
                    siblings = self._siblings.get(place)
                    odd[place] += siblings is not None and siblings.first.get(what) == key
            for place, count in odd.items():
                if count > (_ODD_FOLDERS_TOLD if place.in_folder else _ODD_NAMES_TOLD) and place not in self._merged:
                    self._merge(place)

    def so_far(self, bucket: str, key: str) -> str:
        """The same, of a key that is no reason to believe in any set: there may be no such object."""
        template = template_of(key)
        return self._settled.get((bucket, template)) or template

    def _found(self, bucket: str, key: str, template: str) -> str:
        parts = _parts_of(template)
        name, settled, is_folder_s = parts.name, True, True
        if name != parts.any_name:
            place = _Place(bucket, parts.path + parts.any_name, in_folder=False)
            alone = self._is_alone(place, name, key, (self._alike.get((bucket, parts.beside)) or 0) >= _ALIKE)
            name, settled = parts.any_name if alone is False else name, alone is not None
            # Where a folder has more names that are odd, it is not for their folder that they are.
            is_folder_s = settled or len(self._siblings[place].first) == 1
        folders = list(parts.folders)
        for at in _depths(folders) if is_folder_s else ():
            alone = self._is_alone(_in_folder(bucket, folders, at, name), folders[at], key)
            folders[at], settled = _ANY_FOLDER if alone is False else folders[at], settled and alone is not None
        # One string for all of them: it is kept for each of the keys.
        found = shared_text("".join(folders) + name)
        if settled:
            self._settled.put((bucket, template), found)
        return found

    def _is_alone(self, place: _Place, what: str, key: str, is_merged: bool = False) -> bool | None:
        """Whether what has `what` in that place is a set of its own; None: with one key, so far."""
        siblings = self._siblings.setdefault(place, _Siblings())
        self._siblings.move_to_end(place)
        first = siblings.first.get(what)
        if first == "":
            return True
        if is_merged or place in self._merged:
            return False
        if first is None:
            siblings.first[what] = key
            siblings.odd += 1
            self._firsts += 1
            self._make_room()
            odd_max = _ODD_FOLDERS_MAX if place.in_folder else _ODD_NAMES_MAX
            if siblings.odd > odd_max or len(siblings.first) - siblings.odd > _SHARED_MAX:
                self._merge(place)
                return False
        elif first != key:
            siblings.first[what] = ""
            siblings.odd -= 1
            self._firsts -= 1
            return True
        return None

    def _make_room(self) -> None:
        tries = _TRIES
        while len(self._siblings) > _PLACES_MAX or self._firsts > _FIRSTS_MAX:
            place, siblings = self._siblings.popitem(last=False)
            tries -= 1
            if place in self._merged and siblings.first and tries > 0:
                # What it knows of sets of their own is not found anew: they would be part of the others.
                self._siblings[place] = siblings
            else:
                self._firsts -= siblings.odd

    def _merge(self, place: _Place) -> None:
        self._merged.put(place, True)
        self._forget_odd(place)
        if not place.in_folder:
            beside = place.bucket, _parts_of(place.name).beside
            alike = (self._alike.get(beside) or 0) + 1
            self._alike.put(beside, alike)
            if alike == _ALIKE:
                # All at once, rather than each when its turn comes: whoever knows sets looks at all of them each time.
                for other in list(self._siblings):
                    if not other.in_folder and (other.bucket, _parts_of(other.name).beside) == beside:
                        self._forget_odd(other)
        self._settled.clear()
        self.mergers += 1

    def _forget_odd(self, place: _Place) -> None:
        siblings = self._siblings.get(place, _Siblings())
        self._firsts -= siblings.odd
        siblings.first = {what: first for what, first in siblings.first.items() if not first}
        siblings.odd = 0

    def remember(self, bucket: str, name: str, keys: Sequence[str]) -> None:
        """An earlier run had these in the dataset `name`."""
        folders, last, any_name = _parts_of(name)
        found = set()
        for key in keys[:_LOOKED_AT]:
            its = _parts_of(template_of(key))
            if last == any_name != its.name:
                if folders and folders[-1] == _ANY_FOLDER:
                    self._alike.put((bucket, its.beside), _ALIKE)
                else:
                    found.add(_Place(bucket, its.path + any_name, in_folder=False))
            for at, (folder, other) in enumerate(zip(folders, its.folders, strict=False)):
                if folder == _ANY_FOLDER != other:
                    found.add(_in_folder(bucket, [*its.folders[:at], *folders[at:]], at, last))
        for place in found:
            if place not in self._merged:
                self._merge(place)
        for key in keys[:2]:
            self.of(bucket, key)


def _depths(folders: Sequence[str]) -> range:
    return range(len(folders) - 1, max(-1, len(folders) - 1 - _DEPTH), -1)


def _in_folder(bucket: str, folders: Sequence[str], at: int, name: str) -> _Place:
    return _Place(bucket, "".join((*folders[:at], _ANY_FOLDER, *folders[at + 1 :], name)), in_folder=True)
