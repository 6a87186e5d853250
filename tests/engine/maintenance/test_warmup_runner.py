"""Warming, carried out: brought once, behind all demand, within its rate; and what is told of it is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from outrider.core.maintenance.object_list import ObjectList
from outrider.core.maintenance.progress import Progress, State
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.origin.token_bucket import TokenBucket
from outrider.engine.ahead.prefetch import PrefetchLimits
from outrider.engine.maintenance.pinning import Pinning
from outrider.engine.maintenance.warmup import Warmup
from tests.support.engine import BLOCK, Engine, engine
from tests.support.fakes import FakeClock, FakeOrigin, Fault, ramp

COUNT = 6
REFS = [ObjectRef("train", f"shard-{number:06d}.tar") for number in range(COUNT)]
SIZE = 3 * BLOCK + 5
OTHER = ObjectRef("other", "apart")
Making = Callable[..., AbstractContextManager[Engine]]


@pytest.fixture
def making(tmp_path: Path) -> Making:
    origin = FakeOrigin(chunk_bytes=10_000)
    for number, ref in enumerate(REFS):
        origin.put(ref, ramp(SIZE, number))
    origin.put(OTHER, ramp(BLOCK, 77))
    return partial(engine, tmp_path / "c", origin, sleep=at_once)


async def at_once(_: float) -> None:
    await asyncio.sleep(0)


def warmup(room: Engine, refs: list[ObjectRef], rate: float = 0.0) -> Warmup:
    now = room.clock()
    return Warmup("", "", "mine", b"", now, ObjectList(tuple(refs), ()), lambda ref: True, Progress(now),
                  TokenBucket(rate, now))  # fmt: skip


def begun(room: Engine, refs: list[ObjectRef] = REFS, rate: float = 0.0) -> Warmup:
    one = warmup(room, refs, rate)
    room.warmup_runner.begin(one)
    return one


async def warmed(room: Engine, refs: list[ObjectRef] = REFS) -> Warmup:
    one = begun(room, refs)
    await room.tasks.settle()
    return one


async def test_each_byte_is_brought_once_and_counted(making: Making) -> None:
    with making() as room:
        await room.range(BLOCK, BLOCK + 9, REFS[0])
        reading = asyncio.create_task(room.get(REFS[1]))
        one = await warmed(room)
        await reading
        assert one.progress.told(room.clock())["state"] == "done"
        assert (one.progress.objects, one.progress.bytes) == (COUNT, COUNT * SIZE)
        assert room.origin.body_bytes == COUNT * SIZE
        before = len(room.origin.log)
        again = await warmed(room)
        assert (again.progress.bytes, again.progress.fetched_bytes) == (COUNT * SIZE, 0)
        assert len(room.origin.log) == before


async def test_demand_goes_first(making: Making) -> None:
    with making(fills_max=1) as room:
        gate = asyncio.Event()
        room.origin.faults += [Fault(times=None, key=ref.key, body_gate=gate) for ref in REFS]
        one = begun(room)
        async with asyncio.timeout(60):
            while not room.origin.under_way:
                await asyncio.sleep(0)
            assert await room.get(OTHER) == ramp(BLOCK, 77)
        assert one.running
        gate.set()
        await room.tasks.settle()


@pytest.mark.parametrize("known", [False, True])
async def test_all_that_it_asks_for_is_known_as_ordered(making: Making, known: bool) -> None:
    with making() as room:
        if known:
            await room.range(0, 1, REFS[0])
            await room.tasks.settle()
        gate = asyncio.Event()
        room.origin.faults.append(Fault(times=None, body_gate=gate))
        begun(room, REFS[:1])
        async with asyncio.timeout(60):
            while not room.flights or any(one.slot is None for one in room.flights._flights.values()):
                await asyncio.sleep(0)
        scheduler = [flight.slot for flight in room.flights._flights.values()]
        assert all(slot is not None and slot.by_command for slot in scheduler)
        gate.set()
        await room.tasks.settle()


async def test_no_more_blocks_are_on_their_way_than_the_budget_has(making: Making) -> None:
    with making(budget=PrefetchLimits(2)) as room:
        gate = asyncio.Event()
        room.origin.faults.append(Fault(times=None, body_gate=gate))
        begun(room)
        async with asyncio.timeout(60):
            while not room.origin.under_way:
                await asyncio.sleep(0)
        for _ in range(3000):
            await asyncio.sleep(0)
        assert 1 <= room.origin.under_way <= 2
        gate.set()
        await room.tasks.settle()


async def test_the_rate_holds(making: Making) -> None:
    clock = FakeClock()
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(seconds)
        await asyncio.sleep(0)

    with making(clock=clock, sleep=sleep) as room:
        one = begun(room, rate=BLOCK)
        await room.tasks.settle()
        assert one.progress.state is State.DONE
        # One block may be begun that there is no allowance for yet.
        assert clock() - 1000.0 >= COUNT * SIZE / BLOCK - 2


async def test_objects_of_unknown_size_do_not_begin_all_at_once_on_one_allowance(making: Making) -> None:
    never = asyncio.Event()

    async def sleep(seconds: float) -> None:
        if seconds >= 0.1:
            await never.wait()
        room.clock.advance(seconds)
        await asyncio.sleep(0)

    with making(sleep=sleep) as room:
        one = begun(room, rate=BLOCK / 10)
        async with asyncio.timeout(60):
            while not room.origin.body_bytes:
                await asyncio.sleep(0)
        for _ in range(3000):
            await asyncio.sleep(0)
        assert room.origin.body_bytes <= BLOCK
        room.warmup_runner.cancel(one)
        await room.tasks.settle()


@pytest.mark.parametrize("key", ["small", "not there"])
async def test_what_an_unknown_object_did_not_take_of_the_allowance_is_given_back(making: Making, key: str) -> None:
    with making() as room:
        room.origin.put(ObjectRef("train", "small"), b"x")
        one = begun(room, [ObjectRef("train", key)], rate=BLOCK / 100)
        room.clock.advance(1)
        await room.tasks.settle()
        assert one.allowance.wait_s(room.clock()) == 0


async def test_a_slow_one_does_not_hold_up_another(making: Making) -> None:
    never = asyncio.Event()

    async def sleep(_: float) -> None:
        await never.wait()

    with making(sleep=sleep, budget=PrefetchLimits(1)) as room:
        slow = begun(room, REFS[:3], rate=1.0)
        other = begun(room, REFS[3:])
        async with asyncio.timeout(60):
            while other.running:
                room.clock.advance(0.001)
                await asyncio.sleep(0)
        assert (other.progress.state, slow.running) == (State.DONE, True)
        room.warmup_runner.cancel(slow)
        await room.tasks.settle()


async def test_an_object_that_is_overwritten_meanwhile_is_warmed_as_it_is_now(making: Making) -> None:
    with making() as room:
        await room.reads.head(REFS[0], {})
        room.origin.put(REFS[0], ramp(SIZE, 99))
        one = await warmed(room, REFS[:1])
        assert one.progress.state is State.DONE
        room.clock.advance(61)
        before = room.origin.body_bytes
        assert await room.get(REFS[0]) == ramp(SIZE, 99)
        assert room.origin.body_bytes == before


async def test_what_fails_is_told_and_the_rest_comes(making: Making) -> None:
    with making() as room:
        room.origin.faults.append(Fault(times=None, key=REFS[2].key, refuse=True))
        one = await warmed(room)
        assert (one.progress.state, one.progress.objects) == (State.FAILED, COUNT - 1)
        assert list(one.progress.failures) == [str(REFS[2])]
        room.origin.faults.clear()
        again = await warmed(room)
        assert (again.progress.state, again.progress.fetched_bytes) == (State.DONE, SIZE)


async def test_a_cancelled_one_stops_and_what_is_on_its_way_comes_yet(making: Making) -> None:
    with making(budget=PrefetchLimits(1)) as room:
        gate = asyncio.Event()
        room.origin.faults.append(Fault(times=None, body_gate=gate))
        one = begun(room)
        async with asyncio.timeout(60):
            while not room.origin.under_way:
                await asyncio.sleep(0)
        room.warmup_runner.cancel(one)
        gate.set()
        await room.tasks.settle()
        assert one.progress.state is State.CANCELLED
        assert len(room.store) <= 2
        # It has given back its places.
        room.origin.faults.clear()
        assert (await warmed(room)).progress.state is State.DONE


async def test_what_was_evicted_before_the_end_is_no_success(making: Making) -> None:
    with making() as room:
        gate = asyncio.Event()
        room.origin.faults.append(Fault(times=None, key=REFS[-1].key, body_gate=gate))
        one = begun(room)
        async with asyncio.timeout(60):
            while one.progress.objects < COUNT - 1:
                await asyncio.sleep(0)
        await room.store.drop(room.store.blocks_of(lambda ref: ref == REFS[0]))
        # That somebody looks meanwhile must not hide it.
        assert room.warmup_runner.counted(one, at_once=True).progress.objects == COUNT - 2
        gate.set()
        await room.tasks.settle()
        assert one.progress.state is State.FAILED
        assert "evicted before" in one.progress.failures[str(REFS[0])]


async def test_objects_of_heads_are_brought_once(making: Making) -> None:
    with making() as room:
        for _ in range(3):
            room.warmup_runner.hint(REFS[0])
        room.warmup_runner.hint(ObjectRef("train", "none"))
        await room.tasks.settle()
        assert room.origin.body_bytes - len(Fault().body) <= SIZE + 100
        assert len(room.store) == 4


async def nothing(_: object) -> None:
    pass


def pinning(room: Engine, save: Callable[[object], object] = nothing) -> Pinning:
    return Pinning(room.warmup_runner, room.prefetch, room.version_lookup, save)  # type: ignore[arg-type]


async def test_what_was_lost_of_a_pin_is_brought_again(making: Making) -> None:
    with making() as room:
        pins = pinning(room)
        one = warmup(room, REFS[:2])
        await pins.pin(one)
        await room.tasks.settle()
        assert one.progress.bytes == 2 * SIZE
        room.pins.unpin(("", "mine"))
        await room.store.drop(room.store.blocks_of(lambda ref: ref == REFS[0]))
        room.pins.pin(("", "mine"), [ObjectVersion(ref, _etag(room, ref), SIZE) for ref in REFS[:2]], 10**9)
        room.clock.advance(61)
        pins.check_again()
        await room.tasks.settle()
        assert (one.progress.state, one.progress.bytes, one.progress.fetched_bytes) == (State.DONE, 2 * SIZE, SIZE)


def _etag(room: Engine, ref: ObjectRef) -> str:
    version = room.catalog.stale(ref)
    assert version is not None
    return version.etag


async def test_a_pin_that_cannot_be_written_down_is_none(making: Making) -> None:
    async def fail(_: object) -> None:
        raise OSError(28, "No space left on device")

    with making() as room:
        pins = pinning(room, fail)
        with pytest.raises(Exception, match="cannot be written to the cache directory"):
            await pins.pin(warmup(room, REFS[:2]))
        assert (room.pins.reserved_bytes, pins.book.all()) == (0, [])


async def test_pins_that_come_at_one_time_do_not_share_room(making: Making) -> None:
    with making(capacity_bytes=5 * (BLOCK + 8192)) as room:
        pins = pinning(room)
        two = [warmup(room, [ref]) for ref in REFS[:2]]
        two[1].name = "other"
        results = await asyncio.gather(*(pins.pin(one) for one in two), return_exceptions=True)
        # Whose sizes are known first has it.
        assert sorted(type(result).__name__ for result in results) == ["NoRoom", "NoneType"]
        await room.tasks.settle()


PAGE = """<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>true</IsTruncated>
<Contents><Key>shard-000000.tar</Key><Size>{size}</Size><ETag>"other"</ETag></Contents>
<Contents><Key>shard-0.tar</Key><Size>1</Size><ETag>"between"</ETag></Contents>
<NextContinuationToken>more</NextContinuationToken></ListBucketResult>"""


async def test_sizes_are_looked_for_in_few_pages_and_asked_for_where_they_are_not(making: Making) -> None:
    """Between the names lies what has no end. What the LIST told of the first one was wrong by the time it came."""
    with making() as room:
        refs = [ObjectRef("train", f"shard-{number:06d}.tar") for number in range(20)]
        for number, ref in enumerate(refs[COUNT:], COUNT):
            room.origin.put(ref, ramp(SIZE, number))
        room.origin.put(ObjectRef("train", ""), PAGE.format(size=SIZE + 1).encode())
        one = warmup(room, refs)
        await pinning(room).pin(one)
        await room.tasks.settle()
        lists = [request for request in room.origin.log if not request.key]
        assert [dict(request.query)["prefix"] for request in lists] == ["shard-0000"] * 2
        assert sum(request.method == "HEAD" for request in room.origin.log) == 19
        assert (one.progress.state, one.progress.bytes, one.progress.wanted_bytes) == (State.DONE, 20 * SIZE, 20 * SIZE)
