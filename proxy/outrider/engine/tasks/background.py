"""Background tasks: one owner, which logs their failures and ends them at the stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any

log = logging.getLogger(__name__)


class Background:
    """Tasks that belong to no request."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._own(asyncio.create_task(work, name=name))

    def spawn_apart(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Work that is not done for the request in which it began: in a trace it is no part of that request."""
        return self._own(asyncio.create_task(work, name=name, context=Context()))

    def _own(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", extra={"task": task.get_name()}, exc_info=error)

    async def wait(self, for_s: float, *, apart_from: set[asyncio.Task[None]]) -> None:
        if others := self._tasks - apart_from:
            await asyncio.wait(others, timeout=for_s)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def background() -> AsyncIterator[Background]:
    """Cancels the tasks that are still under way at the end of the block."""
    tasks = Background()
    try:
        yield tasks
    finally:
        await tasks.stop()
