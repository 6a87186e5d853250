"""The orders in which WebDataset's workers read their shards, worked out from its seed.

`wds.WebDataset(urls, shardshuffle=n)` deals the shards to its workers, every so-many-th to each, and each worker then
shuffles its own by a buffer of `n` shards, with Python's `random` and a seed that all of them share: a number from 0 to
1,000,000 where the script gives none, the same in each epoch, or one more in each with `detshuffle=True`
(https://github.com/webdataset/webdataset, `compat.py` and `filters.py`, as of 1.0.2). So the shards that workers read
at about the same time stand beside each other in the list, which tells how many workers there are; and after half a
dozen shards of each there is but one seed of those million that draws what was read.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import islice, pairwise, zip_longest
from math import ceil, comb, lgamma, log, log2
from random import Random
from typing import NamedTuple

# WebDataset begins to draw once so many shards, or as many as there may be, are in the buffer.
_INITIAL = 100
# What people give for `shardshuffle`, the likelier first where it makes no difference yet.
_BUFFERS = (1000, 100, 10_000, 5000, 500, 200, 100_000, 50, 20, 10)
# WebDataset's own seeds. A script's are small: those are tried first, and where little speaks for a shuffle, alone.
ALL_SEEDS, _SMALL_SEEDS = 1_000_001, 4096
# As powers of two: a seed is the right one if what was read is one of so many more beginnings than there are seeds to
# choose from (chance draws it once in 2**10, with some 2**4 numbers of workers and buffers); and how sure it must be
# that workers share an order, or that one reads only the first of its shards, before a million seeds are tried.
_MARGIN_BITS, _PROOF_BITS = 14.0, 30.0
# Of all ranks on all nodes.
_WORKERS_MAX = 512
# So much of what was read must be read alike by several workers, before a million seeds are tried.
_ALIKE = 0.7
# Of each worker so many shards are looked at.
_LOOKED_AT = 24
# Of more steps than that from one place to the next they are not read as shuffled.
_STEPS = 0.35
# A loader takes from its workers in turn: that one is faster must be seen by many more reads than that.
_ABOUT_EQUAL, _TURNS = 8, 2
# Reads that prove a worker to be one of a seed that is known.
_LATE = 3
# So much of what was read must be read by workers whose seeds were found: the rest may be another job's.
_NEARLY_ALL = 0.9
# Seeds, or small steps of other work, that are done in about 0.1 ms. To look at a seed takes as long as so many, for
# each buffer.
_SEEDS_AT_ONCE, _STEPS_AT_ONCE, _READS_AT_ONCE, _COUNTED_AT_ONCE = 20, 64, 8, 512
_LOOK = 2
_WORD_BITS, _WORD = 32, 0xFFFFFFFF


class Shuffle(NamedTuple):
    """Every `workers`-th of the names is one worker's, who draws them from a buffer of `buffer`. `seeds`: of each
    worker that was seen, by the number of its first name, in the order in which they read."""

    workers: int
    buffer: int
    seeds: tuple[tuple[int, int], ...]


class SearchResult(NamedTuple):
    """What a search came to. `shuffle`: None is not found; `tried`: none of so many seeds, which need not be tried
    again; `search_at`: after so many reads another search is worth it, 0: that is not known."""

    shuffle: Shuffle | None
    tried: int
    search_at: int


def next_shuffles(shuffle: Shuffle) -> tuple[Shuffle, ...]:
    """What may be read in the next epoch, the likelier first."""
    return shuffle, later(shuffle, 1)


def later(shuffle: Shuffle, epochs: int) -> Shuffle:
    """With `detshuffle`."""
    return shuffle._replace(seeds=tuple((first, seed + epochs) for first, seed in shuffle.seeds))


def order_of(
    shuffle: Shuffle, count: int, paces: Mapping[int, float], read: Mapping[int, int]
) -> Generator[None, None, array[int]]:
    """What all workers read of `count` shards, as their numbers: those that are equally fast one each in turn. `paces`:
    how fast each is, 1.0 where nothing is known of it; `read`: how many it has read by now. Yields now and then."""
    order = array("i")
    turns = []
    for number, (first, seed) in enumerate(shuffle.seeds):
        turns.append((-read.get(first, 0) / paces.get(first, 1.0), number, first, _worker(shuffle, first, seed, count)))
    heapify(turns)
    while turns:
        at, number, first, places = turns[0]
        place = next(places, None)
        if place is None:
            heappop(turns)
            continue
        order.append(first + shuffle.workers * place)
        heapreplace(turns, (at + 1 / paces.get(first, 1.0), number, first, places))
        if len(order) % _STEPS_AT_ONCE == 0:
            yield
    return order


def read_of(shuffle: Shuffle, reads: Sequence[int]) -> Generator[None, None, Counter[int]]:
    """How many of these each worker has read. Yields now and then."""
    read = Counter[int]()
    for begin in range(0, len(reads), _COUNTED_AT_ONCE):
        read.update(one % shuffle.workers for one in reads[begin : begin + _COUNTED_AT_ONCE])
        yield
    return read


def paces_of(shuffle: Shuffle, read: Mapping[int, int]) -> dict[int, float]:
    """How fast each worker is, by how many it has read: a few reads tell little, and a turn or two nothing."""
    known = {first: read.get(first, 0) for first, _ in shuffle.seeds}
    mean = sum(known.values()) / len(known)
    return {
        first: (reads + _ABOUT_EQUAL) / (mean + _ABOUT_EQUAL) if abs(reads - mean) > _TURNS else 1.0
        for first, reads in known.items()
    }


def _worker(shuffle: Shuffle, first: int, seed: int, count: int) -> Iterator[int]:
    return drawn(Random(seed), _share(first, shuffle.workers, count), shuffle.buffer)  # noqa: S311 it is WebDataset's


def _share(first: int, workers: int, count: int) -> int:
    """How many of `count` shards a worker gets."""
    return (count - first + workers - 1) // workers


def drawn(numbers: Random, count: int, buffer: int) -> Iterator[int]:
    """One worker's order of its `count` shards; `numbers` as its seed has set them."""
    waiting: list[int] = []
    taken = 0
    for size in _sizes(count, buffer):
        more = size - len(waiting)
        waiting.extend(range(taken, taken + more))
        taken += more
        at = numbers.randrange(size)
        waiting[at], waiting[-1] = waiting[-1], waiting[at]
        yield waiting.pop()


def _sizes(count: int, buffer: int) -> Iterator[int]:
    """How many are in the buffer each time that one of them is drawn: two come for one that goes, until it is full."""
    taken = waiting = 0
    while taken < count or waiting > 0:
        more = min(count - taken, 2 if waiting + 1 < buffer else 1)
        taken += more
        waiting += more
        if waiting >= min(_INITIAL, buffer) or taken == count:
            yield waiting
            waiting -= 1


def next_of(shuffles: Iterable[Shuffle], reads: Sequence[int], count: int) -> Generator[None, None, Shuffle | None]:
    """Which of these few began with these reads; None: none of them. Yields now and then."""
    for shuffle in shuffles:
        right = yield from _right(shuffle, reads, count)
        if 2 * right > len(reads):
            return shuffle
    return None


def as_read(shuffle: Shuffle, reads: Sequence[int], count: int) -> Generator[None, None, Shuffle]:
    """The same, with the workers that have begun late, and from as large a buffer as fits best what was read since: the
    first few shards are the same of many. Yields now and then."""
    late = yield from _late_workers(shuffle, reads, count)
    best, most = shuffle, -1
    # No more than that are ever in one.
    enough = (count // shuffle.workers + _INITIAL) // 2 + 2
    memory = {min(enough, buffer): buffer for buffer in reversed((shuffle.buffer, *_BUFFERS))}
    for buffer in sorted(memory.values(), key=lambda buffer: buffer != shuffle.buffer):
        other = shuffle._replace(buffer=buffer, seeds=shuffle.seeds + late)
        right = yield from _right(other, reads, count)
        if right > most:
            best, most = other, right
    return best


def _right(shuffle: Shuffle, reads: Sequence[int], count: int) -> Generator[None, None, int]:
    """How many of these reads were its workers' next ones."""
    workers = {first: _worker(shuffle, first, seed, count) for first, seed in shuffle.seeds}
    right = 0
    for number, read in enumerate(reads):
        place, first = divmod(read, shuffle.workers)
        right += first in workers and next(workers[first], None) == place
        # The first one of a worker takes as long as many others.
        if number % _READS_AT_ONCE == 0:
            yield
    return right


def _late_workers(
    shuffle: Shuffle, reads: Sequence[int], count: int
) -> Generator[None, None, tuple[tuple[int, int], ...]]:
    """Those of a known seed that it has not seen."""
    known = dict(shuffle.seeds)
    places: defaultdict[int, list[int]] = defaultdict(list)
    for number, read in enumerate(reads):
        place, first = divmod(read, shuffle.workers)
        if first not in known and len(places[first]) < _LATE:
            places[first].append(place)
        if number % _COUNTED_AT_ONCE == 0:
            yield
    late = []
    for first, its in places.items():
        for seed in sorted(set(known.values())) if len(its) == _LATE else ():
            if its == list(islice(_worker(shuffle, first, seed, count), _LATE)):
                late.append((first, seed))
            yield
    return tuple(late)


# -- the search --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Workers, each by its first name's number, that have as many shards (`share`) and read the same `places` of them:
    of one seed. `reads`: of all of them."""

    share: int
    workers: tuple[int, ...]
    places: tuple[int, ...]
    reads: int

    def bits(self, buffer: int) -> float:
        """How many such beginnings there are, as a power of two."""
        return sum(log2(size) for size in islice(_sizes(self.share, buffer), len(self.places)))


def found(reads: Sequence[int], count: int, workers: int, tried: int = 0) -> Generator[None, None, SearchResult]:
    """By which shuffle these of `count` shards were read, each worker's in its order; none of the first `tried` seeds
    has done so. `workers`: see `workers_of`. Yields now and then."""
    groups = _groups_of(reads, workers, count)
    memory = _buffers_of(groups)
    if not memory:
        return SearchResult(None, tried, 0)
    # Of one seed there may be two groups: some workers have a shard more.
    longest = {group.share: group for group in sorted(groups, key=lambda group: len(group.places))}
    bits = sum(group.bits(memory[-1]) for group in longest.values())
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
    trial = _Trial(groups, memory)
    yield from trial.run(range(tried, until))
    if sum(group.reads for group in trial.seeds) < _NEARLY_ALL * looked_at:
        # Of several ranks, the seeds of some may have been found.
        return SearchResult(None, tried if trial.seeds and until < most else max(tried, until), search_at)
    seed_of = {first: seed for group, seed in trial.seeds.items() for first in group.workers}
    order = dict.fromkeys(read % workers for read in reads)
    seeds = tuple((first, seed_of[first]) for first in order if first in seed_of)
    return SearchResult(Shuffle(workers, trial.buffer, seeds), 0, 0)


def workers_of(reads: Sequence[int], count: int) -> Generator[None, None, int]:
    """To how many workers the shards are dealt: those of a rank read the same places of theirs. 1: nothing is to be
    seen of others."""
    best, most_bits = 1, _PROOF_BITS
    for workers in range(2, min(_WORKERS_MAX, len(reads) // 2, count // 2) + 1):
        yield
        share = count // workers
        places = _by_worker(reads, workers)
        # Where two workers are taken for one, or all are read in their order, places stand beside each other.
        steps = sum(abs(one - other) == 1 for its in places.values() for one, other in pairwise(its))
        if steps <= (_STEPS + 2 / share) * (len(reads) - len(places)):
            bits = _improbable(places.values(), share)
            if bits > most_bits:
                best, most_bits = workers, bits
    return best


def _improbable(places: Iterable[Sequence[int]], share: int) -> float:
    """How unlikely it is that workers read the same places of their `share` as often by chance: as a power of two."""
    bits, columns = 0.0, 0
    for nth in zip_longest(*places):
        read = [place for place in nth if place is not None]
        distinct = len(set(read))
        columns += 1
        if distinct < share:
            # The union bound over which places these may be.
            bits += max(0.0, len(read) * log2(share / distinct) - log2(comb(share, distinct)))
    nats = bits * log(2)
    if nats <= columns:
        return 0.0
    # Of so many probabilities the product is as small by chance, at most (R. A. Fisher's method of combining tests).
    return (nats - (columns - 1) * log(nats) + lgamma(columns) - log(columns)) / log(2)


def _by_worker(reads: Sequence[int], workers: int) -> dict[int, list[int]]:
    """The places that each has read, by its first name's number."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for read in reads:
        place, first = divmod(read, workers)
        found[first].append(place)
    return found


def _groups_of(reads: Sequence[int], workers: int, count: int) -> list[_Group]:
    alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    places = {first: its[:_LOOKED_AT] for first, its in _by_worker(reads, workers).items()}
    for first, its in places.items():
        alike[_share(first, workers, count), its[0]].append(first)
    groups = []
    for (share, _), firsts in alike.items():
        of_each = [places[first] for first in firsts]
        nths = (Counter(place for place in nth if place is not None) for nth in zip_longest(*of_each))
        groups.append(_Group(
            share, tuple(firsts), tuple(nth.most_common(1)[0][0] for nth in nths), sum(map(len, of_each))
        ))  # fmt: skip
    return groups


def _buffers_of(groups: Sequence[_Group]) -> list[int]:
    """Those by which all that was read was there to be drawn, and of which each makes a difference so far."""
    sizes = {}
    for buffer in reversed(_BUFFERS):
        each = [list(islice(_sizes(group.share, buffer), len(group.places))) for group in groups]
        if all(
            place < size + number
            for group, its in zip(groups, each, strict=True)
            for number, (place, size) in enumerate(zip(group.places, its, strict=True))
        ):
            sizes[str(each)] = buffer
    return sorted(sizes.values(), key=_BUFFERS.index)


def _is_beginning(reads: Sequence[int], count: int) -> bool:
    """One worker alone has read nothing but what may be in its buffer by then."""
    bits = 0.0
    for number, read in enumerate(reads[:_LOOKED_AT]):
        in_buffer = min(count, _INITIAL + 2 * number)
        if read >= in_buffer:
            return False
        bits += log2(count / in_buffer)
    return bits >= _PROOF_BITS


class _Trial:
    """Seeds tried on groups. `seeds`: of those of which one was found, which draw from a buffer of `buffer`."""

    def __init__(self, groups: Sequence[_Group], memory: Sequence[int]) -> None:
        self.seeds: dict[_Group, int] = {}
        self._groups = groups
        self._memory = memory
        self._by_share: defaultdict[int, list[_Group]] = defaultdict(list)
        # The first places that a group has read, by how many were in the buffer.
        self._firsts: defaultdict[int, set[int]] = defaultdict(set)
        for group in groups:
            self._by_share[group.share].append(group)
            for buffer in memory:
                self._firsts[next(_sizes(group.share, buffer))].add(group.places[0])

    @property
    def buffer(self) -> int:
        return self._memory[0]

    def run(self, seeds: range) -> Generator[None, None, None]:
        starts = [(size, _WORD_BITS - size.bit_length(), places) for size, places in self._firsts.items()]
        numbers = Random(0)  # noqa: S311 it is WebDataset's
        # Not `Random.seed`, which sees first what it was given. Of 5 us a seed this and the words take 4.
        reseed, getrandbits = super(Random, numbers).seed, numbers.getrandbits
        look, work = _LOOK * len(self._by_share) * len(self._memory), 0
        for seed in seeds:
            reseed(seed)
            words = getrandbits(2 * _WORD_BITS)
            for size, shift, places in starts:
                # The highest bits of the first word, or of the next one, if that is too large a number.
                first = (words & _WORD) >> shift
                if first >= size:
                    first = words >> _WORD_BITS + shift
                if first in places or first >= size:
                    self._try(seed)
                    if len(self.seeds) == len(self._groups):
                        return
                    work += look
                    break
            work += 1
            if work >= _SEEDS_AT_ONCE:
                yield
                work = 0

    def _try(self, seed: int) -> None:
        for buffer in self._memory:
            its: list[_Group] = []
            for share, groups in self._by_share.items():
                order = drawn(Random(seed), share, buffer)  # noqa: S311 it is WebDataset's
                places = [next(order)]
                for group in groups:
                    if group.places[0] == places[0] and group not in self.seeds:
                        places += islice(order, len(group.places) - len(places))
                        its += [group] if group.places == tuple(places[: len(group.places)]) else []
            if its and sum(group.bits(buffer) for group in its) >= log2(seed + 1) + _MARGIN_BITS:
                self.seeds.update(dict.fromkeys(its, seed))
                # All of a job draw from as large a one.
                self._memory = [buffer]
                return
