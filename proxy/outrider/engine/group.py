"""Tasks that belong together."""

from __future__ import annotations

import asyncio
from types import TracebackType


class TaskGroup(asyncio.TaskGroup):
    """As asyncio's, but what it raises is the first failure itself, and nothing is left to the garbage collector, which
    looks at what has lived for long no more (see `system.keep_collections_short`). asyncio's leaves circles (Python
    3.11): an exception knows the frames that it came through, of which one knows the exception.
    """

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure: BaseException | None = None
        try:
            await super().__aexit__(kind, error, trace)
        except (BaseExceptionGroup, asyncio.CancelledError) as raised:
            failure = raised
        while isinstance(failure, BaseExceptionGroup):
            failure.__traceback__ = None
            failure = failure.exceptions[0]
        if isinstance(failure, asyncio.CancelledError):
            failure.__traceback__ = None
        try:
            if failure is not None:
                # Not where the group was caught: it would become the context of its own part.
                raise failure
        finally:
            del failure, error, trace
