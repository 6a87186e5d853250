"""Makes the verdicts of the status document: why readers wait, and the next step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from outrider.core.insight.bottleneck import Bottleneck, LargerCache, OriginWait, bottleneck_of, is_mostly_cold
from outrider.core.insight.load import CpuTimes, LoadMeter, Sample
from outrider.core.insight.next_step import Data, Setup, next_step
from outrider.core.insight.usage import Sums
from outrider.metrics import Metrics


class Fills(Protocol):
    """The fills. A Protocol, so that tests of the overview need none."""

    @property
    def disk_lags(self) -> bool: ...


class Slots(Protocol):
    """The scheduler of the fills from the bucket."""

    question_s: float

    @property
    def is_short(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the proxy that are looked at once a second. `cpu`: called on the loop's thread.
    `is_short_of_connections`: a request waits for a free connection to the bucket."""

    cpu: Callable[[], CpuTimes]
    is_short_of_connections: Callable[[], bool]
    fills: Fills
    slots: Slots


class Verdicts:
    """Called on the engine's thread."""

    def __init__(self, metrics: Metrics, setup: Setup, parts: Parts) -> None:
        self._metrics = metrics
        self._setup = setup
        self._parts = parts
        self._recent = LoadMeter(setup.cores)
        self._whole = LoadMeter(setup.cores, half_life_s=None)
        self._requests = 0.0

    def tick(self, now: float) -> None:
        """To be called about once a second."""
        sums, parts = self._metrics.usage.total.sums, self._parts
        is_idle = sums.requests == self._requests and not any(True for _ in self._metrics.reads_under_way())
        self._requests = sums.requests
        sample = Sample(
            parts.cpu(), sums.wait_s - sums.miss_wait_s, self._metrics.disk_waited_s, parts.slots.question_s,
            parts.fills.disk_lags, parts.is_short_of_connections(), parts.slots.is_short, is_idle,
        )  # fmt: skip
        self._recent.note(now, sample)
        self._whole.note(now, sample)

    @property
    def load(self) -> dict[str, float]:
        """See `Load`: of late."""
        return {name: round(share, 3) for name, share in asdict(self._recent.load).items()}

    def recent(
        self, sums: Sums, larger: LargerCache | None, data: Data | None, origin_wait: OriginWait | None = None
    ) -> dict[str, Any]:
        """On the latest requests, whose sums are `sums`. See `bottleneck_of` and `next_step` for the arguments."""
        return self._document(sums, larger, data, origin_wait, self._recent)

    def of_all(self, larger: LargerCache | None, data: Data | None) -> dict[str, Any]:
        """On all requests since the start."""
        return self._document(self._metrics.usage.total.sums, larger, data, None, self._whole)

    def _document(
        self, sums: Sums, larger: LargerCache | None, data: Data | None, origin_wait: OriginWait | None,
        meter: LoadMeter,
    ) -> dict[str, Any]:  # fmt: skip
        load = meter.load
        found = bottleneck_of(sums, larger, origin_wait, load)
        step = next_step(found.slow, self._setup, load, is_cold=is_mostly_cold(sums), larger=larger, data=data)
        return told(found, step)


def told(found: Bottleneck, step: str) -> dict[str, Any]:
    return {"slow": found.slow, "level": found.level, "text": found.text, "next": step}
