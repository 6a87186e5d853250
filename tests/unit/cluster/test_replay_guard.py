"""A request that came before is refused, whatever overtook it."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cluster.replay_guard import FORGET_S, WINDOW, ReplayGuard


def test_a_request_is_admitted_once() -> None:
    guard = ReplayGuard()
    assert [guard.admit("b", 1, number, 0.0) for number in (1, 2, 2, 1, 3)] == [True, True, False, False, True]


def test_requests_may_overtake_each_other_within_the_window() -> None:
    guard = ReplayGuard()
    assert guard.admit("b", 1, WINDOW + 1, 0.0)
    assert guard.admit("b", 1, 2, 0.0)
    assert not guard.admit("b", 1, 2, 0.0)
    assert not guard.admit("b", 1, 1, 0.0)  # it may have come, and is too old to judge


def test_a_jump_of_any_length_costs_nothing() -> None:
    guard = ReplayGuard()
    assert guard.admit("b", 1, 1, 0.0)
    assert guard.admit("b", 1, 1 << 60, 0.0)
    assert not guard.admit("b", 1, 1, 0.0)
    assert not guard.admit("b", 1, 1 << 60, 0.0)
    assert guard.admit("b", 1, (1 << 60) - WINDOW + 1, 0.0)


def test_a_sender_takes_no_more_room_after_many_requests() -> None:
    guard = ReplayGuard()
    for number in range(1, 3 * WINDOW):
        guard.admit("b", 1, number, 0.0)
    assert len(pickle.dumps(guard)) < WINDOW / 8 + 500


def test_numbers_begin_at_one() -> None:
    guard = ReplayGuard()
    assert not guard.admit("b", 1, 0, 0.0)
    assert not guard.admit("b", 1, -1, 0.0)
    assert len(guard) == 0


def test_senders_have_numbers_of_their_own() -> None:
    guard = ReplayGuard()
    assert guard.admit("b", 1, 1, 0.0)
    assert guard.admit("c", 1, 1, 0.0)


def test_a_later_process_begins_anew_and_an_older_one_is_refused() -> None:
    guard = ReplayGuard()
    assert guard.admit("b", 10, 5, 0.0)
    assert guard.admit("b", 11, 5, 1.0)
    assert guard.admit("b", 11, 1, 1.0)
    assert not guard.admit("b", 10, 6, 2.0)


def test_what_is_refused_keeps_nothing_alive() -> None:
    """A sender whose clock was set back is admitted once no signature of the time before is valid."""
    guard = ReplayGuard()
    assert guard.admit("b", 10, 5, 0.0)
    assert not guard.admit("b", 9, 1, FORGET_S)
    assert guard.admit("b", 9, 1, FORGET_S + 1)


def test_the_number_of_senders_is_bounded_and_none_is_forgotten_too_early() -> None:
    guard = ReplayGuard(senders_max=2)
    assert guard.admit("b", 1, 1, 0.0)
    assert guard.admit("c", 1, 1, 100.0)
    assert guard.admit("b", 1, 2, 200.0)
    assert not guard.admit("d", 1, 1, 100.0 + FORGET_S)
    assert guard.admit("d", 1, 1, 101.0 + FORGET_S)  # in the place of c
    assert len(guard) == 2
    assert guard.admit("b", 2, 1, 101.0 + FORGET_S)  # a new process of a sender takes no room
    assert not guard.admit("b", 1, 2, 101.0 + FORGET_S)


# Steps of any size: within the window, around its edge and beyond it.
steps = st.one_of(st.integers(-8, 8), st.integers(-WINDOW - 3, WINDOW + 3), st.integers(WINDOW - 2, WINDOW + 2))


@given(st.lists(steps, max_size=60))
def test_it_is_a_set_of_the_last_numbers(walk: list[int]) -> None:
    guard = ReplayGuard()
    came: set[int] = set()
    number = 3 * WINDOW
    for step in walk:
        number = max(1, number + step)
        expected = number not in came and (not came or number > max(came) - WINDOW)
        assert guard.admit("b", 1, number, 0.0) is expected
        if expected:
            came.add(number)
