"""When a pod that waits for its data may start, and what its Events say meanwhile."""

from __future__ import annotations

import re
from typing import Any

import pytest

from outrider.core.operator.warm_gate import (
    Opening,
    ZoneWarmth,
    opening_of,
    progress_note,
    warmup_name,
    zone_to_begin,
)
from outrider.core.operator.wishes import Wishes
from tests.support.pages import ROOT

WISHES = Wishes(("s3://b/train/",), is_near=True, warm=0.95, deadline_s=900)


def report(state: str = "running", *, on_disk: int = 0, listing: bool = False, unsized: int = 0, **more: Any) -> Any:
    return {
        "state": state, "listing": listing, "objects": {"wanted": 10, "on_disk": 0, "failed": 0, "unsized": unsized},
        "bytes": {"wanted": 1000, "on_disk": on_disk, "fetched": on_disk}, "rate_bytes_per_s": 0, "eta_s": None,
        "failures": [], **more,
    }  # fmt: skip


def passing(*, ended_s: float, **more: Any) -> Any:
    failures = [{"object": "s3://b/train/7", "error": "no answer", "passing": True}]
    return report("failed", on_disk=400, failures=failures, ended_s=ended_s, **more)


def lasting(*, ended_s: float = 0.0, on_disk: int = 400) -> Any:
    failures = [passing(ended_s=0)["failures"][0], {"object": "s3://b/train/8", "error": "403 AccessDenied"}]
    return report("failed", on_disk=on_disk, failures=failures, ended_s=ended_s)


@pytest.mark.parametrize(
    ("progress", "reason"),
    [
        (None, None),
        (report(), None),
        (report(on_disk=949), None),
        (report(on_disk=950), "Warm"),
        (report(on_disk=1000, listing=True), None),
        (report(on_disk=950, unsized=5), None),
        (report("done", on_disk=1000, ended_s=59), "Warm"),
        (report("done", on_disk=1000, ended_s=60), None),
        (report("done", on_disk=900, ended_s=1), None),
        (report("done", bytes={"wanted": 0, "on_disk": 0, "fetched": 0}), "Warm"),
        (passing(ended_s=1), None),
        (lasting(ended_s=1), "WarmFailed"),
        (lasting(ended_s=60), None),
        (lasting(on_disk=960), "Warm"),
        (report("cancelled"), "WarmFailed"),
    ],
)
def test_a_gate_opens_by_the_data_that_is_cached_now_or_when_no_try_helps(progress: Any, reason: str | None) -> None:
    opening = opening_of(WISHES, 899, [ZoneWarmth("a", progress)])
    assert (opening and opening.reason) == reason
    assert opening is None or opening.is_warning == (reason == "WarmFailed")
    if progress == lasting(ended_s=1):
        assert opening is not None
        assert opening.note == "started with 40 % of s3://b/train/ cached: s3://b/train/8: 403 AccessDenied"


@pytest.mark.parametrize("zones", [[], [ZoneWarmth("a", report(on_disk=500))]])
def test_no_pod_waits_beyond_its_deadline(zones: list[ZoneWarmth]) -> None:
    opening = opening_of(WISHES, 900, zones)
    assert opening is not None
    assert (opening.reason, opening.is_warning) == ("WarmDeadline", True)
    assert "15 min" in opening.note


def test_a_refusal_of_all_zones_opens_at_once_and_names_the_data() -> None:
    refused = ZoneWarmth("a", refusal="NoSuchBucket: there is none")
    assert opening_of(WISHES, 0, [refused, ZoneWarmth("b", report())]) is None
    wishes = Wishes((*WISHES.data, "s3://b/val/"), is_near=True, warm=0.95)
    assert opening_of(wishes, 0, [refused]) == Opening(
        "WarmFailed", "started with 0 % of s3://b/train/ and 1 more cached: NoSuchBucket: there is none",
        is_warning=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("progress", "tries", "begins"),
    [
        (None, 0, True),
        (report(), 0, False),
        (report("done", on_disk=1000, ended_s=59), 0, False),
        (report("done", on_disk=1000, ended_s=60), 0, True),
        (report("done", on_disk=0, ended_s=1), 0, True),
        (lasting(ended_s=59), 0, False),
        (lasting(ended_s=60), 9, True),
        (passing(ended_s=4.9), 0, False),
        (passing(ended_s=5), 0, True),
        (passing(ended_s=39), 3, False),
        (passing(ended_s=40), 3, True),
        (passing(ended_s=60), 99, True),
    ],
)
def test_a_warmup_begins_anew_when_its_report_proves_nothing(progress: Any, tries: int, begins: bool) -> None:
    zone = ZoneWarmth("a", progress, tries=tries)
    assert zone_to_begin([zone], 0.95) == (zone if begins else None)


def test_one_zone_is_warmed_which_is_the_one_that_holds_most() -> None:
    little, most = ZoneWarmth("a", held=0.1), ZoneWarmth("b", report("done", on_disk=300, ended_s=99))
    assert zone_to_begin([little, most], 0.95) == most
    full = ZoneWarmth("c", report("failed", on_disk=500, failures=[{"object": "x", "error": "no room"}]))
    assert zone_to_begin([little, most, full], 0.95) == most, "no other try goes better there"
    assert zone_to_begin([little, most, ZoneWarmth("d", report(on_disk=1))], 0.95) is None, "it is under way"
    waits = ZoneWarmth("d", passing(ended_s=1))
    assert zone_to_begin([little, waits], 0.95) is None, "the bucket does not answer the other zone either"


def test_progress_is_noted_as_share_rate_and_time_left() -> None:
    progress = report(bytes={"wanted": 1.2e12, "on_disk": 0.625e12, "fetched": 0}, rate_bytes_per_s=240e6, eta_s=1860)
    assert progress_note(progress) == "warm: 52 % of 1.2 TB, 240 MB/s, about 31 min"
    assert progress_note(report(on_disk=999, listing=True)) == "warm: 999 B, listing"
    assert progress_note(report(eta_s=100)) == "warm: 0 % of 1.0 kB, about 100 s"


def test_the_same_data_has_the_same_warmup() -> None:
    assert warmup_name(("s3://a/", "s3://b/")) == warmup_name(["s3://a/", "s3://b/"])
    assert warmup_name(("s3://a/",)) != warmup_name(("s3://b/",))


def test_the_page_shows_the_events_as_they_are() -> None:
    def of_200_gb(percent: int) -> Any:
        here = percent * 2 * 10**9
        sizes = {"wanted": 200 * 10**9, "on_disk": here, "fetched": here}
        return report(rate_bytes_per_s=240 * 10**6, eta_s=(200 * 10**9 - here) / 240e6, bytes=sizes)

    warm = opening_of(WISHES, 0, [ZoneWarmth(None, of_200_gb(95))])
    assert warm is not None
    notes = [progress_note(of_200_gb(61)), progress_note(of_200_gb(68)), warm.note]
    page = (ROOT / "docs/kubernetes.md").read_text()
    assert re.findall(r"^  Normal .* outrider-operator  (.*)$", page, re.MULTILINE) == notes
