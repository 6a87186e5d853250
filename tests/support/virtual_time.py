"""Time that passes only while all work waits for it, so that a test of a minute takes milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

from outrider.core.origin.backoff import Backoff
from outrider.engine.fill.patience import Patience

T = TypeVar("T")

# All work that does not wait for the time has come to its next wait after so many turns of the loop.
_TURNS = 60


class VirtualTime:
    """A clock, and the sleep that goes with it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._sleepers, (self.now + seconds, next(self._numbers), waiter))
        await waiter

    def patience(self, patience_s: float = 60.0, *, chance: float = 0.5) -> Patience:
        """A patience in this time. `chance`: that of each jitter."""
        return Patience(
            Backoff(), self.sleep, lambda: chance, self, patience_s=patience_s, wall_clock=lambda: self.now
        )  # fmt: skip

    async def turns(self) -> None:
        """Let all work come to its next wait."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def until(self, at: float) -> None:
        """Let the time pass until `at`."""
        await self.turns()
        while self._sleepers and self._sleepers[0][0] <= at:
            self._wake_next()
            await self.turns()
        self.now = max(self.now, at)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the time pass until `work` has ended."""
        task = asyncio.ensure_future(work)
        try:
            while True:
                await self.turns()
                if task.done():
                    return task.result()
                if self._sleepers:
                    self._wake_next()
        finally:
            task.cancel()

    def _wake_next(self) -> None:
        at, _, waiter = heappop(self._sleepers)
        # A sleeper that was cancelled does not move the time.
        if not waiter.done():
            self.now = max(self.now, at)
            waiter.set_result(None)
