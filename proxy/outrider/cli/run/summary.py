"""The summary of `outrider run`: how much was read, how much of that came from the bucket, and why reads waited."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from outrider.cli.run.stderr import say, write
from outrider.composition import Outrider
from outrider.core.origin.error_causes import REMEDIES
from outrider.core.text import counted, in_words
from outrider.metrics import SOURCES

SummaryForm = Literal["text", "json", "none"]


@dataclass(frozen=True, slots=True)
class Summary:
    """`cached_bytes` of the `served_bytes` came from the disk. `origin_bytes` came from the bucket in the same time.
    `verdict` is that of the status document, on all reads; empty: none was made. `credentials_refused`: the code with
    which the bucket refused the credentials. `other_requests`: all but GETs and HEADs of objects."""

    reads: int
    served_bytes: int
    cached_bytes: int
    origin_bytes: int
    origin_requests: int
    verdict: Mapping[str, Any] = field(default_factory=dict)
    credentials_refused: str | None = None
    other_requests: int = 0

    @classmethod
    def of(cls, outrider: Outrider) -> Summary:
        metrics = outrider.metrics
        served = {source: int(metrics.value("outrider_served_bytes_total", source=source)) for source in SOURCES}
        reads = int(sum(metrics.total("outrider_requests_total", op=op) for op in ("get", "head")))
        return cls(
            reads=reads,
            served_bytes=sum(served.values()),
            cached_bytes=served["disk"],
            origin_bytes=int(metrics.value("outrider_origin_bytes_total")),
            origin_requests=int(metrics.total("outrider_origin_requests_total")),
            verdict=outrider.overview.verdict_on_all(),
            credentials_refused=outrider.credentials.refusal,
            other_requests=int(metrics.total("outrider_requests_total")) - reads,
        )

    @property
    def hit_ratio(self) -> float | None:
        """The share of the served bytes received from the disk; None: no byte was served."""
        return self.cached_bytes / self.served_bytes if self.served_bytes else None

    @property
    def saved_bytes(self) -> int:
        """Never negative, although fills that were not read to the end may bring more bytes than were served."""
        return max(0, self.served_bytes - self.origin_bytes)

    def text(self) -> str:
        if not self.reads and self.other_requests:
            return f"no object was read; the proxy had {counted(self.other_requests, 'other request')}"
        if not self.reads:
            return (
                "no request reached the proxy. If the command reads S3, its client ignores AWS_ENDPOINT_URL: see "
                "docs/frameworks.md."
            )
        reads = f"{self.reads:,} {'read' if self.reads == 1 else 'reads'}"
        if self.hit_ratio is None:
            return f"{reads}, nothing served"
        hits = f"{100 * self.hit_ratio:.0f} %" if self.cached_bytes else "nothing"
        cold, saved = (in_words(count) if count else "nothing" for count in (self.origin_bytes, self.saved_bytes))
        return f"{reads}, {hits} from the cache, {cold} from the bucket, {saved} saved"

    def verdict_text(self) -> str | None:
        """None: too little was read for one."""
        if self.verdict.get("slow", "unknown") == "unknown":
            return None
        return f"{self.verdict['text']}. {self.verdict['next']}"

    def json(self) -> str:
        return json.dumps({**asdict(self), "hit_ratio": self.hit_ratio, "saved_bytes": self.saved_bytes})


def report(summary: Summary, form: SummaryForm) -> None:
    if form == "text":
        say(summary.text())
        if (why := summary.verdict_text()) is not None:
            say(why)
        if (code := summary.credentials_refused) is not None:
            say(f"the origin refuses the credentials: {code}. {REMEDIES[code]}")
    elif form == "json":
        write(summary.json())
