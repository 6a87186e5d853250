"""The orders that PyTorch's samplers draw, worked out from their seeds.

A training script that is to be reproducible gives its sampler a seed, most often a small number: `DistributedSampler`
draws each epoch's order from `seed + epoch` (0 by default), `RandomSampler` from the generator that it was given
(https://docs.pytorch.org/docs/stable/notes/randomness.html). Such an order is not random: its first few reads show the
seed, and the seed gives all other reads.

`torch.randperm` on the CPU is a Fisher-Yates shuffle from the front, by the 32-bit numbers of an MT19937 (M. Matsumoto,
T. Nishimura, 1998), which Python's `random` has, too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Sequence, Set
from itertools import pairwise
from math import gcd, sqrt
from random import Random
from typing import NamedTuple, TypeVar

T = TypeVar("T")

# The seeds that are tried: all below this number, and beyond it those that people like, with the seeds of the epochs
# that follow each.
_SEEDS = 4096
_LIKED = (12345, 31337, 123456)
_EPOCHS = 128
# A `DataLoader` that was given a generator takes two numbers from it before each epoch, for its workers' seeds.
_FOR_WORKERS = 2
# How many numbers of each seed are looked at; and of a seed that may be the right one, at which lengths of the order's
# beginning it is tested.
_GLANCE, _LOOKS = 32, (16, 32, 64, 128, 256)
# Once more than one part in so many of an order is read, its beginning cannot be distinguished from the other reads.
_BEGUN = 3
# One of the few orders that may follow a known one is proven by more reads among its first numbers than this.
_LITTLE_PROOF = 3
# Reads that are looked at.
_READS_MAX = 1296
# Every n-th object of an order is taken for a rank's share only after so many reads: before, these may be the first
# objects of each worker.
_PROOF_OF_SHARE = 48
# Ranks, and workers of small batches, overtake each other by up to `_GAP` places; objects that are farther apart are of
# different batches. The first object of a batch is among the reads once the batch has `_SETTLED` reads. More places in
# a row than a node has ranks, `_RUN`, are a batch.
_GAP, _SETTLED, _RUN = 8, 3, 17
# Parallel workers take turns more often than once in so many reads.
_SWITCHED = 16
# An order is taken to be read as it is once so much of the reads are the very first objects of it.
_WHOLE = 0.75
# Steps of work that are done without a pause.
_AT_ONCE = 512
_WORDS, _STATE_VERSION = 624, 3


class Draw(NamedTuple):
    """The state of a sampler's generator before an epoch: made from `seed`, with `spent` numbers taken from it. One
    process reads every `share`-th object of the order, from number `first` on."""

    seed: int
    spent: int = 0
    share: int = 1
    first: int = 0


def next_draws(draw: Draw, count: int) -> tuple[Draw, ...]:
    """The draws that may follow this one, one epoch over `count` objects later."""
    taken = count - 1
    return (
        draw._replace(seed=draw.seed + 1),  # DistributedSampler
        draw,  # DistributedSampler, if the script calls no set_epoch
        # At its end RandomSampler draws another order, of which it uses nothing.
        *(draw._replace(spent=draw.spent + orders * taken + more) for orders in (2, 1) for more in (0, _FOR_WORKERS)),
    )


def order_of(draw: Draw, count: int) -> Generator[None, None, array[int]]:
    """The order that is drawn of the numbers below `count`. Yields now and then."""
    numbers = _Numbers(draw.seed)
    yield from numbers.skip(draw.spent)
    order = array("i")
    for begin in range(0, count, 16 * _AT_ONCE):
        order.extend(range(begin, min(begin + 16 * _AT_ONCE, count)))
        yield
    for begin in range(0, count - 1, _AT_ONCE):
        end = min(begin + _AT_ONCE, count - 1)
        for place, number in enumerate(numbers.take(end - begin), begin):
            other = place + number % (count - place)
            order[place], order[other] = order[other], order[place]
        yield
    own = order[draw.first :: draw.share]
    if len(own) < -(-count // draw.share):
        # Each rank gets the same number of objects: the last ones get some of the first objects again.
        own.append(order[draw.first + draw.share * len(own) - count])
    return own


def at_once(work: Generator[None, None, T]) -> T:
    """The result of a generator that works in small steps, without the pauses."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def order_at_once(draw: Draw, count: int) -> array[int]:
    """See `order_of`: a million objects take most of a second."""
    return at_once(order_of(draw, count))


def turn_of(number: int, batch: int, workers: int) -> int:
    """When the object at place `number` of an order is read, as a place among all reads, if `workers` workers read the
    order beside each other, a batch of `batch` each in turn."""
    rounds, rest = divmod(number, batch * workers)
    worker, each = divmod(rest, batch)
    return rounds * batch * workers + each * workers + worker


def in_batches(order: array[int], batch: int, workers: int) -> Generator[None, None, array[int]]:
    """All of an order by `turn_of`. Yields now and then."""
    if workers == 1:
        return order
    read, in_round = array("i"), batch * workers
    for begin in range(0, len(order), in_round):
        some = order[begin : begin + in_round]
        for each in range(min(batch, len(some))):
            read.extend(some[each::batch])
            if each % _AT_ONCE == 0:
                yield
    return read


def out_of_batches(read: array[int], batch: int, workers: int) -> Generator[None, None, array[int]]:
    """The order that `in_batches` made this from. Yields now and then."""
    if workers == 1:
        return read
    order, in_round = array("i", read), batch * workers
    for begin in range(0, len(read), in_round):
        some = read[begin : begin + in_round]
        turns = yield from in_batches(array("i", range(len(some))), batch, workers)
        for number, value in zip(turns, some, strict=True):
            order[begin + number] = value
        yield
    return order


# -- batches of workers ------------------------------------------------------------------------------------------------


class _Run:
    """Places that were read about one after the other, from `first` up to `next` (half-open)."""

    __slots__ = ("first", "length", "next")

    def __init__(self, place: int) -> None:
        self.first = self.next = place
        self.length = 0


def batches_of(places: Sequence[int]) -> tuple[int, int] | None:
    """The size of the batches, and how many workers read one each, by the places of the first reads in their order.
    1, 1: the order is read as it is. None: not clear, or no process reads like this."""
    # Without a gap first: the ranks of one node read objects that are close to each other.
    found = _batches_of(places, 0) or _batches_of(places, _GAP)
    if found is None:
        count = len(places)
        if sum(place < count for place in places) >= max(_RUN, _WHOLE * count):
            # However many read, they leave nothing out.
            return 1, 1
    return found


def _batches_of(places: Sequence[int], gap: int) -> tuple[int, int] | None:
    runs, of_each = _runs_of(places, gap)
    if len(runs) == 1:
        return (1, 1) if runs[0].next <= len(places) + _GAP else None
    starts = [run.first for run in runs if run.length >= _SETTLED]
    batch = gcd(*starts)
    if sum(run is not after for run, after in pairwise(of_each)) * _SWITCHED < len(places):
        return None  # The order is read as it is, and some reads that were reported late look like another worker's.
    if len(places) < _RUN * len(runs) or batch <= _GAP:
        # Some ranks of a node read like this while the others are on other nodes; or it is too early to decide.
        return None
    under_way: dict[_Run, int] = {}
    workers = 0
    for number, (place, run) in enumerate(zip(places, of_each, strict=True)):
        under_way[run] = number
        if (place + 1) % batch == 0:
            # The last object of its batch.
            del under_way[run]
        workers = max(workers, len(under_way))
    if any(len(places) - number > _RUN * workers for number in under_way.values()):
        # A batch that nobody has gone on with is no batch.
        return None
    return batch, workers


def _runs_of(places: Sequence[int], gap: int) -> tuple[list[_Run], list[_Run]]:
    """All runs, and the run of each place. Places that are no farther apart than `gap` are of one run."""
    runs: list[_Run] = []
    of_each: list[_Run] = []
    heads: dict[int, _Run] = {}
    for place in places:
        run = heads.get(place)
        if run is None:
            run = next(filter(None, (heads.get(place + distance) for distance in range(-gap, gap + 1))), None)
        if run is None:
            run = _Run(place)
            runs.append(run)
        elif heads.get(run.next) is run:
            del heads[run.next]
        run.first, run.next = min(run.first, place), max(run.next, place + 1)
        run.length += 1
        heads[run.next] = run
        of_each.append(run)
    return runs, of_each


# -- the search for a seed ---------------------------------------------------------------------------------------------


class Seeds:
    """The first numbers of each seed that is tried. They are made when they are first needed, 0.1 ms each seed."""

    def __init__(self) -> None:
        self._seeds = array("I", [*range(_SEEDS), *(seed + epoch for seed in _LIKED for epoch in range(_EPOCHS))])
        self._numbers: array[int] = array("I")

    def found(self, reads: Sequence[int], count: int) -> Generator[None, None, Draw | None]:
        """The draw of `count` objects that begins with these reads, about in this order. None: no seed that is tried
        has such a draw. Yields now and then."""
        read = frozenset(reads[:_READS_MAX])
        each = _GLANCE + _FOR_WORKERS
        if not is_enough(len(reads), count):
            return None
        # Chance gives so many reads for one seed in some hundred only. At least 2: a rank that reads every sixteenth
        # object reads as many of the first 32.
        by_chance = _GLANCE * len(read) / count
        least = max(2, int(1 + by_chance + 3 * sqrt(by_chance)))
        for place, seed in enumerate(self._seeds):
            if len(self._numbers) < (place + 1) * each:
                self._numbers.extend(_Numbers(seed).take(each))
                yield
            elif place % 16 == 0:
                yield
            numbers = self._numbers[place * each : (place + 1) * each]
            for spent in (0, _FOR_WORKERS):
                if sum(map(read.__contains__, _drawn(numbers[spent : spent + _GLANCE], count))) >= least:
                    found = _if_proven(Draw(seed, spent), read, count)
                    yield
                    if found is not None:
                        return found
        return None


def is_enough(reads: int, count: int) -> bool:
    """Whether so many reads may prove an order of `count` objects."""
    return _LOOKS[0] <= reads <= count // _BEGUN


def _proof(by_chance: float) -> float:
    """If chance gives `by_chance` reads among the first numbers of an order in the mean, it gives so many only once in
    a billion times (Poisson's distribution, rounded up)."""
    return 6 + 6 * sqrt(by_chance) + by_chance


def following(
    draws: Iterable[Draw], reads: Sequence[int], count: int, batch: int = 1, workers: int = 1
) -> Generator[None, None, Draw | None]:
    """Which of these few draws begins with these reads, if workers read it in batches. None: none of them, or there are
    too few reads to decide. Yields now and then."""
    read = frozenset(reads)
    for draw in draws:
        # The places that would be read by four times as many reads.
        expected = {
            draw.first + draw.share * (worker * batch + each)
            for each in range(1 + 4 * len(read) // workers)
            for worker in range(workers)
        }
        numbers = _Numbers(draw.seed)
        yield from numbers.skip(draw.spent)
        drawn = _drawn(numbers.take(min(max(expected) + 1, count - 1)), count)
        by_chance = len(expected) * len(read) / count
        seen = sum(number in read for place, number in enumerate(drawn) if place in expected)
        if seen > _LITTLE_PROOF + 3 * by_chance:
            return draw
        yield
    return None


def _if_proven(draw: Draw, read: Set[int], count: int) -> Draw | None:
    """The draw with the share that was read of it. None: the reads are of another order."""
    places = _places_read(draw, read, count)
    if not any(bisect_left(places, look) >= _proof(look * len(read) / count) for look in _LOOKS):
        return None
    found = _with_share(draw, places)
    return found if found.share == 1 or len(read) >= _PROOF_OF_SHARE else None


def as_read(draw: Draw, reads: Iterable[int], count: int) -> Draw:
    """A proven draw with the share that was read of it by now: other ranks may have begun meanwhile."""
    return _with_share(draw, _places_read(draw, frozenset(reads), count))


def _places_read(draw: Draw, read: Set[int], count: int) -> list[int]:
    """The places among the first of the order whose objects were read."""
    numbers = _Numbers(draw.seed)
    for _ in numbers.skip(draw.spent):
        pass
    drawn = _drawn(numbers.take(min(_LOOKS[-1], count - 1)), count)
    return [place for place, number in enumerate(drawn) if number in read]


def _with_share(draw: Draw, places: Sequence[int]) -> Draw:
    share = gcd(*(place - places[0] for place in places))
    return draw._replace(share=share, first=places[0] % share)


def _drawn(numbers: Iterable[int], count: int) -> Iterator[int]:
    """The beginning of an order of `count` objects, drawn by a generator's numbers."""
    moved: dict[int, int] = {}
    for place, number in enumerate(numbers):
        other = place + number % (count - place)
        yield moved.get(other, other)
        moved[other] = moved.get(place, place)


class _Numbers:
    """The numbers of `torch.Generator().manual_seed(seed)`, 32 bits at a time."""

    def __init__(self, seed: int) -> None:
        word = seed & 0xFFFFFFFF
        words = [word]
        for number in range(1, _WORDS):
            word = (1812433253 * (word ^ word >> 30) + number) & 0xFFFFFFFF
            words.append(word)
        self._random = Random(0)  # noqa: S311 nothing is to be kept from anybody
        self._random.setstate((_STATE_VERSION, (*words, _WORDS), None))

    def take(self, count: int) -> array[int]:
        numbers = array("I")
        if count > 0:
            numbers.frombytes(self._random.getrandbits(32 * count).to_bytes(4 * count, "little"))
        return numbers

    def skip(self, count: int) -> Generator[None, None, None]:
        while count > 0:
            some = min(count, 16 * _AT_ONCE)
            self._random.getrandbits(32 * some)
            count -= some
            yield
