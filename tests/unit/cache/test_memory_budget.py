"""The memory budget: its shares fit into it, and bytes that were taken come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cache.memory_budget import EXCHANGE_BYTES, MemoryBudget, MemoryShares
from outrider.core.errors import SlowDown

MIB = 2**20


@given(st.integers(16 * MIB, 2**40), st.integers(1, 10_000))
def test_all_shares_together_are_the_budget(budget_bytes: int, exchanges_max: int) -> None:
    shares = MemoryShares.of(budget_bytes, exchanges_max)
    cached = shares.listings_bytes + shares.heads_bytes
    assert 1 <= shares.exchanges <= exchanges_max
    assert shares.exchanges * EXCHANGE_BYTES + cached + shares.clients_bytes == budget_bytes
    assert min(shares.listings_bytes, shares.heads_bytes) > 0
    assert shares.clients_bytes >= budget_bytes // 4


def test_the_default_has_room_for_all_connections_to_the_origin() -> None:
    assert MemoryShares.of(384 * MIB, 128).exchanges == 128


@given(st.lists(st.integers(0, 100)))
def test_no_more_is_taken_than_there_is(counts: list[int]) -> None:
    memory, taken = MemoryBudget(200), 0
    for count in counts:
        if memory.take(count):
            taken += count
        else:
            assert taken + count > 200
        assert memory.used_bytes == taken <= 200


def test_held_bytes_come_back_also_after_an_error() -> None:
    memory = MemoryBudget(100)

    def hold_twice() -> None:
        with memory.held(60):
            assert memory.used_bytes == 60
            with memory.held(60):
                pass

    with pytest.raises(SlowDown) as refused:
        hold_twice()
    assert dict(refused.value.headers) == {"retry-after": "1"}
    assert memory.used_bytes == 0


def test_work_that_can_wait_leaves_half_to_all_other() -> None:
    memory = MemoryBudget(200)
    assert memory.take_spare(100)
    assert not memory.take_spare(1)
    assert memory.take(100)
    memory.give_back(200)
    assert memory.take(60)
    assert memory.take_spare(40)
    assert not memory.take_spare(1)
    assert memory.used_bytes == 100
