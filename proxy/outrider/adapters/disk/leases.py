"""Open block files and the leases on them: a file is closed, and a block evicted, only when nobody reads it.

Leases are taken and released by any thread (`--workers`); all else lives on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress

from outrider.core.cache.block_file import BlockMeta
from outrider.core.model import BlockKey

# One for all files: held for a few instructions, never around a system call but `close`.
_counting = threading.Lock()


class OpenFile:
    """A block file that is open. Closed when it is doomed or idle for long, never while leased."""

    __slots__ = ("_doomed", "fd", "leases", "payload_offset")

    def __init__(self, fd: int, payload_offset: int) -> None:
        self.fd = fd
        self.payload_offset = payload_offset
        self.leases = 0
        self._doomed = False

    def doom(self) -> None:
        """Close it now, or when the last lease goes."""
        with _counting:
            self._doomed = True
            self._close_if_over()

    def taken(self) -> bool:
        """One lease more; False: too late, it is closed or will be."""
        with _counting:
            if self._doomed:
                return False
            self.leases += 1
            return True

    def returned(self) -> None:
        with _counting:
            self.leases -= 1
            assert self.leases >= 0
            self._close_if_over()

    def _close_if_over(self) -> None:
        if self._doomed and self.leases == 0 and self.fd >= 0:
            fd, self.fd = self.fd, -1
            # NFS and FUSE tell of a write that failed here. The number is free all the same, and somebody else's next.
            with suppress(OSError):
                os.close(fd)


class FileLease:
    """Owned by one reader, which releases it; a second release does nothing."""

    __slots__ = ("_file", "_slot")

    def __init__(self, file: OpenFile, slot: Slot | None = None) -> None:
        """`slot`: of a file that is not the slot's own, so that the block is no victim all the same."""
        taken = file.taken()
        assert taken, "a lease of a closed file"
        self._file: OpenFile | None = file
        self._slot = slot
        if slot is not None:
            slot.busy += 1

    @classmethod
    def try_take(cls, file: OpenFile) -> FileLease | None:
        """For a thread that cannot know whether the file is still open; None: it is not."""
        if not file.taken():
            return None
        lease = cls.__new__(cls)
        lease._file, lease._slot = file, None
        return lease

    @property
    def block(self) -> OpenFile:
        assert self._file is not None
        return self._file

    def release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.returned()
            if self._slot is not None:
                self._slot.busy -= 1


class Edition:
    """What the blocks of one version have in common, held once for all of them; `blocks` counts those that hold it."""

    __slots__ = ("blocks", "disk_bytes", "layout", "version", "version_id")

    def __init__(self, meta: BlockMeta, version_id: bytes, disk_bytes: int) -> None:
        self.layout, self.version = meta.layout, meta.version
        self.version_id = version_id
        self.disk_bytes = disk_bytes
        self.blocks = 0

    def fits(self, meta: BlockMeta) -> bool:
        """One version may have been told with other headers each time: kept of a block is what its file says."""
        return self.version is meta.version or self.version == meta.version


class Slot:
    """One block on disk. `busy` counts those who open it, or read it by a file of their own: no victim then."""

    __slots__ = ("busy", "disk_bytes", "edition", "file", "verified")

    def __init__(self, edition: Edition, disk_bytes: int, *, verified: bool) -> None:
        self.edition = edition
        # Nearly all blocks of a version are of one size: one number for all of them.
        self.disk_bytes = edition.disk_bytes if disk_bytes == edition.disk_bytes else disk_bytes
        self.file: OpenFile | None = None
        self.verified = verified
        self.busy = 0

    def meta(self, block: BlockKey) -> BlockMeta:
        edition = self.edition
        return BlockMeta(edition.layout, edition.version, block.index)

    @property
    def in_use(self) -> bool:
        return self.busy > 0 or (self.file is not None and self.file.leases > 0)


def doom_result(future: asyncio.Future[OpenFile]) -> None:
    """For a file that a thread opened after nobody wanted it any more."""
    if not future.cancelled() and future.exception() is None:
        future.result().doom()
