"""The disk budget: room is reserved only within the capacity, and within the free space that other users leave."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cache.disk_limits import DiskBudget, Room, capacities, most_bytes


def known(capacity: int = 1000, floor: int = 100, free: int = 1000) -> DiskBudget:
    """A budget after a look at the free space at 0 s."""
    budget = DiskBudget(capacity, floor)
    assert budget.excess(0, 0.0) is None
    budget.excess_after_look(free, 0, 0, 0.0)
    return budget


def test_an_excess_over_the_budget_is_given_in_bytes() -> None:
    budget = known()
    budget.reserve(990)
    assert budget.excess(30, 0.5) == 20
    assert budget.room_bytes == 10
    budget.unreserve(990)
    assert budget.excess(30, 0.5) == -970


def test_an_excess_over_the_free_space_is_given_in_bytes() -> None:
    budget = known()
    assert budget.excess_after_look(150, 30, 0, 0.0) == -20
    assert budget.excess_after_look(150, 80, 0, 0.0) == 30


def test_a_look_at_the_free_space_is_valid_for_a_second_and_for_half_of_that_space() -> None:
    budget = known(floor=100, free=500)
    assert budget.excess(100, 0.9) is not None
    assert budget.excess(99, 0.9) is not None
    assert budget.excess(1, 0.9) is None
    budget.excess_after_look(500, 1, 0, 0.9)
    assert budget.excess(198, 1.8) is not None
    assert known().excess(1, 1.0) is None


def test_bytes_on_their_way_to_disk_count_as_used() -> None:
    budget = known()
    budget.reserve(200)
    # While the free space was looked up, 150 of these bytes were written, and 50 more were reserved.
    budget.landed(150)
    assert budget.excess_after_look(300, 10, 200, 0.0) == 10
    budget.reserve(200)
    assert budget.excess_after_look(400, 10, 0, 0.0) == -40


def test_the_most_bytes_are_the_used_and_the_free_ones() -> None:
    budget = known()
    budget.take(300)
    budget.reserve(50)
    assert most_bytes(400, [budget]) == 300 + 400 - 100
    assert most_bytes(10_000, [budget]) == 1000
    assert most_bytes(0, [known()]) == 0


def test_more_is_never_given_back_than_was_taken() -> None:
    with pytest.raises(AssertionError):
        known().give_back(1)


@given(st.integers(0, 2**32), st.integers(0, 2000), st.integers(0, 500))
def test_neither_budget_nor_floor_is_broken_however_slowly_the_disk_answers(
    seed: int, capacity: int, floor: int
) -> None:
    """The budget against a file system of 1,500 bytes that only this store writes to."""
    chance, budget, now = Random(seed), DiskBudget(capacity, floor), 0.0
    on_disk = 0
    writing: list[int] = []
    here: list[int] = []
    for _ in range(200):
        now += chance.choice((0.0, 0.3))
        act = chance.choice("rrrwwde")
        if act == "r":
            need = chance.randint(1, 200)
            if (over := budget.excess(need, now)) is None:
                pending, free = budget.pending_bytes, 1500 - on_disk
                while writing and chance.random() < 0.3:  # before the free space is known
                    here.append(writing.pop())
                    on_disk += here[-1]
                    budget.landed(here[-1])
                over = budget.excess_after_look(free, need, pending, now)
            if over <= 0:
                budget.reserve(need)
                writing.append(need)
        elif act == "w" and writing:
            here.append(writing.pop())
            on_disk += here[-1]
            budget.landed(here[-1])
        elif act == "d" and writing:
            budget.unreserve(writing.pop())
        elif act == "e" and here:
            on_disk -= here[-1]
            budget.give_back(here.pop())
        assert budget.used_bytes == on_disk + sum(writing) <= capacity
        assert budget.pending_bytes == sum(writing)
        assert on_disk == 0 or 1500 - on_disk - sum(writing) >= floor


rooms = st.builds(Room, st.integers(1, 3), st.just(1 << 43), st.integers(0, 1 << 43))


@given(st.lists(rooms, min_size=1, max_size=8), st.integers(0, 1 << 45), st.floats(0, 1))
def test_directories_never_get_more_than_the_cache_nor_than_a_share_of_each_file_system(
    rooms: list[Room], amount: int, share: float
) -> None:
    rooms = [replace(room, most_bytes=rooms[room.device % len(rooms)].most_bytes) for room in rooms]
    assert 0 <= amount - sum(capacities(amount, 0.0, rooms)) < len(rooms)
    devices = {room.device for room in rooms}
    assert sum(capacities(0, share, rooms)) <= len(devices) * int(share * (1 << 43))


def test_the_capacity_is_divided_by_the_rooms() -> None:
    assert capacities(100, 0.0, [Room(1, 1000, 300), Room(2, 1000, 100)]) == [75, 25]
    assert capacities(0, 0.8, [Room(1, 1000, 300), Room(2, 500, 100)]) == [800, 400]
    # Two on one file system take together what one would.
    assert capacities(100, 0.0, [Room(1, 1000, 200), Room(1, 1000, 200), Room(2, 1000, 200)]) == [25, 25, 50]
    assert capacities(0, 0.8, [Room(1, 1000, 200), Room(1, 1000, 200), Room(2, 1000, 200)]) == [400, 400, 800]
    # Without any room each is tried alike; one directory has the size that the settings say, whatever its room.
    assert capacities(100, 0.0, [Room(1, 1000, 0), Room(2, 1000, 0)]) == [50, 50]
    assert capacities(100, 0.0, [Room(1, 10, 5)]) == [100]
