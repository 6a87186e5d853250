"""Where the bytes of a read are put."""

from __future__ import annotations

import errno

from outrider.ports import Buffer


class Target:
    """Bytes that come in order. `came`: how many are there."""

    def __init__(self, size: int) -> None:
        self.bytes = bytearray(size)
        self.came = 0

    @property
    def room(self) -> int:
        return len(self.bytes) - self.came

    def take(self, chunk: Buffer) -> None:
        end = self.came + len(chunk)
        if end > len(self.bytes):
            raise OSError(errno.EIO, "more bytes came than were asked for")
        self.bytes[self.came : end] = chunk
        self.arrived(len(chunk))

    def empty(self) -> memoryview:
        """The room for what has not come. `arrived` is told of what is put there."""
        return memoryview(self.bytes)[self.came :]

    def arrived(self, count: int) -> None:
        self.came += count
