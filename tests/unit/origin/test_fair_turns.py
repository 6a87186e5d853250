"""Tenants on one line get their shares of the bytes, within one piece of work of each."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.origin.fair_turns import LEAST_BYTES, FairTurns, TurnQueue

BLOCK = 16 * LEAST_BYTES
names = st.sampled_from("abc")
weights = st.fixed_dictionaries({name: st.sampled_from((0.01, 0.1, 0.3, 0.5, 1.0)) for name in "abc"})
sizes = st.integers(LEAST_BYTES, BLOCK)


@given(weight=weights, early=st.lists(st.tuples(names, sizes), max_size=30), seed=st.randoms(use_true_random=False))
def test_tenants_that_always_have_work_get_their_shares_within_a_block_of_each(
    weight: dict[str, float], early: list[tuple[str, int]], seed: Random
) -> None:  # fmt: skip
    """Also after times in which some of them had no work."""
    queue: TurnQueue[int] = TurnQueue(weight.__getitem__)
    work: dict[int, tuple[str, int]] = {}

    def put(name: str, size: int) -> None:
        work[len(work)] = name, size
        queue.put(len(work) - 1, 0, name, size)

    for name, size in early:
        put(name, size)
    while (first := queue.first()) is not None:
        queue.take(first)
    served = dict.fromkeys("abc", 0.0)
    for name in "abc":
        put(name, seed.randint(LEAST_BYTES, BLOCK))
    for _ in range(200):
        item = queue.first()
        assert item is not None
        queue.take(item)
        name, size = work[item]
        served[name] += size / weight[name]
        put(name, seed.randint(LEAST_BYTES, BLOCK))
        for one in "abc":
            for other in "abc":
                assert abs(served[one] - served[other]) <= BLOCK / weight[one] + BLOCK / weight[other]


def test_the_share_of_a_tenant_without_work_goes_to_the_others_and_is_not_owed() -> None:
    turns = FairTurns(lambda tenant: 0.5)
    for _ in range(100):
        turns.served("busy", BLOCK)
    order = []
    for _ in range(7):
        name = min(("late", "busy"), key=turns.start)
        order.append(name)
        turns.served(name, BLOCK)
    assert order == ["late", *["late", "busy"] * 3], "the last turn was not over yet"


def test_small_work_costs_a_round_trip_and_discarded_work_costs_nothing() -> None:
    queue: TurnQueue[str] = TurnQueue(lambda tenant: 1.0)
    for item in ("a1", "a2", "a3", "b1"):
        queue.put(item, 0, item[0], 1 if item[0] == "a" else BLOCK)
    queue.discard("a1")
    order = []
    while (first := queue.first()) is not None:
        queue.take(first)
        order.append(first)
    assert order == ["a2", "b1", "a3"]
    turns = FairTurns(lambda tenant: 1.0)
    turns.served("questions", 0)
    assert turns.start("questions") == LEAST_BYTES


@given(script=st.lists(st.tuples(st.sampled_from(("put", "take", "discard")), st.integers(0, 2), names), max_size=60))
def test_a_queue_serves_the_lowest_level_and_each_tenant_in_order(script: list[tuple[str, int, str]]) -> None:
    queue: TurnQueue[int] = TurnQueue(lambda tenant: 1.0)
    waiting: list[tuple[int, str, int]] = []
    for number, (act, level, name) in enumerate(script):
        if act == "put":
            queue.put(number, level, name, BLOCK)
            waiting.append((level, name, number))
        elif act == "discard" and waiting:
            queue.discard(waiting.pop(level % len(waiting))[2])
        elif waiting:
            item = queue.first()
            assert item is not None
            queue.take(item)
            place = next(place for place in waiting if place[2] == item)
            assert place[0] == min(level for level, *_ in waiting)
            assert item == min(number for level, name, number in waiting if (level, name) == place[:2])
            waiting.remove(place)
        assert len(queue.waiting) == len(waiting)
        assert (queue.first() is None) == (not waiting)


def test_of_one_tenant_the_first_comes_first_and_a_place_is_taken_once() -> None:
    queue: TurnQueue[str] = TurnQueue(lambda tenant: 1.0)
    for item in "cab":
        queue.put(item, 0)
    with pytest.raises(AssertionError):
        queue.put("a", 1)
    order = []
    while (first := queue.first()) is not None:
        queue.take(first)
        order.append(first)
    assert order == ["c", "a", "b"]
