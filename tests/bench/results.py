"""The measured samples of a run, and their medians over the rounds."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a load against a target.

    CPU and memory are the server's (None: the bucket is the server). `machine_cpu_s` is that of all processes, clients
    included (None: the load is cold, and the simulated network takes most of it). `bucket_*` is the traffic of the
    bucket's network in that time.
    """

    load: str
    target: str
    round: int
    seconds: float
    bytes: int
    requests: int
    p50_s: float | None
    p99_s: float | None
    cpu_s: float | None
    machine_cpu_s: float | None
    rss_bytes: int | None
    bucket_bytes: int
    bucket_gets: int

    @property
    def mb_s(self) -> float:
        return self.bytes / self.seconds / 1e6

    @property
    def req_s(self) -> float:
        return self.requests / self.seconds

    @property
    def cpu_s_gb(self) -> float | None:
        return None if self.cpu_s is None else self.cpu_s / (self.bytes / 1e9)

    @property
    def machine_cpu_s_gb(self) -> float | None:
        return None if self.machine_cpu_s is None else self.machine_cpu_s / (self.bytes / 1e9)

    @property
    def cpu_us_request(self) -> float | None:
        return None if self.cpu_s is None else self.cpu_s / self.requests * 1e6

    @property
    def bucket_ratio(self) -> float:
        """Bytes that left the bucket for each byte that was read."""
        return self.bucket_bytes / self.bytes


class Results:
    """All samples of a run, and single figures that belong to no load: name to value."""

    def __init__(self, samples: Iterable[Sample] = (), figures: dict[str, float] | None = None) -> None:
        self.samples = list(samples)
        self.figures = dict(figures or {})

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)

    def targets(self, load: str) -> list[str]:
        return list(dict.fromkeys(sample.target for sample in self.samples if sample.load == load))

    def median(self, load: str, target: str, figure: str) -> float | None:
        """Over the rounds; None: not measured."""
        values = [getattr(sample, figure) for sample in self.samples if (sample.load, sample.target) == (load, target)]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    def ratio(self, load: str, figure: str, target: str, to: str) -> float | None:
        above, below = self.median(load, target, figure), self.median(load, to, figure)
        return None if above is None or not below else above / below
