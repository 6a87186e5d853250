"""Tasks that belong together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class TaskGroup:
    """As asyncio's: where one task or the body fails, the others are cancelled, and none outlives the block. But

    - what it raises is the first failure itself;
    - a cancel from outside is heard, whatever fails meanwhile. asyncio's forgets it beside a failure (Python 3.11), and
      who was to stop goes on;
    - nothing is left to the garbage collector, which looks at what has lived for long no more (see
      `system.keep_collections_short`). asyncio's leaves circles: an exception knows the frames that it came through, of
      which one knows the exception.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None
        self._owner: asyncio.Task[Any] | None = None
        self._cancels_before = 0
        self._has_cancelled_owner = False
        self._is_body_over = False
        self._is_aborting = False
        self._last: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
        assert self._owner is not None
        self._cancels_before = self._owner.cancelling()
        return self

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not self._tasks and self._last is not None and not self._last.done():
            self._last.set_result(None)
        failure = None if task.cancelled() else task.exception()
        if failure is None or self._failure is not None:
            return
        self._failure = failure
        self._abort()
        if not self._is_body_over and self._owner is not None:
            # Out of what the body waits for; taken back at its end.
            self._has_cancelled_owner = True
            self._owner.cancel()

    def _abort(self) -> None:
        if not self._is_aborting:
            self._is_aborting = True
            for task in self._tasks:
                task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_body_over = True
        cancel = error if isinstance(error, asyncio.CancelledError) else None
        try:
            if error is not None:
                if cancel is None and self._failure is None:
                    self._failure = error
                self._abort()
            cancel = await self._all_ended() or cancel
            if self._failure is not None:
                cancel = (cancel or asyncio.CancelledError()) if self._is_cancelled_from_outside() else None
            raised = cancel or self._failure
            if raised is not None and raised is not error:
                # Not where it was caught: it would become the context of its own part.
                raise raised
        finally:
            raised = self._failure = self._owner = None
            del cancel, error, trace

    def _is_cancelled_from_outside(self) -> bool:
        """Takes our own cancel back."""
        assert self._owner is not None
        if self._has_cancelled_owner:
            self._owner.uncancel()
        return self._owner.cancelling() > self._cancels_before

    async def _all_ended(self) -> asyncio.CancelledError | None:
        """Returns once no task is left; by what this wait was cancelled, if it was."""
        cancel = None
        try:
            while self._tasks:
                self._last = asyncio.get_running_loop().create_future()
                try:
                    await self._last
                except asyncio.CancelledError as error:
                    cancel = error
                    self._abort()
            return cancel
        finally:
            del cancel
