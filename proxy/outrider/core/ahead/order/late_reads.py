"""Reads of an epoch of which the planner is notified in the next one: reads of cached objects are reported later."""

from __future__ import annotations

from collections.abc import Sequence

# A late read is one of the last of its epoch, and is reported among the first reads of the next one.
_LAST_MAX, _FIRST_MAX = 1024, 64


class LateReads:
    """Objects that the epoch before had left when this one began, which may have been read meanwhile."""

    def __init__(self) -> None:
        self._left: set[int] = set()

    def begin(self, agenda: Sequence[int], done: Sequence[int]) -> None:
        """An epoch begins. `agenda` is that of the epoch before, where it is certain; `done` as in `JobEpoch`."""
        self._left = {index for index in agenda[-_LAST_MAX:] if done[index] < 0}

    def take(self, index: int, reads: int, *, is_near: bool) -> bool:
        """Whether a read of this object, after `reads` others, belongs to the epoch before. `is_near`: this epoch's
        known order has it about now."""
        if index not in self._left or reads > _FIRST_MAX or is_near:
            return False
        self._left.discard(index)
        return True
