"""The progress of a warm-up: objects and bytes wanted and on disk, the rate, and the failures with their reasons."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

# Failures that are kept by name; further ones are only counted.
FAILURES_REPORTED_MAX = 1000
_RATE_S = 10.0
_BIN_S = 0.25


class State(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Progress:
    """Counts objects and their bytes, not the room that they take on disk. `unsized` objects are of unknown size, so
    `wanted_bytes` lacks them. All times are seconds of one clock."""

    started: float
    state: State = State.RUNNING
    listing: bool = False
    """More objects may still be found."""
    wanted_objects: int = 0
    wanted_bytes: int = 0
    unsized: int = 0
    objects: int = 0
    """Objects on disk as a whole."""
    bytes: int = 0
    """Bytes on disk, and verified there."""
    fetched_bytes: int = 0
    """Bytes fetched for this warm-up; the others were here."""
    failed: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    passing: set[str] = field(default_factory=set)
    """The names among `failures` that may be there when they are tried again."""
    ended: float | None = None
    _bins: deque[tuple[float, int]] = field(default_factory=deque)

    def fetched(self, count: int, now: float) -> None:
        self.fetched_bytes += count
        if self._bins and now - self._bins[-1][0] < _BIN_S:
            count += self._bins.pop()[1]
        self._bins.append((now, count))
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._bins and now - self._bins[0][0] > _RATE_S:
            self._bins.popleft()

    def fail(self, name: str, why: str, *, is_passing: bool = False) -> None:
        """`is_passing`: it may go well when it is tried again, such as when the origin did not answer."""
        self.failed += 1
        if len(self.failures) < FAILURES_REPORTED_MAX:
            self.failures[name] = why
            if is_passing:
                self.passing.add(name)

    def end(self, now: float, state: State | None = None) -> None:
        """`state` None: `FAILED` if there were failures, else `DONE`."""
        self.state = state or (State.FAILED if self.failed else State.DONE)
        self.listing = False
        self.ended = now

    def rate_bytes_s(self, now: float) -> float:
        """The rate of the last ten seconds; 0 after the end."""
        if self.ended is not None:
            return 0.0
        self._forget(now)
        return sum(count for _, count in self._bins) / max(_BIN_S, min(_RATE_S, now - self.started))

    def eta_s(self, now: float) -> float | None:
        """Seconds until all objects are cached, if those of unknown size are like the others; None: not known."""
        sized = self.wanted_objects - self.unsized
        rate = self.rate_bytes_s(now)
        if self.state is not State.RUNNING or self.listing or not rate or not sized:
            return None
        return max(0.0, _expected(self.wanted_bytes, self.wanted_objects, self.unsized) - self.bytes) / rate

    def report(self, now: float, failures_max: int = FAILURES_REPORTED_MAX) -> dict[str, Any]:
        eta_s = self.eta_s(now)
        return {
            "state": self.state.value,
            "listing": self.listing,
            "objects": {"wanted": self.wanted_objects, "on_disk": self.objects, "failed": self.failed,
                        "unsized": self.unsized},
            "bytes": {"wanted": self.wanted_bytes, "on_disk": self.bytes, "fetched": self.fetched_bytes},
            "rate_bytes_per_s": round(self.rate_bytes_s(now)),
            "eta_s": None if eta_s is None else round(eta_s, 1),
            "elapsed_s": round((now if self.ended is None else self.ended) - self.started, 3),
            # Whole seconds: a client that asks by HEAD first expects the same bytes from its GET.
            "ended_s": None if self.ended is None else int(now - self.ended),
            "failures": [
                {"object": name, "error": why, "passing": name in self.passing}
                for name, why in islice(self.failures.items(), failures_max)
            ],
        }  # fmt: skip


def expected_bytes(report: Mapping[str, Any]) -> float:
    """The bytes that a report of `Progress` expects in all; 0.0: nobody knows yet."""
    objects = report["objects"]
    return _expected(report["bytes"]["wanted"], objects["wanted"], objects["unsized"])


def _expected(wanted_bytes: int, wanted: int, unsized: int) -> float:
    """Objects of unknown size count as the mean of the others."""
    sized = wanted - unsized
    return wanted_bytes + unsized * wanted_bytes / sized if sized > 0 else 0.0
