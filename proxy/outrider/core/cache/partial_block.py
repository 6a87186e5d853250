"""Which bytes of a block are here while it arrives: from where its first reader began to its end, and then what lies
before that."""

from __future__ import annotations


class PartialBlock:
    """Two parts, each of which grows from its start: `[0, start)`, the head, and `[start, length)`, the tail.

    Invariant: 0 <= head <= start <= tail <= length, and exactly `[0, head)` and `[start, tail)` are here.
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
    def begun(self) -> bool:
        """Some byte is here."""
        return self._head > 0 or self._tail > self.start

    def add(self, offset: int, count: int) -> None:
        """`count` bytes came that continue one of the parts at `offset`."""
        if offset == self._tail and offset + count <= self.length:
            self._tail += count
        else:
            assert offset == self._head, "each part grows without a gap"
            assert offset + count <= self.start, "no byte comes twice"
            self._head += count

    def reach(self, offset: int) -> int:
        """Up to where, from `offset` on, all bytes are here; `offset` itself, or less: that one is not."""
        # The head is whole: what is here of the tail goes on from it.
        if offset >= self.start or self._head == self.start:
            return self._tail
        return self._head
