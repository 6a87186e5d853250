"""Writes one block to disk: in `tmp` as the bytes arrive, renamed into place when the block is whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from outrider.adapters.disk import block_io, disk_threads
from outrider.adapters.disk.disk import Disk
from outrider.adapters.disk.disk_threads import Act, DiskThreads
from outrider.adapters.disk.leases import FileLease, OpenFile
from outrider.core.cache import block_file
from outrider.core.cache.block_file import BlockMeta, Header
from outrider.core.errors import WrongDigest
from outrider.core.s3.checksums import Kind
from outrider.ports import Buffer, Place

T = TypeVar("T")

# Another process that writes the end of a block reads so much of its begin again, to hash the whole.
_HASHED_BEFORE_BYTES = 1024 * 1024


class Reservation(Protocol):
    """The store's side of a block that is being written: `reserve` took its bytes; one call here ends that.
    A Protocol, as the store imports this module."""

    def landed(
        self, disk: Disk, meta: BlockMeta, disk_bytes: int, file: OpenFile, kind: Kind | None, content: bytes | None
    ) -> None:
        """The block was renamed into place; the reservation becomes an entry of the index. `content`: the content hash
        of this kind; None: there is none."""
        ...

    def released(self, disk: Disk, meta: BlockMeta, disk_bytes: int, *, left_behind: bool) -> None:
        """The block was given up. `left_behind`: its file lies in its final place and could not be removed."""
        ...


class DiskBlockWriter:
    """Owns the file in `tmp` and the reservation until `commit` or `abort`.

    A trip to a thread and back, with the GIL handed over at each system call there, costs more than all other work on a
    small block. Therefore the first write also creates the file, and the write that completes the block renames it.
    """

    def __init__(
        self, disk: Disk, reservation: Reservation, header: Header, path: bytes,
        kind: Kind | None = None, confirmed_at: float | None = None,
    ) -> None:  # fmt: skip
        """`kind`: the content hash to compute beside the block's own checksum; None: none. `confirmed_at`: see
        `DiskBlockStore.confirmed_at`."""
        self._disk = disk
        self._directory = disk.directory
        self._work = disk.work
        self._reservation = reservation
        self._header = header
        self._meta = header.meta
        self._path = path
        self._file: OpenFile | None = None
        self._opening = asyncio.Lock()
        self._written = 0
        self._digest = block_file.PayloadChecksum()
        self._expected = ""
        self._kind = kind
        self._confirmed_at = confirmed_at
        self._content = None if kind is None else kind.begin()
        # The checksum and the content hash of the whole payload, by the process that wrote the last of it.
        self._sums: tuple[bytes, bytes | None] | None = None
        # The payload up to here is in the digest. Only the write that begins here advances it, and no byte is written
        # twice, so two threads never do so at once.
        self._digested = 0
        self._working: set[asyncio.Future[Any]] = set()
        # The last thing that a thread did, for the report of an error.
        self._act: Act = "create"
        self._renamed = False
        self._ended = False

    def lease(self) -> FileLease:
        assert self._file is not None, "nothing was written yet"
        return FileLease(self._file)

    def expect(self, digest: str) -> None:
        self._expected = digest

    async def write(self, offset: int, pieces: Sequence[Buffer]) -> float:
        if self._file is not None:
            return await self._write(offset, pieces)
        async with self._opening:
            return await self._write(offset, pieces)

    async def receiver(self, offset: int, is_awaited: Callable[[], bool]) -> DiskBlockReceiver:
        if self._file is None:
            async with self._opening:
                if self._file is None:
                    try:
                        await self._in_thread(self._create)
                    except OSError as error:
                        raise self._work.write_failed("create", error) from error
        receiver = DiskBlockReceiver(self, self.lease(), self._work, offset, is_awaited)
        self._working.add(receiver.over)
        receiver.over.add_done_callback(self._working.discard)
        return receiver

    @property
    def is_remote(self) -> bool:
        """The file lies on another machine, or is served by another process."""
        return self._directory.is_remote

    def place(self, offset: int, before: int, count: int) -> Place:
        """The place of `count` bytes of the payload. `before`: the bytes that their writer has written, and that are
        counted at its end."""
        assert self._file is not None
        at = self._header.length + offset
        # All bytes before them are here, and none comes after them.
        is_last = self._written + before == offset and offset + count == self._meta.extent.length
        if not is_last or offset > _HASHED_BEFORE_BYTES or not (self._kind is None or self._kind.is_crc):
            return Place(self._file.fd, at)
        return Place(self._file.fd, at, self._header.length, "" if self._kind is None else self._kind.model)

    def hashed(self, digest: bytes, crc: int) -> None:
        self._sums = digest, None if self._kind is None else self._kind.in_bytes(crc)

    def received(self, count: int, disk_s: float) -> None:
        """A receiver has ended after `count` bytes, for which it waited `disk_s` for the disk."""
        self._written += count
        self._disk.pace.measured(disk_s, count, self._work.clock())

    async def _write(self, offset: int, pieces: Sequence[Buffer]) -> float:
        count = sum(map(len, pieces))
        try:
            took_s = await self._in_thread(lambda: self.write_in_thread(offset, pieces, count, 0))
        except OSError as error:
            raise self._work.write_failed(self._act, error) from error
        self._written += count  # after the await: two writes may be under way
        self._disk.pace.measured(took_s, count, self._work.clock())
        return took_s

    def _create(self) -> None:
        self._act = "create"
        self._file = OpenFile(
            self._directory.create(self._path), self._header.length, stays_in_memory=self._directory.stays_in_memory,
            closers=self._work.threads if self._directory.is_remote else None,
        )  # fmt: skip

    def write_in_thread(self, offset: int, pieces: Sequence[Buffer], count: int, before: int) -> float:
        """Write `pieces`, `count` bytes in all, in the calling thread; the write that completes the block renames its
        file. `before`: the bytes that this writer of many has written, and that are counted at its end. Returns the
        seconds that the disk took. Raises OSError."""
        # Two concurrent writes are not counted yet, so neither is known to be the last; `commit` renames then.
        last = self._written + before + count == self._meta.extent.length
        if self._file is None:
            self._create()
        assert self._file is not None
        self._act = "write"
        if offset == self._digested:
            # Hash the bytes while they are in this process' memory only: nothing else can have changed them.
            for piece in pieces:
                self._digest.update(piece)
                if self._content is not None:
                    self._content.update(piece)
            self._digested += count
        whole = last and offset == 0 and self._digested == self._meta.extent.length
        began = self._work.clock()
        if whole:
            header = self._sealed()
            block_io.write_all(self._file.fd, [header, *pieces], 0)
        else:
            block_io.write_all(self._file.fd, pieces, self._header.length + offset)
        took_s = self._work.clock() - began
        if last:
            self._act = "commit"
            self._put_in_place(sealed=whole)
        return took_s

    def _sealed(self) -> bytes:
        """The header of the whole block. Raises WrongDigest."""
        checksum = self._digest.digest() if self._sums is None else self._sums[0]
        if self._expected and block_file.digest_text(checksum) != self._expected:
            raise WrongDigest(f"{self._meta.version.ref}: block {self._meta.index}")
        return self._header.sealed(checksum)

    def _put_in_place(self, *, sealed: bool) -> None:
        """Complete the file and rename it. Runs in a thread, when the payload is written.

        `sealed`: the header is written, too.
        """
        assert self._file is not None
        if not sealed and self._sums is not None:
            block_io.write_all(self._file.fd, [self._sealed()], 0)
        elif not sealed:
            # Bytes that arrived out of order are not in the digest yet: read them back, usually from the page cache.
            self._digested += block_io.digest_payload(
                self._digest, self._content, self._file.fd, self._header.length + self._digested,
                self._meta.extent.length - self._digested,
            )  # fmt: skip
            block_io.write_all(self._file.fd, [self._sealed()], 0)
        if self._confirmed_at is not None:
            # A file system that refuses it keeps the time of the write, which is a moment later.
            with suppress(OSError):
                os.utime(self._file.fd, (self._confirmed_at, self._confirmed_at))
        self._directory.put(self._path, self._meta.key)
        self._renamed = True

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # The thread has a lease of its own. If this task is cancelled and aborts now, the fd must not be closed while
        # the thread uses it: its number could be given to another file.
        lease = None if self._file is None else self.lease()
        future = self._work.begin(work)

        def ended(done: asyncio.Future[T]) -> None:
            if not done.cancelled():
                done.exception()  # retrieved, also if this task has left
            self._working.discard(done)
            if lease is not None:
                lease.release()

        self._working.add(future)
        future.add_done_callback(ended)
        async with asyncio.timeout(disk_threads.PATIENCE_S):
            return await asyncio.shield(future)

    async def commit(self) -> None:
        assert self._written == self._meta.extent.length, "only a whole block is committed"
        if not self._renamed:
            try:
                await self._in_thread(lambda: self._put_in_place(sealed=False))
            except OSError as error:
                raise self._work.write_failed("commit", error) from error
        self._ended = True
        assert self._file is not None
        content = None if self._content is None else self._content.digest()
        if self._sums is not None:
            content = self._sums[1]
        self._reservation.landed(self._disk, self._meta, self._header.disk_bytes, self._file, self._kind, content)

    async def abort(self) -> None:
        if self._ended:
            return
        self._ended = True
        await self._work.clean_up(self._meta.key, self._clean_up())

    async def _clean_up(self) -> None:
        left_behind = False
        try:
            if self._working:
                # A thread may be about to rename; without this wait its block would lie on disk, unknown to the index.
                await asyncio.wait(self._working)
            if self._file is None:
                return
            self._file.doom()
            path = self._directory.raw_path_of(self._meta.key) if self._renamed else self._path
            await self._work.run(self._directory.remove, path)
        except OSError as error:
            left_behind = self._renamed
            self._work.failed("unlink", error)
        except RuntimeError:
            pass  # the store is closed; the next start sweeps `tmp`
        finally:
            self._reservation.released(self._disk, self._meta, self._header.disk_bytes, left_behind=left_behind)


class DiskBlockReceiver:
    """Puts the bytes that a thread receives into a block, from `offset` of its payload on."""

    def __init__(
        self, writer: DiskBlockWriter, lease: FileLease, work: DiskThreads, offset: int, is_awaited: Callable[[], bool]
    ) -> None:
        self._writer = writer
        # The thread has a lease of its own, as in `DiskBlockWriter._in_thread`.
        self._lease = lease
        self._work = work
        self._offset = offset
        self._is_awaited = is_awaited
        self._since: float | None = None
        self.count = 0
        self.disk_s = 0.0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_awaited(self) -> bool:
        return self._is_awaited()

    def write(self, data: memoryview) -> None:
        count = len(data)
        self._since = self._work.clock()
        try:
            self._writer.write_in_thread(self._offset, [data], count, self.count)
        except OSError as error:
            raise self._work.write_failed("write", error) from error
        finally:
            self.disk_s += self._work.clock() - self._since
            self._since = None
        self._offset += count
        self.count += count

    def place(self, count: int) -> Place | None:
        # The close of a file on a network waits for the server, and the other lines of the receiver with it.
        return None if self._writer.is_remote else self._writer.place(self._offset, self.count, count)

    def hashed(self, digest: bytes, crc: int) -> None:
        self._writer.hashed(digest, crc)

    def written(self, count: int, disk_s: float) -> None:
        self._offset += count
        self.count += count
        self.disk_s += disk_s

    def refused(self, error: OSError) -> None:
        raise self._work.write_failed("write", error) from error

    def check(self) -> None:
        since = self._since
        if since is not None and self._work.clock() - since >= disk_threads.PATIENCE_S:
            raise self._work.write_failed("write", TimeoutError("no answer"))

    def ended(self) -> None:
        self._lease.release()
        self._writer.received(self.count, self.disk_s)
        self.over.set_result(None)
