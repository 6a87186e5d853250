"""HEADs for checksums alone, beside what brings the bytes. A checksum is no reason to hold bytes back for long."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from cachetools import TTLCache

from outrider.core.errors import S3Error, Signal
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.tasks.runtime import Runtime

# A HEAD is waited for no longer than this once the bytes are here.
_WAIT_S = 1.0
# After a HEAD that failed or took longer, none is sent for this folder for so long: each read of a whole object in it
# would wait as long in vain.
_REST_S = 60.0
_FOLDERS_MAX = 4096


class ChecksumsBesideReads:
    """Which folders are asked, and the answers."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._resting: TTLCache[tuple[str, str], None] = TTLCache(_FOLDERS_MAX, _REST_S, runtime.clock)

    def rests(self, ref: ObjectRef) -> bool:
        """Whether the origin does not state checksums of this folder now."""
        return ref.folder in self._resting

    def failed(self, ref: ObjectRef) -> None:
        """A HEAD stated no checksums."""
        self._resting[ref.folder] = None

    def begin(
        self, ref: ObjectRef, question: Coroutine[Any, Any, ObjectVersion]
    ) -> asyncio.Future[ObjectVersion | None]:
        """The answer to `question`, which is put in a task of its own; None: there was no answer."""
        answer: asyncio.Future[ObjectVersion | None] = asyncio.get_running_loop().create_future()

        def settle(version: ObjectVersion | None) -> None:
            if not answer.done():
                answer.set_result(version)

        async def ask() -> None:
            try:
                settle(await question)
            except (Signal, S3Error) as error:
                # An object that is gone says nothing about the others of its folder.
                if not isinstance(error, OriginRefused) or error.status != 404:
                    self.failed(ref)

        task = self._runtime.spawn(ask(), f"head {ref}")
        task.add_done_callback(lambda _: settle(None))
        return answer

    async def answer(self, ref: ObjectRef, beside: asyncio.Future[ObjectVersion | None]) -> ObjectVersion | None:
        """The result of `begin`, once the rest is done; None: there is none, or it takes much longer."""
        if not await wait_at_most(self._runtime, beside, _WAIT_S):
            self.failed(ref)
            return None
        return beside.result()


async def wait_at_most(runtime: Runtime, future: asyncio.Future[Any], seconds: float) -> bool:
    """Whether the future was done within that time. It goes on in any case."""
    bound: asyncio.Future[Any] = asyncio.ensure_future(runtime.sleep(seconds))
    try:
        await asyncio.wait([future, bound], return_when=asyncio.FIRST_COMPLETED)
    finally:
        bound.cancel()
    return future.done()


def same_version(by_head: ObjectVersion | None, version: ObjectVersion) -> ObjectVersion:
    """The version as a HEAD stated it, if it is the same; else `version`."""
    return by_head if by_head is not None and by_head.identity == version.identity else version
