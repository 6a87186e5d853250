"""The summary line of `outrider run`: how much was read, and how much of it did not come from the bucket."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from outrider.cli.run.stderr import say, write
from outrider.core.text import in_words
from outrider.metrics import SOURCES, Metrics

SummaryForm = Literal["text", "json", "none"]


@dataclass(frozen=True, slots=True)
class Summary:
    """`cached_bytes` of the `served_bytes` came from the disk. `origin_bytes` came from the bucket in the same time."""

    reads: int
    served_bytes: int
    cached_bytes: int
    origin_bytes: int
    origin_requests: int

    @classmethod
    def of(cls, metrics: Metrics) -> Summary:
        served = {source: int(metrics.value("outrider_served_bytes_total", source=source)) for source in SOURCES}
        return cls(
            reads=int(sum(metrics.total("outrider_requests_total", op=op) for op in ("get", "head"))),
            served_bytes=sum(served.values()),
            cached_bytes=served["disk"],
            origin_bytes=int(metrics.value("outrider_origin_bytes_total")),
            origin_requests=int(metrics.total("outrider_origin_requests_total")),
        )

    @property
    def hit_ratio(self) -> float | None:
        """The share of the served bytes that came from the disk; None: no byte was served."""
        return self.cached_bytes / self.served_bytes if self.served_bytes else None

    @property
    def saved_bytes(self) -> int:
        """Never negative, although fills that were not read to the end may bring more bytes than were served."""
        return max(0, self.served_bytes - self.origin_bytes)

    def text(self) -> str:
        if self.hit_ratio is None:
            return f"{self.reads:,} reads, nothing served"
        return (
            f"{self.reads:,} {'read' if self.reads == 1 else 'reads'}, {100 * self.hit_ratio:.0f} % from the cache, "
            f"{in_words(self.origin_bytes)} from the bucket, {in_words(self.saved_bytes)} saved"
        )

    def json(self) -> str:
        return json.dumps({**asdict(self), "hit_ratio": self.hit_ratio, "saved_bytes": self.saved_bytes})


def tell(summary: Summary, form: SummaryForm) -> None:
    if form == "text":
        say(summary.text())
    elif form == "json":
        write(summary.json())
