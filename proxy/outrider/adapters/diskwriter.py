"""A block on its way to disk: written in `tmp` as it arrives, renamed when it is whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from outrider.adapters import blockdir
from outrider.adapters.leases import FileLease, OpenFile
from outrider.core import blockfile
from outrider.core.blockfile import BlockMeta
from outrider.ports import Buffer

if TYPE_CHECKING:
    from outrider.adapters.disk import DiskStore

T = TypeVar("T")


class DiskBlockWriter:
    """A block in `tmp`, and its reservation, until `commit` or `abort`."""

    def __init__(self, store: DiskStore, meta: BlockMeta, path: Path, disk_bytes: int, file: OpenFile) -> None:
        self._store = store
        self._meta = meta
        self._path = path
        self._disk_bytes = disk_bytes
        self._file = file
        self._written = 0
        self._digest = blockfile.PayloadChecksum()
        # The payload up to here is in the digest. Only the write that begins here moves it, and no byte comes twice, so
        # no two threads do.
        self._digested = 0
        self._working: set[asyncio.Future[Any]] = set()
        self._renamed = False
        self._ended = False

    def lease(self) -> FileLease:
        return FileLease(self._file)

    async def write(self, offset: int, pieces: Sequence[Buffer]) -> float:
        def write() -> tuple[int, float]:
            if offset == self._digested:
                # Hash before the pages can be touched by anything else than this process' memory.
                for piece in pieces:
                    self._digest.update(piece)
                self._digested += sum(len(piece) for piece in pieces)
            began = self._store.clock()
            written = blockdir.write_all(self._file.fd, pieces, self._file.payload_offset + offset)
            return written, self._store.clock() - began

        try:
            written, took_s = await self._in_thread(write)
        except OSError as error:
            raise self._store.work.write_failed("write", error) from error
        self._written += written  # not in one line with the await: two writes may be under way
        return took_s

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # The lease is the thread's: were we cancelled and aborted now, the fd must not close, and its number go to
        # another file, under the thread's hands.
        lease = self.lease()
        future = self._store.work.begin(work)
        future.add_done_callback(lambda _: lease.release())
        self._working.add(future)
        future.add_done_callback(self._working.discard)
        async with asyncio.timeout(blockdir.PATIENCE_S):
            return await asyncio.shield(future)

    async def commit(self) -> None:
        assert self._written == self._meta.extent.length, "only a whole block is committed"

        def finish() -> None:
            # What came before what lies before it is read back, from the page cache as a rule.
            self._digested += blockdir.digest_payload(
                self._digest, self._file.fd, self._file.payload_offset + self._digested, self._written - self._digested
            )
            header = blockfile.encode_header(self._meta, self._digest.digest())
            blockdir.write_all(self._file.fd, [header], 0)
            self._store.directory.put(self._path, self._store.directory.path_of(self._meta.key))
            self._renamed = True

        try:
            await self._in_thread(finish)
        except OSError as error:
            raise self._store.work.write_failed("commit", error) from error
        self._ended = True
        self._store.landed(self._meta, self._disk_bytes, self._file)

    async def abort(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._file.doom()
        await self._store.work.waited_for(self._clean_up())

    async def _clean_up(self) -> None:
        try:
            if self._working:
                # We were cancelled, and a thread may be about to rename: a block that no index knows would be left.
                await asyncio.wait(self._working)
            path = self._store.directory.path_of(self._meta.key) if self._renamed else self._path
            await self._store.work.run(self._store.directory.remove, path)
        except OSError as error:
            self._store.work.trouble("unlink", error)
        except RuntimeError:
            pass  # the store is closed; the next start sweeps it
        finally:
            self._store.budget.unreserve(self._disk_bytes)
