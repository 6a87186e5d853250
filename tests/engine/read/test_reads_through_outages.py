"""Reads of an engine whose origin is busy or away for a while: the clients get their bytes, and wait no longer than a
client waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.core.cache.readahead import BlockRun
from outrider.core.errors import OriginBroke, ServiceUnavailable
from outrider.core.model import ObjectRef
from outrider.core.s3.operation import classify
from outrider.engine.ahead.prefetch import Mode
from outrider.engine.fill.flight import Flight
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.fill.reply_proof import Unproved
from outrider.engine.write.upload import Upload
from tests.support.engine import BLOCK, REF, Engine, engine, pieces_of
from tests.support.event_loops import VirtualTime
from tests.support.fakes import AtOnce, FakeOrigin, Fault, ramp

DATA = ramp(15 * BLOCK + 5)
RETRY_AFTER = (("retry-after", "2"),)


class Room:
    """An engine in virtual time. `asked` is when the origin got each request, in seconds since the start."""

    def __init__(self, room: Engine, time: VirtualTime) -> None:
        self.engine = room
        self.time = time
        self.asked: list[float] = []

    @property
    def origin_reader(self) -> OriginReader:
        return self.engine.origin_reader

    @property
    def passed_s(self) -> float:
        return self.time.now - 1000.0

    def away(self, from_s: float = 0.0, to_s: float = float("inf"), **fault: Any) -> None:
        def strikes() -> bool:
            self.asked.append(self.passed_s)
            return from_s <= self.passed_s < to_s

        self.engine.origin.faults.append(Fault(times=None, while_=strikes, **fault))

    async def knows(self) -> None:
        """The version, and no block after the first."""
        await self.time.run(self.engine.range(0, 10))
        await self.time.run(self.engine.tasks.settle())


Making = Callable[..., AbstractContextManager[Room]]


@pytest.fixture
def making(tmp_path: Path) -> Making:
    @contextmanager
    def make(**settings: Any) -> Iterator[Room]:
        time = VirtualTime()
        origin = FakeOrigin(chunk_bytes=30_000)
        origin.put(REF, DATA)
        patience = time.patience(settings.pop("patience_s", 60.0))
        with engine(
            tmp_path / "cache", origin, prefetch=Mode.OFF, sleep=time.sleep, patience=patience, **settings
        ) as room:  # fmt: skip
            # No thread: the time must not pass while one works.
            room.store.disks[0].work.threads.shutdown()
            room.store.disks[0].work.threads = AtOnce()
            yield Room(room, time)
            assert len(room.flights) == 0
            assert room.origin.under_way == 0
            assert room.scheduler.is_idle
            assert room.store.leases() == 0

    return make


@pytest.fixture
def room(making: Making) -> Iterator[Room]:
    with making() as made:
        yield made


async def test_a_bucket_that_says_slow_down_in_the_middle_of_a_read_does_not_cut_it(room: Room) -> None:
    read = asyncio.create_task(room.engine.get())
    while room.engine.origin.body_bytes < 2 * BLOCK:
        await asyncio.sleep(0)
    room.away(to_s=2.5, status=503, headers=RETRY_AFTER)
    assert await room.time.run(_result(read)) == DATA
    await room.time.run(room.engine.tasks.settle())
    refused = [at for at in room.asked if at < 2.5]
    assert refused, "the storm struck no request"
    # Each of the fills that were refused waits for two seconds, and those that come meanwhile are fewer by AIMD.
    assert len(refused) <= 32


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 500}, {"refuse": True}])
@pytest.mark.parametrize("known", [True, False])
async def test_a_read_outlasts_an_outage_before_and_after_its_version_is_known(
    fault: dict[str, Any], known: bool, room: Room
) -> None:
    if known:
        await room.knows()
    room.away(to_s=40.0, **fault)
    assert await room.time.run(room.engine.get()) == DATA
    assert 40 <= room.passed_s < 60
    await room.time.run(room.engine.tasks.settle())


async def test_heads_and_forwarded_reads_outlast_an_outage(room: Room) -> None:
    room.away(to_s=20.0, status=503)
    assert (await room.time.run(room.engine.reads.head(REF, {}))).length == len(DATA)
    room.engine.origin.faults.clear()
    room.away(from_s=0, to_s=room.passed_s + 20, refuse=True)
    operation = classify("GET", "/train?list-type=2", ())
    answer = await room.time.run(room.engine.passthrough.send(operation, (), Upload()))
    await answer.body.aclose()
    assert answer.status != 503


async def test_a_write_is_never_repeated_and_its_503_goes_to_the_client_with_retry_after(room: Room) -> None:
    room.away(status=503, headers=RETRY_AFTER)
    for method in ("PUT", "DELETE", "POST"):
        operation = classify(method, f"/{REF.bucket}/{REF.key}", ())
        answer = await room.engine.passthrough.send(operation, (), Upload())
        await answer.body.aclose()
        assert (answer.status, dict(answer.headers)["retry-after"]) == (503, "2")
    assert room.asked == [0.0] * 3


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("fault", [{"status": 503, "headers": RETRY_AFTER}, {"refuse": True}])
async def test_before_its_head_a_reply_is_held_back_no_longer_than_clients_wait(
    fault: dict[str, Any], known: bool, room: Room
) -> None:
    if known:
        await room.knows()
    room.away(**fault)
    with pytest.raises((ServiceUnavailable, OriginRefused)) as refused:
        await room.time.run(room.engine.range(BLOCK, 2 * BLOCK))
    assert 45 <= room.passed_s < 55
    headers = dict(refused.value.headers)  # type: ignore[attr-defined]
    assert headers["retry-after"] in ("1", "2")
    await room.time.run(room.engine.tasks.settle())


async def test_a_get_whose_version_was_asked_by_head_is_not_held_back_twice(room: Room) -> None:
    await room.knows()
    room.engine.clock.advance(61)
    room.away(status=503, headers=RETRY_AFTER)
    with pytest.raises(ServiceUnavailable) as refused:
        await room.time.run(room.engine.range(0, 10))
    assert 45 <= room.passed_s < 55
    assert dict(refused.value.headers)["retry-after"] == "2"


async def test_in_mid_body_the_connection_breaks_after_the_patience_alone(room: Room) -> None:
    await room.knows()
    room.away(refuse=True)
    with pytest.raises(OriginBroke):
        await room.time.run(room.engine.get())
    assert 60 <= room.passed_s < 60 + 45
    await room.time.run(room.engine.tasks.settle())


async def test_a_stop_ends_the_waits_of_reads_at_once(room: Room) -> None:
    await room.knows()
    room.away(refuse=True)
    # The head of the first is out.
    reads = [asyncio.create_task(room.engine.range(start, 2 * BLOCK)) for start in (0, BLOCK)]
    await room.time.until(1020.0)
    room.origin_reader.stop_waiting()
    for read in reads:
        with pytest.raises((OriginBroke, ServiceUnavailable)):
            await room.time.run(_result(read))
    assert room.passed_s == 20
    await room.time.run(room.engine.tasks.settle())


async def test_an_origin_that_answers_nonsense_is_neither_busy_nor_away(room: Room) -> None:
    await room.knows()
    room.away(shift=1)
    with pytest.raises(Unproved):
        await room.time.run(room.engine.get())
    assert room.passed_s < 2
    await room.time.run(room.engine.tasks.settle())


async def test_many_readers_of_one_object_share_the_wait_of_one_flight(room: Room) -> None:
    await room.knows()
    room.away(to_s=30.0, status=503)
    reads = [asyncio.create_task(room.engine.range(BLOCK, 2 * BLOCK)) for _ in range(50)]
    assert {await room.time.run(_result(read)) for read in reads} == {DATA[BLOCK : 2 * BLOCK]}
    await room.time.run(room.engine.tasks.settle())
    # One fill, with its waits of 2.5 s on average.
    assert len(room.asked) < 25


async def test_many_readers_of_an_unknown_object_share_one_question(room: Room) -> None:
    room.away(to_s=30.0, status=503)
    reads = [asyncio.create_task(room.engine.range(0, BLOCK)) for _ in range(50)]
    assert {await room.time.run(_result(read)) for read in reads} == {DATA[:BLOCK]}
    await room.time.run(room.engine.tasks.settle())
    assert len(room.asked) < 25


@pytest.mark.parametrize("known", [True, False])
async def test_a_fill_whose_last_reader_leaves_gives_up_and_leaves_nothing(known: bool, room: Room) -> None:
    if known:
        await room.knows()
    room.away(refuse=True)
    reads = [asyncio.create_task(room.engine.get()) for _ in range(2)]
    await room.time.until(1020.0)
    reads[0].cancel()
    await room.time.turns()
    asked = len(room.asked)
    await room.time.until(1030.0)
    assert len(room.asked) > asked, "the other reader waits"
    reads[1].cancel()
    await room.time.turns()
    assert len(room.engine.flights) == 0
    await room.time.run(room.engine.tasks.settle())
    assert room.passed_s == 30


async def test_a_prefetch_gives_up_after_few_tries_and_goes_on_where_a_reader_comes(room: Room) -> None:
    await room.knows()
    room.away(to_s=20.0, status=503)
    version = room.engine.versions.fresh(REF)
    assert version is not None
    for index in (1, 2):
        flights = room.engine.flights.board(version, BlockRun(index, 1))
        room.engine.flights.fill(flights, prefetch=True)
    read = asyncio.create_task(room.engine.range(2 * BLOCK, 3 * BLOCK))
    await room.time.until(1010.0)
    assert len(room.engine.flights) == 1, "the one without a reader is gone"
    assert await room.time.run(_result(read)) == DATA[2 * BLOCK : 3 * BLOCK]
    await room.time.run(room.engine.tasks.settle())


async def test_a_reader_that_comes_late_is_not_cut_by_a_fill_that_has_waited_for_long(room: Room) -> None:
    await room.knows()
    room.away(to_s=50.0, status=503)
    first = asyncio.create_task(room.engine.range(BLOCK, 2 * BLOCK))
    await room.time.until(1040.0)
    # Its head is out: the first block is here.
    second = asyncio.create_task(room.engine.range(0, 2 * BLOCK))
    assert await room.time.run(_result(second)) == DATA[: 2 * BLOCK]
    with pytest.raises(ServiceUnavailable):
        await first
    await room.time.run(room.engine.tasks.settle())


async def test_a_slow_client_keeps_its_fill_patient(room: Room) -> None:
    """It is not waiting for bytes while its socket is full, and still wants the rest of the block."""
    await room.knows()
    room.engine.origin.faults = [Fault(break_after=30_000)]
    room.away(from_s=0.01, to_s=30.0, status=503)
    answer = await room.time.run(room.engine.reads.get(REF, {"range": f"bytes={BLOCK}-{2 * BLOCK - 1}"}))
    assert answer.body is not None
    await room.time.until(1020.0)
    async with aclosing(pieces_of(answer.body)) as pieces:  # type: ignore[type-var]

        async def rest() -> bytes:
            return b"".join([piece async for piece in pieces])

        assert await room.time.run(rest()) == DATA[BLOCK : 2 * BLOCK]
    await room.time.run(room.engine.tasks.settle())


async def test_the_blocks_ahead_of_a_reader_that_waits_are_not_given_up(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    await room.knows()
    room.away(to_s=20.0, status=503)
    assert await room.time.run(room.engine.get()) == DATA
    await room.time.run(room.engine.tasks.settle())
    assert "gave up asking the origin" not in [record.getMessage() for record in caplog.records]


async def test_a_reader_waits_no_more_for_blocks_that_it_has_passed(room: Room) -> None:
    await room.knows()
    answer = await room.time.run(room.engine.reads.get(REF, {}))
    assert answer.body is not None
    version = room.engine.versions.fresh(REF)
    assert version is not None
    seen: list[Flight] = []
    count = 0
    async with aclosing(pieces_of(answer.body)) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            count += len(piece)
            flight = room.engine.flights.get(room.engine.layout.key(version, min(15, count // BLOCK)))
            if flight is not None and not seen:
                seen.append(flight)
                assert flight.waiters
            if count > 14 * BLOCK:
                assert not seen[0].waiters
                break
    await room.time.run(room.engine.tasks.settle())


async def test_stale_objects_are_served_after_few_tries(making: Making) -> None:
    with making(stale_if_error=True) as room:
        await room.time.run(room.engine.get())
        await room.time.run(room.engine.tasks.settle())
        room.engine.clock.advance(61)
        for fault in ({"refuse": True}, {"status": 503, "headers": (("retry-after", "30"),)}):
            room.engine.origin.faults.clear()
            room.away(**fault)
            began = room.passed_s
            assert await room.time.run(room.engine.get()) == DATA
            assert room.passed_s - began < 2
        await room.time.run(room.engine.tasks.settle())


async def test_without_patience_reads_give_up_after_few_tries(making: Making) -> None:
    with making(patience_s=0.0) as room:
        await room.knows()
        room.away(status=503, headers=RETRY_AFTER)
        for act in (room.engine.range(BLOCK, 2 * BLOCK), room.engine.get(ObjectRef("train", "other"))):
            began = room.passed_s
            with pytest.raises((ServiceUnavailable, OriginRefused)):
                await room.time.run(act)
            assert room.passed_s - began < 2
        await room.time.run(room.engine.tasks.settle())


async def _result(task: asyncio.Task[bytes]) -> bytes:
    return await task
