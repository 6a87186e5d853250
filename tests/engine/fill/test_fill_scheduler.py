"""The fill scheduler: demand before prefetch, a limit, and no slot lost or granted twice."""

from __future__ import annotations

import asyncio

import pytest

from outrider.core.cache.tenants import Tenants, TenantShare
from outrider.core.model import ObjectRef
from outrider.core.origin.fill_limits import FIRST_FILLS, AimdLimit, BackgroundLimit
from outrider.engine.fill.fill_scheduler import FillScheduler, FillSlot, Purpose
from tests.support.engine import is_idle
from tests.support.fakes import FakeClock


class Queue:
    """Fills that wait for slots and note in `order` when they get them."""

    def __init__(self, limit: int, background_limit: int = 2, tenants: Tenants | None = None) -> None:
        self.background_limit = BackgroundLimit(64)
        self.background_limit.alone = background_limit
        self.clock = FakeClock()
        self.aimd = AimdLimit(limit)
        self.scheduler = FillScheduler(self.aimd, self.background_limit, self.clock, tenants)
        self.order: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.done: dict[str, asyncio.Event] = {}
        self.of: dict[str, FillSlot] = {}

    async def add(
        self, *names: str, ahead: int = 0, left_bytes: int = 0, purpose: Purpose = Purpose.READER,
        ref: ObjectRef | None = None,
    ) -> None:  # fmt: skip
        """A name that begins with `p` is a prefetch."""
        for name in names:
            slot = self.scheduler.slot(
                demand=name[0] != "p", ahead=ahead, left_bytes=left_bytes, purpose=purpose, ref=ref
            )
            self.of[name], self.done[name] = slot, asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._run(name))
        await self.settle()

    async def _run(self, name: str) -> None:
        async with self.of[name]:
            self.order.append(name)
            await self.done[name].wait()

    async def end(self, *names: str) -> None:
        for name in names:
            self.done[name].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def drain(self) -> None:
        for event in self.done.values():
            event.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert is_idle(self.scheduler)


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


MB = 10**6


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


async def measured_at_10_mb_s(queue: Queue) -> None:
    """A line of 10 MB/s, filled by three fills of demand."""
    await queue.add("x", "y", "z", left_bytes=4 * MB)
    for _ in range(4):
        queue.clock.advance(0.3)
        queue.scheduler.flowed(3 * MB, lambda: True)


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


GREEDY, MODEST = ObjectRef("train", "greedy/0"), ObjectRef("train", "modest/0")


def tenants(**lines: float) -> Tenants:
    found = Tenants()
    found.renew({name: TenantShare(line=lines.get(name)) for name in ("greedy", "modest")})
    found.read("greedy", GREEDY)
    found.read("modest", MODEST)
    return found


async def one_by_one(queue: Queue, names: list[str]) -> str:
    """Adds these fills, of which one at a time runs: those with a `g` in their names are of `greedy`. Returns the
    tenants in the order of their slots."""
    await queue.add("first" if names[0][0] != "p" else "p-first")
    for name in names:
        await queue.add(name, left_bytes=MB, ref=GREEDY if "g" in name else MODEST)
    for place in range(len(names) + 1):
        await queue.settle()
        await queue.end(queue.order[place])
    await queue.drain()
    return "".join("g" if "g" in name else "m" for name in queue.order[1:])


@pytest.mark.parametrize("kind", ["p", "d"])
@pytest.mark.parametrize(
    ("lines", "order"),
    [
        ({}, "ggggggmmmm"),
        ({"greedy": 0.5, "modest": 0.5}, "gmgmgmgmgg"),
        ({"greedy": 0.25, "modest": 0.75}, "gmmmgmgggg"),
        ({"greedy": 0.5}, "gmggmggmgm"),
    ],
)
async def test_tenants_take_turns_on_the_line_by_their_shares(kind: str, lines: dict[str, float], order: str) -> None:
    """Where nobody has a share, the first come are the first served. Those without a share divide the rest of the line
    with fills that nobody is known to read."""
    queue = Queue(1, 1, tenants(**lines))
    names = [f"{kind}g{number}" for number in range(6)] + [f"{kind}m{number}" for number in range(4)]
    assert await one_by_one(queue, names) == order


async def test_shares_of_the_line_change_while_fills_wait() -> None:
    of_all = tenants()
    queue = Queue(1, 1, of_all)
    of_all.renew({name: TenantShare(line=0.5) for name in ("greedy", "modest")})
    assert await one_by_one(queue, ["g1", "g2", "m1", "m2"]) == "gmgm"


async def test_a_schedulers_line_has_the_tenants_of_the_other() -> None:
    queue, other = Queue(1, 1, tenants(greedy=0.5, modest=0.5)), Queue(1, 1)
    queue.scheduler.share_line(other.scheduler)
    assert await one_by_one(other, ["g1", "g2", "m1", "m2"]) == "gmgm"
