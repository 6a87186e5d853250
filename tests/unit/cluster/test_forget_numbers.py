"""A forget that was missed is noticed, and one that was merely overtaken is not taken for one."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cluster.forget_numbers import REORDER_S, ReceivedForgets

if TYPE_CHECKING:
    from random import Random


def one(number: int) -> range:
    """The numbers of a message with a single forget."""
    return range(number, number + 1)


def received(*numbers: int) -> ReceivedForgets:
    forgets = ReceivedForgets()
    for number in numbers:
        assert not forgets.received("b", 1, one(number), 0.0)
    return forgets


def test_numbers_in_order_leave_no_gap() -> None:
    forgets = received(1, 2, 3)
    assert forgets.due_at is None
    assert not forgets.reported("b", 1, 3, 1.0)
    assert not forgets.passed(100.0)


def test_a_number_that_is_overtaken_is_no_gap() -> None:
    forgets = received(1, 3, 4)
    assert forgets.due_at == REORDER_S
    assert not forgets.passed(REORDER_S - 0.01)
    assert not forgets.received("b", 1, one(2), REORDER_S - 0.01)
    assert forgets.due_at is None
    assert not forgets.passed(100.0)


def test_a_number_that_does_not_come_is_a_gap_once() -> None:
    forgets = received(1, 3)
    assert forgets.passed(REORDER_S)
    assert forgets.due_at is None
    assert not forgets.passed(100.0)
    assert not forgets.received("b", 1, one(2), 100.0)  # late; all has been forgotten
    assert not forgets.received("b", 1, one(4), 100.0)
    assert forgets.due_at is None


def test_a_hello_tells_of_a_forget_that_did_not_come() -> None:
    forgets = received(1)
    assert not forgets.reported("b", 1, 2, 5.0)
    assert forgets.passed(5.0 + REORDER_S)


def test_a_forget_may_be_overtaken_by_a_hello() -> None:
    forgets = received(1)
    assert not forgets.reported("b", 1, 2, 5.0)
    assert not forgets.received("b", 1, one(2), 5.1)
    assert forgets.due_at is None


def test_an_old_hello_says_nothing() -> None:
    forgets = received(1, 2)
    assert not forgets.reported("b", 1, 1, 0.0)
    assert forgets.due_at is None


def test_a_missing_number_has_its_own_time() -> None:
    """Else a sender of many forgets at once, two of which are always underway, would have gaps all the time."""
    forgets = received(2)
    assert not forgets.received("b", 1, one(4), 0.4)
    assert not forgets.received("b", 1, one(1), 0.45)  # 3 is missing now
    assert forgets.due_at == 0.45 + REORDER_S
    assert not forgets.passed(REORDER_S)


def test_more_forgets_do_not_prolong_the_time_of_a_missing_one() -> None:
    forgets = received(2)
    assert not forgets.received("b", 1, one(3), 0.4)
    assert forgets.due_at == REORDER_S


def test_a_new_process_of_a_known_member_is_a_gap_once() -> None:
    forgets = received(1, 2)
    assert forgets.received("b", 2, one(1), 1.0)
    assert not forgets.received("b", 2, one(2), 1.0)
    assert forgets.reported("b", 3, 0, 2.0)
    assert forgets.due_at is None
    assert forgets.reported("b", 0, 0, 2.0)  # of a clock that was set back: another process as well


def test_two_processes_of_one_name_are_a_gap_once() -> None:
    """Not each time that the other one is heard of again."""
    forgets = received(1, 2)
    assert forgets.reported("b", 2, 0, 1.0)
    for number in range(1, 9):
        assert not forgets.received("b", 2, one(number), 1.0)
        assert not forgets.received("b", 1, one(2 + number), 1.0)
        assert not forgets.reported("b", 1, 2 + number, 1.0)
    assert forgets.due_at is None


@pytest.mark.parametrize(("first", "is_gap"), [(0, False), (1, True), (7, True)])
def test_the_first_hello_of_a_member_tells_whether_something_was_missed(first: int, is_gap: bool) -> None:
    forgets = ReceivedForgets()
    assert not forgets.reported("b", 1, first, 0.0)
    assert forgets.passed(REORDER_S) is is_gap


@pytest.mark.parametrize(("first", "is_gap"), [(1, False), (2, True)])
def test_the_first_forget_of_a_member_tells_whether_something_was_missed(first: int, is_gap: bool) -> None:
    forgets = ReceivedForgets()
    assert not forgets.received("b", 1, one(first), 0.0)
    assert forgets.passed(REORDER_S) is is_gap


def test_senders_are_told_apart() -> None:
    forgets = received(1)
    assert not forgets.received("c", 1, one(1), 0.0)
    assert not forgets.received("b", 1, one(3), 1.0)
    assert not forgets.received("c", 1, one(3), 2.0)
    assert forgets.due_at == 1.0 + REORDER_S
    assert forgets.passed(1.0 + REORDER_S)
    assert forgets.due_at == 2.0 + REORDER_S


def test_a_leap_is_a_gap_at_once() -> None:
    """Else its numbers would have to be remembered."""
    forgets = received(1)
    assert forgets.received("b", 1, one(5000), 0.0)
    assert forgets.due_at is None
    assert not forgets.received("b", 1, one(5001), 0.0)


def test_a_sender_takes_no_more_room_after_many_forgets() -> None:
    forgets = received(1)
    size = len(pickle.dumps(forgets))
    for number in range(3, 3000, 2):  # each second one is lost, and each one comes again
        forgets.received("b", 1, one(number), float(number))
        forgets.received("b", 1, one(number), float(number))
        assert forgets.passed(number + REORDER_S)
        forgets.received("b", 1, one(number), number + REORDER_S)
    assert len(pickle.dumps(forgets)) < size + 100
    for number in range(3000, 4000):  # in order, and each one twice
        forgets.received("b", 1, one(number), 5000.0)
        forgets.received("b", 1, one(number), 5000.0)
    assert len(pickle.dumps(forgets)) < size + 100


def test_a_sender_that_was_dropped_for_another_is_unknown() -> None:
    forgets = ReceivedForgets(senders_max=1)
    assert not forgets.received("b", 1, one(1), 0.0)
    assert not forgets.received("c", 1, one(1), 0.0)
    assert not forgets.reported("b", 1, 1, 0.0)
    assert forgets.passed(REORDER_S)


def test_a_message_of_many_forgets_leaves_no_gap_behind_it() -> None:
    forgets = received(1, 4)
    assert not forgets.received("b", 1, range(2, 8), 0.1)
    assert forgets.due_at is None
    assert not forgets.received("b", 1, range(8, 90_000), 0.1)
    assert not forgets.received("b", 1, range(3, 5), 0.2)
    assert forgets.due_at is None


def test_a_message_of_any_length_takes_no_room() -> None:
    forgets = received(1)
    size = len(pickle.dumps(forgets))
    assert not forgets.received("b", 1, range(3, 2000), 0.0)
    assert not forgets.received("b", 1, range(2, 1000), 0.0)
    assert forgets.due_at is None
    assert len(pickle.dumps(forgets)) < size + 100
    assert forgets.received("b", 1, range(10_000, 2**62), 0.0)
    assert len(pickle.dumps(forgets)) < size + 100


def test_a_message_of_many_forgets_does_not_hide_the_gap_before_it() -> None:
    forgets = received(1)
    assert not forgets.received("b", 1, range(3, 40), 0.0)
    assert forgets.passed(REORDER_S)


@given(st.integers(0, 12), st.sets(st.integers(1, 12)), st.sets(st.integers(1, 12)), st.randoms(use_true_random=False))
def test_a_gap_is_seen_exactly_if_a_number_is_missing(
    sent: int, lost: set[int], begins: set[int], chance: Random
) -> None:
    """Numbers are merged into messages at random; a message is lost as a whole."""
    starts = sorted({1, *begins})
    messages = [range(at, end) for at, end in pairwise([*(each for each in starts if each <= sent), sent + 1])]
    arrived = [message for message in messages if not lost & {*message}]
    chance.shuffle(arrived)
    forgets = ReceivedForgets()
    assert not any(forgets.received("b", 1, message, 0.0) for message in arrived)
    assert not forgets.reported("b", 1, sent, 0.1)
    missing = len(arrived) < len(messages)
    assert (forgets.due_at is not None) is missing
    assert forgets.passed(0.1 + REORDER_S) is missing
