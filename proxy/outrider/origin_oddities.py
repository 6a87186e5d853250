"""Reports the oddities of the origin: by metrics, by one warning for each kind, and in the status document."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from outrider.core.origin.oddities import Oddity, OddityCounts, Uncached, sentence
from outrider.metrics import Metrics

log = logging.getLogger(__name__)


class OriginOddities:
    """One for each proxy, which has one origin. Called on the engine's thread by whatever reads a reply."""

    def __init__(self, origin: str, metrics: Metrics) -> None:
        """`origin`: its endpoint, for the log."""
        self._origin = origin
        self._metrics = metrics
        self._counts = OddityCounts()
        self._uncached: Counter[str] = Counter()

    def note(self, kind: Oddity, example: object, *, uncached: bool = False) -> None:
        """The origin behaved oddly. `example`: the object or bucket. `uncached`: a read stays uncached because of
        it."""
        self._metrics.origin_oddities.labels(kind.label).inc()
        if uncached:
            self._stayed_uncached(kind.label)
        if self._counts.note(kind, str(example), uncached=uncached):
            met = self._counts.met[kind]
            log.warning(
                "the origin is odd",
                extra={"origin": self._origin, "kind": kind.label, "how": sentence(kind, met.uncached),
                       "times": met.times, "example": met.example},
            )  # fmt: skip

    def uncached(self, why: Uncached) -> None:
        """A read stays uncached, and no oddity is the cause."""
        self._stayed_uncached(why.label)

    def _stayed_uncached(self, reason: str) -> None:
        self._uncached[reason] += 1
        self._metrics.uncached_reads.labels(reason).inc()

    def document(self) -> list[dict[str, Any]]:
        """Each kind that was met, the first one first."""
        return [
            {"kind": kind.label, "text": sentence(kind, met.uncached), "times": met.times,
             "uncached_reads": met.uncached, "example": met.example}
            for kind, met in self._counts.met.items()
        ]  # fmt: skip

    def uncached_reads(self) -> dict[str, int]:
        """How many reads stayed uncached, by reason."""
        return dict(self._uncached)
