"""Reads of an origin that is busy or away: they go on for as long as somebody waits, no sooner than it asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from outrider.core.errors import OriginBroke, VersionChanged
from outrider.core.model import Extent, ObjectVersion
from outrider.core.origin.fill_limits import AimdLimit, BackgroundLimit
from outrider.core.origin.hedging import Hedging
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.fill.origin_body import OriginBody
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import A_CLIENT, Retries, Tries, Waiters
from outrider.engine.fill.refused import OriginRefused
from outrider.metrics import Metrics
from outrider.ports import OriginRequest
from tests.support.engine import REF, all_of
from tests.support.event_loops import VirtualTime
from tests.support.fakes import RAMP, FakeOrigin, Fault

DATA = RAMP[:5000]
GET = OriginRequest("GET", REF.bucket, REF.key)


class Room:
    """An origin reader in virtual time. `asked` is when the origin got each request, in seconds since the start."""

    def __init__(self, patience_s: float = 60.0) -> None:
        self.origin = FakeOrigin()
        self.origin.put(REF, DATA)
        etag = self.origin.objects[REF].etag
        assert etag is not None
        self.version = ObjectVersion(REF, etag, len(DATA))
        self.time = VirtualTime()
        self.metrics = Metrics()
        self.scheduler = FillScheduler(AimdLimit(2), BackgroundLimit(64), self.time)
        self.hedging = Hedging()
        self.origin_reader = OriginReader(
            self.origin, self.time.patience(patience_s), self.metrics, self.scheduler, self.hedging
        )
        self.asked: list[float] = []

    @property
    def passed_s(self) -> float:
        return self.time.now - 1000.0

    def away(self, from_s: float = 0.0, to_s: float = float("inf"), **fault: Any) -> None:
        """The origin answers so between these seconds. It notes the time of each request, in calm times as well."""

        def strikes() -> bool:
            self.asked.append(self.passed_s)
            return from_s <= self.passed_s < to_s

        self.origin.faults.append(Fault(times=None, while_=strikes, **fault))

    async def read(self, waiters: Waiters = A_CLIENT, start: int = 0) -> bytes:
        return await all_of(OriginBody(self.origin_reader, self.version, Extent(start, len(DATA)), waiters=waiters))

    async def ask(self, waiters: Waiters = A_CLIENT) -> int:
        with closing(await self.origin_reader.reply(GET, waiters=waiters)) as reply:
            return reply.status


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    assert room.origin.under_way == 0, "a reply was left open"
    assert room.scheduler.is_idle


AWAY: list[dict[str, Any]] = [*({"status": status} for status in (503, 429, 500, 502, 504)), {"refuse": True}]


@pytest.mark.parametrize("away", AWAY)
async def test_an_origin_that_is_back_within_the_patience_is_read_to_the_end(away: dict[str, Any], room: Room) -> None:
    room.away(to_s=40.0, **away)
    assert await room.time.run(room.read()) == DATA
    assert 40 <= room.passed_s < 46
    assert await room.time.run(room.ask()) == 200


async def test_no_try_comes_sooner_than_retry_after_asks_for(room: Room) -> None:
    room.away(to_s=2.5, status=503, headers=(("retry-after", "2"),))
    assert await room.time.run(room.read()) == DATA
    assert len(room.asked) == 3
    assert all(later - sooner >= 2 for sooner, later in zip(room.asked, room.asked[1:], strict=False))


async def test_a_date_in_retry_after_counts_from_the_date_of_the_reply(room: Room) -> None:
    dates = (("retry-after", "Tue, 14 Nov 2023 22:13:50 GMT"), ("date", "Tue, 14 Nov 2023 22:13:20 GMT"))
    room.away(to_s=1.0, status=503, headers=dates)
    assert await room.time.run(room.ask()) == 200
    assert [round(at) for at in room.asked] == [0, 30]


@pytest.mark.parametrize("after", ["1", "7", "3600"])
async def test_a_read_without_a_byte_gives_up_before_the_time_out_of_its_client(after: str, room: Room) -> None:
    room.away(status=503, headers=(("retry-after", after),))
    with pytest.raises(OriginBroke) as broke:
        await room.time.run(room.read())
    assert room.passed_s == 45, "the last try came at the end of the patience"
    assert broke.value.retry_after_s == float(after)


async def test_a_read_that_had_bytes_goes_on_for_the_whole_patience_since_then(room: Room) -> None:
    room.origin.faults = [Fault(break_after=2000)]
    room.away(from_s=0.01, refuse=True)
    with pytest.raises(OriginBroke):
        await room.time.run(room.read())
    assert 60 <= room.passed_s < 61


async def test_each_byte_renews_the_patience(room: Room) -> None:
    ends = iter((50.0, 100.0, 150.0))
    away_until = 0.0

    def breaks() -> bool:
        nonlocal away_until
        away_until = next(ends, away_until)
        return True

    storm = Fault(times=None, status=503, while_=lambda: room.passed_s < away_until)
    room.origin.faults = [storm, Fault(times=3, break_after=1000, while_=breaks)]
    assert await room.time.run(room.read()) == DATA
    assert 150 <= room.passed_s < 155


async def test_after_the_patience_the_last_reply_of_the_origin_is_given(room: Room) -> None:
    room.away(status=503, headers=(("retry-after", "5"),))
    assert await room.time.run(room.ask()) == 503
    assert room.passed_s == 45


async def test_a_read_that_nobody_waits_for_gives_up_after_few_tries(room: Room) -> None:
    room.away(status=503)
    with pytest.raises(OriginBroke):
        await room.time.run(room.read(Waiters()))
    assert len(room.asked) == 5
    assert room.passed_s < 1


async def test_a_read_whose_last_reader_leaves_gives_up_at_once(room: Room) -> None:
    room.away(status=503, headers=(("retry-after", "30"),))
    waiters = Waiters(2)
    reading = asyncio.create_task(room.read(waiters))
    await room.time.until(1010.0)
    waiters.leave()
    await room.time.turns()
    assert not reading.done(), "somebody still waits"
    waiters.leave()
    await room.time.turns()
    with pytest.raises(OriginBroke):
        await reading
    assert (len(room.asked), room.passed_s) == (1, 10)


async def test_a_reader_that_leaves_during_the_few_tries_does_not_end_them(room: Room) -> None:
    room.away(to_s=0.3, status=503)
    waiters = Waiters(1)
    reading = asyncio.create_task(room.read(waiters))
    await room.time.turns()
    waiters.leave()
    assert await room.time.run(_result(reading)) == DATA


async def test_a_read_that_gains_a_reader_goes_on(room: Room) -> None:
    room.away(to_s=30.0, status=503)
    waiters = Waiters()
    reading = asyncio.create_task(room.read(waiters))
    await room.time.until(1000.2)
    waiters.enter()
    assert await room.time.run(_result(reading)) == DATA
    waiters.leave()


async def test_a_stop_ends_long_waits_at_once_and_begins_none(room: Room) -> None:
    room.away(refuse=True)
    reading = [asyncio.create_task(act) for act in (room.read(), room.ask())]
    await room.time.until(1020.0)
    room.origin_reader.stop_waiting()
    await room.time.turns()
    for read in reading:
        with pytest.raises(OriginBroke):
            await read
    assert room.passed_s == 20
    with pytest.raises(OriginBroke):
        await room.time.run(room.read())
    assert room.passed_s < 21


async def test_a_cancelled_wait_leaves_nothing_behind(room: Room) -> None:
    room.away(status=503)
    before = asyncio.all_tasks()
    reading = asyncio.create_task(room.read())
    await room.time.until(1020.0)
    reading.cancel()
    await room.time.turns()
    assert reading.cancelled()
    assert asyncio.all_tasks() == before
    assert room.origin_reader.retries.long_wait is None


@pytest.mark.parametrize(("status", "error"), [(403, OriginRefused), (405, OriginRefused), (404, VersionChanged)])
async def test_a_refusal_for_good_is_not_tried_again(status: int, error: type[Exception], room: Room) -> None:
    room.away(status=status, headers=(("retry-after", "1"),))
    with pytest.raises(error):
        await room.time.run(room.read())
    assert room.asked == [0]


async def test_a_long_wait_is_logged_once_for_all_reads_and_so_is_its_end(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    room.away(to_s=30.0, status=503)
    reads = [asyncio.create_task(room.read()) for _ in range(5)]
    await room.time.until(1020.0)
    waits = room.origin_reader.long_wait
    assert waits is not None
    assert (waits.reads, round(waits.for_s), waits.why) == (5, 19, "status 503")
    for read in reads:
        await room.time.run(_result(read))
    assert room.origin_reader.long_wait is None
    assert [record.getMessage() for record in caplog.records] == ["waiting for the origin", "the origin answers again"]


async def test_the_end_of_an_outage_is_logged_though_each_read_gave_up(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    room.away(to_s=200.0, status=503)
    for _ in range(2):
        with pytest.raises(OriginBroke):
            await room.time.run(room.read())
    assert room.passed_s < 200
    room.time.now += 200.0
    for _ in range(2):
        await room.time.run(room.read())
    gave_up = "gave up asking the origin"
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for the origin", gave_up, gave_up, "the origin answers again"
    ]  # fmt: skip


async def test_the_time_of_all_waits_is_counted(room: Room) -> None:
    room.away(to_s=30.0, status=503)
    await room.time.run(room.read())
    assert room.metrics.value("outrider_origin_wait_seconds_total") == pytest.approx(room.passed_s)


def test_a_repeated_try_has_the_time_that_is_left_and_ten_seconds_at_least() -> None:
    time = VirtualTime()
    tries = Tries(Retries(time.patience(), Metrics()), "a read", A_CLIENT)
    assert tries.left_s is None, "the first try has the timeout of the adapter"
    tries.failed("silent")
    left: list[float | None] = []
    for now in (1000.0, 1030.0, 1044.0, 1054.0, 1056.0):
        time.now = now
        left.append(tries.left_s)
    assert left == [45.0, 15.0, 10.0, 10.0, None]


async def test_a_reply_that_stays_silent_beyond_its_time_is_given_up(room: Room) -> None:
    room.origin.faults = [Fault(gate=asyncio.Event())]
    with pytest.raises(OriginBroke):
        await room.origin_reader.once(GET, hedged=False, within_s=0.0)


async def test_an_origin_that_throttles_gets_no_request_twice(room: Room) -> None:
    for _ in range(100):
        room.hedging.replied(0.5)
        room.hedging.after_s()
    room.origin.faults = [Fault(status=503)]
    assert await room.time.run(room.ask()) == 200
    assert room.hedging.rests(room.time.now)


async def _result(task: asyncio.Task[bytes]) -> bytes:
    return await task
