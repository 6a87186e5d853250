"""The orders in which WebDataset's workers read their shards, worked out from its seed.

`wds.WebDataset(urls, shardshuffle=n)` deals the shards to its workers: with `k` workers, each gets every `k`-th shard.
Each worker then shuffles its own shards by a buffer of `n` shards, with Python's `random` and a seed that all workers
share. That is a number from 0 to 1,000,000 where the script gives none, the same in each epoch, or one more in each
epoch with `detshuffle=True` (https://github.com/webdataset/webdataset, `compat.py` and `filters.py`, as of 1.0.2). So
the shards that workers read at about the same time are neighbours in the list, which shows how many workers there are.
After half a dozen shards of each worker, only one of the million seeds explains the reads.

A shard's *number* is its rank in the sorted list of names. A worker is named by the number of its first shard, and the
`place` of a shard is its number among its worker's own shards.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import islice
from random import Random
from typing import NamedTuple

# WebDataset begins to draw once so many shards are in the buffer, or the buffer is full.
INITIAL = 100
# The buffers that scripts give as `shardshuffle`. The likelier one comes first: it is taken where the reads do not show
# which one it is yet.
BUFFERS = (1000, 100, 10_000, 5000, 500, 200, 100_000, 50, 20, 10)
# WebDataset's own seeds are below this number.
ALL_SEEDS = 1_000_001
# A loader takes from its workers in turn. A worker counts as faster or slower only if it is more than `_TURNS` reads
# from the mean, and its pace is as if all workers had `_ABOUT_EQUAL` more reads.
_ABOUT_EQUAL, _TURNS = 8, 2
# Reads that prove a late worker to have a known seed.
_LATE = 3
# Small steps of work that are done in about 0.1 ms.
_STEPS_AT_ONCE, _READS_AT_ONCE, _COUNTED_AT_ONCE = 64, 8, 512


class Shuffle(NamedTuple):
    """Each of `workers` workers draws every `workers`-th shard from a buffer of `buffer` shards. `seeds` has the name
    and the seed of each worker that was seen, in the order in which the workers read."""

    workers: int
    buffer: int
    seeds: tuple[tuple[int, int], ...]


def next_shuffles(shuffle: Shuffle) -> tuple[Shuffle, ...]:
    """The shuffles that the next epoch may have, the likelier first."""
    return shuffle, later(shuffle, 1)


def later(shuffle: Shuffle, epochs: int) -> Shuffle:
    """The shuffle so many epochs later, with `detshuffle`."""
    return shuffle._replace(seeds=tuple((first, seed + epochs) for first, seed in shuffle.seeds))


def order_of(
    shuffle: Shuffle, count: int, paces: Mapping[int, float], read: Mapping[int, int]
) -> Generator[None, None, array[int]]:
    """The numbers of `count` shards in the order in which all workers together read them: equally fast workers read one
    each in turn. `paces`: the relative speed of each worker, 1.0 where it is missing; `read`: how many shards it has
    read by now. Yields now and then."""
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
    """How many of these reads are of each worker. Yields now and then."""
    read = Counter[int]()
    for begin in range(0, len(reads), _COUNTED_AT_ONCE):
        read.update(number % shuffle.workers for number in reads[begin : begin + _COUNTED_AT_ONCE])
        yield
    return read


def paces_of(shuffle: Shuffle, read: Mapping[int, int]) -> dict[int, float]:
    """The relative speed of each worker, by how many shards it has read. A few reads show little, and a turn or two
    show nothing."""
    known = {first: read.get(first, 0) for first, _ in shuffle.seeds}
    mean = sum(known.values()) / len(known)
    return {
        first: (reads + _ABOUT_EQUAL) / (mean + _ABOUT_EQUAL) if abs(reads - mean) > _TURNS else 1.0
        for first, reads in known.items()
    }


def _worker(shuffle: Shuffle, first: int, seed: int, count: int) -> Iterator[int]:
    return drawn(Random(seed), share_of(first, shuffle.workers, count), shuffle.buffer)  # noqa: S311 it is WebDataset's


def share_of(first: int, workers: int, count: int) -> int:
    """How many of `count` shards a worker gets, by its name."""
    return (count - first + workers - 1) // workers


def drawn(numbers: Random, count: int, buffer: int) -> Iterator[int]:
    """One worker's order of its `count` shards, as places. `numbers` is the generator with the worker's seed."""
    waiting: list[int] = []
    taken = 0
    for size in buffer_sizes(count, buffer):
        more = size - len(waiting)
        waiting.extend(range(taken, taken + more))
        taken += more
        at = numbers.randrange(size)
        waiting[at], waiting[-1] = waiting[-1], waiting[at]
        yield waiting.pop()


def buffer_sizes(count: int, buffer: int) -> Iterator[int]:
    """How many shards are in the buffer at each draw: two come for each one that goes, until the buffer is full."""
    # The shards before the first draw come in one go: a seed search asks for little more.
    taken = waiting = min(count, INITIAL, buffer)
    while waiting > 0:
        yield waiting
        waiting -= 1
        more = min(count - taken, 2 if waiting + 1 < buffer else 1)
        taken += more
        waiting += more


def next_of(shuffles: Iterable[Shuffle], reads: Sequence[int], count: int) -> Generator[None, None, Shuffle | None]:
    """Which of these few shuffles begins with these reads. None: none of them. Yields now and then."""
    for shuffle in shuffles:
        right = yield from _right(shuffle, reads, count)
        if 2 * right > len(reads):
            return shuffle
    return None


def as_read(shuffle: Shuffle, reads: Sequence[int], count: int) -> Generator[None, None, Shuffle]:
    """The same shuffle, with the workers that have begun late, and with the buffer that explains most reads: the first
    few shards are the same for many buffers. Yields now and then."""
    late = yield from _late_workers(shuffle, reads, count)
    best, most = shuffle, -1
    # A buffer never holds more shards than this, so larger buffers are all alike.
    enough = (count // shuffle.workers + INITIAL) // 2 + 2
    buffers = {min(enough, buffer): buffer for buffer in reversed((shuffle.buffer, *BUFFERS))}
    for buffer in sorted(buffers.values(), key=lambda buffer: buffer != shuffle.buffer):
        other = shuffle._replace(buffer=buffer, seeds=shuffle.seeds + late)
        right = yield from _right(other, reads, count)
        if right > most:
            best, most = other, right
    return best


def _right(shuffle: Shuffle, reads: Sequence[int], count: int) -> Generator[None, None, int]:
    """How many of these reads were the next shard of their worker."""
    workers = {first: _worker(shuffle, first, seed, count) for first, seed in shuffle.seeds}
    right = 0
    for number, read in enumerate(reads):
        place, first = divmod(read, shuffle.workers)
        right += first in workers and next(workers[first], None) == place
        # The first shard of a worker takes as long to draw as many others.
        if number % _READS_AT_ONCE == 0:
            yield
    return right


def _late_workers(
    shuffle: Shuffle, reads: Sequence[int], count: int
) -> Generator[None, None, tuple[tuple[int, int], ...]]:
    """The names and seeds of workers that the shuffle has not, and that have one of its seeds."""
    known = dict(shuffle.seeds)
    places: defaultdict[int, list[int]] = defaultdict(list)
    for number, read in enumerate(reads):
        place, first = divmod(read, shuffle.workers)
        if first not in known and len(places[first]) < _LATE:
            places[first].append(place)
        if number % _COUNTED_AT_ONCE == 0:
            yield
    late = []
    for first, own in places.items():
        for seed in sorted(set(known.values())) if len(own) == _LATE else ():
            if own == list(islice(_worker(shuffle, first, seed, count), _LATE)):
                late.append((first, seed))
            yield
    return tuple(late)
