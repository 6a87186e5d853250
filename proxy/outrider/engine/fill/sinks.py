"""The places where a thread puts the bytes that it receives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from outrider.ports import ByteSink


class Sink(NamedTuple):
    """The place for the next bytes of an object, and how many it takes."""

    sink: ByteSink
    room: int


SinkAt = Callable[[int], Awaitable[Sink]]
"""Called with the next byte of an object that is to be received. Raises StoreUnavailable."""


class Discard:
    """A sink for bytes that nobody asked for."""

    is_awaited = False

    def write(self, data: memoryview) -> None:
        pass

    def check(self) -> None:
        pass

    def ended(self) -> None:
        pass
