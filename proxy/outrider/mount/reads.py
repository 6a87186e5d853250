"""The reads of open files: ranges as they are requested, and a stream for each reader that goes on."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from outrider.mount.bucket import MountBucket, Stale
from outrider.mount.listed import FileVersion
from outrider.mount.loans import Loans
from outrider.mount.nodes import File
from outrider.mount.target import Target
from outrider.ports import Clock

# As large as the proxy's blocks: one request for each of them.
STREAM_BYTES = 8 * 1024 * 1024
# 256 MiB of memory. With more readers than that takes, each READ of the others is a request of its own.
_STREAMS_MAX = 32
# A stream that nobody has read for so long makes room for another one. The kernel keeps what was read.
_IDLE_S = 1.0
# READs ahead of a reader come several at once, and not always in order.
_OUT_OF_ORDER_BYTES = 4 * 1024 * 1024


class _Stream(Target):
    """A part of a file, on its way."""

    def __init__(self, start: int, size: int, now: float) -> None:
        super().__init__(size)
        self.start = start
        self.read_bytes = 0
        self.read_at = now
        self.failure: Exception | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def stop(self) -> int:
        return self.start + len(self.bytes)

    def landed(self, count: int) -> None:
        super().landed(count)
        self._wake()

    def failed(self, error: Exception) -> None:
        self.failure = error
        self._wake()

    async def until(self, count: int) -> None:
        """Wait until the first `count` bytes are here."""
        while self.received < count:
            if self.failure is not None:
                raise self.failure
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((count, future))
            await future

    def _wake(self) -> None:
        still = []
        for count, future in self._waiting:
            if self.received < count and self.failure is None:
                still.append((count, future))
            elif not future.done():
                future.set_result(None)
        self._waiting = still


class FileReads:
    def __init__(
        self, bucket: MountBucket, spawn: Callable[..., object], clock: Clock, loans: Loans | None = None
    ) -> None:
        """`spawn` starts a task and keeps it. `loans` None: there are none."""
        self._loans = loans
        self._bucket = bucket
        self._spawn = spawn
        self._clock = clock
        # By the file's number and the start of the part, the one that was read last at the end.
        self._streams: OrderedDict[tuple[int, int], _Stream] = OrderedDict()

    def at_once(self, file: File, start: int, size: int) -> memoryview | None:
        """As `read`, for as long as nothing else is read. None: it has to wait, or the version has to be compared."""
        stop = min(start + size, file.size)
        if self._loans is None or start >= stop or not file.is_settled:
            return None
        return self._loans.at_once(file, start, stop)

    async def read(self, file: File, start: int, size: int) -> bytes | memoryview:
        """The bytes of `file`, fewer at its end.

        Raises:
            OSError
            Stale: the object, or what is known of it, is no longer of the version that the file had.
        """
        version = file.version
        data = await self._read(file, version, start, size)
        if (file.size, file.etag) != (version.size, version.etag):
            raise Stale
        return data

    def drop(self, file: File) -> None:
        """Another size or ETag was learnt of `file`."""
        for key in [key for key in self._streams if key[0] == file.number]:
            del self._streams[key]

    async def _read(self, file: File, version: FileVersion, start: int, size: int) -> bytes | memoryview:
        stop = min(start + size, file.size)
        if start >= stop:
            return b""
        # A stream that is under way brings what the proxy has to fetch.
        if self._loans is not None and (file.number, start // STREAM_BYTES * STREAM_BYTES) not in self._streams:
            data = await self._loans.read(file, start, stop)
            if data is not None:
                return data
        goes_on = start == 0 or abs(start - file.reads_at) <= _OUT_OF_ORDER_BYTES
        file.reads_at = stop
        if stream := self._stream_at(file, start, stop, begins=goes_on and stop - start < file.size):
            return await self._from(file, stream, start, stop)
        target = Target(stop - start)
        await self._bucket.read_into(target, file.key, start, version)
        return memoryview(target.bytes)

    def _stream_at(self, file: File, start: int, stop: int, *, begins: bool) -> _Stream | None:
        part = start // STREAM_BYTES * STREAM_BYTES
        stream = self._streams.get((file.number, part))
        # A reader that comes in the middle of a part would wait for bytes that it does not want.
        if stream is None and begins and start - part < STREAM_BYTES // 2 and self._has_room():
            stream = self._begun(file, part)
        if stream is None or stop > stream.stop:
            return None
        return stream

    def _has_room(self) -> bool:
        """Whether another stream may begin. Drops the one that was not read for longest, if it is idle."""
        if len(self._streams) < _STREAMS_MAX:
            return True
        key, oldest = next(iter(self._streams.items()))
        # To drop one that is still read would only make its reader begin it again.
        if oldest.room or self._clock() - oldest.read_at < _IDLE_S:
            return False
        del self._streams[key]
        return True

    def _begun(self, file: File, part: int) -> _Stream:
        stream = _Stream(part, min(STREAM_BYTES, file.size - part), self._clock())
        self._streams[file.number, part] = stream
        self._spawn(self._fill(file, file.version, stream))
        return stream

    async def _fill(self, file: File, version: FileVersion, stream: _Stream) -> None:
        try:
            await self._bucket.read_into(stream, file.key, stream.start, version)
        except Exception as error:  # noqa: BLE001 - its readers raise it
            self._forget(file, stream)
            stream.failed(error)

    async def _from(self, file: File, stream: _Stream, start: int, stop: int) -> memoryview:
        key = (file.number, stream.start)
        if key in self._streams:
            stream.read_at = self._clock()
            self._streams.move_to_end(key)
        # The next part is on its way before this one has been read.
        half = stop - stream.start > len(stream.bytes) // 2
        if half and stream.stop < file.size and (file.number, stream.stop) not in self._streams and self._has_room():
            self._begun(file, stream.stop)
        await stream.until(stop - stream.start)
        stream.read_bytes += stop - start
        if stream.read_bytes >= len(stream.bytes):
            self._forget(file, stream)
        return memoryview(stream.bytes)[start - stream.start : stop - stream.start]

    def _forget(self, file: File, stream: _Stream) -> None:
        if self._streams.get((file.number, stream.start)) is stream:
            del self._streams[file.number, stream.start]
