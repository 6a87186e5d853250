"""The pieces of a reply's body."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from outrider.ports import Buffer


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


Piece = FilePiece | EarlyPiece | Buffer
"""Plain bytes were relayed."""


class Body(Protocol):
    """The pieces of a reply in order. `aclose` ends it, also when not all of it was taken, or nothing."""

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    async def aclose(self) -> None: ...
