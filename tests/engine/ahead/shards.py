"""Shards of two blocks each, and a client that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

from outrider.core.model import ObjectRef
from tests.support.engine import BLOCK, Engine, taken
from tests.support.fakes import ramp

CLIENT = "10.0.0.1"
COUNT = 12
REFS = [ObjectRef("train", f"shard-{number:06d}.tar") for number in range(COUNT)]
BODIES = {ref: ramp(2 * BLOCK, number) for number, ref in enumerate(REFS)}
OTHER = ObjectRef("other", "apart")
Making = Callable[..., AbstractContextManager[Engine]]


def sizes_known(room: Engine) -> None:
    """Without known sizes, one object would be fetched first, to learn the size of the others."""
    room.planner.discovery.listed(REFS[0].bucket, [(ref.key, BLOCK) for ref in REFS])


def announce(room: Engine, refs: list[ObjectRef] = REFS) -> None:
    room.prefetch.announce(CLIENT, refs, start=0, total=len(refs))


async def read(room: Engine, ref: ObjectRef) -> str:
    """Read as the server does, and return the answer's `x-cache`."""
    answer = await room.reads.get(
        ref, {}, lambda version, extent: room.prefetch.requested(CLIENT, version, extent, checksums=False)
    )
    assert await taken(answer) == BODIES.get(ref, ramp(BLOCK, 77))
    room.prefetch.sent(CLIENT, ref)
    return answer.cache.value


async def settled_loop() -> None:
    """Let the loop run until everything that waits for no gate is done."""
    for _ in range(3000):
        await asyncio.sleep(0)


def gets(room: Engine, bucket: str = "train") -> int:
    return sum(
        request.method == "GET" and request.bucket == bucket and request.key != "" for request in room.origin.log
    )


async def under_way(room: Engine, at_least: int) -> None:
    """Disk threads take part, so a number of steps of the loop is not enough."""
    async with asyncio.timeout(60):
        while room.origin.under_way < at_least:
            await asyncio.sleep(0)
