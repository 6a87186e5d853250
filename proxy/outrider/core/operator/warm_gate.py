"""When a pod that waits for its data may be scheduled: it is warm enough, cannot get warmer, or has waited too long.

Each end opens the gate. A pod that starts cold is slow; a pod that never starts is an outage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.core.maintenance.progress import State
from outrider.core.operator.wishes import Wishes
from outrider.core.text import in_words

_MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class Opening:
    """`reason` and `note` are those of the Event."""

    reason: str
    note: str
    is_warning: bool = False


def warmup_name(data: Sequence[str]) -> str:
    """The same data has one warm-up, however many pods and jobs wait for it."""
    return "operator-" + hashlib.sha256("\n".join(data).encode()).hexdigest()[:12]


def opening_of(
    wishes: Wishes, waited_s: float, report: Mapping[str, Any] | None, refusal: str | None
) -> Opening | None:  # fmt: skip
    """None: the pod waits on. `report`: the progress of the warm-up (`Progress.told`); None: not known. `refusal`: why
    the cache has no such warm-up, in its words; None: it has, or did not answer."""
    if refusal is not None:
        return Opening("WarmFailed", f"started without a warm cache: {refusal}", is_warning=True)
    warm = 0.0 if report is None else share_of(report)
    if report is not None and wishes.warm is not None and warm >= wishes.warm:
        return Opening("Warm", f"{_percent(warm)} of {in_words(_expected(report))} are cached")
    if report is not None and report["state"] != State.RUNNING.value:
        failures = report.get("failures") or [{"error": f"the warm-up is {report['state']}"}]
        return Opening("WarmFailed", f"started with {_percent(warm)} cached: {failures[0]['error']}", is_warning=True)
    if waited_s >= wishes.deadline_s:
        state = f"{_percent(warm)} cached" if report is not None else "no answer from the cache"
        return Opening("WarmDeadline", f"started after {_time(wishes.deadline_s)} with {state}", is_warning=True)
    return None


def progress_note(report: Mapping[str, Any]) -> str:
    """Like "62 % of 1.2 TB, 240 MB/s, about 31 min"."""
    parts = [f"{_percent(share_of(report))} of {in_words(_expected(report))}"]
    if report.get("listing"):
        parts = [f"{in_words(report['bytes']['on_disk'])}, listing"]
    if report["rate_bytes_per_s"]:
        parts.append(f"{in_words(report['rate_bytes_per_s'])}/s")
    if report["eta_s"] is not None:
        parts.append(f"about {_time(report['eta_s'])}")
    return "warm: " + ", ".join(parts)


def share_of(report: Mapping[str, Any]) -> float:
    """The share of the bytes that are cached, and verified; 0.0 while it is not known how many there are."""
    if report["state"] == State.DONE.value:
        return 1.0
    expected = _expected(report)
    on_disk: float = report["bytes"]["on_disk"]
    return 0.0 if report.get("listing") or not expected else min(1.0, on_disk / expected)


def _expected(report: Mapping[str, Any]) -> float:
    """Objects of unknown size count as the mean of the others."""
    objects, wanted = report["objects"], float(report["bytes"]["wanted"])
    sized = objects["wanted"] - objects["unsized"]
    return wanted + objects["unsized"] * wanted / sized if sized > 0 else 0.0


def _percent(share: float) -> str:
    # Rounded down: 100 % is all.
    return f"{int(100 * share)} %"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * _MINUTE_S else f"{seconds / _MINUTE_S:.0f} min"
