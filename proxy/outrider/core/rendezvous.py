"""Weighted rendezvous hashing: which of several candidates a block belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from math import log

_MASK = (1 << 128) - 1
_STEP, _HALF_STEP = 2.0**-52, 2.0**-53


class Rendezvous:
    """Candidates, each with a name of its own and a weight. Immutable, for any thread.

    Each candidate draws a number for each block, and the smallest one gets it: an exponentially distributed number
    whose rate is the candidate's weight. So a candidate that comes or goes moves its own blocks only, and each gets a
    share in proportion to its weight.

    Sources: Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (1998); Schindelhauer and
    Schomaker, "Weighted distributed hash tables" (2005); Dietzfelbinger, "Universal hashing and k-wise independent
    random variables via integer arithmetic without primes" (1996).
    """

    __slots__ = ("_drawers",)

    def __init__(self, weights: Iterable[tuple[str, int]], person: bytes) -> None:
        """`weights`: name and weight of each. A weight of 0 gets next to nothing. `person`: another one makes other
        draws, up to 16 bytes."""
        self._drawers = [
            (_multiplier(name, person), -1.0 / max(1, weight), place) for place, (name, weight) in enumerate(weights)
        ]

    def order(self, block: int) -> list[int]:
        """The places of all candidates, that of the block's own first. `block`: 128 bits of a hash."""
        if len(self._drawers) == 1:
            return [0]
        # Multiply-shift hashing: the upper 52 of 128 bits, and half a step, so that no number is 0 or 1. The place
        # decides between equal numbers.
        drawn = [
            (rate * log(((block * factor & _MASK) >> 76) * _STEP + _HALF_STEP), place)
            for factor, rate, place in self._drawers
        ]
        drawn.sort()
        return [place for _, place in drawn]


def _multiplier(name: str, person: bytes) -> int:
    raw = name.encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(raw, digest_size=16, person=person).digest(), "big") | 1
