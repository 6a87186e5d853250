"""Schedulers that share a line, and guesses: prefetch gives way to demand on its line."""

from __future__ import annotations

import pytest

from outrider.engine.fill.fill_scheduler import Purpose
from tests.engine.fill.slot_queue import MB, Queue, measured_at_10_mb_s


async def two_on_one_line(background_limit: int = 4) -> tuple[Queue, Queue]:
    here, remote = Queue(16, background_limit), Queue(16, background_limit)
    here.scheduler.share_line(remote.scheduler)
    return here, remote


async def test_prefetch_gives_way_to_demand_of_the_other_scheduler_on_its_line() -> None:
    here, remote = await two_on_one_line()
    await remote.add("a")
    await here.add("p1", "p2", "p3")
    assert here.order == ["p1"]
    await remote.end("a")
    await here.settle()
    assert here.order == ["p1", "p2", "p3"]
    await here.drain()
    with remote.scheduler.question():
        await here.add("p4", "p5")
        assert here.order[3:] == ["p4"]
    await here.settle()
    assert here.order[3:] == ["p4", "p5"]
    await here.drain()
    await remote.drain()


async def two_on_a_line_of_10_mb_s(body_bytes_s: float, awaited: bool = False) -> tuple[Queue, Queue]:
    """One body came at that rate, and is on disk."""
    here, remote = await two_on_one_line()
    await remote.add("before", left_bytes=MB)
    for queue in (here, remote):
        queue.clock.advance(MB / body_bytes_s)
    remote.scheduler.received(MB, remote.of["before"])
    for _ in range(2):
        here.scheduler.flowed(int(2.5 * MB), lambda: awaited)
        here.clock.advance(0.25)
        remote.clock.advance(0.25)
    await remote.end("before")
    return here, remote


@pytest.mark.parametrize(("body_bytes_s", "beside"), [(2.5 * MB, ["p1"]), (10 * MB, [])])
async def test_on_a_line_that_one_body_fills_guesses_of_members_wait_for_all_demand(
    body_bytes_s: float, beside: list[str]
) -> None:
    here, remote = await two_on_a_line_of_10_mb_s(body_bytes_s)
    await remote.add("a")
    await here.add("p1", "p2", purpose=Purpose.GUESS)
    assert here.order == beside
    await remote.end("a")
    await here.settle()
    assert here.order == ["p1", "p2"]
    await here.drain()
    await remote.drain()


async def test_guesses_begin_after_the_last_demand_though_a_reader_waited_when_bytes_came_last() -> None:
    """No byte comes after it, by which it would be seen that the reader waits no more."""
    here, remote = await two_on_a_line_of_10_mb_s(10 * MB, awaited=True)
    await here.add("p1", purpose=Purpose.GUESS)
    assert here.order == ["p1"]
    await here.drain()
    await remote.drain()


async def test_a_warm_up_goes_on_beside_the_demand_that_guesses_wait_for() -> None:
    here, remote = await two_on_a_line_of_10_mb_s(10 * MB)
    await remote.add("a")
    await here.add("p1", purpose=Purpose.GUESS)
    await here.add("p2", purpose=Purpose.COMMAND)
    assert here.order == ["p2"]
    await remote.drain()
    await here.drain()


async def on_a_line_of_its_own(*, awaited: bool = False, large: bool = True) -> Queue:
    """Demand has just ended there, after four seconds in which nobody waited."""
    queue = Queue(16, background_limit=4)
    for _ in range(80):
        queue.scheduler.tick()
    await queue.add("before")
    if large:
        queue.scheduler.flowed(MB, lambda: awaited)
        queue.clock.advance(0.25)
        queue.scheduler.flowed(MB, lambda: awaited)
    await queue.end("before")
    return queue


async def test_large_guesses_of_a_node_by_itself_begin_once_nobody_has_waited_for_a_while() -> None:
    queue = await on_a_line_of_its_own()
    await queue.add("p1", "p2", purpose=Purpose.GUESS)
    queue.clock.advance(0.09)
    queue.scheduler.tick()
    await queue.add("a")
    await queue.end("a")
    queue.clock.advance(0.09)
    queue.scheduler.tick()
    await queue.settle()
    assert queue.order == ["before", "a"]
    queue.clock.advance(0.02)
    with queue.scheduler.question():
        queue.scheduler.tick()
        await queue.settle()
        assert queue.order == ["before", "a"]
    queue.scheduler.tick()
    await queue.settle()
    assert queue.order == ["before", "a", "p1", "p2"]
    await queue.drain()


async def test_large_guesses_wait_where_readers_waited_for_a_quarter_of_the_last_seconds() -> None:
    queue = await on_a_line_of_its_own()
    await queue.add("p1", purpose=Purpose.GUESS)
    for _ in range(40):
        with queue.scheduler.question():
            queue.scheduler.tick()
    queue.clock.advance(0.11)
    queue.scheduler.tick()
    await queue.settle()
    assert queue.order == ["before"]
    for _ in range(80):
        queue.scheduler.tick()
    await queue.settle()
    assert queue.order == ["before", "p1"]
    await queue.drain()


@pytest.mark.parametrize(
    ("rates", "order"), [([34e6], ["p1"]), ([60e6, 40e6], ["p1"]), ([19e6], []), ([60e6, 30e6], [])]
)
async def test_large_guesses_begin_in_each_pause_of_readers_that_wait_for_their_connections_alone(
    rates: list[float], order: list[str]
) -> None:
    """`rates`: of the first body, and of all that came after it."""
    queue = await on_a_line_of_its_own()
    for _ in range(40):
        with queue.scheduler.question():
            queue.scheduler.tick()
    for number, rate in enumerate([rates[0], *rates[1:] * 15]):
        await queue.add(name := f"body {number}", left_bytes=5 * MB)
        queue.clock.advance(5 * MB / rate)
        queue.scheduler.received(5 * MB, queue.of[name])
        queue.scheduler.flowed(0, lambda: False)
        await queue.end(name)
    demand = len(queue.order)
    await queue.add("p1", purpose=Purpose.GUESS)
    assert len(queue.order) == demand, "a reader goes on"
    queue.clock.advance(0.11)
    queue.scheduler.tick()
    await queue.settle()
    assert queue.order[demand:] == order
    for _ in range(80):
        queue.scheduler.tick()
    await queue.settle()
    assert queue.order[demand:] == ["p1"]
    await queue.drain()


async def test_small_guesses_go_on_beside_demand() -> None:
    """A reader of samples waits for a round trip at a time, and leaves the line to others meanwhile."""
    queue = await on_a_line_of_its_own(large=False)
    await queue.add("a")
    await queue.add("p1", purpose=Purpose.GUESS)
    assert queue.order == ["before", "a", "p1"]
    await queue.drain()


async def test_guesses_begin_though_a_reader_waited_when_bytes_came_last() -> None:
    """No byte comes after it, by which it would be seen that the reader waits no more."""
    queue = await on_a_line_of_its_own(awaited=True)
    await queue.add("p1", purpose=Purpose.GUESS)
    queue.clock.advance(0.11)
    queue.scheduler.tick()
    await queue.settle()
    assert queue.order == ["before", "p1"]
    await queue.drain()


async def test_prefetch_of_one_scheduler_never_waits_for_prefetch_of_the_other_on_its_line() -> None:
    """The prefetch of two members could wait for each other."""
    here, remote = await two_on_one_line(background_limit=1)
    await remote.add("p1")
    await here.add("p1")
    assert here.order == remote.order == ["p1"]
    await here.drain()
    await remote.drain()


async def test_a_line_that_is_full_of_the_fills_of_both_schedulers_is_full() -> None:
    """10 MB/s, most of them for one scheduler at first, and then for the other one: neither may take that for a line
    with room."""
    here, remote = await two_on_one_line()
    for queue in (here, remote):
        await queue.add("x", "p1", "p2", "p3", left_bytes=100 * MB)
    for part in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1):
        for queue in (here, remote):
            queue.clock.advance(0.3)
        here.scheduler.flowed(int(part * 3 * MB), lambda: True)
        remote.scheduler.flowed(int((1 - part) * 3 * MB), lambda: True)
    assert (here.background_limit.beside, remote.background_limit.beside) == (1, 1)
    await here.drain()
    await remote.drain()


async def test_the_end_of_all_demand_on_the_line_is_what_prefetch_waits_for() -> None:
    here, remote = await two_on_one_line()
    await measured_at_10_mb_s(here)
    await remote.add("a", left_bytes=4 * MB)
    await here.add("p1", "p2", "p3")
    for name in ("x", "y", "z"):
        here.scheduler.received(4 * MB, here.of[name])
    await here.settle()
    assert here.order[3:] == ["p1"], "the other scheduler's demand still takes 0.4 s"
    remote.scheduler.received(4 * MB, remote.of["a"])
    await here.settle()
    assert here.order[3:] == ["p1", "p2", "p3"]
    await here.drain()
    await remote.drain()
