"""Belady's algorithm: the most hits that eviction alone can reach, with the whole future known and no prefetch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush


def optimal_hits(reads: Sequence[Hashable], capacity: int) -> list[bool]:
    """Whether each read hits, in a cache for `capacity` objects of one size.

    The victim is the object whose next read is farthest in the future. If that is the object just read, it is not
    admitted.
    """
    never = len(reads)
    following = [never] * len(reads)
    last: dict[Hashable, int] = {}
    for index in range(len(reads) - 1, -1, -1):
        following[index] = last.get(reads[index], never)
        last[reads[index]] = index
    cached: dict[Hashable, int] = {}
    farthest: list[tuple[int, int, Hashable]] = []
    hits = []
    for index, read in enumerate(reads):
        hits.append(read in cached)
        cached[read] = following[index]
        heappush(farthest, (-following[index], index, read))
        while len(cached) > capacity:
            when, _, victim = heappop(farthest)
            if cached.get(victim) == -when:
                del cached[victim]
    return hits
