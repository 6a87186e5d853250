"""A block on its way to disk: written in `tmp` as it arrives, renamed when it is whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from outrider.adapters.disk import block_dir
from outrider.adapters.disk.disk_threads import Act
from outrider.adapters.disk.leases import FileLease, OpenFile
from outrider.core.cache import block_file
from outrider.core.cache.block_file import Header
from outrider.ports import Buffer

if TYPE_CHECKING:
    from outrider.adapters.disk.block_store import DiskBlockStore

T = TypeVar("T")


class DiskBlockWriter:
    """A block in `tmp`, and its reservation, until `commit` or `abort`.

    A hop to a thread and back, with the GIL handed over at each system call there, costs more than all else that a
    small block does: so the first write makes the file, and the one that makes the block whole puts it in its place.
    """

    def __init__(self, store: DiskBlockStore, header: Header, path: Path, disk_bytes: int) -> None:
        self._store = store
        self._header = header
        self._meta = header.meta
        self._path = path
        self._disk_bytes = disk_bytes
        self._file: OpenFile | None = None
        self._opening = asyncio.Lock()
        self._written = 0
        self._digest = block_file.PayloadChecksum()
        # The payload up to here is in the digest. Only the write that begins here moves it, and no byte comes twice, so
        # no two threads do.
        self._digested = 0
        self._working: set[asyncio.Future[Any]] = set()
        self._renamed = False
        self._ended = False

    def lease(self) -> FileLease:
        assert self._file is not None, "nothing was written yet"
        return FileLease(self._file)

    async def write(self, offset: int, pieces: Sequence[Buffer]) -> float:
        if self._file is not None:
            return await self._write(offset, pieces)
        async with self._opening:
            return await self._write(offset, pieces)

    async def _write(self, offset: int, pieces: Sequence[Buffer]) -> float:
        count = sum(len(piece) for piece in pieces)
        # Of two that are under way at once neither is counted yet, nor known to be the last.
        last = self._written + count == self._meta.extent.length
        act: Act = "create"

        def write() -> float:
            nonlocal act
            if self._file is None:
                self._file = OpenFile(self._store.directory.create(self._path), self._header.length)
            act = "write"
            if offset == self._digested:
                # Hash before the pages can be touched by anything else than this process' memory.
                for piece in pieces:
                    self._digest.update(piece)
                self._digested += count
            whole = last and offset == 0 and self._digested == self._meta.extent.length
            began = self._store.clock()
            if whole:
                header = self._header.sealed(self._digest.digest())
                block_dir.write_all(self._file.fd, [header, *pieces], 0)
            else:
                block_dir.write_all(self._file.fd, pieces, self._header.length + offset)
            took_s = self._store.clock() - began
            if last:
                act = "commit"
                self._put_in_place(sealed=whole)
            return took_s

        try:
            took_s = await self._in_thread(write)
        except OSError as error:
            raise self._store.work.write_failed(act, error) from error
        self._written += count  # after the await: two writes may be under way
        return took_s

    def _put_in_place(self, *, sealed: bool) -> None:
        """In a thread, when all is written; `sealed`: the header as well."""
        assert self._file is not None
        if not sealed:
            # What came before what lies before it is read back, from the page cache as a rule.
            self._digested += block_dir.digest_payload(
                self._digest, self._file.fd, self._header.length + self._digested,
                self._meta.extent.length - self._digested,
            )  # fmt: skip
            block_dir.write_all(self._file.fd, [self._header.sealed(self._digest.digest())], 0)
        self._store.directory.put(self._path, self._store.directory.path_of(self._meta.key))
        self._renamed = True

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # The lease is the thread's: were we cancelled and aborted now, the fd must not close, and its number go to
        # another file, under the thread's hands.
        lease = None if self._file is None else self.lease()
        future = self._store.work.begin(work)
        if lease is not None:
            future.add_done_callback(lambda _: lease.release())
        self._working.add(future)
        future.add_done_callback(self._working.discard)
        async with asyncio.timeout(block_dir.PATIENCE_S):
            return await asyncio.shield(future)

    async def commit(self) -> None:
        assert self._written == self._meta.extent.length, "only a whole block is committed"
        if not self._renamed:
            try:
                await self._in_thread(lambda: self._put_in_place(sealed=False))
            except OSError as error:
                raise self._store.work.write_failed("commit", error) from error
        self._ended = True
        assert self._file is not None
        self._store.landed(self._meta, self._disk_bytes, self._file)

    async def abort(self) -> None:
        if self._ended:
            return
        self._ended = True
        await self._store.work.waited_for(self._meta.key, self._clean_up())

    async def _clean_up(self) -> None:
        try:
            if self._working:
                # We were cancelled, and a thread may be about to rename: a block that no index knows would be left.
                await asyncio.wait(self._working)
            if self._file is None:
                return
            self._file.doom()
            path = self._store.directory.path_of(self._meta.key) if self._renamed else self._path
            await self._store.work.run(self._store.directory.remove, path)
        except OSError as error:
            # In its place already: a file that no snapshot tells of.
            self._store.whole &= not self._renamed
            self._store.work.trouble("unlink", error)
        except RuntimeError:
            pass  # the store is closed; the next start sweeps it
        finally:
            self._store.budget.unreserve(self._disk_bytes)
