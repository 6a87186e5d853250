"""The fetch cursor of an epoch: each object is looked at once, and again when it is needed again."""

from __future__ import annotations

from array import array

import pytest

from outrider.core.ahead.order.fetch_cursor import FetchCursor

AGENDA = array("i", [7, 3, 5, 1])
NEXT_AGENDA = array("i", [3, 1, 7, 5])


def taken(cursor: FetchCursor, agenda: array[int] = AGENDA) -> list[int]:
    """All that is left of this epoch, in order."""
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


def test_objects_that_are_needed_again_come_first_the_soonest_read_of_them_before_the_others() -> None:
    cursor = at(3)
    for place in (2, 0, 1):
        cursor.fetch_again(place, AGENDA[place])
    assert taken(cursor) == [7, 3, 5, 1]


@pytest.mark.parametrize("place", [2, 3])
def test_an_object_that_is_still_to_be_looked_at_is_not_taken_twice(place: int) -> None:
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
    assert cursor.current_in_next(AGENDA, NEXT_AGENDA) == 3, "they took no place of the next epoch"


def test_an_object_that_is_needed_again_comes_before_those_that_were_left_behind() -> None:
    cursor = at(1)
    cursor.leave_behind(3)
    for _ in range(3):
        cursor.advance(AGENDA)
    assert cursor.is_behind(AGENDA)
    cursor.fetch_again(2, 5)
    assert not cursor.is_behind(AGENDA)
    assert taken(cursor) == [5, 3]


def test_a_change_of_the_agenda_is_looked_at_from_its_place_on_and_never_skips_any() -> None:
    cursor = at(3)
    cursor.rewind(1)
    assert cursor.position == 1
    cursor.rewind(2)
    assert taken(cursor) == [3, 5, 1]


def test_what_was_fetched_of_the_next_epoch_is_none_of_it_while_the_agenda_is_not_done() -> None:
    assert [at(position).past_end(AGENDA) for position in range(6)] == [0, 0, 0, 0, 0, 1]


def test_another_agenda_begins_with_nothing_left_of_the_last_one() -> None:
    cursor = at(3)
    cursor.fetch_again(0, 7)
    cursor.leave_behind(1)
    cursor.restart(2)
    assert taken(cursor, NEXT_AGENDA) == [7, 5]
    cursor.restart()
    assert taken(cursor, NEXT_AGENDA) == list(NEXT_AGENDA)
