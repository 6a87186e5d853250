"""Warm-ups: each byte is filled once, behind all demand and within the rate, and counts once it is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outrider.core.cache.tenants import Tenants, TenantShare
from outrider.core.maintenance.object_list import ObjectList
from outrider.core.maintenance.progress import State
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.engine.fill.fill_scheduler import Purpose
from outrider.engine.maintenance.pinning import Pinning
from outrider.engine.maintenance.warmup import Warmup
from tests.support.engine import BLOCK, Engine, engine, flights_of
from tests.support.event_loops import VirtualTime
from tests.support.fakes import FakeClock, FakeOrigin, Fault, no_patience_ends, ramp

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


@pytest.fixture
def room(making: Making) -> Iterator[Engine]:
    with making() as made:
        yield made


def warmup(room: Engine, refs: list[ObjectRef], rate: float = 0.0) -> Warmup:
    now = room.clock()
    return Warmup("", "", "mine", b"", now, ObjectList(tuple(refs), ()), lambda ref: True, now, rate)


def begun(room: Engine, refs: list[ObjectRef] = REFS, rate: float = 0.0) -> Warmup:
    warm_up = warmup(room, refs, rate)
    room.warmup_runner.begin(warm_up)
    return warm_up


async def warmed(room: Engine, refs: list[ObjectRef] = REFS) -> Warmup:
    warm_up = begun(room, refs)
    await room.tasks.settle()
    return warm_up


async def test_each_byte_is_filled_once_and_counted(room: Engine) -> None:
    await room.range(BLOCK, BLOCK + 999, REFS[0])
    reading = asyncio.create_task(room.get(REFS[1]))
    warm_up = await warmed(room)
    await reading
    assert warm_up.progress.report(room.clock())["state"] == "done"
    assert (warm_up.progress.objects, warm_up.progress.bytes) == (COUNT, COUNT * SIZE)
    assert room.origin.body_bytes == COUNT * SIZE
    before = len(room.origin.log)
    again = await warmed(room)
    assert (again.progress.bytes, again.progress.fetched_bytes) == (COUNT * SIZE, 0)
    assert len(room.origin.log) == before


async def test_a_get_under_way_brings_a_block_whose_version_a_head_gave_meanwhile(making: Making) -> None:
    with making(sleep=no_patience_ends) as room:
        head, get = asyncio.Event(), asyncio.Event()
        room.origin.faults += [Fault(method="HEAD", gate=head), Fault(method="GET", gate=get)]
        lookup = asyncio.create_task(room.version_lookup.ask(REFS[0], None))
        await under_way(room, 1)
        reading = asyncio.create_task(room.get(REFS[0]))
        await under_way(room, 2)
        head.set()
        await lookup
        begun(room, REFS[:1])
        await settled_loop()
        get.set()
        await reading
        await room.tasks.settle()
        assert room.origin.count("GET") == 4, "one of each block"


async def settled_loop() -> None:
    for _ in range(3000):
        await asyncio.sleep(0)


async def under_way(room: Engine, at_least: int) -> None:
    async with asyncio.timeout(60):
        while room.origin.under_way < at_least:
            await asyncio.sleep(0)


async def test_demand_goes_first(making: Making) -> None:
    with making(fills_max=1) as room:
        gate = asyncio.Event()
        room.origin.faults += [Fault(times=None, key=ref.key, body_gate=gate) for ref in REFS]
        warm_up = begun(room)
        async with asyncio.timeout(60):
            while not room.origin.under_way:
                await asyncio.sleep(0)
            assert await room.get(OTHER) == ramp(BLOCK, 77)
        assert warm_up.running
        gate.set()
        await room.tasks.settle()


@pytest.mark.parametrize("known", [False, True])
async def test_all_fills_of_a_warm_up_are_by_command(making: Making, known: bool) -> None:
    """And in the turns of the tenant that asked for it, by the bytes that they bring."""
    tenants = Tenants()
    tenants.renew({"modest": TenantShare(line=0.5)})
    with making(tenants=tenants) as room:
        if known:
            await room.range(0, 1, REFS[0])
            await room.tasks.settle()
        gate = asyncio.Event()
        room.origin.faults.append(Fault(times=None, body_gate=gate))
        warm_up = warmup(room, REFS[:1])
        warm_up.client = "modest"
        room.warmup_runner.begin(warm_up)
        async with asyncio.timeout(60):
            while not room.flights or any(flight.slot is None for flight in flights_of(room.flights)):
                await asyncio.sleep(0)
        slots = [flight.slot for flight in flights_of(room.flights)]
        assert all(slot is not None and slot.purpose is Purpose.COMMAND for slot in slots)
        assert {(slot.tenant, slot.work_bytes) for slot in slots if slot is not None} <= {
            ("modest", BLOCK),
            ("modest", 5),
        }
        gate.set()
        await room.tasks.settle()


async def test_the_blocks_on_their_way_keep_to_the_budget(making: Making) -> None:
    with making(prefetch_blocks=2) as room:
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


async def test_a_warm_up_keeps_to_its_rate(making: Making) -> None:
    clock = FakeClock()
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(seconds)
        await asyncio.sleep(0)

    with making(clock=clock, sleep=sleep) as room:
        warm_up = begun(room, rate=BLOCK)
        await room.tasks.settle()
        assert warm_up.progress.state is State.DONE
        # One block may begin before there are tokens for it.
        assert clock() - 1000.0 >= COUNT * SIZE / BLOCK - 2


async def test_objects_of_unknown_size_do_not_begin_all_at_once_on_the_same_tokens(making: Making) -> None:
    never = asyncio.Event()

    async def sleep(seconds: float) -> None:
        if seconds >= 0.1:
            await never.wait()
        slowed.clock.advance(seconds)
        await asyncio.sleep(0)

    with making(sleep=sleep) as slowed:
        warm_up = begun(slowed, rate=BLOCK / 10)
        async with asyncio.timeout(60):
            while not slowed.origin.body_bytes:
                await asyncio.sleep(0)
        for _ in range(3000):
            await asyncio.sleep(0)
        assert slowed.origin.body_bytes <= BLOCK
        slowed.warmup_runner.cancel(warm_up)
        await slowed.tasks.settle()


@pytest.mark.parametrize("key", ["small", "not there"])
async def test_tokens_that_an_object_of_unknown_size_did_not_need_are_given_back(key: str, room: Engine) -> None:
    room.origin.put(ObjectRef("train", "small"), b"x")
    warm_up = begun(room, [ObjectRef("train", key)], rate=BLOCK / 100)
    room.clock.advance(1)
    await room.tasks.settle()
    assert warm_up.allowance.wait_s(room.clock()) == 0


async def test_a_slow_warm_up_does_not_hold_up_another(making: Making) -> None:
    never = asyncio.Event()

    async def sleep(_: float) -> None:
        await never.wait()

    with making(sleep=sleep, prefetch_blocks=1) as room:
        slow = begun(room, REFS[:3], rate=1.0)
        other = begun(room, REFS[3:])
        async with asyncio.timeout(60):
            while other.running:
                room.clock.advance(0.001)
                await asyncio.sleep(0)
        assert (other.progress.state, slow.running) == (State.DONE, True)
        room.warmup_runner.cancel(slow)
        await room.tasks.settle()


@pytest.mark.parametrize("prefetch_bytes_s", [0.0, float(BLOCK)])
async def test_tenants_take_turns_for_their_warm_ups(making: Making, prefetch_bytes_s: float) -> None:
    """Also where all wait for the bandwidth of prefetch; and a warm-up counts for the tenant that asked for it."""
    tenants, clock = Tenants(), FakeClock()
    tenants.renew({"greedy": TenantShare(line=0.5), "modest": TenantShare(line=0.5)})

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)
        await asyncio.sleep(0)

    with making(
        tenants=tenants, prefetch_blocks=1, prefetch_bytes_s=prefetch_bytes_s, clock=clock, sleep=sleep
    ) as room:
        for name, refs in (("greedy", REFS[:4]), ("modest", REFS[4:])):
            warm_up = warmup(room, refs)
            warm_up.client = name
            room.warmup_runner.begin(warm_up)
        await room.tasks.settle()
        gets = [request.key for request in room.origin.log if request.method == "GET" and request.key]
        assert len(gets) == COUNT * 4
        of_modest = {ref.key for ref in REFS[4:]}
        # The modest one has eight blocks.
        assert sum(key in of_modest for key in gets[:16]) >= 7
        if prefetch_bytes_s:
            assert clock() - 1000.0 >= COUNT * SIZE / prefetch_bytes_s - 2
        assert [tenants.reader_of(ref) for ref in REFS] == ["greedy"] * 4 + ["modest"] * 2


async def test_an_object_that_is_overwritten_meanwhile_is_warmed_as_it_is_now(room: Engine) -> None:
    await room.reads.head(REFS[0], {})
    room.origin.put(REFS[0], ramp(SIZE, 99))
    warm_up = await warmed(room, REFS[:1])
    assert warm_up.progress.state is State.DONE
    room.clock.advance(61)
    before = room.origin.body_bytes
    assert await room.get(REFS[0]) == ramp(SIZE, 99)
    assert room.origin.body_bytes == before


async def test_failures_are_reported_and_the_rest_is_filled(room: Engine) -> None:
    room.origin.faults.append(Fault(times=None, key=REFS[2].key, refuse=True))
    warm_up = await warmed(room)
    assert (warm_up.progress.state, warm_up.progress.objects) == (State.FAILED, COUNT - 1)
    assert list(warm_up.progress.failures) == [str(REFS[2])]
    room.origin.faults.clear()
    again = await warmed(room)
    assert (again.progress.state, again.progress.fetched_bytes) == (State.DONE, SIZE)


@pytest.mark.parametrize("fault", [{"refuse": True}, {"status": 503}])
@pytest.mark.parametrize("known", [True, False])
async def test_a_warm_up_outlasts_an_outage_of_half_a_minute(
    fault: dict[str, Any], known: bool, making: Making
) -> None:
    time = VirtualTime()
    with making(sleep=time.sleep, patience=time.patience()) as room:
        if known:
            for ref in REFS:
                await room.reads.head(ref, {})
        room.origin.faults.append(Fault(times=None, while_=lambda: time.now < 1030, **fault))
        warm_up = begun(room)
        await time.run(room.tasks.settle())
        assert (warm_up.progress.state, warm_up.progress.objects) == (State.DONE, COUNT)


async def test_a_warm_up_waits_once_for_an_origin_that_stays_away(making: Making) -> None:
    time = VirtualTime()
    with making(sleep=time.sleep, patience=time.patience()) as room:
        room.origin.faults.append(Fault(times=None, refuse=True))
        # Three times as many as are tried at once.
        warm_up = begun(room, [ObjectRef("train", f"away-{number}") for number in range(48)])
        await time.run(room.tasks.settle())
        assert (warm_up.progress.state, warm_up.progress.failed) == (State.FAILED, 48)
        assert len(warm_up.progress.passing) == 48, "another try may go well"
        assert 57 < time.now - 1000 < 2 * 57


async def test_a_cancelled_warm_up_stops_and_blocks_on_their_way_still_come(making: Making) -> None:
    with making(prefetch_blocks=1) as room:
        gate = asyncio.Event()
        room.origin.faults.append(Fault(times=None, body_gate=gate))
        warm_up = begun(room)
        async with asyncio.timeout(60):
            while not room.origin.under_way:
                await asyncio.sleep(0)
        room.warmup_runner.cancel(warm_up)
        gate.set()
        await room.tasks.settle()
        assert warm_up.progress.state is State.CANCELLED
        assert len(room.store) <= 2
        # The cancelled warm-up has given back its places.
        room.origin.faults.clear()
        assert (await warmed(room)).progress.state is State.DONE


async def test_objects_that_were_evicted_before_the_end_are_failures(room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults.append(Fault(times=None, key=REFS[-1].key, body_gate=gate))
    warm_up = begun(room)
    async with asyncio.timeout(60):
        while warm_up.progress.objects < COUNT - 1:
            await asyncio.sleep(0)
    await room.store.drop(room.store.blocks_of(lambda ref: ref == REFS[0]))
    # A look at the progress meanwhile must not hide the eviction.
    assert room.warmup_runner.counted(warm_up, at_once=True).progress.objects == COUNT - 2
    gate.set()
    await room.tasks.settle()
    assert warm_up.progress.state is State.FAILED
    assert "evicted before" in warm_up.progress.failures[str(REFS[0])]
    assert not warm_up.progress.passing


async def test_objects_whose_size_a_head_gave_are_filled_once(room: Engine) -> None:
    for _ in range(3):
        room.warmup_runner.hint(REFS[0])
    room.warmup_runner.hint(ObjectRef("train", "none"))
    await room.tasks.settle()
    assert room.origin.body_bytes - len(Fault().body) <= SIZE + 100
    assert len(room.store) == 4


async def test_a_hinted_object_keeps_to_the_bandwidth_of_prefetch(making: Making) -> None:
    clock = FakeClock()

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)
        await asyncio.sleep(0)

    with making(clock=clock, sleep=sleep, prefetch_bytes_s=float(BLOCK)) as room:
        room.warmup_runner.hint(REFS[0])
        await room.tasks.settle()
        assert len(room.store) == 4
        assert clock() - 1000.0 >= SIZE / BLOCK - 2


async def test_an_object_that_is_larger_than_the_cache_is_not_warmed(making: Making) -> None:
    """Its end would evict its beginning, and all else."""
    with making(capacity_bytes=3 * BLOCK) as room:
        await room.get(OTHER)
        room.warmup_runner.hint(REFS[0])
        await room.tasks.settle()
        assert len(room.store) == 2, "the answer to the question for its version brings the first block"
        assert room.store.blocks_of(lambda ref: ref == OTHER)


async def nothing(_: object) -> None:
    pass


def pinning(room: Engine, save: Callable[[object], object] = nothing) -> Pinning:
    return Pinning(room.warmup_runner, room.fills, room.version_lookup, save)  # type: ignore[arg-type]


async def test_lost_blocks_of_a_pin_are_filled_again(room: Engine) -> None:
    pins = pinning(room)
    warm_up = warmup(room, REFS[:2])
    await pins.pin(warm_up)
    await room.tasks.settle()
    assert warm_up.progress.bytes == 2 * SIZE
    room.pins.unpin(("", "mine"))
    await room.store.drop(room.store.blocks_of(lambda ref: ref == REFS[0]))
    room.pins.pin(("", "mine"), [ObjectVersion(ref, _etag(room, ref), SIZE) for ref in REFS[:2]], 10**9)
    room.clock.advance(61)
    pins.check_again()
    await room.tasks.settle()
    assert (warm_up.progress.state, warm_up.progress.bytes, warm_up.progress.fetched_bytes) == (
        State.DONE,
        2 * SIZE,
        SIZE,
    )


def _etag(room: Engine, ref: ObjectRef) -> str:
    version = room.versions.stale(ref)
    assert version is not None
    return version.etag


async def test_a_pin_that_cannot_be_saved_is_no_pin(room: Engine) -> None:
    async def fail(_: object) -> None:
        raise OSError(28, "No space left on device")

    pins = pinning(room, fail)
    with pytest.raises(Exception, match="cannot be written to the cache directory"):
        await pins.pin(warmup(room, REFS[:2]))
    assert (room.pins.reserved_bytes, pins.book.all()) == (0, [])


async def test_a_pin_stays_if_the_one_in_its_place_cannot_be_saved(room: Engine) -> None:
    fails = False

    async def save(_: object) -> None:
        if fails:
            raise OSError(28, "No space left on device")

    pins = pinning(room, save)
    await pins.pin(first := warmup(room, REFS[:1]))
    reserved_bytes, fails = room.pins.reserved_bytes, True
    with pytest.raises(Exception, match="cannot be written to the cache directory"):
        await pins.pin(warmup(room, REFS[:2]))
    assert (room.pins.reserved_bytes, pins.book.all()) == (reserved_bytes, [first])
    await room.tasks.settle()
    assert (first.progress.state, first.progress.bytes) == (State.DONE, SIZE)


async def test_concurrent_pins_do_not_reserve_the_same_room(making: Making) -> None:
    with making(capacity_bytes=5 * (BLOCK + 8192)) as room:
        pins = pinning(room)
        two = [warmup(room, [ref]) for ref in REFS[:2]]
        two[1].name = "other"
        results = await asyncio.gather(*(pins.pin(pin) for pin in two), return_exceptions=True)
        # The pin whose sizes are known first has the room.
        assert sorted(type(result).__name__ for result in results) == ["NoRoom", "NoneType"]
        await room.tasks.settle()


PAGE = """<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>true</IsTruncated>
<Contents><Key>shard-000000.tar</Key><Size>{size}</Size><ETag>"other"</ETag></Contents>
<Contents><Key>shard-0.tar</Key><Size>1</Size><ETag>"between"</ETag></Contents>
<NextContinuationToken>more</NextContinuationToken></ListBucketResult>"""


async def test_sizes_are_looked_up_in_a_few_list_pages_and_by_heads_beyond_them(room: Engine) -> None:
    """Between the names lie other names without end. The size that the LIST gave of the first object was wrong by the
    time it came."""
    refs = [ObjectRef("train", f"shard-{number:06d}.tar") for number in range(20)]
    for number, ref in enumerate(refs[COUNT:], COUNT):
        room.origin.put(ref, ramp(SIZE, number))
    room.origin.put(ObjectRef("train", ""), PAGE.format(size=SIZE + 1).encode())
    warm_up = warmup(room, refs)
    await pinning(room).pin(warm_up)
    await room.tasks.settle()
    lists = [request for request in room.origin.log if not request.key]
    assert [dict(request.query)["prefix"] for request in lists] == ["shard-0000"] * 2
    assert sum(request.method == "HEAD" for request in room.origin.log) == 19
    assert (warm_up.progress.state, warm_up.progress.bytes, warm_up.progress.wanted_bytes) == (
        State.DONE,
        20 * SIZE,
        20 * SIZE,
    )
