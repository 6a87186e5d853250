"""Cached objects ranked by their next use, as Belady's eviction needs: the order, stale ranks, the farthest one."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ahead.dataset.job_table import JobTable
from outrider.core.ahead.dataset.next_use_ranking import NextUse, RankIndex, silence
from outrider.core.ahead.order.epoch import ORDER_LIKELY, JobEpoch
from outrider.core.ahead.order.epoch_detector import EpochDetector

COUNT = 40


@dataclass(slots=True, eq=False)
class Cached:
    index: int
    used_at: float = 0.0
    rank: float = 0.0
    aside: bool = False
    reading: bool = False
    broken: bool = False


class Reading:
    """A job that reads all objects by their indexes, in a hundred seconds each epoch, and the cached objects."""

    def __init__(self, *, in_epochs: bool = True) -> None:
        self.jobs = JobTable()
        self.epoch = JobEpoch(array("i", range(COUNT)), COUNT, 0.0, confidence=ORDER_LIKELY)
        self.epoch.period_s = 100.0
        if in_epochs:
            self.add_job("a").epochs = [self.epoch]
        self.next_use: NextUse[Cached] = NextUse(self.jobs, {})

    def add_job(self, client: str, *, by_chance: bool = False) -> EpochDetector:
        job = self.jobs.jobs[client] = EpochDetector(client, 0.0)
        job.is_by_chance = by_chance
        self.jobs.forget_epochs()
        return job

    def cache(self, *indexes: int, now: float = 0.0) -> list[Cached]:
        objects = [Cached(index, now) for index in indexes]
        for cached in objects:
            self.next_use.add(cached, now)
        return objects

    def farthest(self, now: float = 0.0) -> list[int]:
        return [cached.index for _, cached in self.next_use.farthest(now)]

    @contextmanager
    def ranked_by_an_epoch(self) -> Iterator[None]:
        """Without an epoch, a search for the farthest does not go by the ranks."""
        if self.jobs.epochs():
            yield
            return
        self.add_job("of now").epochs = [self.epoch]
        yield
        del self.jobs.jobs["of now"]
        self.jobs.forget_epochs()

    def holds(self) -> None:
        """The invariant of `NextUse`."""
        ranked = self.next_use
        victims = [cached for cached in ranked.objects.values() if not cached.aside]
        by_rank = sorted(victims, key=lambda cached: (cached.rank, cached.index), reverse=True)
        with self.ranked_by_an_epoch():
            assert self.farthest() == [cached.index for cached in by_rank]
        assert Counter(ranked.recent) == Counter(cached.index for cached in victims)
        assert all(cached.index == index for index, cached in ranked.objects.items())


@pytest.fixture
def reading() -> Reading:
    return Reading()


def test_the_object_that_is_read_last_is_the_farthest(reading: Reading) -> None:
    reading.cache(5, 30, 12)
    assert reading.farthest() == [30, 12, 5]
    seconds = [seconds for seconds, _ in reading.next_use.farthest(0.0)]
    assert seconds == pytest.approx([75.0, 30.0, 12.5])


def test_a_rank_stays_true_while_the_clock_moves(reading: Reading) -> None:
    objects = reading.cache(*range(10, COUNT))
    for index in range(10):
        reading.epoch.read(index, 1.0 + index)
        reading.jobs.forget_epochs()
        reading.next_use.advance(1 / COUNT)
    ranks = [cached.rank for cached in objects]
    reading.next_use.rerank_all(10.0)
    assert [cached.rank for cached in objects] == pytest.approx(ranks, abs=1.01 / COUNT)


def read(reading: Reading, index: int, now: float) -> None:
    cached = reading.next_use.objects.get(index)
    if cached is None:
        reading.cache(index, now=now)
        return
    if reading.epoch.unread(index):
        reading.epoch.read(index, now)
    reading.next_use.advance(1 / COUNT)
    cached.used_at = now
    reading.next_use.opened(cached, now)


def drop(reading: Reading, index: int, now: float) -> None:
    # Without a cached object, an outdated version of one is dropped. It is not ranked.
    reading.next_use.drop(reading.next_use.objects.get(index) or Cached(index))
    reading.next_use.drop(Cached(index))


def set_aside(reading: Reading, index: int, now: float) -> None:
    if (cached := reading.next_use.objects.get(index)) is not None:
        reading.next_use.set_aside(cached)
    reading.next_use.set_aside(outdated := Cached(index))
    assert not outdated.aside


ACTS: list[Callable[[Reading, int, float], object]] = [
    read, read, drop, set_aside,
    lambda reading, index, now: reading.next_use.put_back(now),
    lambda reading, index, now: reading.next_use.rerank_some(now, 3),
    lambda reading, index, now: reading.next_use.rerank_all(now),
    lambda reading, index, now: list(reading.next_use.rerank_in_steps(lambda: now)),
]  # fmt: skip


@given(
    acts=st.lists(st.tuples(st.integers(0, len(ACTS) - 1), st.integers(0, 12)), max_size=80), in_epochs=st.booleans()
)
def test_after_any_events_each_possible_victim_is_ranked_once(acts: list[tuple[int, int]], in_epochs: bool) -> None:
    reading = Reading(in_epochs=in_epochs)
    for number, (act, index) in enumerate(acts):
        ACTS[act](reading, index, 0.3 * number)
        reading.holds()


def test_an_object_that_was_set_aside_is_not_found_and_comes_back_as_the_longest_unread(reading: Reading) -> None:
    objects = {cached.index: cached for cached in reading.cache(1, 2, 3, 4)}
    for number, index in enumerate((3, 2, 1, 4)):
        objects[index].used_at = 0.1 * number
        reading.next_use.opened(objects[index], 0.1 * number)
    for index in (2, 3):
        reading.next_use.set_aside(objects[index])
        # A second search may have met it before the first one ended.
        reading.next_use.set_aside(objects[index])
        reading.next_use.advance(0.1)
        reading.next_use.rank(objects[index], 0.5)
        reading.next_use.opened(objects[index], 0.5)
    assert reading.farthest() == [4, 1]
    reading.holds()
    reading.next_use.put_back(0.6)
    reading.next_use.rerank_all(0.6)
    assert reading.farthest() == [4, 3, 2, 1]
    assert list(reading.next_use.recent) == [3, 2, 1, 4]
    reading.holds()


def test_without_epochs_the_least_recently_used_is_the_farthest() -> None:
    reading = Reading(in_epochs=False)
    objects = reading.cache(1, 2, 3)
    objects[0].used_at = 5.0
    reading.next_use.opened(objects[0], 5.0)
    assert [(seconds, cached.index) for seconds, cached in reading.next_use.farthest(6.0)] == [(6, 2), (6, 3), (1, 1)]
    assert {cached.rank for cached in objects} == {1.0}, (
        "an epoch that may begin reads each of them at an unknown place"
    )


@pytest.mark.parametrize("reranked", ["all", "some", "steps"])
def test_a_rank_that_became_stale_is_made_true(reading: Reading, reranked: str) -> None:
    reading.cache(5, 30, 12)
    reading.epoch.replan(
        [30, 5, 12, *(index for index in range(COUNT) if index not in (5, 12, 30))], confidence=ORDER_LIKELY
    )
    reading.jobs.forget_epochs()
    assert reading.farthest() == [30, 12, 5]
    if reranked == "all":
        reading.next_use.rerank_all(0.0)
    elif reranked == "some":
        for _ in range(2):
            reading.next_use.rerank_some(0.0)
    else:
        list(reading.next_use.rerank_in_steps(lambda: 0.0))
    assert reading.farthest() == [12, 5, 30]


def test_some_objects_are_ranked_at_a_time_and_each_in_rotation(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading.cache(*range(7))
    ranked: list[int] = []
    monkeypatch.setattr(NextUse, "rank", lambda self, cached, now: ranked.append(cached.index))
    for _ in range(4):
        reading.next_use.rerank_some(0.0)
    assert Counter(ranked[:7]) == Counter(range(7))
    reading.next_use.rerank_some(0.0, 100)
    assert len(ranked) == 8 + 7, "no object is ranked twice in one call"


def test_objects_that_are_all_set_aside_are_not_ranked(reading: Reading) -> None:
    for cached in reading.cache(*range(3)):
        reading.next_use.set_aside(cached)
    reading.next_use.rerank_some(0.0)
    reading.holds()


def test_objects_may_go_while_they_are_ranked_in_steps(reading: Reading) -> None:
    objects = reading.cache(*range(20))
    steps = reading.next_use.rerank_in_steps(lambda: 0.0)
    next(steps)
    for cached in objects[5:]:
        reading.next_use.drop(cached)
    replaced = reading.cache(6)
    reading.epoch.replan(reversed(range(COUNT)), confidence=ORDER_LIKELY)
    reading.jobs.forget_epochs()
    assert len(list(steps)) == 2, "there is a pause after every eighth object"
    reading.holds()
    assert replaced[0].rank == pytest.approx((COUNT - 1 - 6) / COUNT)


def test_objects_that_were_dropped_meanwhile_are_passed_over_when_some_are_ranked(reading: Reading) -> None:
    objects = reading.cache(*range(8))
    reading.next_use.rerank_some(0.0)
    for cached in objects[1:]:
        reading.next_use.drop(cached)
    reading.next_use.advance(1.0)
    for _ in range(8):
        reading.next_use.rerank_some(0.0)
    assert objects[0].rank == 1.0


def test_a_change_too_small_to_matter_moves_nothing(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    (cached,) = reading.cache(5)
    moved: list[int] = []
    monkeypatch.setattr(RankIndex, "discard", lambda self, index, rank: moved.append(index))
    monkeypatch.setattr(RankIndex, "add", lambda self, index, rank: None)
    reading.next_use.advance(1e-7)
    reading.next_use.rank(cached, 0.0)
    assert moved == []
    reading.next_use.advance(1e-3)
    reading.next_use.rank(cached, 0.0)
    assert moved == [5]


def test_objects_that_a_silent_job_would_read_become_farther(reading: Reading) -> None:
    (cached,) = reading.cache(0)
    assert list(reading.next_use.farthest(1.0)) == [(0.0, cached)], "a second of silence does not end a job"
    ((seconds, farthest),) = reading.next_use.farthest(3.0)
    assert farthest == cached
    assert seconds == pytest.approx(4.0 * 2)
    reading.next_use.rank(cached, 3.0)
    assert cached.rank == pytest.approx(4.0 * 2 / 100)
    reading.epoch.pace.pause_s = 5.0
    assert silence(reading.epoch, 9.0) == 0.0, "the job has paused for so long before"
    assert silence(reading.epoch, 11.0) == 1.0


def test_the_job_that_reads_an_object_first_determines_its_rank(reading: Reading) -> None:
    other = JobEpoch(array("i", reversed(range(COUNT))), COUNT, 0.0, confidence=ORDER_LIKELY)
    other.period_s = 50.0
    reading.add_job("b").epochs = [other]
    objects = reading.cache(0, 20, 39)
    assert [cached.rank for cached in objects] == pytest.approx([0.0, 19 / COUNT, 0.0])
    reading.next_use.advance(1.0)
    reading.next_use.rerank_all(0.0)
    assert [cached.rank for cached in objects] == pytest.approx([1.0, 1.0 + 19 / COUNT, 1.0])
    seconds = {cached.index: seconds for seconds, cached in reading.next_use.farthest(0.0)}
    assert seconds == pytest.approx({0: 0.0, 20: 50 * 19 / COUNT, 39: 0.0})


def test_beside_a_job_that_reads_at_random_the_last_use_counts_too(reading: Reading) -> None:
    """The next read of an object is as far as its epoch or its last use says, whichever is nearer."""
    reading.add_job("b", by_chance=True)
    used = [COUNT - index for index in range(COUNT)]
    Random(1).shuffle(used)
    for index in range(COUNT):
        reading.cache(index, now=0.0)
        reading.next_use.objects[index].used_at = -float(used[index])
    for index in sorted(range(COUNT), key=lambda index: -used[index]):
        reading.next_use.recent.move_to_end(index)
    found = list(reading.next_use.farthest(0.0))
    assert Counter(cached.index for _, cached in found) == Counter(range(COUNT)), "each object comes once"
    for seconds, cached in found:
        assert seconds == pytest.approx(min(used[cached.index], 100 * cached.index / COUNT))
    assert max(seconds for seconds, _ in islice(found, 3)) == max(seconds for seconds, _ in found)


def test_beside_a_job_that_reads_at_random_few_candidates_are_compared(reading: Reading) -> None:
    reading.add_job("b", by_chance=True)
    reading.cache(*range(COUNT))
    compared: list[int] = []

    class Objects(dict[int, Cached]):
        def __getitem__(self, index: int) -> Cached:
            compared.append(index)
            return super().__getitem__(index)

    reading.next_use.objects = Objects(reading.next_use.objects)
    counts = [len(compared) for _ in islice(reading.next_use.farthest(0.0), 4)]
    assert counts == [33, 36, 39, 42], "two at a time after the first, and the one that is found"


def test_after_all_jobs_are_forgotten_the_clock_goes_on(reading: Reading) -> None:
    reading.next_use.advance(2.5)
    objects = reading.next_use.objects
    reading.cache(1, 2)
    reading.next_use.rerank_some(0.0, 1)
    reading.next_use.clear()
    assert reading.farthest() == []
    (cached,) = reading.cache(0)
    assert cached.rank == 2.5
    reading.next_use.advance(1.0)
    reading.next_use.rerank_some(0.0)
    assert cached.rank == 3.5, "no forgotten job determines the rank"
    assert reading.next_use.objects is objects
    reading.holds()
