"""Slots for fills: demand before prefetch, in order, never more at once than the limit."""

from __future__ import annotations

import asyncio

import pytest

from outrider.core.origin.fill_limits import FIRST_FILLS
from outrider.engine.fill.fill_scheduler import Purpose
from tests.engine.fill.slot_queue import Queue


async def test_slots_are_granted_first_come_and_never_more_at_once_than_the_limit() -> None:
    queue = Queue(2)
    await queue.add("a", "b", "c", "d")
    assert queue.order == ["a", "b"]
    await queue.end("b")
    assert queue.order == ["a", "b", "c"]
    await queue.drain()
    assert queue.order == ["a", "b", "c", "d"]


async def test_demand_overtakes_waiting_prefetch() -> None:
    queue = Queue(1)
    await queue.add("a", "p1", "b")
    await queue.end("a")
    assert queue.order == ["a", "b"]
    await queue.end("b")
    assert queue.order == ["a", "b", "p1"]
    await queue.drain()


async def test_prefetch_for_readers_overtakes_that_by_command_and_this_overtakes_guesses() -> None:
    queue = Queue(1)
    await queue.add("a")
    await queue.add("p1", "p2", purpose=Purpose.GUESS)
    await queue.add("p3", "p4", purpose=Purpose.COMMAND)
    await queue.add("p5", "p6")
    await queue.drain()
    assert queue.order == ["a", "p5", "p6", "p3", "p4", "p1", "p2"]


async def test_within_demand_the_block_nearest_to_its_reader_goes_first() -> None:
    queue = Queue(1)
    await queue.add("a")
    await queue.add("far", ahead=3)
    await queue.add("near", "like it", ahead=1)
    await queue.add("awaited")
    await queue.drain()
    assert queue.order == ["a", "awaited", "near", "like it", "far"]


async def test_a_promoted_slot_moves_up_and_none_moves_back() -> None:
    queue = Queue(1)
    await queue.add("a")
    await queue.add("b", "c", ahead=2)
    await queue.add("p1", "p2")
    queue.of["c"].promote(1)
    queue.of["c"].promote(4)
    queue.of["p2"].promote(3)
    queue.of["p2"].promote()
    await queue.drain()
    assert queue.order == ["a", "p2", "c", "b", "p1"]


async def test_a_promoted_slot_that_is_cancelled_leaves_the_queue() -> None:
    queue = Queue(1)
    await queue.add("a")
    await queue.add("b", "c", ahead=2)
    queue.of["b"].promote(1)
    queue.tasks["b"].cancel()
    await queue.settle()
    await queue.end("a")
    assert queue.order == ["a", "c"]
    await queue.drain()


async def test_demand_never_waits_behind_prefetch_that_holds_slots() -> None:
    queue = Queue(4, background_limit=4)
    await queue.add("p1", "p2", "p3", "p4", "p5")
    assert queue.order == ["p1", "p2", "p3"]  # a quarter of the slots is left free
    await queue.add("a", "b", "c", "d", "e")
    assert queue.order == ["p1", "p2", "p3", "a", "b", "c", "d"]
    await queue.drain()


async def test_prefetch_alone_goes_on_even_with_one_slot() -> None:
    queue = Queue(1)
    await queue.add("p1", "p2")
    assert queue.order == ["p1"]
    await queue.drain()


async def test_a_prefetch_becomes_demand_when_a_reader_waits_for_it() -> None:
    queue = Queue(1)
    await queue.add("a", "p1", "p2")
    queue.of["p2"].promote()
    queue.of["p2"].promote()
    await queue.end("a")
    assert queue.order == ["a", "p2"]
    await queue.drain()


async def test_a_prefetch_that_is_promoted_under_way_counts_as_demand() -> None:
    queue = Queue(1)
    await queue.add("p1")
    queue.of["p1"].promote()
    await queue.add("a")
    assert queue.order == ["p1"]
    await queue.drain()


async def test_a_slot_that_is_promoted_before_it_is_requested_is_demand() -> None:
    queue = Queue(1)
    slot = queue.scheduler.slot(demand=False)
    slot.promote()
    assert slot.demand
    await queue.add("p1", "a")
    await queue.drain()


async def test_a_slot_that_was_given_back_is_granted_to_another_fill() -> None:
    queue = Queue(1)
    await queue.add("a", "b")
    queue.of["a"].give_back()
    queue.of["a"].give_back()  # a second time it has no slot to give
    await queue.settle()
    assert queue.order == ["a", "b"]
    again = asyncio.create_task(queue.of["a"].take())
    await queue.settle()
    assert not again.done()
    await queue.end("b")
    assert again.done()
    await queue.drain()


@pytest.mark.parametrize("granted", [True, False])
async def test_the_slot_of_a_cancelled_fill_is_not_lost(granted: bool) -> None:
    queue = Queue(1)
    await queue.add("a", "b", "c")
    if granted:  # granted, and cancelled before it could see that
        queue.done["a"].set()
        await asyncio.sleep(0)
        assert queue.of["b"].held
    queue.tasks["b"].cancel()
    await queue.settle()
    await queue.end("a")
    assert queue.order == ["a", "c"]
    await queue.drain()


@pytest.mark.parametrize(
    ("names", "background_limit", "grows"),
    [([f"d{i}" for i in range(17)], 2, True), ([f"d{i}" for i in range(16)], 2, False),
     ([f"p{i}" for i in range(13)], 64, True), ([f"p{i}" for i in range(13)], 2, False)],
    ids=["demand waits", "none waits", "prefetch waits", "prefetch waits for courtesy alone"],
)  # fmt: skip
async def test_the_limit_grows_while_a_fill_waits_for_it(names: list[str], background_limit: int, grows: bool) -> None:
    queue = Queue(64, background_limit=background_limit)
    await queue.add(*names)
    for _ in range(3):
        queue.scheduler.written(10**6)
        queue.clock.advance(1.0)
    await queue.settle()
    assert (queue.aimd.limit > FIRST_FILLS) == grows
    assert not grows or len(queue.order) == len(names)
    await queue.drain()


async def test_a_slow_down_of_the_origin_holds_back_the_next_fills() -> None:
    queue = Queue(4)
    queue.scheduler.slow_down()
    await queue.add("a", "b", "c")
    assert queue.order == ["a", "b"]
    await queue.drain()


async def test_a_fill_that_is_cancelled_as_a_slot_comes_free_takes_none() -> None:
    queue = Queue(1)
    await queue.add("a", "b", "c")
    queue.tasks["b"].cancel()
    # In the same step of the loop, before `b` is cancelled in its own task.
    queue.scheduler.returned(queue.of["a"])
    queue.of["a"].held = False
    queue.done["a"].set()
    await queue.settle()
    assert queue.order == ["a", "c"]
    assert queue.tasks["b"].cancelled()
    await queue.drain()


async def test_prefetch_beside_demand_has_fewer_slots() -> None:
    queue = Queue(16, background_limit=4)
    await queue.add("a", "p1", "p2", "p3")
    assert queue.order == ["a", "p1"]
    await queue.end("a")
    assert queue.order == ["a", "p1", "p2", "p3"]
    await queue.drain()


async def test_two_parts_of_one_fill_that_both_retry_share_one_slot() -> None:
    queue = Queue(1)
    await queue.add("a", "b")
    slot = queue.of["a"]
    # Both parts of `a` broke. `b` has the slot meanwhile, and they wait for it.
    slot.give_back()
    slot.give_back()
    parts = [asyncio.create_task(slot.take()) for _ in range(2)]
    await queue.settle()
    assert queue.order == ["a", "b"]
    assert not any(part.done() for part in parts)
    await queue.end("b")
    assert all(part.done() for part in parts)
    assert slot.held
    await queue.drain()


async def test_two_parts_of_one_fill_that_are_cancelled_while_they_wait_leave_no_slot_behind() -> None:
    queue = Queue(1)
    await queue.add("a", "b")
    slot = queue.of["a"]
    slot.give_back()
    parts = [asyncio.create_task(slot.take()) for _ in range(2)]
    await queue.settle()
    for part in parts:
        part.cancel()
    await queue.drain()


async def test_beside_a_request_that_needs_no_slot_prefetch_is_limited_as_beside_demand() -> None:
    queue = Queue(16, background_limit=4)
    with queue.scheduler.question():
        await queue.add("p1", "p2", "p3")
        assert queue.order == ["p1"]
    await queue.settle()
    assert queue.order == ["p1", "p2", "p3"]
    await queue.drain()
