"""Groups objects into datasets: keys of one template form one, and related templates are merged."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from outrider.core.memo import Memo
from outrider.core.model import shared_text

# The parts of a name that vary within a dataset: the long hexadecimal names that tools generate, and numbers that
# count. A short number (`v2/`, `train2-`) belongs to the name of the dataset, unless it is the last number of the name
# or the number before an `of` (`3-of-8`). A hexadecimal name has a digit; it is looked for once in each run of letters,
# at the start of the run or after a UUID, so that a key of letters takes linear time.
_VARIES = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?:(?<![a-f])|(?<=-[0-9a-f]{12}))(?=[a-f]*[0-9])[0-9a-f]{16,}"
    r"|[0-9]{3,}|[0-9]+(?=[-_.]?of[-_.]?[0-9])|[0-9]+(?=[^0-9]*\Z)"
)
_VARIES_IN_FOLDERS = re.compile(r"[0-9]{3,}")
# Objects that are named by a hash lie in folders named by its first digits (`ab/cd/`): git, DVC and many others do so.
_HASH = re.compile(r"[0-9a-f]{16,}\Z")
_FIRST_DIGITS = re.compile(r"[0-9a-f]{1,3}")
# A template is single while one key of it was met. With more single templates than this in one folder and of one
# ending, the names there have nothing in common, and the templates are merged.
_SINGLE_NAMES_MAX = 32
# The same for folders beside each other. More, because with a folder for each class all folders are single for a while.
_SINGLE_FOLDERS_MAX = 1024
# The same two bounds among the keys of one hint.
_SINGLE_NAMES_HINTED, _SINGLE_FOLDERS_HINTED = 8, 64
# Templates, or folders, of several keys each in one place; with more of them, that place is merged too.
_SHARED_MAX = 1024
# Merged folders after which all folders beside them are taken to be alike.
_MERGED_BESIDE = 4
# The number of folders right above a name that may vary.
_DEPTH = 3
_ANY_FOLDER = "*/"
_PLACES_MAX = 4096
_SINGLE_KEYS_MAX = 32768
# Places that are passed over, at most, in search of one whose loss can be made good.
_TRIES = 16
_FINAL_MAX = 65536
# Keys of a dataset of an earlier run that are looked at to see which places were merged.
_LOOKED_AT = 4096


# A key is looked up a few times in a row. An entry takes 200 bytes.
@lru_cache(maxsize=1024)
def template_of(key: str) -> str:
    """The part of a key that it shares with the others of its dataset: `train-000123.tar` gives `train-{}.tar`.

    A name without a varying part stands for its folder and ending: `cats/tom.jpg` gives `cats/*.jpg`.
    """
    folder, slash, name = key.rpartition("/")
    stem, dot, ending = name.rpartition(".")
    if not dot:
        stem, ending = name, ""
    varied = _VARIES.sub("{}", stem)
    if varied == stem:
        varied = "*"
    if _HASH.match(stem):
        folder = _without_first_digits(folder)
    # All keys of the template share one string, since it is kept for each of them.
    return shared_text(_VARIES_IN_FOLDERS.sub("{}", folder) + slash + varied + dot + ending)


def _without_first_digits(path: str) -> str:
    """`{}` in place of the lowest folders that are named by the first digits of a hash."""
    folders = path.split("/")
    for at in reversed(range(len(folders))):
        if _FIRST_DIGITS.fullmatch(folders[at]) is None:
            break
        folders[at] = "{}"
    return "/".join(folders)


def prefix_of(template: str) -> str:
    """The prefix to LIST: all keys of the template begin with it."""
    return re.split(r"\{\}|\*", template, maxsplit=1)[0]


class _Parts(NamedTuple):
    """The parts of a template. `folders` have their slashes. `any_name` is the name that keeps only the ending."""

    folders: tuple[str, ...]
    name: str
    any_name: str

    @property
    def path(self) -> str:
        return "".join(self.folders)

    @property
    def beside(self) -> str:
        """The part that it shares with templates of the folders beside its own."""
        return "".join(self.folders[:-1]) + self.any_name


@lru_cache(maxsize=65536)
def _parts_of(template: str) -> _Parts:
    *folders, name = template.split("/")
    _, dot, ending = name.rpartition(".")
    return _Parts(tuple(folder + "/" for folder in folders), name, "*" + dot + ending)


class _Place(NamedTuple):
    """A place in which templates differ. `name` is the rest of them, with `*` in that place."""

    bucket: str
    name: str
    in_folder: bool


@dataclass(slots=True)
class _Variants:
    """The texts that were met in one place."""

    # The only key that was met of each variant; "" once there was a second key.
    only_key: dict[str, str] = field(default_factory=dict)
    # How many variants are single: one key of them was met.
    singles: int = 0


class Templates:
    """Names the dataset of each key, given the other keys that were met. As a rule the name is the key's template.

    Where names have nothing in common but their folder and ending (`dQw4w9WgXcQ.mp4`), or folders nothing but the
    folder above them, each key would be a dataset of its own. Beyond some bounds these are *merged* into one dataset
    (`clips/*.mp4`, `users/*/*.jpg`). A variant of which several keys were met before stays a dataset of its own.
    """

    def __init__(self) -> None:
        self._variants: OrderedDict[_Place, _Variants] = OrderedDict()
        # The keys that `_variants` hold.
        self._single_keys = 0
        # Places in which all variants are one dataset, but for those that were datasets before.
        self._merged: Memo[_Place, bool] = Memo(_PLACES_MAX)
        # How many folders were merged, by bucket and the part that these folders share (`_Parts.beside`).
        self._merged_beside: Memo[tuple[str, str], int] = Memo(_PLACES_MAX)
        # Dataset names by bucket and template that only another merger would change.
        self._final: Memo[tuple[str, str], str] = Memo(_FINAL_MAX)
        self.mergers = 0
        """How often datasets were merged. After that, a name given before for a single key may be no dataset's name."""

    def of(self, bucket: str, key: str) -> str:
        template = template_of(key)
        final = self._final.get((bucket, template))
        if final is not None:
            return final
        return self._name_of(bucket, key, template)

    def hinted_together(self, bucket: str, keys: Iterable[str]) -> None:
        """A hint names these keys, for which `of` was called before. Among them, fewer single templates suffice."""
        singles: Counter[_Place] = Counter()
        for key in keys:
            template = template_of(key)
            if (bucket, template) in self._final:
                continue
            parts = _parts_of(template)
            folders = ((_folder_place(bucket, parts.folders, at, parts.name), parts.folders[at])
                       for at in _depths(parts.folders))  # fmt: skip
            for place, variant in (
                (_Place(bucket, parts.path + parts.any_name, in_folder=False), parts.name),
                *folders,
            ):
                variants = self._variants.get(place)
                singles[place] += variants is not None and variants.only_key.get(variant) == key
        for place, count in singles.items():
            most = _SINGLE_FOLDERS_HINTED if place.in_folder else _SINGLE_NAMES_HINTED
            if count > most and place not in self._merged:
                self._merge(place)

    def so_far(self, bucket: str, key: str) -> str:
        """As `of`, for a key that must not count, because the object may not exist."""
        template = template_of(key)
        return self._final.get((bucket, template)) or template

    def _name_of(self, bucket: str, key: str, template: str) -> str:
        parts = _parts_of(template)
        name, is_final, do_folders_vary = parts.name, True, True
        if name != parts.any_name:
            place = _Place(bucket, parts.path + parts.any_name, in_folder=False)
            is_merged = (self._merged_beside.get((bucket, parts.beside)) or 0) >= _MERGED_BESIDE
            is_own = self._is_own(place, name, key, is_merged)
            name, is_final = parts.any_name if is_own is False else name, is_own is not None
            # A single name beside other names in its folder is single by its name, not by its folder.
            do_folders_vary = is_final or len(self._variants[place].only_key) == 1
        folders = list(parts.folders)
        for at in _depths(folders) if do_folders_vary else ():
            is_own = self._is_own(_folder_place(bucket, folders, at, name), folders[at], key)
            folders[at], is_final = _ANY_FOLDER if is_own is False else folders[at], is_final and is_own is not None
        # All keys of the dataset share one string, since it is kept for each of them.
        found = shared_text("".join(folders) + name)
        if is_final:
            self._final.put((bucket, template), found)
        return found

    def _is_own(self, place: _Place, variant: str, key: str, is_merged: bool = False) -> bool | None:
        """Whether the variant is a dataset of its own. False: it is merged; None: it is single so far."""
        variants = self._variants.setdefault(place, _Variants())
        self._variants.move_to_end(place)
        only_key = variants.only_key.get(variant)
        if only_key == "":
            return True
        if is_merged or place in self._merged:
            return False
        if only_key is None:
            variants.only_key[variant] = key
            variants.singles += 1
            self._single_keys += 1
            self._make_room()
            singles_max = _SINGLE_FOLDERS_MAX if place.in_folder else _SINGLE_NAMES_MAX
            if variants.singles > singles_max or len(variants.only_key) - variants.singles > _SHARED_MAX:
                self._merge(place)
                return False
        elif only_key != key:
            variants.only_key[variant] = ""
            variants.singles -= 1
            self._single_keys -= 1
            return True
        return None

    def _make_room(self) -> None:
        tries = _TRIES
        while len(self._variants) > _PLACES_MAX or self._single_keys > _SINGLE_KEYS_MAX:
            place, variants = self._variants.popitem(last=False)
            tries -= 1
            if place in self._merged and variants.only_key and tries > 0:
                # Its variants that are datasets of their own would not be found again: they would count as merged.
                self._variants[place] = variants
            else:
                self._single_keys -= variants.singles

    def _merge(self, place: _Place) -> None:
        self._merged.put(place, True)
        self._forget_singles(place)
        if not place.in_folder:
            beside = place.bucket, _parts_of(place.name).beside
            count = (self._merged_beside.get(beside) or 0) + 1
            self._merged_beside.put(beside, count)
            if count == _MERGED_BESIDE:
                # All folders at once: the registry looks at all of its datasets after each merger.
                for other in list(self._variants):
                    if not other.in_folder and (other.bucket, _parts_of(other.name).beside) == beside:
                        self._forget_singles(other)
        self._final.clear()
        self.mergers += 1

    def _forget_singles(self, place: _Place) -> None:
        variants = self._variants.get(place, _Variants())
        self._single_keys -= variants.singles
        variants.only_key = {variant: only_key for variant, only_key in variants.only_key.items() if not only_key}
        variants.singles = 0

    def remember(self, bucket: str, name: str, keys: Sequence[str]) -> None:
        """An earlier run had these keys in the dataset `name`: merge the places that it had merged."""
        folders, last, any_name = _parts_of(name)
        merged = set()
        for key in keys[:_LOOKED_AT]:
            parts = _parts_of(template_of(key))
            if last == any_name != parts.name:
                if folders and folders[-1] == _ANY_FOLDER:
                    self._merged_beside.put((bucket, parts.beside), _MERGED_BESIDE)
                else:
                    merged.add(_Place(bucket, parts.path + any_name, in_folder=False))
            for at, (folder, other) in enumerate(zip(folders, parts.folders, strict=False)):
                if folder == _ANY_FOLDER != other:
                    merged.add(_folder_place(bucket, [*parts.folders[:at], *folders[at:]], at, last))
        for place in merged:
            if place not in self._merged:
                self._merge(place)
        for key in keys[:2]:
            self.of(bucket, key)


def _depths(folders: Sequence[str]) -> range:
    """The places of the folders that may vary, the lowest first."""
    return range(len(folders) - 1, max(-1, len(folders) - 1 - _DEPTH), -1)


def _folder_place(bucket: str, folders: Sequence[str], at: int, name: str) -> _Place:
    return _Place(bucket, "".join((*folders[:at], _ANY_FOLDER, *folders[at + 1 :], name)), in_folder=True)
