"""Where the readers of an epoch are in its order."""

from __future__ import annotations

from random import Random

from outrider.core.ahead.order.epoch import ORDER_UNLIKELY, JobEpoch
from outrider.core.ahead.order.frontier import Frontier

COUNT = 64


def test_the_frontier_of_a_reader_in_order_is_its_last_read_from_the_first_one_on() -> None:
    frontier, places = Frontier(), list[int]()
    for place in range(12):
        frontier.read(place, COUNT)
        places.append(frontier.place)
    assert places == list(range(12))
    frontier.relocate(range(6), COUNT)
    assert frontier.place == 5


def test_how_far_readers_drift_apart_is_forgotten_with_an_order_that_they_did_not_read_in() -> None:
    frontier = Frontier()
    for place in (0, 5, 2, 9, 4, 7):
        frontier.read(place, COUNT)
    drift = frontier.drift
    frontier.restart()
    assert frontier.drift == drift > 0
    frontier.restart(known=False)
    assert frontier.drift == 0


def test_an_epoch_in_another_order_does_not_show_how_far_the_readers_of_the_next_one_drift_apart() -> None:
    epoch = JobEpoch(range(COUNT), COUNT, 0.0, confidence=ORDER_UNLIKELY)
    for at, index in enumerate(Random(1).sample(range(COUNT), COUNT)):
        epoch.read(index, float(at))
    assert epoch.frontier.drift > 0
    epoch.begin_next(float(COUNT))
    assert epoch.frontier.drift == 0
