"""When a pod that waits for its data may start, and what it is told meanwhile."""

from __future__ import annotations

import re
from typing import Any

import pytest

from outrider.core.operator.warm_gate import Opening, opening_of, progress_note, warmup_name
from outrider.core.operator.wishes import Wishes
from tests.support.pages import ROOT

WISHES = Wishes(("s3://b/train/",), is_near=True, warm=0.95, deadline_s=900)


def report(state: str = "running", *, on_disk: int = 0, listing: bool = False, unsized: int = 0, **more: Any) -> Any:
    return {
        "state": state, "listing": listing, "objects": {"wanted": 10, "on_disk": 0, "failed": 0, "unsized": unsized},
        "bytes": {"wanted": 1000, "on_disk": on_disk, "fetched": on_disk}, "rate_bytes_per_s": 0, "eta_s": None,
        "failures": [], **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (None, None),
        (report(), None),
        (report(on_disk=949), None),
        (report(on_disk=950), "Warm"),
        (report(on_disk=1000, listing=True), None),
        (report(on_disk=950, unsized=5), None),
        (report("done", on_disk=1000), "Warm"),
        (report("failed", on_disk=400, failures=[{"object": "x", "error": "403"}]), "WarmFailed"),
        (report("failed", on_disk=960, failures=[{"object": "x", "error": "403"}]), "Warm"),
        (report("cancelled"), "WarmFailed"),
    ],
)
def test_a_pod_waits_until_it_is_warm_enough_or_cannot_get_warmer(told: Any, reason: str | None) -> None:
    opening = opening_of(WISHES, 899, told, None)
    assert (opening and opening.reason) == reason
    assert opening is None or opening.is_warning == (reason == "WarmFailed")


@pytest.mark.parametrize("told", [None, report(on_disk=500)])
def test_no_pod_waits_beyond_its_deadline(told: Any) -> None:
    opening = opening_of(WISHES, 900, told, None)
    assert opening is not None
    assert (opening.reason, opening.is_warning) == ("WarmDeadline", True)
    assert "15 min" in opening.note


def test_a_refusal_opens_at_once_and_is_told() -> None:
    opening = opening_of(WISHES, 0, None, "NoSuchBucket: there is none")
    assert opening == Opening(
        "WarmFailed", "started without a warm cache: NoSuchBucket: there is none", is_warning=True
    )


def test_progress_is_told_as_share_rate_and_time_left() -> None:
    told = report(bytes={"wanted": 1.2e12, "on_disk": 0.625e12, "fetched": 0}, rate_bytes_per_s=240e6, eta_s=1860)
    assert progress_note(told) == "warm: 52 % of 1.2 TB, 240 MB/s, about 31 min"
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

    warm = opening_of(WISHES, 0, of_200_gb(95), None)
    assert warm is not None
    told = [progress_note(of_200_gb(61)), progress_note(of_200_gb(68)), warm.note]
    page = (ROOT / "docs/kubernetes.md").read_text()
    assert re.findall(r"^  Normal .* outrider-operator  (.*)$", page, re.MULTILINE) == told
