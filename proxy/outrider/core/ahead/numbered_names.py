"""Names that count (`train-000000.tar` and so on): which there are is found by a few questions, without a LIST."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from typing import NamedTuple

_NUMBER = re.compile(r"([0-9]+)")
_DIGITS_MAX = 15
# As many as may be known; who reads of more reads them as they come.
_COUNT_MAX = 1_000_000
# Of the range that was found, numbers that must be there: where an eighth is not, 16 find it in seven cases of eight.
_SAMPLES = 16
# The first question goes so many steps beyond what was seen, each so many times as wide as the one before; the last
# one that is there is then looked for in so many parts of the gap at once.
_STEPS, _WIDEN, _PARTS = 6, 4, 4


@dataclass(frozen=True, slots=True)
class NumberedNames:
    """Names that differ in one number: `head`, then that in `width` digits at least, then `tail`. `seen`: some that
    are known to be there, sorted. `padded`: the width that others may have; 0: none."""

    head: str
    width: int
    tail: str
    seen: tuple[int, ...]
    padded: int = 0

    def name(self, number: int) -> str:
        return f"{self.head}{number:0{self.width}}{self.tail}"

    def search(self) -> Search:
        """Asks of some names at a time whether they are there, in some two rounds for each factor of ten in how many
        there are, and returns those that are; None: they do not count one by one."""
        first, last = self.seen[0], self.seen[-1]
        if last - first > _COUNT_MAX:
            return None
        # They begin at 0 or 1, as a rule.
        below = range(min(2, first))
        may_be = [self, replace(self, width=self.padded, padded=0)] if self.padded else [self]
        begins = [(its, number) for its in may_be for number in below]
        steps = [_WIDEN**i for i in range(_STEPS)]
        answers = yield [its.name(number) for its, number in begins] + [self.name(last + step) for step in steps]
        begin = next((begin for begin, is_there in zip(begins, answers, strict=False) if is_there), None)
        its = self if begin is None else begin[0]
        answers = answers[len(begins) :]
        while all(answers):
            last += steps[-1]
            if last - first > _COUNT_MAX:
                return None
            steps = [step * steps[-1] for step in steps]
            answers = yield [its.name(last + step) for step in steps]
        missing = answers.index(False)
        last = yield from its.border(last + (steps[missing - 1] if missing else 0), last + steps[missing])
        if begin is not None:
            first = begin[1]
        elif first > 1:
            first = yield from its.border(first, 1)
        numbers = range(first, last + 1)
        count = len(numbers)
        if not len(self.seen) < count <= _COUNT_MAX:
            return None  # nothing that was not known, or too much
        some = max(1, min(_SAMPLES, count // 4))
        samples = {numbers[(2 * i + 1) * count // (2 * some)] for i in range(some)}
        answers = yield [its.name(number) for number in sorted(samples.difference(self.seen))]
        return Found(its, numbers) if all(answers) else None

    def border(self, there: int, missing: int) -> Generator[list[str], list[bool], int]:
        """The one next to which they end, between one that is there and one that is not."""
        while abs(missing - there) > 1:
            between = missing - there
            asked = sorted({there + between * part // _PARTS for part in range(1, _PARTS)} - {there, missing})
            if between < 0:
                asked.reverse()
            for number, is_there in zip(asked, (yield list(map(self.name, asked))), strict=True):
                if not is_there:
                    missing = number
                    break
                there = number
        return there


class Found(NamedTuple):
    """Of all these numbers there is such a name."""

    numbering: NumberedNames
    numbers: range

    def names(self) -> Iterator[str]:
        """In the order of a LIST."""
        pieces, first = [], self.numbers.start
        while first < self.numbers.stop:
            # Of as many digits, names are in the order of their numbers.
            stop = min(self.numbers.stop, 10 ** max(self.numbering.width, len(str(first))))
            pieces.append(map(self.numbering.name, range(first, stop)))
            first = stop
        return merge(*pieces)


Search = Generator[list[str], list[bool], Found | None]
"""Which names it asks of, whether they are there, and what was found."""


def numbering_of(keys: Sequence[str]) -> NumberedNames | None:
    """How these names count; None: they do not differ in just one number."""
    split = [_NUMBER.split(key) for key in keys]
    if len(split) < 2 or len({len(parts) for parts in split}) > 1:
        return None
    differing = [place for place, parts in enumerate(zip(*split, strict=True)) if len(set(parts)) > 1]
    if len(differing) != 1 or differing[0] % 2 == 0:
        return None
    place = differing[0]
    digits = [parts[place] for parts in split]
    lengths = {len(one) for one in digits}
    if max(lengths) > _DIGITS_MAX:
        return None
    padded = {len(one) for one in digits if one[0] == "0" and len(one) > 1}
    width = min(padded, default=1)
    if any(len(one) < width or (len(one) > width and one[0] == "0") for one in digits):
        return None  # 01 and 001, or 01 and 2
    # Where none begins with a zero, one that was not seen may, if they are all as long.
    perhaps = max(lengths) if not padded and len(lengths) == 1 and max(lengths) > 1 else 0
    head, tail = "".join(split[0][:place]), "".join(split[0][place + 1 :])
    return NumberedNames(head, width, tail, tuple(sorted(map(int, digits))), perhaps)
