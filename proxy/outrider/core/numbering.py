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
# The first question goes so many steps beyond what was seen, each so many times as wide as the one before; the last
# one that is there is then looked for in so many parts of the gap at once.
_STEPS, _WIDEN, _PARTS = 6, 4, 4

Search = Generator[list[int], list[bool], range | None]
"""What numbers it asks of, whether there are such names, and what was found."""


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

    def search(self) -> Search:
        """Asks of some numbers at a time whether there are such names, in some two rounds for each factor of ten in how
        many there are, and returns the range of those that are; None: they do not count one by one."""
        first, last = self.seen[0], self.seen[-1]
        # They begin at 0 or 1, as a rule.
        below = range(min(2, first))
        steps = [_WIDEN**i for i in range(_STEPS)]
        answers = yield [*below, *(last + step for step in steps)]
        lowest = next((number for number, is_there in zip(below, answers, strict=False) if is_there), None)
        answers = answers[len(below) :]
        while all(answers):
            last += steps[-1]
            if last - first > _COUNT_MAX:
                return None
            steps = [step * steps[-1] for step in steps]
            answers = yield [last + step for step in steps]
        missing = answers.index(False)
        last = yield from _border(last + (steps[missing - 1] if missing else 0), last + steps[missing])
        if lowest is not None or first <= 1:
            first = min(first, lowest if lowest is not None else first)
        else:
            first = yield from _border(first, 1)
        found = range(first, last + 1)
        count = len(found)
        if count <= len(self.seen):
            return None  # nothing that was not known
        some = max(1, min(_SAMPLES, count // 4))
        samples = {found[(2 * i + 1) * count // (2 * some)] for i in range(some)}
        return found if all((yield sorted(samples.difference(self.seen)))) else None


def _border(there: int, missing: int) -> Generator[list[int], list[bool], int]:
    """The one next to which they end, between one that is there and one that is not."""
    while abs(missing - there) > 1:
        between = missing - there
        asked = sorted({there + between * part // _PARTS for part in range(1, _PARTS)} - {there, missing})
        if between < 0:
            asked.reverse()
        for number, is_there in zip(asked, (yield asked), strict=True):
            if not is_there:
                missing = number
                break
            there = number
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
