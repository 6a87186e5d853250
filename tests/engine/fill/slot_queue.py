"""Fills that wait for slots of a scheduler, by name."""

from __future__ import annotations

import asyncio

from outrider.core.cache.tenants import Tenants, TenantShare
from outrider.core.model import ObjectRef
from outrider.core.origin.fill_limits import AimdLimit, BackgroundLimit
from outrider.engine.fill.fill_scheduler import FillScheduler, FillSlot, Purpose
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
        assert self.scheduler.is_idle


MB = 10**6


async def measured_at_10_mb_s(queue: Queue) -> None:
    """A line of 10 MB/s, filled by three fills of demand."""
    await queue.add("x", "y", "z", left_bytes=4 * MB)
    for _ in range(4):
        queue.clock.advance(0.3)
        queue.scheduler.flowed(3 * MB, lambda: True)


GREEDY, MODEST = ObjectRef("train", "greedy/0"), ObjectRef("train", "modest/0")


def tenants(**lines: float) -> Tenants:
    found = Tenants()
    found.renew({name: TenantShare(line=lines.get(name)) for name in ("greedy", "modest")})
    found.read("greedy", GREEDY)
    found.read("modest", MODEST)
    return found
