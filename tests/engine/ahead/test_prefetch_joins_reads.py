"""A reader and a prefetch of the same object share one request, whichever came first."""

from __future__ import annotations

import asyncio

import pytest

from outrider.core.model import ObjectVersion
from tests.engine.ahead.shards import BODIES, OTHER, REFS, Making, announce, read, settled_loop, under_way
from tests.support.engine import BLOCK, Engine
from tests.support.fakes import Fault, no_patience_ends, ramp


async def test_a_reader_joins_the_prefetch_of_its_object(making: Making) -> None:
    with making() as room:
        gate = asyncio.Event()
        room.origin.faults.append(Fault(times=None, key=REFS[0].key, body_gate=gate, gate_after=30_000))
        announce(room)
        await under_way(room, 1)
        reading = asyncio.create_task(read(room, REFS[0]))
        await settled_loop()
        gate.set()
        assert await reading in ("MISS", "PARTIAL")
        await room.tasks.settle()
        assert sum(request.key == REFS[0].key for request in room.origin.log) == 2
        assert room.origin.body_bytes <= sum(map(len, BODIES.values()))


async def looked_up_amid_a_get(
    room: Engine, **headers: str
) -> tuple[asyncio.Event, asyncio.Task[ObjectVersion], asyncio.Task[bytes]]:
    """The GET of a reader is under way, and a HEAD that was asked before it has given the version. Returns the gate
    that the reply to the GET waits for, the lookup of the version, and the read."""
    ref, head, get = REFS[0], asyncio.Event(), asyncio.Event()
    room.origin.faults += [
        Fault(key=ref.key, method="HEAD", gate=head), Fault(key=ref.key, method="GET", gate=get)
    ]  # fmt: skip
    lookup = asyncio.create_task(room.fills.look_up(ref))
    await under_way(room, 1)
    reading = asyncio.create_task(room.get(ref, **headers))
    await under_way(room, 2)
    head.set()
    await settled_loop()
    assert room.fills.known(ref) is not None
    return get, lookup, reading


async def begun_by_a(way: str, room: Engine, lookup: asyncio.Task[ObjectVersion]) -> asyncio.Task[ObjectVersion]:
    if way == "known version":
        announce(room, REFS[:1])
    elif way == "opened object":
        lookup = asyncio.create_task(room.fills.opened(REFS[0]))
    await settled_loop()
    return lookup


WAYS = ["looked-up version", "known version", "opened object"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_get_under_way_brings_a_block_whose_version_a_head_gave_meanwhile(making: Making, way: str) -> None:
    with making(sleep=no_patience_ends) as room:
        get, lookup, reading = await looked_up_amid_a_get(room, range=f"bytes={BLOCK}-")
        begun = await begun_by_a(way, room, lookup)
        if begun.done():
            room.fills.fill(begun.result(), [0, 1])
        get.set()
        room.fills.fill(await begun, [0, 1])
        assert await reading == BODIES[REFS[0]][BLOCK:]
        await room.tasks.settle()
        assert room.origin.body_bytes == 2 * BLOCK
        assert room.origin.count() == 3, "a HEAD, and a GET of each block"


@pytest.mark.parametrize("way", WAYS)
async def test_the_version_that_a_get_under_way_brings_is_fetched(making: Making, way: str) -> None:
    """The object is overwritten between the replies to the HEAD and the GET."""
    with making(sleep=no_patience_ends) as room:
        get, lookup, reading = await looked_up_amid_a_get(room)
        old = room.fills.known(REFS[0])
        begun = await begun_by_a(way, room, lookup)
        room.origin.put(REFS[0], ramp(2 * BLOCK, 99))
        get.set()
        if way != "known version":
            room.fills.fill(await begun, [0, 1])
        assert await reading == ramp(2 * BLOCK, 99)
        await room.tasks.settle()
        assert old is not None
        assert old.etag not in [dict(request.headers).get("if-match") for request in room.origin.log]
        assert room.fills.is_cached(REFS[0])


async def test_a_reader_that_joins_the_first_request_of_an_object_reports_the_bytes_to_come(room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults.append(Fault(key=OTHER.key, body_gate=gate))
    opened = asyncio.create_task(room.fills.opened(OTHER, size=BLOCK))
    for _ in range(100):
        await asyncio.sleep(0)
    reading = asyncio.create_task(room.get(OTHER))
    for _ in range(100):
        await asyncio.sleep(0)
    assert room.scheduler.line.held == 1
    assert room.scheduler.line.left_bytes == BLOCK, "otherwise the fill would be taken for demand that ends"
    gate.set()
    assert await reading == ramp(BLOCK, 77)
    await opened
    assert room.scheduler.line.left_bytes == 0


async def test_a_prefetch_whose_object_a_reader_requests_gives_its_slot_back(room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults += [Fault(key=ref.key, gate=gate) for ref in (OTHER, REFS[0])]
    reading = asyncio.create_task(room.get(OTHER))
    await under_way(room, 1)
    ahead = [asyncio.create_task(room.fills.opened(ref, size=BLOCK)) for ref in (OTHER, REFS[0])]
    await under_way(room, 2)
    gate.set()
    assert await reading == ramp(BLOCK, 77)
    assert [version.ref for version in await asyncio.gather(*ahead)] == [OTHER, REFS[0]]
    await room.tasks.settle()
    assert [request.key for request in room.origin.log] == [OTHER.key, REFS[0].key], "the object is requested once"
    [metric] = room.metrics.prefetched_blocks.collect()
    assert [sample.value for sample in metric.samples if sample.name.endswith("_total")] == [1]


async def test_demand_does_not_wait_for_prefetch(making: Making) -> None:
    with making(fills_max=1) as room:
        gate = asyncio.Event()
        room.origin.faults += [Fault(times=None, key=ref.key, body_gate=gate) for ref in REFS]
        announce(room)
        await under_way(room, 1)
        assert await asyncio.wait_for(read(room, OTHER), 60) == "MISS"
        gate.set()
        await room.tasks.settle()


async def test_a_reader_promotes_the_prefetched_blocks_that_it_would_request(making: Making) -> None:
    with making() as room:
        gate = asyncio.Event()
        room.origin.put(REFS[0], ramp(6 * BLOCK, 5))
        await room.reads.head(REFS[0], {})
        room.origin.faults.append(Fault(times=None, key=REFS[0].key, body_gate=gate))
        announce(room, REFS[:1])
        await under_way(room, 1)
        alone = room.origin.under_way
        reading = asyncio.create_task(room.get(REFS[0]))
        await under_way(room, 4)
        assert alone < 4
        gate.set()
        assert await reading == ramp(6 * BLOCK, 5)
        await room.tasks.settle()


async def test_a_stale_object_that_is_not_cached_costs_one_request(room: Engine) -> None:
    await room.reads.head(REFS[0], {})
    room.clock.advance(61.0)
    before = len(room.origin.log)
    assert await room.range(0, 100, REFS[0]) == BODIES[REFS[0]][:100]
    await room.tasks.settle()
    assert [request.method for request in room.origin.log[before:]] == ["GET"]
