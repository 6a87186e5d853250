"""Makes the verdicts of the status document: why readers wait, and the next step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from outrider.core.insight.bottleneck import LargerCache, OriginWait, bottleneck_of, is_mostly_cold
from outrider.core.insight.load import LoadMeter, LoadSample
from outrider.core.insight.next_step import Data, Setup, next_step
from outrider.core.insight.usage import Sums
from outrider.metrics import Metrics


class Verdicts:
    """Called on the engine's thread. `sample`: the state of the parts of the proxy, without what `metrics` count: how
    long reads waited, and whether there were any."""

    def __init__(self, metrics: Metrics, setup: Setup, sample: Callable[[], LoadSample]) -> None:
        self._metrics = metrics
        self._setup = setup
        self._sample = sample
        self._recent = LoadMeter(setup.cores)
        self._whole = LoadMeter(setup.cores, half_life_s=None)
        self._requests = 0.0

    def tick(self, now: float) -> None:
        """To be called about once a second."""
        sums = self._metrics.usage.total.sums
        is_idle = sums.requests == self._requests and not any(True for _ in self._metrics.reads_under_way())
        self._requests = sums.requests
        sample = replace(
            self._sample(), hit_wait_s=sums.wait_s - sums.miss_wait_s, disk_wait_s=self._metrics.disk_waited_s,
            is_idle=is_idle,
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
        return {"slow": found.slow, "level": found.level, "text": found.text, "next": step}
