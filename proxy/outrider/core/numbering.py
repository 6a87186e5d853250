"""Names that count (`train-000000.tar` and so on): which there are is found by a few questions, without a LIST."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge

_NUMBER = re.compile(r"([0-9]+)")
_DIGITS_MAX = 15
# As many as may be known; who reads of more reads them as they come.
_COUNT_MAX = 1_000_000
# Of the range that was found, numbers that must be there: where an eighth is not, 16 find it in seven cases of eight.
_SAMPLES = 16


@dataclass(frozen=True, slots=True)
class Numbering:
    """Names that differ in one number: `head`, then that in `width` digits at least, then `tail`. `seen`: some that
    are known to be there, sorted."""

    head: str
    width: int
    tail: str
    seen: tuple[int, ...]

    def name(self, number: int) -> str:
        return f"{self.head}{number:0{self.width}}{self.tail}"

    def names(self, numbers: range) -> Iterator[str]:
        """Of all `numbers`, in the order of a LIST."""
        pieces, first = [], numbers.start
        while first < numbers.stop:
            # Of as many digits, names are in the order of their numbers.
            stop = min(numbers.stop, 10 ** max(self.width, len(str(first))))
            pieces.append(map(self.name, range(first, stop)))
            first = stop
        return merge(*pieces)

    def search(self) -> Generator[int, bool, range | None]:
        """Asks of numbers whether there is such a name, some two for each binary digit of how many there are, and
        returns the range of those that are; None: they do not count one by one."""
        first, last = self.seen[0], self.seen[-1]
        step = 1
        while (yield last + step):
            last += step
            step *= 2
            if last - first > _COUNT_MAX:
                return None
        last = yield from _border(last, last + step)
        # They begin at 0 or 1, as a rule.
        for lowest in range(min(2, first)):
            if (yield lowest):
                first = lowest
                break
        else:
            if first > 1:
                first = yield from _border(first, 1)
        found = range(first, last + 1)
        count = len(found)
        if count <= len(self.seen):
            return None  # nothing that was not known
        some = max(1, min(_SAMPLES, count // 4))
        samples = {found[(2 * i + 1) * count // (2 * some)] for i in range(some)}
        for number in sorted(samples.difference(self.seen)):
            if not (yield number):
                return None
        return found


def _border(there: int, missing: int) -> Generator[int, bool, int]:
    """The one next to which they end, between one that is there and one that is not."""
    while abs(missing - there) > 1:
        middle = (there + missing) // 2
        if (yield middle):
            there = middle
        else:
            missing = middle
    return there


def numbering_of(keys: Sequence[str]) -> Numbering | None:
    """How these names count; None: they do not differ in just one number."""
    split = [_NUMBER.split(key) for key in keys]
    if len(split) < 2 or len({len(parts) for parts in split}) > 1:
        return None
    differing = [place for place, parts in enumerate(zip(*split, strict=True)) if len(set(parts)) > 1]
    if len(differing) != 1 or differing[0] % 2 == 0:
        return None
    place = differing[0]
    digits = [parts[place] for parts in split]
    if max(map(len, digits)) > _DIGITS_MAX:
        return None
    padded = {len(one) for one in digits if one[0] == "0" and len(one) > 1}
    width = min(padded, default=1)
    if any(len(one) < width or (len(one) > width and one[0] == "0") for one in digits):
        return None  # 01 and 001, or 01 and 2
    head, tail = "".join(split[0][:place]), "".join(split[0][place + 1 :])
    return Numbering(head, width, tail, tuple(sorted(map(int, digits))))
