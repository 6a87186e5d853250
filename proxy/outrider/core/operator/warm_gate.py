"""When a pod that waits for its data may be scheduled: it is warm enough, cannot get warmer, or has waited too long.

Each end opens the gate. A pod that starts cold is slow; a pod that never starts is an outage. The caches of each zone
are queried themselves, and a gate opens by what the caches of one zone hold now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.core.maintenance.progress import State, expected_bytes
from outrider.core.operator.wishes import Wishes
from outrider.core.text import in_words

PROVEN_S = 60.0
"""The report of a warm-up that has ended counts for so long. Its LIST confirms versions for as long, by the default of
the setting `freshness`."""
_AGAIN_S, _AGAIN_MAX_S = 5.0, 60.0
_MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class Opening:
    """`reason` and `note` are those of the Event."""

    reason: str
    note: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class ZoneWarmth:
    """A warm-up in the caches of one zone. `zone` None: unknown. `report`: its progress (`Progress.report`); None: the
    caches have no such warm-up. `refusal`: why they do not begin it, in their words; None: they have not refused.
    `held`: the share of the data that they hold, as far as is known without it. `tries`: how often in a row it failed
    and was begun anew."""

    zone: str | None
    report: Mapping[str, Any] | None = None
    refusal: str | None = None
    held: float = 0.0
    tries: int = 0

    @property
    def is_under_way(self) -> bool:
        return self.report is not None and self.report["state"] == State.RUNNING.value

    @property
    def share(self) -> float:
        return max(self.held, 0.0 if self.report is None else share_of(self.report))

    def is_warm(self, wanted: float) -> bool:
        """Whether so much of the data is there, as a report that counts says."""
        return self.report is not None and self._is_proof and share_of(self.report) >= wanted

    @property
    def failure(self) -> str | None:
        """Why no other try would go better just now; None: it may."""
        if self.refusal is not None or self.report is None or not self.has_failed or not self._is_proof:
            return self.refusal
        lasting = [failure for failure in _failures(self.report) if not failure.get("passing")]
        return f"{lasting[0]['object']}: {lasting[0]['error']}".removeprefix(": ") if lasting else None

    @property
    def is_due(self) -> bool:
        """Whether to begin it: there is none, or its end proves nothing any more."""
        if self.report is None or not self.has_failed:
            return not self.is_under_way
        return not self._is_proof or self._ended_s >= min(_AGAIN_MAX_S, _AGAIN_S * 2**self.tries)

    @property
    def has_failed(self) -> bool:
        """It ended, and not well."""
        ended_well = State.RUNNING.value, State.DONE.value
        return self.report is not None and self.report["state"] not in ended_well

    @property
    def _is_proof(self) -> bool:
        return self.is_under_way or self._ended_s < PROVEN_S

    @property
    def _ended_s(self) -> float:
        """Caches before 0.3 do not report it."""
        return (self.report or {}).get("ended_s") or 0.0


def warmup_name(data: Sequence[str]) -> str:
    """The same data has one warm-up, however many pods and jobs wait for it."""
    return "operator-" + hashlib.sha256("\n".join(data).encode()).hexdigest()[:12]


def zone_to_begin(zones: Sequence[ZoneWarmth], wanted: float) -> ZoneWarmth | None:
    """The zone whose caches are to begin now: of those where the pods can run, the one that holds most. None: one of
    them is warm, or on the way, or waits before it tries again, or none of them can.

    One zone is enough, since each one reads the bucket for itself."""
    able = [zone for zone in zones if zone.failure is None]
    if not able or any(zone.is_under_way or zone.is_warm(wanted) for zone in able):
        return None
    best = max(able, key=lambda zone: zone.share)
    return best if best.is_due else None


def opening_of(wishes: Wishes, waited_s: float, zones: Sequence[ZoneWarmth]) -> Opening | None:
    """None: the pod waits on. `zones`: those where it can run and whose caches answer."""
    best = max(zones, key=lambda zone: zone.share, default=None)
    for zone in zones:
        # A wish that was taken back since is for nothing.
        if zone.report is not None and zone.is_warm(wishes.warm or 0.0):
            of = in_words(expected_bytes(zone.report))
            return Opening("Warm", f"{_percent(share_of(zone.report))} of {of} are cached")
    data = data_in_words(wishes.data)
    if best is not None and all(zone.failure is not None for zone in zones):
        why = f"started with {_percent(best.share)} of {data} cached: {best.failure}"
        return Opening("WarmFailed", why, is_warning=True)
    if waited_s >= wishes.deadline_s:
        state = "no answer from the cache" if best is None else f"{_percent(best.share)} of {data} cached"
        return Opening("WarmDeadline", f"started after {_time(wishes.deadline_s)} with {state}", is_warning=True)
    return None


def best_report(zones: Sequence[ZoneWarmth]) -> Mapping[str, Any] | None:
    """The report of the zone that holds most; None: no cache has begun."""
    return max((zone.report for zone in zones if zone.report is not None), key=share_of, default=None)


def data_in_words(data: Sequence[str]) -> str:
    """Like "s3://corpus/train/ and 2 more"."""
    return data[0] if len(data) == 1 else f"{data[0]} and {len(data) - 1} more"


def progress_note(report: Mapping[str, Any]) -> str:
    """Like "62 % of 1.2 TB, 240 MB/s, about 31 min"."""
    parts = [f"{_percent(share_of(report))} of {in_words(expected_bytes(report))}"]
    if report.get("listing"):
        parts = [f"{in_words(report['bytes']['on_disk'])}, listing"]
    if report["rate_bytes_per_s"]:
        parts.append(f"{in_words(report['rate_bytes_per_s'])}/s")
    if report["eta_s"] is not None:
        parts.append(f"about {_time(report['eta_s'])}")
    return "warm: " + ", ".join(parts)


def share_of(report: Mapping[str, Any]) -> float:
    """The share of the bytes that are cached, and verified; 0.0 while it is not known how many there are."""
    expected = expected_bytes(report)
    if not expected:
        # Objects of no bytes.
        return float(report["state"] == State.DONE.value)
    on_disk: float = report["bytes"]["on_disk"]
    return 0.0 if report.get("listing") else min(1.0, on_disk / expected)


def _percent(share: float) -> str:
    # Rounded down: 100 % is all.
    return f"{int(100 * share)} %"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * _MINUTE_S else f"{seconds / _MINUTE_S:.0f} min"


def _failures(report: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return report.get("failures") or [{"object": "", "error": f"the warm-up is {report['state']}"}]
