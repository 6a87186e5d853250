"""The rank index, compared with a list that is sorted anew each time."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ahead.dataset import next_use_ranking
from outrider.core.ahead.dataset.next_use_ranking import RankIndex

# Many are equal: in an epoch of unknown order, all unread objects have the same rank.
RANKS = st.sampled_from([-1.0, 0.0, 0.5, 0.5 + 2**-53, 1.0, 1e300]) | st.floats(0, 3)


@pytest.fixture(autouse=True, params=[1, 2, 5, 256], ids=lambda count: f"runs of {count}")
def runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_use_ranking, "_RUN_MAX", request.param)


def farthest_first(rank_of: dict[int, float]) -> list[int]:
    return sorted(rank_of, key=lambda key: (rank_of[key], key), reverse=True)


@given(changes=st.lists(st.tuples(st.integers(0, 30), st.none() | RANKS), max_size=200))
def test_indexes_stand_as_if_sorted_anew(changes: list[tuple[int, float | None]]) -> None:
    ranked, rank_of = RankIndex(), dict[int, float]()
    for key, rank in changes:
        if key in rank_of:
            ranked.discard(key, rank_of.pop(key))
        if rank is not None:
            ranked.add(key, rank)
            rank_of[key] = rank
        assert list(reversed(ranked)) == farthest_first(rank_of)


@given(toggled=st.lists(st.tuples(st.integers(0, 12), st.sampled_from([1.0, 2.0])), max_size=100))
def test_equal_ranks_stand_by_their_indexes_whatever_comes_and_goes(toggled: list[tuple[int, float]]) -> None:
    ranked, rank_of = RankIndex(), dict[int, float]()
    for key, rank in toggled:
        if key in rank_of:
            ranked.discard(key, rank_of.pop(key))
        else:
            ranked.add(key, rank)
            rank_of[key] = rank
        assert list(reversed(ranked)) == farthest_first(rank_of)


def test_thousands_of_indexes_move_up_with_each_read() -> None:
    chance, ranked = Random(7), RankIndex()
    rank_of = {key: round(chance.random(), 2) for key in range(3000)}
    for key, rank in rank_of.items():
        ranked.add(key, rank)
    for clock in range(6000):
        key = chance.randrange(3000)
        ranked.discard(key, rank_of[key])
        rank_of[key] = round(clock / 3000 + chance.random(), 2)
        ranked.add(key, rank_of[key])
    assert list(reversed(ranked)) == farthest_first(rank_of)


@given(rank_of=st.dictionaries(st.integers(0, 60), RANKS, max_size=60), stays=st.sets(st.integers(0, 60)))
def test_an_index_that_was_yielded_may_be_discarded(rank_of: dict[int, float], stays: set[int]) -> None:
    ranked = RankIndex()
    for key, rank in rank_of.items():
        ranked.add(key, rank)
    seen = []
    for key in reversed(ranked):
        seen.append(key)
        if key not in stays:
            ranked.discard(key, rank_of[key])
    assert seen == farthest_first(rank_of)
    assert list(reversed(ranked)) == [key for key in seen if key in stays]


def test_an_index_may_be_as_large_as_a_number_of_an_array() -> None:
    ranked = RankIndex()
    for key in (2**31 - 1, 0):
        ranked.add(key, 1.0)
    assert list(reversed(ranked)) == [2**31 - 1, 0]
