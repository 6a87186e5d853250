"""A task group that raises the first failure itself, notices every cancel, and leaves no reference cycles."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class TaskGroup:
    """As `asyncio.TaskGroup`: when a task or the body fails, the others are cancelled, and no task outlives the block.
    It differs in three ways:

    - It raises the first failure itself, and no exception group.
    - It notices a cancel from outside also when a task fails meanwhile. asyncio's group forgets the cancel then (Python
      3.11), and the task that was to stop goes on.
    - It leaves nothing to the garbage collector, which no longer visits old objects (see
      `system.keep_collections_short`). asyncio's group leaves reference cycles: an exception holds the frames that it
      came through, and one of these holds the exception.
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
            # This ends the wait of the body. `_is_cancelled_from_outside` takes it back at the end.
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
                # Not within the `except` that caught it: it would become the context of itself.
                raise raised
        finally:
            raised = self._failure = self._owner = None
            del cancel, error, trace

    def _is_cancelled_from_outside(self) -> bool:
        """Whether somebody else cancelled the owner. Takes our own cancel back."""
        assert self._owner is not None
        if self._has_cancelled_owner:
            self._owner.uncancel()
        return self._owner.cancelling() > self._cancels_before

    async def _all_ended(self) -> asyncio.CancelledError | None:
        """Returns once no task is left. The cancel that interrupted the wait is returned, not raised."""
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
