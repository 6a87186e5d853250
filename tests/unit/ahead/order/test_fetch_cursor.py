"""The fetch cursor of an epoch: it passes each object once, and again when the object is needed again."""

from __future__ import annotations

from array import array

import pytest

from outrider.core.ahead.order.frontier import FetchCursor

AGENDA = array("i", [7, 3, 5, 1])
NEXT_AGENDA = array("i", [3, 1, 7, 5])


def taken(cursor: FetchCursor, agenda: array[int] = AGENDA) -> list[int]:
    """All indexes that are left of this epoch, in order."""
    indexes = []
    while (index := cursor.current(agenda)) is not None:
        indexes.append(index)
        cursor.advance(agenda)
    return indexes


def at(position: int) -> FetchCursor:
    cursor = FetchCursor()
    for _ in range(position):
        cursor.advance(AGENDA)
    return cursor


def test_the_agenda_is_taken_in_its_order_and_then_the_next_epochs() -> None:
    cursor = FetchCursor()
    assert taken(cursor) == list(AGENDA)
    in_next = []
    while (index := cursor.current_in_next(AGENDA, NEXT_AGENDA)) is not None:
        in_next.append(index)
        cursor.advance(AGENDA)
    assert in_next == list(NEXT_AGENDA)
    assert cursor.past_end(AGENDA) == 4


def test_objects_that_are_needed_again_come_first_in_the_order_of_their_reads() -> None:
    cursor = at(3)
    for place in (2, 0, 1):
        cursor.fetch_again(place, AGENDA[place])
    assert taken(cursor) == [7, 3, 5, 1]


@pytest.mark.parametrize("place", [2, 3])
def test_an_object_that_the_cursor_has_not_reached_is_not_taken_twice(place: int) -> None:
    cursor = at(2)
    cursor.fetch_again(place, AGENDA[place])
    assert taken(cursor) == [5, 1]


def test_objects_that_are_left_behind_come_after_the_agenda_and_before_the_next_epoch() -> None:
    cursor = FetchCursor()
    for _ in range(2):
        cursor.leave_behind(AGENDA[cursor.position])
        assert not cursor.is_behind(AGENDA)
        cursor.advance(AGENDA)
    assert [cursor.current(AGENDA), cursor.is_behind(AGENDA)] == [5, False]
    assert taken(cursor) == [5, 1, 7, 3]
    assert cursor.current_in_next(AGENDA, NEXT_AGENDA) == 3, "the objects left behind took no place of the next epoch"


def test_an_object_that_is_needed_again_comes_before_those_that_were_left_behind() -> None:
    cursor = at(1)
    cursor.leave_behind(3)
    for _ in range(3):
        cursor.advance(AGENDA)
    assert cursor.is_behind(AGENDA)
    cursor.fetch_again(2, 5)
    assert not cursor.is_behind(AGENDA)
    assert taken(cursor) == [5, 3]


def test_the_cursor_rewinds_to_a_change_of_the_agenda_and_never_forward() -> None:
    cursor = at(3)
    cursor.rewind(1)
    assert cursor.position == 1
    cursor.rewind(2)
    assert taken(cursor) == [3, 5, 1]


def test_the_cursor_is_past_the_end_only_once_the_agenda_and_the_left_behind_are_done() -> None:
    assert [at(position).past_end(AGENDA) for position in range(6)] == [0, 0, 0, 0, 0, 1]


def test_a_restart_forgets_all_that_was_left_of_the_last_agenda() -> None:
    cursor = at(3)
    cursor.fetch_again(0, 7)
    cursor.leave_behind(1)
    cursor.restart(2)
    assert taken(cursor, NEXT_AGENDA) == [7, 5]
    cursor.restart()
    assert taken(cursor, NEXT_AGENDA) == list(NEXT_AGENDA)
