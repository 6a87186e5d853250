"""An event loop with seeded scheduling: the seed chooses which ready callback runs next, and when a thread's work ends.

Code that is correct in any order passes here; code that is correct by luck fails, and fails again with the same seed.
"""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Coroutine


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
