"""The moment at which prefetch takes the slots of demand that ends, and the limit that it keeps."""

from __future__ import annotations

import asyncio

import pytest

from outrider.engine.fill.fill_scheduler import Purpose
from tests.engine.fill.slot_queue import MB, Queue, measured_at_10_mb_s


async def test_prefetch_begins_just_before_demand_ends() -> None:
    """Otherwise the line would idle for a round trip."""
    queue = Queue(16)
    await measured_at_10_mb_s(queue)
    await queue.add("p1", "p2", "p3", "p4", "p5")
    for name in ("x", "y", "z"):
        queue.scheduler.received(2 * MB, queue.of[name])
    await queue.end("x", "y")
    assert queue.order == ["x", "y", "z", "p1"], "the remaining 2 MB still take 0.2 s"
    queue.scheduler.received(8 * MB // 5, queue.of["z"])
    await queue.settle()
    assert queue.order == ["x", "y", "z", "p1", "p2"], "as many in all as demand had at its recent peak"
    await queue.drain()


@pytest.mark.parametrize("limit", [1, 3, 4])
async def test_prefetch_that_begins_before_demand_ends_keeps_to_the_limit(limit: int) -> None:
    queue = Queue(16)
    await measured_at_10_mb_s(queue)
    queue.aimd.limit = limit
    for name in ("x", "y", "z"):
        queue.scheduler.received(4 * MB, queue.of[name])
    await queue.add("p1", "p2", "p3", "p4", "p5")
    assert sum(slot.held for slot in queue.of.values()) == max(3, limit)
    await queue.drain()


async def test_promoted_prefetch_counts_in_the_peak_of_demand() -> None:
    """A reader may find all its blocks on their way as prefetch. Then none of its fills begins as demand."""
    queue = Queue(16, background_limit=4)
    await queue.add("p1", "p2", "p3", "p4", left_bytes=4 * MB)
    assert len(queue.order) == 4
    for name in queue.order:
        queue.of[name].promote()
    assert queue.background_limit.after == 4
    await queue.drain()


async def test_a_warm_up_does_not_take_the_slots_of_demand_that_ends() -> None:
    """The readers go on with other objects, and must not find the line full of the warm-up."""
    queue = Queue(16)
    await measured_at_10_mb_s(queue)
    await queue.add("p1", "p2", "p3", "p4", "p5", purpose=Purpose.COMMAND)
    for name in ("x", "y", "z"):
        queue.scheduler.received(4 * MB, queue.of[name])
    await queue.end("x", "y")
    assert queue.order == ["x", "y", "z", "p1"]
    await queue.drain()


@pytest.mark.parametrize(("fills", "limit"), [(3, 3), (4, 4), (5, 5)])
async def test_the_background_limit_of_a_burst_that_is_over_is_kept_or_grows(fills: int, limit: int) -> None:
    """The limit was 4. A burst below it says nothing about the line, so the limit falls, down to 2."""
    queue = Queue(16, background_limit=4)
    names = [f"p{number}" for number in range(fills)]
    await queue.add(*names)
    await queue.end(*names)
    assert not queue.background_limit.is_due(0.0)
    queue.background_limit.flowed(1000)
    queue.background_limit.judge(0.5, awaited=False, queued=False)
    assert queue.background_limit.alone == limit
    await queue.drain()


async def test_the_background_limit_does_not_grow_while_the_aimd_limit_holds_prefetch_back() -> None:
    queue = Queue(16)
    await queue.add(*(f"d{i}" for i in range(14)), "p1")
    for _ in range(100):
        queue.scheduler.small_received(0.05)
        queue.scheduler.written(1000)
    assert queue.background_limit.beside == 1, "no measurement has shown that more would be harmless"
    await queue.drain()


async def test_beside_a_request_for_a_new_object_prefetch_does_not_take_the_slots_of_demand_that_ends() -> None:
    queue = Queue(16)
    await measured_at_10_mb_s(queue)
    with queue.scheduler.question():
        await queue.add("p1", "p2", "p3")
        for name in ("x", "y", "z"):
            queue.scheduler.received(4 * MB, queue.of[name])
        await queue.settle()
        assert queue.order == ["x", "y", "z", "p1"]
    await queue.settle()
    assert len(queue.order) > 4
    await queue.drain()


@pytest.mark.parametrize("was_prefetch", [False, True])
async def test_a_reader_that_has_more_to_request_keeps_prefetch_from_the_slots_of_demand_that_ends(
    was_prefetch: bool,
) -> None:
    queue = Queue(16)
    await measured_at_10_mb_s(queue)
    last = "z"
    if was_prefetch:
        await queue.add(last := "p0", left_bytes=4 * MB)
    queue.of[last].expect_more()
    queue.of[last].expect_more()
    queue.of[last].promote()
    await queue.add("p1", "p2", "p3")
    for name in ("x", "y", "z", last):
        queue.scheduler.received(4 * MB, queue.of[name])
    await queue.settle()
    before = len(queue.order)
    await queue.end(last)
    assert (before, len(queue.order)) == ((5, 7) if was_prefetch else (4, 5))
    assert queue.scheduler.line.expecting_more == 0
    await queue.drain()


async def test_the_bytes_left_of_demand_count_the_demand_that_holds_slots() -> None:
    queue = Queue(16)
    await queue.add("a", "p1", left_bytes=3 * MB)
    assert queue.scheduler.line.left_bytes == 3 * MB
    queue.of["p1"].promote()
    assert queue.scheduler.line.left_bytes == 6 * MB
    queue.scheduler.received(MB, queue.of["a"])
    queue.of["a"].give_back()
    assert queue.scheduler.line.left_bytes == 3 * MB
    queue.scheduler.received(5 * MB, queue.of["p1"])
    assert queue.scheduler.line.left_bytes == 0, "a fill that brought more than its own bytes has none left"
    again = asyncio.create_task(queue.of["a"].take())
    await queue.settle()
    assert queue.scheduler.line.left_bytes == 2 * MB
    await again
    await queue.drain()
    assert queue.scheduler.line.left_bytes == 0


async def test_demand_that_waits_is_short_of_fills_at_the_limit_of_the_settings_alone() -> None:
    queue = Queue(2)
    await queue.add("a", "p1")
    assert not queue.scheduler.is_short, "a prefetch may wait"
    await queue.add("b")
    assert not queue.scheduler.is_short, "nothing waits"
    await queue.add("c")
    assert queue.scheduler.is_short
    await queue.drain()
    assert not queue.scheduler.is_short
    throttled = Queue(64)
    throttled.aimd.limit = 1
    await throttled.add("a", "b")
    assert not throttled.scheduler.is_short, "the bucket bears no more; the settings would"
    await throttled.drain()


async def test_the_time_of_questions_is_added_up() -> None:
    queue = Queue(1)
    with queue.scheduler.question(), queue.scheduler.question():
        queue.clock.advance(1.5)
    assert queue.scheduler.question_s == 3.0
