"""The search for the seeds by which WebDataset's workers shuffled the shards that they read.

First the reads show how many workers there are (`workers_of`), then `found` tries seeds: it draws the beginning of each
worker's order and compares it with the reads. See `webdataset_shuffle` for how workers draw, and for its words.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, zip_longest
from math import ceil, comb, lgamma, log, log2
from random import Random
from typing import NamedTuple

from outrider.core.ahead.order.webdataset_shuffle import (
    ALL_SEEDS,
    BUFFERS,
    INITIAL,
    Shuffle,
    buffer_sizes,
    drawn,
    share_of,
)

# Scripts give small seeds, which are tried first. Where there is little evidence of a shuffle, no others are tried.
_SMALL_SEEDS = 4096
# As powers of two. A seed is the right one if the reads have so many more possible beginnings than there are seeds to
# choose from: chance then explains them once in 2**10 times, with some 2**4 numbers of workers and buffers.
_MARGIN_BITS = 14.0
# Before a million seeds are tried, it must be so improbable that by chance workers share an order, or one worker reads
# only the first of its shards.
_PROOF_BITS = 30.0
# Workers of all ranks on all nodes.
_WORKERS_MAX = 512
# So much of the reads must be read alike by several workers, before a million seeds are tried.
_ALIKE = 0.7
# Shards of each worker that are looked at.
_LOOKED_AT = 24
# The reads are not shuffled if a larger part of them steps to a neighbouring place.
_STEPS = 0.35
# So much of the reads must be by workers whose seeds were found: the rest may be another job's.
_NEARLY_ALL = 0.9
# Seeds that are glanced at in about 0.1 ms. For each buffer, to test a seed takes as long as a glance at `_TEST` seeds.
_SEEDS_AT_ONCE, _TEST = 20, 2
_WORD_BITS, _WORD = 32, 0xFFFFFFFF


class SearchResult(NamedTuple):
    """The result of a search. `shuffle`: None is not found. `tried`: none of the first so many seeds is the right one,
    so they need not be tried again. `search_at`: another search is worth it after so many reads; 0: that is not known.
    """

    shuffle: Shuffle | None
    tried: int
    search_at: int


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Workers of one seed: they have the same number of shards (`share`) and read the same `places` of them. `reads` is
    the number of their reads."""

    share: int
    workers: tuple[int, ...]
    places: tuple[int, ...]
    reads: int

    def bits(self, buffer: int) -> float:
        """How many beginnings of this length there are, as a power of two."""
        return sum(log2(size) for size in islice(buffer_sizes(self.share, buffer), len(self.places)))


def found(reads: Sequence[int], count: int, workers: int, tried: int = 0) -> Generator[None, None, SearchResult]:
    """The shuffle of `count` shards that begins with these reads; none of the first `tried` seeds does. `workers`: see
    `workers_of`. Yields now and then."""
    groups = _groups_of(reads, workers, count)
    buffers = _buffers_of(groups)
    if not buffers:
        return SearchResult(None, tried, 0)
    # One seed may have two groups, since some workers have one shard more than others.
    longest = {group.share: group for group in sorted(groups, key=lambda group: len(group.places))}
    bits = sum(group.bits(buffers[-1]) for group in longest.values())
    if not bits:
        return SearchResult(None, tried, 0)
    looked_at = sum(group.reads for group in groups)
    alike = sum(group.reads for group in groups if len(group.workers) > 1)
    is_likely = alike >= _ALIKE * looked_at if workers > 1 else _is_beginning(reads, count)
    most = ALL_SEEDS if is_likely else _SMALL_SEEDS
    until = min(most, int(2.0 ** min(_WORD_BITS, bits - _MARGIN_BITS)))
    search_at = 0
    if until < most:
        wanted = _SMALL_SEEDS if until < _SMALL_SEEDS else ALL_SEEDS
        share_of_all = (log2(wanted) + _MARGIN_BITS) / bits
        search_at = ceil(len(reads) * share_of_all) + sum(len(group.workers) for group in groups) // 2
    trial = _Trial(groups, buffers)
    yield from trial.run(range(tried, until))
    if sum(group.reads for group in trial.seeds) < _NEARLY_ALL * looked_at:
        # The seeds of some of several ranks may have been found. They are then tried again, while others are not tried.
        return SearchResult(None, tried if trial.seeds and until < most else max(tried, until), search_at)
    seed_of = {first: seed for group, seed in trial.seeds.items() for first in group.workers}
    order = dict.fromkeys(read % workers for read in reads)
    seeds = tuple((first, seed_of[first]) for first in order if first in seed_of)
    return SearchResult(Shuffle(workers, trial.buffer, seeds), 0, 0)


def workers_of(reads: Sequence[int], count: int) -> Generator[None, None, int]:
    """To how many workers the shards are dealt: the workers of a rank read the same places of their own shards. 1: the
    reads show no more than one worker."""
    best, most_bits = 1, _PROOF_BITS
    for workers in range(2, min(_WORKERS_MAX, len(reads) // 2, count // 2) + 1):
        yield
        share = count // workers
        places = _by_worker(reads, workers)
        # If two workers are taken for one, or the shards are read in their order, places step to neighbouring ones.
        steps = sum(abs(place - after) == 1 for own in places.values() for place, after in pairwise(own))
        if steps <= (_STEPS + 2 / share) * (len(reads) - len(places)):
            bits = _improbable(places.values(), share)
            if bits > most_bits:
                best, most_bits = workers, bits
    return best


def _improbable(places: Iterable[Sequence[int]], share: int) -> float:
    """How improbable it is that workers read the same places of their `share` so often by chance, as a power of two."""
    bits, columns = 0.0, 0
    for nth in zip_longest(*places):
        read = [place for place in nth if place is not None]
        distinct = len(set(read))
        columns += 1
        if distinct < share:
            # The union bound over all sets of places that these may be.
            bits += max(0.0, len(read) * log2(share / distinct) - log2(comb(share, distinct)))
    nats = bits * log(2)
    if nats <= columns:
        return 0.0
    # The probability that a product of so many probabilities is as small by chance, at most (R. A. Fisher's method of
    # combining tests).
    return (nats - (columns - 1) * log(nats) + lgamma(columns) - log(columns)) / log(2)


def _by_worker(reads: Sequence[int], workers: int) -> dict[int, list[int]]:
    """The places that each worker has read."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for read in reads:
        place, first = divmod(read, workers)
        found[first].append(place)
    return found


def _groups_of(reads: Sequence[int], workers: int, count: int) -> list[_Group]:
    alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    places = {first: own[:_LOOKED_AT] for first, own in _by_worker(reads, workers).items()}
    for first, own in places.items():
        alike[share_of(first, workers, count), own[0]].append(first)
    groups = []
    for (share, _), firsts in alike.items():
        of_each = [places[first] for first in firsts]
        nths = (Counter(place for place in nth if place is not None) for nth in zip_longest(*of_each))
        groups.append(_Group(
            share, tuple(firsts), tuple(nth.most_common(1)[0][0] for nth in nths), sum(map(len, of_each))
        ))  # fmt: skip
    return groups


def _buffers_of(groups: Sequence[_Group]) -> list[int]:
    """The buffers that held each shard when it was read, as far as the reads distinguish them."""
    sizes = {}
    for buffer in reversed(BUFFERS):
        each = [list(islice(buffer_sizes(group.share, buffer), len(group.places))) for group in groups]
        if all(
            place < size + number
            for group, in_buffer in zip(groups, each, strict=True)
            for number, (place, size) in enumerate(zip(group.places, in_buffer, strict=True))
        ):
            sizes[str(each)] = buffer
    return sorted(sizes.values(), key=BUFFERS.index)


def _is_beginning(reads: Sequence[int], count: int) -> bool:
    """One worker has read only shards that may be in its buffer by then, and chance hardly explains that."""
    bits = 0.0
    for number, read in enumerate(reads[:_LOOKED_AT]):
        in_buffer = min(count, INITIAL + 2 * number)
        if read >= in_buffer:
            return False
        bits += log2(count / in_buffer)
    return bits >= _PROOF_BITS


def _begins(order: Iterator[int], drawn_yet: list[int], places: Sequence[int]) -> bool:
    """Whether an order begins with these places. `drawn_yet` has those that were taken from `order`. No more are taken
    than tell: most wrong seeds differ in the second place."""
    for number, place in enumerate(places):
        if number == len(drawn_yet):
            drawn_yet.append(next(order, -1))
        if drawn_yet[number] != place:
            return False
    return True


class _Trial:
    """Tries seeds on groups. `seeds` has those groups whose seed was found, all with a buffer of `buffer` shards."""

    def __init__(self, groups: Sequence[_Group], buffers: Sequence[int]) -> None:
        self.seeds: dict[_Group, int] = {}
        self._groups = groups
        self._buffers = buffers
        self._by_share: defaultdict[int, list[_Group]] = defaultdict(list)
        # The first places that groups have read, by how many shards were in the buffer.
        self._firsts: defaultdict[int, set[int]] = defaultdict(set)
        for group in groups:
            self._by_share[group.share].append(group)
            for buffer in buffers:
                self._firsts[next(buffer_sizes(group.share, buffer))].add(group.places[0])

    @property
    def buffer(self) -> int:
        return self._buffers[0]

    def run(self, seeds: range) -> Generator[None, None, None]:
        starts = [(size, _WORD_BITS - size.bit_length(), places) for size, places in self._firsts.items()]
        numbers = Random(0)  # noqa: S311 it is WebDataset's
        # Not `Random.seed`, which first examines the type of its argument. A seed takes 5 us, of which this and the
        # words take 4.
        reseed, getrandbits = super(Random, numbers).seed, numbers.getrandbits
        test, work = _TEST * len(self._by_share) * len(self._buffers), 0
        for seed in seeds:
            reseed(seed)
            words = getrandbits(2 * _WORD_BITS)
            for size, shift, places in starts:
                # `randrange` takes the highest bits of the first word, or of the next word if that number is too large.
                first = (words & _WORD) >> shift
                if first >= size:
                    first = words >> _WORD_BITS + shift
                if first in places or first >= size:
                    self._try(seed)
                    if len(self.seeds) == len(self._groups):
                        return
                    work += test
                    break
            work += 1
            if work >= _SEEDS_AT_ONCE:
                yield
                work = 0

    def _try(self, seed: int) -> None:
        for buffer in self._buffers:
            explained: list[_Group] = []
            for share, groups in self._by_share.items():
                order = drawn(Random(seed), share, buffer)  # noqa: S311 it is WebDataset's
                places: list[int] = []
                explained += (
                    group for group in groups
                    if group not in self.seeds and _begins(order, places, group.places)
                )  # fmt: skip
            if explained and sum(group.bits(buffer) for group in explained) >= log2(seed + 1) + _MARGIN_BITS:
                self.seeds.update(dict.fromkeys(explained, seed))
                # All workers of a job have buffers of the same size.
                self._buffers = [buffer]
                return
