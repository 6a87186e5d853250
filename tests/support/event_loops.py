"""Event loops under a test's control: virtual time, and scheduling in a seeded order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from outrider.core.origin.backoff import Backoff
from outrider.engine.fill.patience import Patience

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Coroutine


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


class SeededLoop(asyncio.SelectorEventLoop):
    """Ready callbacks run in a chosen order, one loop iteration at a time; `work` is the pending work of threads."""

    _ready: deque[asyncio.Handle]

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)
        self.work: list[Callable[[], None]] = []

    def _run_once(self) -> None:
        while self.work and (not self._ready or self.chance.random() < 0.5):
            self.work.pop(self.chance.randrange(len(self.work)))()
        ready = list(self._ready)
        self.chance.shuffle(ready)
        self._ready.clear()
        self._ready.extend(ready)
        super()._run_once()  # type: ignore[misc]


class SeededThreads(ThreadPoolExecutor):
    """Work is done between two loop iterations, early or late, and not in the order in which it was submitted."""

    def __init__(self, loop: SeededLoop) -> None:
        super().__init__(1)
        self._loop = loop

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - it is the caller's, as with threads
                future.set_exception(error)

        self._loop.work.append(work)
        return future


async def leave_after(iterations: int, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work`, and cancel it after this many loop iterations; False: it had ended before."""
    task = asyncio.ensure_future(work)
    for _ in range(iterations):
        if task.done():
            break
        await asyncio.sleep(0)
    left = task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return left and task.cancelled()
