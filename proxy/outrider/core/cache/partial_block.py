"""Which bytes of a block have arrived. They come from the first reader's offset to the block's end, and then from the
block's start to that offset."""

from __future__ import annotations


class PartialBlock:
    """Two parts, each of which grows from its start: the head `[0, start)` and the tail `[start, length)`.

    Invariant: 0 <= head <= start <= tail <= length, and exactly `[0, head)` and `[start, tail)` have arrived.
    """

    __slots__ = ("_head", "_tail", "length", "start")

    def __init__(self, length: int, start: int = 0) -> None:
        if not 0 <= start < length:
            raise ValueError(f"cannot start at {start} of {length}")
        self.length = length
        self.start = start
        self._head = 0
        self._tail = start

    @property
    def whole(self) -> bool:
        return self._head == self.start and self._tail == self.length

    @property
    def count(self) -> int:
        """How many bytes have arrived."""
        return self._head + self._tail - self.start

    @property
    def begun(self) -> bool:
        """At least one byte has arrived."""
        return self._head > 0 or self._tail > self.start

    def add(self, offset: int, count: int) -> None:
        """`count` bytes arrived at `offset`, where one of the parts ended."""
        if offset == self._tail and offset + count <= self.length:
            self._tail += count
        else:
            assert offset == self._head, "each part grows without a gap"
            assert offset + count <= self.start, "no byte comes twice"
            self._head += count

    def reach(self, offset: int) -> int:
        """The end of the bytes that have arrived from `offset` on. A result of `offset` or less: its byte has not."""
        # Behind a complete head the tail follows without a gap.
        if offset >= self.start or self._head == self.start:
            return self._tail
        return self._head
