"""The pieces of a reply's body, and the number of readers that share the line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from outrider.ports import Buffer

# The number of readers of late falls by this factor with each read that begins: a lone reader has the line to itself
# again after some fifty.
_READERS_KEPT = 0.98


@dataclass(slots=True)
class FilePiece:
    """`count` bytes of an open file, for the kernel to send; valid until the next piece is requested. `is_remote`: see
    `OpenBlock`.

    Where the disk gives fewer, the sender puts into `sent` how many there were. The next piece begins there.
    """

    fd: int
    offset: int
    count: int
    source: str
    is_remote: bool = False
    sent: int = -1

    def __post_init__(self) -> None:
        self.sent = self.count

    @property
    def fell_short(self) -> bool:
        return self.sent < self.count


@dataclass(slots=True)
class EarlyPiece:
    """Bytes of a flight that are not on disk yet: to be sent from memory."""

    data: Buffer
    source: str = "flight"


Piece = FilePiece | EarlyPiece | bytes
"""Plain bytes were relayed."""


class Body(Protocol):
    """The pieces of a reply in order. `aclose` ends it, also when not all of it was taken, or nothing."""

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    async def aclose(self) -> None: ...


class ReaderCount:
    """How many reads share the line. The read-ahead window of each depends on that."""

    def __init__(self) -> None:
        self.reading = 0
        # Reads whose version is not known yet. The first readers of a job begin so, all at once.
        self.beginning = 0
        # The readers of a job begin one after the other, at each epoch again, and the first has the line to itself for
        # a moment only: so the number of late counts, too.
        self._lately = 0.0

    def begin(self) -> None:
        self.reading += 1
        self._lately = max(self.reading, self._lately * _READERS_KEPT)

    def end(self) -> None:
        self.reading -= 1

    def expected(self, blocks_sent: float) -> int:
        """How many readers to expect beside a read that has sent `blocks_sent` blocks, with this one."""
        # By its second block the others would have begun, too: a long read that is alone then has the line to itself.
        readers = round(self._lately) if blocks_sent < 1 else self.reading
        return max(readers, self.reading + self.beginning)
