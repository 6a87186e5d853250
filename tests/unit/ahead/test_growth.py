"""The planner's work grows with the reads, and not with their square: ten times the names, at most twelve times the
lines that run."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.support.counted_work import lines_of
from tests.support.planner import PlannedStore, shuffled, think

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from outrider.core.model import ObjectRef

RANKS = 10
FEW, MANY = 100, 1000


def epochs(store: PlannedStore) -> Iterator[tuple[ObjectRef, str]]:
    for seed in (1, 2):
        yield from ((ref, "a") for ref in shuffled(store, seed))


def with_replacement(store: PlannedStore) -> Iterator[tuple[ObjectRef, str]]:
    """As WeightedRandomSampler reads."""
    chance = Random(3)
    yield from ((chance.choice(store.refs), "a") for _ in range(2 * len(store.refs)))


def ranks_with_orders_of_their_own(store: PlannedStore) -> Iterator[tuple[ObjectRef, str]]:
    orders = [shuffled(store, seed) for seed in range(RANKS)]
    for place in range(2 * len(store.refs) // RANKS):
        yield from ((order[place], f"rank {number}") for number, order in enumerate(orders))


@pytest.mark.parametrize("reads", [epochs, with_replacement, ranks_with_orders_of_their_own])
def test_ten_times_the_names_take_at_most_twelve_times_the_work(
    reads: Callable[[PlannedStore], Iterator[tuple[ObjectRef, str]]],
) -> None:
    few, many = (lines_of(lambda count=count: read(count, reads)) for count in (FEW, MANY))  # type: ignore[misc]
    assert many <= 12 * few, f"{many / few:.1f} x"


def test_ten_ranks_cost_little_more_than_one_reader() -> None:
    """An object's next use is the first of ten orders."""
    one, ranks = (
        lines_of(lambda reads=reads: read(FEW, reads))  # type: ignore[misc]
        for reads in (epochs, ranks_with_orders_of_their_own)
    )
    assert ranks <= 2.5 * one, f"{ranks / one:.1f} x"


def read(count: int, reads: Callable[[PlannedStore], Iterator[tuple[ObjectRef, str]]]) -> None:
    """All objects fit in the cache."""
    store = PlannedStore(count, 1, count + 1)
    for number, (ref, client) in enumerate(reads(store)):
        store.now += 0.001
        store.ask(ref, client)
        store.read_on(ref)
        if number % 50 == 0:
            while store.planner.step():
                pass
            think(store)
