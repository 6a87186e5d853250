"""The shares of an announced order stay beside the agenda, whatever else the epoch comes to expect."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ahead.order.epoch import JobEpoch
from outrider.core.ahead.order.epoch_announcements import announce, withdraw

COUNT = 24


def epoch() -> JobEpoch:
    return JobEpoch((), COUNT, 0.0, confidence=0.5)


def test_an_object_that_is_expected_beside_an_announced_order_follows_all_that_was_announced() -> None:
    current = epoch()
    announce(current, [0, 1, 2, 3], 0, 4)
    current.expect([8, 9])
    announce(current, [4, 5, 6, 7], 0, 4)
    assert list(current.agenda) == [0, 4, 1, 5, 2, 6, 3, 7, 8, 9]


@given(st.lists(st.tuples(st.sampled_from(["announce", "expect", "withdraw"]), st.sets(st.integers(0, COUNT - 1)))))
def test_each_place_of_an_announced_agenda_has_a_share(steps: list[tuple[str, set[int]]]) -> None:
    current = epoch()
    announce(current, [0], 0, 1)
    for step, indexes in steps:
        if step == "announce":
            announce(current, sorted(indexes), 0, max(1, len(indexes)))
        elif step == "expect":
            current.expect(indexes)
        else:
            withdraw(current, indexes)
        shares = [] if current.announced_order is None else list(deepcopy(current.announced_order).cut(0.0)[1])
        assert shares == sorted(shares)
        assert current.announced_order is None or len(shares) == len(current.agenda)
        assert [current.place[index] for index in current.agenda] == list(range(len(current.agenda)))
