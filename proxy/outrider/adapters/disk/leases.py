"""Open block files and leases on them: a file is closed, and a block evicted, only while no reader has a lease. All of
it lives on the event loop's thread: a thread that uses a file has a lease, which the loop took and releases."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Protocol


class OpenFile:
    """An open block file. It is closed once it is doomed and no lease is left."""

    __slots__ = ("_closers", "_doomed", "fd", "is_remote", "leases", "payload_offset", "stays_in_memory")

    def __init__(
        self, fd: int, payload_offset: int, *, stays_in_memory: bool = False, closers: Executor | None = None
    ) -> None:
        """`closers`: the threads that close a remote file; None: the file is local."""
        self.fd = fd
        self.payload_offset = payload_offset
        self.stays_in_memory = stays_in_memory
        self.is_remote = closers is not None
        self._closers = closers
        self.leases = 0
        self._doomed = False

    def doom(self) -> None:
        """Close the file now, or when its last lease is released."""
        self._doomed = True
        self._close_if_over()

    def acquire(self) -> None:
        """Count one more lease."""
        assert not self._doomed, "a lease of a closed file"
        self.leases += 1

    def release(self) -> None:
        self.leases -= 1
        assert self.leases >= 0
        self._close_if_over()

    def _close_if_over(self) -> None:
        if self._doomed and self.leases == 0 and self.fd >= 0:
            fd, self.fd = self.fd, -1
            if self._closers is None:
                _close(fd)
            else:
                # After a shutdown, the end of the process closes it.
                with suppress(RuntimeError):
                    self._closers.submit(_close, fd)


def _close(fd: int) -> None:
    # NFS and FUSE report a failed write here. The fd number is free all the same, and may be reused at once.
    with suppress(OSError):
        os.close(fd)


class _Busy(Protocol):
    busy: int


class FileLease:
    """Owned by one reader, which releases it. A second release does nothing."""

    __slots__ = ("_file", "_slot")

    def __init__(self, file: OpenFile, slot: _Busy | None = None) -> None:
        """`slot`: given when `file` is not the slot's own file, to keep the block from becoming a victim."""
        file.acquire()
        self._file: OpenFile | None = file
        self._slot = slot
        if slot is not None:
            slot.busy += 1

    @property
    def block(self) -> OpenFile:
        assert self._file is not None
        return self._file

    def release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.release()
            if self._slot is not None:
                self._slot.busy -= 1


async def opened_in(threads: Executor, work: Callable[[], OpenFile]) -> OpenFile:
    """Run `work` in a thread. If the caller is cancelled meanwhile, the file that `work` opens is closed again, and
    work that no thread has begun is dropped."""
    job = threads.submit(work)
    future = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if not job.cancel():
            future.add_done_callback(_doom_result)
        raise


def _doom_result(future: asyncio.Future[OpenFile]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().doom()
