"""Which objects belong together: names with one template are a dataset, and its keys are numbered."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable
from functools import lru_cache

# The long hexadecimal names that tools give to parts, and numbers that count: short ones (`v2/`, `train2-`) name a set.
_VARIES = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[a-f]*[0-9])[0-9a-f]{16,}|[0-9]{3,}|[0-9]+(?=[^0-9]*\Z)"
)
_VARIES_IN_FOLDERS = re.compile(r"[0-9]{3,}")
# Objects named by a hash lie in folders by its first digits (`ab/cd/`), as git, DVC and many others have it.
_HASH = re.compile(r"[0-9a-f]{16,}\Z")
_BY_FIRST_DIGITS = re.compile(r"(?<![^/])[0-9a-f]{1,3}(?=(?:/[0-9a-f]{1,3})*\Z)")


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
    return sys.intern(_VARIES_IN_FOLDERS.sub("{}", folder) + slash + varied + dot + ending)


def prefix_of(template: str) -> str:
    """What all keys of a template begin with: the prefix to LIST."""
    return re.split(r"\{\}|\*", template, maxsplit=1)[0]


class Names:
    """The keys of one dataset as numbers, in the order in which they were met; `listed` has those that a LIST or an
    earlier run has shown, in the order of their names. Sizes in bytes, -1: not known."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.sizes: array[int] = array("q")
        self.listed: array[int] = array("i")
        self._rank: array[int] = array("i")
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
        for name, size in entries:
            key = self.number(name)
            self.sizes[key] = size
            if self._rank[key] < 0:
                self._rank[key] = len(self.listed)
                self.listed.append(key)
