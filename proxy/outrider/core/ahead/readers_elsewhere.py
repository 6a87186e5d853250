"""How many clients read at the other members of a cluster, as those tell it."""

from __future__ import annotations

from outrider.core.ahead.sequential_reads import ABANDONED_S


class ReadersElsewhere:
    """A member that has told nothing for a minute has no readers."""

    def __init__(self) -> None:
        # By member: how many readers, and when it told so.
        self._told: dict[str, tuple[int, float]] = {}

    def heard(self, member: str, readers: int, now: float) -> None:
        self._told[member] = readers, now

    def count(self, now: float) -> int:
        if not self._told:
            return 0
        silent = [member for member, (_, told_at) in self._told.items() if now - told_at > ABANDONED_S]
        for member in silent:
            del self._told[member]
        return sum(readers for readers, _ in self._told.values())
