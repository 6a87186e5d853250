"""Rates of growing totals, sampled about once a second over the last two minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

STEP_S = 1.0
# Samples that are kept: two minutes.
_STEPS = 120


class Rates:
    """Bounded: it keeps the last two minutes."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._at: float | None = None
        self._rates: deque[dict[str, float]] = deque(maxlen=_STEPS)

    def note(self, now: float, totals: Mapping[str, float]) -> None:
        """To be called about every `STEP_S` seconds."""
        if self._at is not None and now > self._at:
            seconds = now - self._at
            self._rates.append({
                name: max(0.0, total - self._last.get(name, 0.0)) / seconds for name, total in totals.items()
            })  # fmt: skip
        self._last, self._at = dict(totals), now

    def rates(self) -> dict[str, list[int]]:
        """The rates per second of each total, the latest last."""
        names = self._rates[-1] if self._rates else {}
        return {name: [round(step.get(name, 0.0)) for step in self._rates] for name in names}
