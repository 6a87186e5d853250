"""Prefetch keeps to its blocks, its bandwidth and its slots."""

from __future__ import annotations

import asyncio

from tests.engine.ahead.shards import CLIENT, REFS, Making, announce, gets, settled_loop, sizes_known, under_way
from tests.support.engine import BLOCK, Engine
from tests.support.fakes import Fault


async def test_no_more_blocks_are_outstanding_than_the_budget_allows(making: Making) -> None:
    with making(prefetch_blocks=3) as room:
        at_requests: list[int] = []

        def noted() -> bool:
            at_requests.append(room.planner.outstanding.blocks)
            return False

        room.origin.faults = [Fault(None, while_=noted)]
        announce(room)
        await room.tasks.settle()
        assert 1 <= max(at_requests) <= 4, "an object's last block may be one too many"


async def test_prefetch_keeps_to_the_bandwidth_of_the_budget(making: Making) -> None:
    with making(prefetch_bytes_s=BLOCK) as room:
        announce(room)
        await room.tasks.settle()
        assert gets(room) == 0
        for _ in range(4):
            room.clock.advance(1.0)
            room.planner.announced(CLIENT, (), room.clock())
            announce(room)
            await room.tasks.settle()
        # Whole objects of two blocks are fetched, since their size is not known before.
        assert 2 * BLOCK <= room.origin.body_bytes <= (4 + 4) * BLOCK


async def test_bandwidth_that_was_not_spent_for_a_minute_is_not_saved_up(making: Making) -> None:
    with making(prefetch_bytes_s=BLOCK) as room:
        room.clock.advance(60.0)
        announce(room)
        assert room.planner.outstanding.blocks == 1
        await room.tasks.settle()


async def test_a_request_for_prefetch_waits_for_a_slot(room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults += [Fault(times=None, key=ref.key, body_gate=gate) for ref in REFS]
    sizes_known(room)
    announce(room)
    await under_way(room, 2)
    await settled_loop()
    assert room.planner.outstanding.blocks > 2
    assert room.origin.under_way == 2
    gate.set()
    await room.tasks.settle()
