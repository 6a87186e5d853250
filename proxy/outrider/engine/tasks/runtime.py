"""The runtime of a part of the engine: how it starts tasks, reads the clock and waits. Tests replace all three."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from outrider.ports import Clock

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Starts a background task, with a name, in a group that somebody owns."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """`clock`: monotonic seconds. `sleep`: waits for so many seconds."""

    spawn: Spawn
    clock: Clock
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep


async def within(work: asyncio.Future[Any], seconds: float, runtime: Runtime) -> bool:
    """Wait for `work`. Returns whether it ended within `seconds`, well or not; then it is cancelled."""
    bound: asyncio.Future[Any] = asyncio.ensure_future(runtime.sleep(seconds))
    try:
        await asyncio.wait([work, bound], return_when=asyncio.FIRST_COMPLETED)
        return work.done()
    finally:
        bound.cancel()
        work.cancel()
