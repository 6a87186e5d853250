"""The origin reader: it holds no connection and no slot during the wait before a retry, and it hedges late requests."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Iterator
from contextlib import aclosing, closing, suppress
from typing import Any

import pytest

from outrider.core.errors import OriginBroke, OriginBusy, VersionChanged
from outrider.core.model import Extent, ObjectVersion
from outrider.core.origin.backoff import Backoff
from outrider.core.origin.fill_limits import AimdLimit, BackgroundLimit
from outrider.core.origin.hedging import Hedging
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.fill.origin_body import OriginBody
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import Patience
from outrider.engine.fill.reply_proof import Unproved
from outrider.metrics import Metrics
from outrider.ports import OriginRequest
from tests.support.engine import REF, all_of
from tests.support.fakes import RAMP, FakeClock, FakeOrigin, Fault

DATA = RAMP[:5000]
GET = OriginRequest("GET", REF.bucket, REF.key)
HEAD = OriginRequest("HEAD", REF.bucket, REF.key)


class Room:
    """An origin reader whose clock stands still. Waits end, and alarms ring, when the test says so."""

    def __init__(self) -> None:
        self.origin = FakeOrigin()
        self.origin.put(REF, DATA)
        etag = self.origin.objects[REF].etag
        assert etag is not None
        self.version = ObjectVersion(REF, etag, len(DATA))
        self.clock = FakeClock()
        self.waits: list[asyncio.Future[None]] = []
        self.alarms: list[asyncio.Future[None]] = []
        self.metrics = Metrics()
        self.aimd = AimdLimit(2)
        self.scheduler = FillScheduler(self.aimd, BackgroundLimit(64), self.clock)
        self.hedging = Hedging()
        patience = Patience(sleep=self.sleep, chance=lambda: 0.5, clock=self.clock, alarm=self.alarm)
        self.origin_reader = OriginReader(self.origin, patience, self.metrics, self.scheduler, self.hedging)

    async def sleep(self, _: float) -> None:
        self.waits.append(asyncio.get_running_loop().create_future())
        await self.waits[-1]

    def alarm(self, after_s: float) -> asyncio.Future[None]:
        assert after_s in (0.5, Hedging.ALONE_S), "the 99th percentile of the measured latencies, or that of a lone one"
        self.alarms.append(asyncio.get_running_loop().create_future())
        return self.alarms[-1]

    def measured(self, saved: int = 1) -> None:
        """Measure enough latencies to know a late reply, and send enough requests that `saved` may be hedged."""
        for _ in range(100):
            self.hedging.replied(0.5)
        for _ in range(50 * saved):
            self.hedging.after_s()

    def late(self) -> None:
        """The last request is late, and a reply to another came since it was sent."""
        self.hedging.replied(0.5)
        self.alarms[-1].set_result(None)

    async def read(self, *, slot: bool = False) -> bytes:
        own = self.scheduler.slot()
        if not slot:
            return await all_of(OriginBody(self.origin_reader, self.version, Extent(0, len(DATA))))
        async with own:
            return await all_of(OriginBody(self.origin_reader, self.version, Extent(0, len(DATA)), slot=own))

    async def settle(self) -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    def hedges(self, won: str) -> float:
        return self.metrics.value("outrider_hedges_total", won=won)


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    assert room.origin.under_way == 0, "a reply was left open"
    assert room.scheduler.is_idle


# -- waiting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(refuse=True)])
async def test_no_connection_is_held_before_the_next_try(fault: Fault, room: Room) -> None:
    room.origin.faults = [fault]

    async def ask() -> int:
        with closing(await room.origin_reader.reply(GET)) as reply:
            return reply.status

    asked = asyncio.create_task(ask())
    await room.settle()
    assert (len(room.waits), room.origin.under_way) == (1, 0)
    room.waits[0].set_result(None)
    assert await asked == 200


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(refuse=True), Fault(break_after=1500)])
async def test_a_fill_holds_neither_connection_nor_slot_before_its_next_try(fault: Fault, room: Room) -> None:
    room.origin.faults = [fault]
    filled = asyncio.create_task(room.read(slot=True))
    await room.settle()
    assert (len(room.waits), room.origin.under_way, room.scheduler.line.held) == (1, 0, 0)
    room.origin.faults.append(Fault(body_gate=(gate := asyncio.Event())))
    room.waits[0].set_result(None)
    await room.settle()
    assert (room.origin.under_way, room.scheduler.line.held) == (1, 1)
    gate.set()
    assert await filled == DATA


async def test_a_fill_that_is_stopped_while_it_waits_leaves_no_slot_behind(room: Room) -> None:
    room.origin.faults = [Fault(status=503)]
    filled = asyncio.create_task(room.read(slot=True))
    await room.settle()
    filled.cancel()
    await asyncio.wait([filled])
    assert filled.cancelled()


@pytest.mark.parametrize(("status", "limit"), [(503, 1), (429, 1), (500, 2)])
async def test_a_reply_that_says_slow_down_halves_the_limit(status: int, limit: int, room: Room) -> None:
    room.origin.faults = [Fault(status=status)]
    filled = asyncio.create_task(room.read())
    await room.settle()
    assert room.aimd.limit == limit
    room.waits[0].set_result(None)
    assert await filled == DATA


@pytest.mark.parametrize("status", [503, 404])
async def test_an_error_document_is_read_to_its_end_so_that_its_connection_can_be_used_again(
    status: int, room: Room
) -> None:
    room.origin.faults = [Fault(status=status, body=b"x" * 500)]
    filled = asyncio.create_task(room.read())
    await room.settle()
    assert room.origin.body_bytes == 500
    if status == 503:
        room.waits[0].set_result(None)
        assert await filled == DATA
    else:
        with pytest.raises(VersionChanged):
            await filled


# -- stragglers -------------------------------------------------------------------------------------------------


async def test_no_request_is_hedged_before_enough_latencies_were_seen(room: Room) -> None:
    assert await room.read() == DATA
    assert not room.alarms


async def test_a_reply_in_time_is_not_hedged(room: Room) -> None:
    room.measured()
    assert await room.read() == DATA
    assert room.origin.under_way == 0  # at once, and not at a garbage collection
    assert room.origin.count() == 1
    assert room.alarms[0].cancelled()
    assert room.hedges("yes") + room.hedges("no") == 0


async def test_a_late_request_is_hedged_and_the_first_reply_is_used(room: Room) -> None:
    room.measured()
    room.origin.faults = [Fault(gate=asyncio.Event())]  # for ever
    filled = asyncio.create_task(room.read())
    await room.settle()
    assert room.origin.count() == 1
    room.late()
    assert await filled == DATA
    assert room.origin.count() == 2
    assert room.origin.body_bytes == len(DATA)
    assert (room.hedges("yes"), room.hedges("no")) == (1, 0)


async def test_a_reply_that_came_while_the_loop_was_busy_is_not_hedged(room: Room) -> None:
    room.measured()
    gate = asyncio.Event()
    room.origin.faults = [Fault(gate=gate)]
    filled = asyncio.create_task(room.read())
    await room.settle()
    gate.set()
    room.late()
    assert await filled == DATA
    assert room.origin.count() == 1


async def test_a_lone_reply_that_came_while_the_loop_was_busy_is_not_hedged(room: Room) -> None:
    room.measured()
    gate = asyncio.Event()
    room.origin.faults = [Fault(gate=gate)]
    filled = asyncio.create_task(room.read())
    await room.settle()
    room.alarms[0].set_result(None)
    await room.settle()
    gate.set()
    room.alarms[1].set_result(None)
    assert await filled == DATA
    assert room.origin.count() == 1


async def test_a_slow_origin_is_not_asked_twice(room: Room) -> None:
    """No reply came since the request was sent, so it is no straggler among others."""
    room.measured(saved=2)
    gates = [asyncio.Event(), asyncio.Event()]
    room.origin.faults = [Fault(gate=gate) for gate in gates]
    reads = [asyncio.create_task(room.read()) for _ in gates]
    await room.settle()
    for alarm in room.alarms[:2]:
        alarm.set_result(None)
    await room.settle()
    assert room.origin.count() == 2
    gates[0].set()
    assert await reads[0] == DATA
    room.alarms[3].set_result(None)
    assert await reads[1] == DATA, "a request that is later still is hedged"
    assert room.origin.count() == 3


async def test_a_large_body_is_hedged_only_from_saved_bytes(room: Room) -> None:
    large = RAMP[:300_000]
    etag = room.origin.put(REF, large)
    version, parts = ObjectVersion(REF, etag, len(large)), []

    async def read() -> None:
        parts.append(await all_of(OriginBody(room.origin_reader, version, Extent(0, len(large)))))

    room.measured(saved=2)
    for hedged in (False, True):
        gate = asyncio.Event()
        room.origin.faults = [Fault(gate=gate)]
        before, filled = room.origin.count(), asyncio.create_task(read())
        await room.settle()
        room.late()
        await room.settle()
        assert room.origin.count() - before == 1 + hedged
        gate.set()
        await filled
        room.hedging.replied(0.5, 100 * len(large))
    assert b"".join(parts) == large * 2


async def test_the_first_request_may_still_win_and_the_second_is_given_up(room: Room) -> None:
    room.measured()
    gates = [asyncio.Event(), asyncio.Event()]
    room.origin.faults = [Fault(gate=gate) for gate in gates]
    filled = asyncio.create_task(room.read())
    await room.settle()
    room.late()
    await room.settle()
    assert room.origin.under_way == 2
    gates[0].set()
    assert await filled == DATA
    assert (room.hedges("yes"), room.hedges("no")) == (0, 1)


async def test_the_body_of_a_loser_that_was_answered_too_is_counted(room: Room) -> None:
    room.measured()
    gate = asyncio.Event()
    room.origin.faults = [Fault(gate=gate), Fault(gate=gate)]
    filled = asyncio.create_task(room.read())
    await room.settle()
    room.late()
    await room.settle()
    gate.set()
    assert await filled == DATA
    assert room.origin.given_up == ["hedge"]


async def test_a_reader_that_leaves_early_gives_the_rest_up(room: Room) -> None:
    async with aclosing(OriginBody(room.origin_reader, room.version, Extent(0, len(DATA)))) as body:
        await body.some()
    assert room.origin.given_up == ["abandoned"]
    assert await room.read() == DATA
    assert room.origin.given_up == ["abandoned"]


async def test_the_loser_is_given_up_before_the_body_is_read(room: Room) -> None:
    room.measured()
    room.origin.faults = [Fault(gate=asyncio.Event()), Fault(body_gate=(gate := asyncio.Event()), gate_after=10)]
    filled = asyncio.create_task(room.read())
    await room.settle()
    room.late()
    await room.settle()
    assert room.origin.under_way == 1
    gate.set()
    assert await filled == DATA


@pytest.mark.parametrize("steps", range(8))
async def test_no_reply_stays_open_after_a_cancel_amid_the_end_of_a_race(steps: int, room: Room) -> None:
    room.measured()
    gates = [asyncio.Event(), asyncio.Event()]
    room.origin.faults = [Fault(gate=gate) for gate in gates]
    asked = asyncio.create_task(room.origin_reader.reply(HEAD, hedged=True))
    await room.settle()
    room.late()
    await room.settle()
    assert room.origin.under_way == 2
    gates[0].set()
    for _ in range(steps):
        await asyncio.sleep(0)
    asked.cancel()
    await room.settle()
    if not asked.cancelled():
        (await asked).close()
    assert room.origin.under_way == 0
    gates[1].set()


async def test_an_error_of_our_own_ends_the_race(room: Room) -> None:
    room.measured()
    room.origin.faults = [Fault(bug=ZeroDivisionError())]
    with pytest.raises(ZeroDivisionError):
        await room.origin_reader.reply(HEAD, hedged=True)
    assert room.alarms[-1].cancelled()


async def test_a_second_request_counts_also_if_both_fail(room: Room) -> None:
    room.measured()
    gate = asyncio.Event()
    room.origin.faults = [Fault(gate=gate, refuse=True), Fault(refuse=True)]
    asked = asyncio.create_task(room.origin_reader.once(HEAD, hedged=True))
    await room.settle()
    room.late()
    await room.settle()
    gate.set()
    with pytest.raises(OriginBroke):
        await asked
    assert (room.hedges("yes"), room.hedges("no")) == (0, 1)


@pytest.mark.parametrize("bad", [{"refuse": True}, {"status": 203}])
async def test_a_body_that_fails_leaves_no_cycle(bad: dict[str, object], room: Room) -> None:
    room.origin_reader.patience.sleep = asyncio.sleep
    room.origin_reader.patience.backoff = Backoff(base_s=0.0)
    room.origin.faults = [Fault(times=None, **bad)]  # type: ignore[arg-type]
    gc.disable()
    try:
        body = OriginBody(room.origin_reader, room.version, Extent(0, len(DATA)))
        with suppress(OriginBroke, Unproved):
            await body.some()
        await body.aclose()
        left = weakref.ref(body)
        del body
        assert left() is None
    finally:
        gc.enable()


async def test_a_status_that_no_s3_sends_is_not_tried_again(room: Room) -> None:
    room.origin.faults = [Fault(times=None, status=203)]
    with pytest.raises(Unproved):
        await room.read()
    assert room.origin.count() == 1


@pytest.mark.parametrize("bad", [{"refuse": True}, {"status": 503}])
@pytest.mark.parametrize("which", [0, 1])
async def test_a_failed_request_is_no_answer_while_the_other_is_under_way(
    bad: dict[str, object], which: int, room: Room
) -> None:
    room.measured()
    gates = [asyncio.Event(), asyncio.Event()]
    room.origin.faults = [Fault(gate=gate) for gate in gates]
    room.origin.faults[which] = Fault(gate=gates[which], **bad)  # type: ignore[arg-type]
    filled = asyncio.create_task(room.read())
    await room.settle()
    room.late()
    await room.settle()
    gates[which].set()
    await room.settle()
    assert not filled.done()
    assert not room.waits
    gates[1 - which].set()
    assert await filled == DATA


async def test_when_both_requests_fail_there_is_a_next_try(room: Room) -> None:
    room.measured()
    gates = [asyncio.Event(), asyncio.Event()]
    room.origin.faults = [Fault(gate=gate, status=503) for gate in gates]
    filled = asyncio.create_task(room.read())
    await room.settle()
    room.late()
    await room.settle()
    for gate in gates:
        gate.set()
    await room.settle()
    assert (len(room.waits), room.origin.under_way) == (1, 0)
    room.waits[0].set_result(None)
    assert await filled == DATA


async def test_a_refusal_of_the_origin_is_an_answer(room: Room) -> None:
    room.measured()
    room.origin.faults = [Fault(gate=asyncio.Event()), Fault(status=404)]
    filled = asyncio.create_task(room.read())
    await room.settle()
    room.late()
    with pytest.raises(VersionChanged):
        await filled


async def test_hedged_requests_keep_to_their_budget(room: Room) -> None:
    room.measured(saved=1)
    gates = [asyncio.Event() for _ in range(5)]
    room.origin.faults = [Fault(gate=gate) for gate in gates]
    filled = [asyncio.create_task(room.read()) for _ in range(5)]
    await room.settle()
    room.hedging.replied(0.5)
    for rings in room.alarms:
        rings.set_result(None)
    await room.settle()
    assert room.origin.count() == 6
    for gate in gates:
        gate.set()
    assert await asyncio.gather(*filled) == [DATA] * 5


@pytest.mark.parametrize("rung", [True, False])
async def test_a_reader_that_leaves_ends_both_requests(rung: bool, room: Room) -> None:
    room.measured()
    room.origin.faults = [Fault(times=None, gate=asyncio.Event())]
    filled = asyncio.create_task(room.read())
    await room.settle()
    if rung:
        room.late()
        await room.settle()
        assert room.origin.under_way == 2
    filled.cancel()
    await asyncio.wait([filled])
    assert filled.cancelled()


async def test_a_late_reply_that_was_given_up_counts_as_late(room: Room) -> None:
    room.measured(saved=3)
    for _ in range(2):
        room.origin.faults = [Fault(gate=asyncio.Event())]
        filled = asyncio.create_task(room.read())
        await room.settle()
        room.clock.advance(3.0)
        room.late()
        assert await filled == DATA
    assert room.hedging.after_s() == 3.0, "two of 104 are the hundredth part"


async def test_only_reads_of_objects_are_hedged(room: Room) -> None:
    room.measured()
    with closing(await room.origin_reader.reply(OriginRequest("GET", REF.bucket, ""))):
        assert not room.alarms
    with closing(await room.origin_reader.reply(GET, hedged=True)):
        assert len(room.alarms) == 1


async def test_a_request_that_fails_before_it_is_late_is_retried(room: Room) -> None:
    room.measured()
    room.origin.faults = [Fault(times=None, refuse=True)]
    filled = asyncio.create_task(room.read())
    for number in range(4):
        await room.settle()
        room.waits[number].set_result(None)
    with pytest.raises(OriginBroke):
        await filled
    assert room.origin.count() == 5


async def test_a_wait_for_a_connection_that_was_in_vain_is_not_retried(room: Room) -> None:
    room.origin.faults = [Fault(times=None, bug=OriginBusy("no connection to it came free"))]
    with pytest.raises(OriginBusy):
        await room.origin_reader.reply(GET)
    assert (room.origin.count(), room.waits) == (1, [])


def test_jitter_takes_nothing_from_the_process_random_numbers() -> None:
    before = random.getstate()
    chances = {Patience().chance() for _ in range(10)}
    assert len(chances) > 1
    assert random.getstate() == before


# -- the alarm itself -------------------------------------------------------------------------------------------


async def test_an_alarm_rings() -> None:
    async with asyncio.timeout(60):
        await Patience().alarm(0.0)


async def test_an_alarm_that_was_given_up_leaves_no_timer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), []
    call_later = loop.call_later

    def cached(*what: Any) -> asyncio.TimerHandle:
        timers.append(call_later(*what))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", cached)
    rings = Patience().alarm(3600.0)
    rings.cancel()
    await asyncio.sleep(0)
    assert [timer.cancelled() for timer in timers] == [True]


async def test_an_alarm_that_is_given_up_as_it_rings_is_no_error() -> None:
    loop, errors = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, error: errors.append(error))
    rings = Patience().alarm(0.0)
    # In the step of the loop in which its timer is due, and before the timer.
    loop.call_soon(rings.cancel)
    for _ in range(3):
        await asyncio.sleep(0)
    assert rings.cancelled()
    assert errors == []
