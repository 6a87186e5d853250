"""Numbered names (`train-000000.tar` and so on): a few HEADs show which of them exist, without a LIST."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from typing import NamedTuple

_NUMBER = re.compile(r"([0-9]+)")
_DIGITS_MAX = 15
# As many names as the planner may remember; of a larger dataset only the names that were read are known.
_COUNT_MAX = 1_000_000
# Names within the range that was found that are checked. If an eighth of the range is missing, 16 checks find a missing
# name in seven cases of eight.
_SAMPLES = 16
# The first HEADs ask for so many names beyond the highest known number, each so many times as far as the one before.
# The gap in which the range ends is then divided into so many parts in each round.
_STEPS, _WIDEN, _PARTS = 6, 4, 4


@dataclass(frozen=True, slots=True)
class NumberedNames:
    """Names that differ in one number: `head`, the number in at least `width` digits, `tail`.

    `seen` has some numbers whose objects are known to exist, sorted. `padded`: the width that other names may have; 0:
    they have none.
    """

    head: str
    width: int
    tail: str
    seen: tuple[int, ...]
    padded: int = 0

    def name(self, number: int) -> str:
        return f"{self.head}{number:0{self.width}}{self.tail}"

    def probe(self) -> Probe:
        """Finds the range of numbers that exist. Yields names, is sent whether each exists, and returns the range.

        Takes some two rounds for each factor of ten in the number of names. Returns None if the names do not count up
        one by one.
        """
        first, last = self.seen[0], self.seen[-1]
        if last - first > _COUNT_MAX:
            return None
        # As a rule, the numbers begin at 0 or 1.
        below = range(min(2, first))
        widths = [self, replace(self, width=self.padded, padded=0)] if self.padded else [self]
        begins = [(numbering, number) for numbering in widths for number in below]
        steps = [_WIDEN**i for i in range(_STEPS)]
        answers = yield [numbering.name(number) for numbering, number in begins] + [
            self.name(last + step) for step in steps
        ]
        begin = next((begin for begin, exists in zip(begins, answers, strict=False) if exists), None)
        numbering = self if begin is None else begin[0]
        answers = answers[len(begins) :]
        while all(answers):
            last += steps[-1]
            if last - first > _COUNT_MAX:
                return None
            steps = [step * steps[-1] for step in steps]
            answers = yield [numbering.name(last + step) for step in steps]
        missing = answers.index(False)
        last = yield from numbering.border(last + (steps[missing - 1] if missing else 0), last + steps[missing])
        if begin is not None:
            first = begin[1]
        elif first > 1:
            first = yield from numbering.border(first, 1)
        numbers = range(first, last + 1)
        count = len(numbers)
        if not len(self.seen) < count <= _COUNT_MAX:
            return None  # no name that was unknown, or too many
        some = max(1, min(_SAMPLES, count // 4))
        samples = {numbers[(2 * i + 1) * count // (2 * some)] for i in range(some)}
        answers = yield [numbering.name(number) for number in sorted(samples.difference(self.seen))]
        return NumberedRange(numbering, numbers) if all(answers) else None

    def border(self, existing: int, missing: int) -> Generator[list[str], list[bool], int]:
        """The last existing number on the way from an existing number to a missing one."""
        while abs(missing - existing) > 1:
            between = missing - existing
            numbers = sorted({existing + between * part // _PARTS for part in range(1, _PARTS)} - {existing, missing})
            if between < 0:
                numbers.reverse()
            for number, exists in zip(numbers, (yield list(map(self.name, numbers))), strict=True):
                if not exists:
                    missing = number
                    break
                existing = number
        return existing


class NumberedRange(NamedTuple):
    """An object exists for each of these numbers, as far as the samples show."""

    numbering: NumberedNames
    numbers: range

    def names(self) -> Iterator[str]:
        """In the order of a LIST."""
        pieces, first = [], self.numbers.start
        while first < self.numbers.stop:
            # Names of the same number of digits are in the order of their numbers.
            stop = min(self.numbers.stop, 10 ** max(self.numbering.width, len(str(first))))
            pieces.append(map(self.numbering.name, range(first, stop)))
            first = stop
        return merge(*pieces)


Probe = Generator[list[str], list[bool], NumberedRange | None]
"""Yields names, is sent whether each of them exists, and returns the range."""


def numbering_of(keys: Sequence[str]) -> NumberedNames | None:
    """How these names are numbered; None: they do not differ in exactly one number."""
    split = [_NUMBER.split(key) for key in keys]
    if len(split) < 2 or len({len(parts) for parts in split}) > 1:
        return None
    differing = [place for place, parts in enumerate(zip(*split, strict=True)) if len(set(parts)) > 1]
    if len(differing) != 1 or differing[0] % 2 == 0:
        return None
    place = differing[0]
    numbers = [parts[place] for parts in split]
    lengths = {len(digits) for digits in numbers}
    if max(lengths) > _DIGITS_MAX:
        return None
    padded = {len(digits) for digits in numbers if digits[0] == "0" and len(digits) > 1}
    width = min(padded, default=1)
    if any(len(digits) < width or (len(digits) > width and digits[0] == "0") for digits in numbers):
        return None  # 01 and 001, or 01 and 2
    # If no number seen begins with a zero, and all are equally long, others may still be padded to that length.
    perhaps = max(lengths) if not padded and len(lengths) == 1 and max(lengths) > 1 else 0
    head, tail = "".join(split[0][:place]), "".join(split[0][place + 1 :])
    return NumberedNames(head, width, tail, tuple(sorted(map(int, numbers))), perhaps)
