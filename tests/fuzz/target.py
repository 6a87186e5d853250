"""A fuzz target, and the registry of all: a function that takes any bytes, and asserts what must hold for them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random

CPU_S_MAX = 0.5
"""No input of a target may take longer. Inputs are short, so one that does makes some step grow with its square."""

_WORD = re.compile(rb"[A-Za-z0-9]{2,40}|[^A-Za-z0-9]{1,8}")


class TooSlow(AssertionError):
    """An input took more CPU time than `CPU_S_MAX`."""


@dataclass(frozen=True, slots=True)
class Target:
    """`check` raises for a finding: an AssertionError, or any error that the code under test does not document.

    `seeds`: real messages, and inputs that were findings once. `bytes_max`: no longer inputs are made.
    """

    name: str
    check: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    bytes_max: int

    def run(self, data: bytes) -> None:
        # A second time where the first was slow: a collection of all garbage may have fallen into it.
        if self._cpu_s(data) > CPU_S_MAX and (taken_s := self._cpu_s(data)) > CPU_S_MAX:
            raise TooSlow(f"{taken_s:.1f} s of CPU time for {len(data)} bytes")

    def _cpu_s(self, data: bytes) -> float:
        began = time.process_time()
        self.check(data)
        return time.process_time() - began

    @property
    def words(self) -> tuple[bytes, ...]:
        """The words of the seeds and the signs between them, from which a mutation may choose."""
        return tuple(sorted({word for seed in self.seeds for word in _WORD.findall(seed)}))


TARGETS: dict[str, Target] = {}


def target(
    *seeds: bytes, bytes_max: int = 4096, more: Iterable[bytes] = ()
) -> Callable[[Callable[[bytes], object]], Callable[[bytes], object]]:
    """A decorator that registers a target under the function's name."""

    def registered(check: Callable[[bytes], object]) -> Callable[[bytes], object]:
        name = check.__name__.replace("_", "-")
        assert name not in TARGETS
        TARGETS[name] = Target(name, check, (*seeds, *more), bytes_max)
        return check

    return registered


def pieces(data: bytes, chance: int) -> Iterator[bytes]:
    """`data` in pieces: single bytes for a `chance` of 0, else cut at places that depend on it."""
    if chance == 0:
        cuts: Iterable[int] = range(len(data) + 1)
    else:
        draw = Random(chance)
        cuts = sorted({0, len(data), *(draw.randrange(len(data) + 1) for _ in range(chance % 7))})
    for start, stop in pairwise(cuts):
        yield data[start:stop]
