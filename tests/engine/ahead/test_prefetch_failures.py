"""Lists that fail, a disk without room, an origin that is busy: prefetch pauses, and goes on."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from outrider.core.model import ObjectRef
from tests.engine.ahead.shards import COUNT, REFS, Making, announce, read, sizes_known
from tests.support.engine import BLOCK, Engine
from tests.support.fakes import Fault


def page(refs: list[ObjectRef], *, more: bool) -> bytes:
    contents = "".join(f"<Contents><Key>{ref.key}</Key><Size>{2 * BLOCK}</Size></Contents>" for ref in refs)
    token = "<NextContinuationToken>more</NextContinuationToken>" if more else ""
    return (
        f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{contents}{token}</ListBucketResult>".encode()
    )


@pytest.mark.parametrize("then", [200, 403])
async def test_objects_of_a_long_list_are_prefetched_before_its_end(then: int, room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults += [Fault(key="", status=200, body=page(REFS[:6], more=True)),
                           Fault(key="", status=then, body=page(REFS[6:], more=False), gate=gate)]  # fmt: skip
    for number in (3, 0, 5, 1):
        await read(room, REFS[number])
    async with asyncio.timeout(60):
        while not all(map(room.fills.is_cached, REFS[:6])):
            await asyncio.sleep(0)
    assert not any(request.key == REFS[6].key for request in room.origin.log)
    room.scheduler.line.limits[0].beside = 40
    gate.set()
    await room.tasks.settle()
    assert room.scheduler.line.limits[0].beside < 10, "a limit measured beside the LIST does not hold without it"
    await read(room, REFS[11])
    await read(room, REFS[8])
    await room.tasks.settle()
    assert all(map(room.fills.is_cached, REFS)) == (then == 200)


async def test_a_failed_list_or_get_is_not_retried_for_ever_and_ends_no_task(room: Engine) -> None:
    broken = [Fault(times=None, key=REFS[0].key, status=403), Fault(times=None, key=REFS[1].key, refuse=True)]
    room.origin.faults += broken
    announce(room)
    async with asyncio.timeout(60):
        await room.tasks.settle()
    tried = len(room.origin.log)
    await room.prefetch.tick()
    await room.tasks.settle()
    assert len(room.origin.log) == tried, "a failure is followed by a pause"
    room.origin.faults.clear()
    seen = []
    for ref in REFS:
        room.clock.advance(10.0)
        announce(room, REFS)
        await room.prefetch.tick()
        await room.tasks.settle()
        seen.append(await read(room, ref))
        await room.tasks.settle()
    assert seen[-3:] == ["HIT"] * 3


@pytest.mark.parametrize(("status", "lists"), [(400, 2), (403, 1), (503, 2)])
async def test_a_list_is_retried_unless_it_was_refused(status: int, lists: int, room: Engine) -> None:
    room.origin.faults.append(Fault(times=None, key="", status=status))
    asked = 0
    for ref in REFS[:6]:
        room.origin.log.clear()
        await read(room, ref)
        await room.tasks.settle()
        asked += any(request.key == "" for request in room.origin.log)
        room.clock.advance(30.0)
    assert asked == lists


async def test_without_room_prefetch_pauses(room: Engine) -> None:
    room.store.disks[0].admitting = False
    announce(room)
    async with asyncio.timeout(60):
        await room.tasks.settle()
    assert len(room.origin.log) <= 4 * COUNT
    assert room.planner.outstanding.blocks == 0
    room.store.disks[0].admitting = True
    room.clock.advance(10.0)
    announce(room)
    await room.prefetch.tick()
    await room.tasks.settle()
    assert await read(room, REFS[0]) == "HIT"


async def tries(room: Engine, seconds: float) -> list[float]:
    """Send hints and ticks every tenth of a second, for `seconds`. Returns the seconds at which the origin got a
    request."""
    began, asked = room.clock(), []
    while room.clock() <= began + seconds:
        before = len(room.origin.log)
        announce(room)
        await room.prefetch.tick()
        await room.tasks.settle()
        if len(room.origin.log) > before:
            asked.append(round(room.clock() - began, 1))
        room.clock.advance(0.1)
    return asked


def pauses_of(asked: list[float]) -> list[float]:
    return [round(later - sooner, 1) for sooner, later in pairwise(asked)]


async def test_the_pause_after_failures_doubles_up_to_five_seconds_and_ends_with_a_success(making: Making) -> None:
    with making(prefetch_blocks=1) as room:
        room.clock.advance(0.05)  # so that no tick falls exactly on the end of a rest
        room.origin.faults.append(Fault(times=None, refuse=True))
        rests = pauses_of(await tries(room, 21.0))
        assert rests[:6] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2], abs=0.11)
        assert rests[6:] == pytest.approx([5.0] * len(rests[6:]), abs=0.11)
        assert len(rests) >= 8
        room.origin.faults = [Fault(times=None, key=ref.key, refuse=True) for ref in REFS[1:]]
        assert pauses_of(await tries(room, 7.0))[:3] == pytest.approx([0.1, 0.2, 0.4], abs=0.11)
        assert await read(room, REFS[0]) == "HIT"


async def test_fills_that_fail_together_are_one_failure(room: Engine) -> None:
    room.origin.faults += [Fault(times=None, key=ref.key, refuse=True) for ref in REFS]
    sizes_known(room)
    announce(room)
    await room.tasks.settle()
    assert len({request.key for request in room.origin.log if request.key}) >= 4
    room.origin.faults.clear()
    room.clock.advance(0.15)
    announce(room)
    await room.tasks.settle()
    assert await read(room, REFS[0]) == "HIT"


async def test_after_a_pause_every_object_is_requested_again_from_a_busy_origin(making: Making) -> None:
    with making(prefetch_blocks=4) as room:
        sizes_known(room)
        room.origin.faults.append(Fault(times=None, status=503))
        announce(room)
        for _ in range(10):
            await room.tasks.settle()
            room.clock.advance(0.02)
            await room.prefetch.tick()
        room.origin.faults.clear()
        room.clock.advance(5.0)
        for _ in range(10):
            announce(room, REFS[:1])
            await room.tasks.settle()
            room.clock.advance(0.02)
        assert all(map(room.fills.is_cached, REFS))
