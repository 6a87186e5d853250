"""A stand-in for the planner: it records the hints that it gets, and lets a test wait for them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outrider.core.ahead.hint_messages import PlanProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from outrider.core.ahead.hints import Hint
    from outrider.core.model import ObjectRef

DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Piece:
    """One call of `told`."""

    client: str
    urls: tuple[str, ...]
    start: int
    total: int | None


@dataclass(slots=True)
class RecordedPlans:
    """The proxy's loop calls it, a test's thread reads it."""

    pieces: list[Piece] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def told(self, client: str, refs: Sequence[ObjectRef], *, start: int, total: int | None, hint: Hint) -> None:
        with self._changed:
            self.pieces.append(Piece(client, tuple(map(str, refs)), start, total))
            self._changed.notify_all()

    def withdraw(self, hint: Hint, others: Iterable[Hint]) -> int:
        return 0

    async def progress(self, hint: Hint) -> PlanProgress:
        return PlanProgress()

    @property
    def urls(self) -> list[str]:
        """All URLs, in the order in which they were announced."""
        return [url for piece in self.pieces for url in piece.urls]

    def wait(self, until: Callable[[RecordedPlans], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: until(self), DEADLINE_S), self.pieces
