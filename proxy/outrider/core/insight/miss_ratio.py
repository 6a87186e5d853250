"""Estimates the miss-ratio curve: how often caches of other sizes would hit, by small LRU caches of a sample of names.

A sample by a hash of the name always has the same objects, and a cache scaled down by the same rate hits as often as
the whole cache would. Source: Waldspurger et al., "Cache modeling and optimization using
miniature simulations", 2017.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from math import log

from outrider.core.ahead.dataset.registry import Outlook
from outrider.core.model import ObjectRef

FACTORS = (0.5, 1.0, 2.0, 4.0)
# Sampled objects at most. All caches together have up to four times as many names.
_SAMPLED_MAX = 8192
# After so many further reads, a read counts half.
_HALF_LIFE = 10_000
_HASHES = 1 << 32


class MissRatioCurve:
    """O(1) for each read, in bounded memory."""

    def __init__(self, capacity_bytes: int, *, sampled_max: int = _SAMPLED_MAX) -> None:
        self._capacity_bytes = capacity_bytes
        self._sampled_max = sampled_max
        self._below = _HASHES
        self._caches = [_Lru() for _ in FACTORS]
        self._reads = 0.0
        self._hits = [0.0 for _ in FACTORS]

    def opened(self, ref: ObjectRef, size: int) -> None:
        """A client begins to read an object of `size` bytes."""
        name = int.from_bytes(
            blake2b(f"{ref.bucket}/{ref.key}".encode("utf-8", "surrogateescape"), digest_size=4).digest()
        )
        if name >= self._below:
            return
        fade = 0.5 ** (_HASHES / self._below / _HALF_LIFE)
        self._reads = self._reads * fade + 1
        for index, (factor, cache) in enumerate(zip(FACTORS, self._caches, strict=True)):
            most_bytes = factor * self._capacity_bytes * self._below / _HASHES
            self._hits[index] = self._hits[index] * fade + cache.read(name, size, most_bytes)
        # The largest cache has all names that the others have.
        while len(self._caches[-1].sizes) > self._sampled_max:
            self._below //= 2
            for cache in self._caches:
                cache.keep_below(self._below)

    def lru(self) -> dict[float, float] | None:
        """The hit ratio of LRU by size of the cache, as a multiple of this cache; None: nothing was read."""
        if self._reads == 0:
            return None
        return {factor: hits / self._reads for factor, hits in zip(FACTORS, self._hits, strict=True)}

    def epoch(self, outlook: Outlook) -> dict[float, float] | None:
        """The same for the policy `epoch`, by estimate: it assumes that the origin is fast enough.

        With c the part of the datasets that the cache holds, all reads hit where the order is known; c (1 + ln 1/c) of
        them where only the set is known; c where an epoch reads a part of the set, chosen anew each time; and as many
        as with LRU where there is no epoch.
        """
        lru = self.lru()
        if lru is None:
            return None
        total_bytes = outlook.ordered_bytes + outlook.set_bytes
        estimates = {}
        for factor, chance in lru.items():
            share = min(1.0, factor * self._capacity_bytes / total_bytes) if total_bytes else 1.0
            of_set = share * (1 - log(share)) if share > 0 else 0.0
            weights = outlook.ordered_reads + outlook.set_reads + outlook.part_reads + outlook.free_reads
            hits = (outlook.ordered_reads + outlook.set_reads * of_set + outlook.part_reads * share
                    + outlook.free_reads * chance)  # fmt: skip
            estimates[factor] = hits / weights if weights else chance
        return estimates


class _Lru:
    """An LRU cache of names and their sizes. The name read last is the last one."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[int, int] = OrderedDict()
        self._bytes = 0

    def read(self, name: int, size: int, most_bytes: float) -> bool:
        """Whether it is a hit. The name is the last one afterwards, and as many go as exceed `most_bytes`."""
        before = self.sizes.pop(name, None)
        self.sizes[name] = size
        self._bytes += size - (before or 0)
        while self._bytes > most_bytes and self.sizes:
            self._bytes -= self.sizes.popitem(last=False)[1]
        return before is not None

    def keep_below(self, bound: int) -> None:
        for name in [name for name in self.sizes if name >= bound]:
            self._bytes -= self.sizes.pop(name)
