"""Where the bytes of a read are put."""

from __future__ import annotations

import errno

from outrider.ports import Buffer


class Target:
    """Bytes that come in order. `received`: how many are there."""

    def __init__(self, size: int) -> None:
        self.bytes = bytearray(size)
        self.received = 0

    @property
    def room(self) -> int:
        return len(self.bytes) - self.received

    def take(self, chunk: Buffer) -> None:
        end = self.received + len(chunk)
        if end > len(self.bytes):
            raise OSError(errno.EIO, "more bytes came than were asked for")
        self.bytes[self.received : end] = chunk
        self.landed(len(chunk))

    def empty(self) -> memoryview:
        """The room for what has not come. `landed` is called with what is put there."""
        return memoryview(self.bytes)[self.received :]

    def landed(self, count: int) -> None:
        self.received += count
