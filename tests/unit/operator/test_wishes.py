"""Labels and annotations of a pod, and what is said of those that make no sense."""

from __future__ import annotations

import pytest
import yaml

from outrider.core.operator.wishes import DEADLINE_S, Inject, WishError, Wishes, wishes_of
from tests.support.pages import ROOT, blocks_of

SCHEDULE = {"outrider.dev/schedule": "true"}
DATA = {"outrider.dev/data": "s3://bucket/train/"}


def test_a_pod_without_wishes_has_none() -> None:
    assert wishes_of({"app": "x"}, {"other.dev/data": "y"}) == Wishes()
    assert wishes_of({"outrider.dev/schedule": "false"}, DATA) == Wishes(("s3://bucket/train/",))


def test_all_wishes() -> None:
    given = {
        "outrider.dev/data": " s3://bucket/train/\n s3://bucket/val-{000..003}.tar s3://bucket/train/ ",
        "outrider.dev/warm": "95 %",
        "outrider.dev/warm-deadline": "2h",
    }
    data = ("s3://bucket/train/", "s3://bucket/val-{000..003}.tar")
    assert wishes_of({**SCHEDULE, "outrider.dev/inject": "endpoint"}, given) == Wishes(
        data, is_near=True, warm=0.95, deadline_s=7200, inject=Inject.ENDPOINT
    )


@pytest.mark.parametrize(("text", "share"), [("0.95", 0.95), ("1", 1.0), ("1.0", 1.0), ("100%", 1.0), ("0.5 %", 0.005)])
def test_shares(text: str, share: float) -> None:
    wishes = wishes_of(SCHEDULE, {**DATA, "outrider.dev/warm": text})
    assert wishes.warm == pytest.approx(share)
    assert wishes.deadline_s == DEADLINE_S


@pytest.mark.parametrize(
    ("labels", "annotations", "said"),
    [
        (SCHEDULE, {**DATA, "outrider.dev/warm": "150 %"}, "'150 %' is no share"),
        (SCHEDULE, {**DATA, "outrider.dev/warm": "0"}, "'0' is no share"),
        (SCHEDULE, {**DATA, "outrider.dev/warm": "nan"}, "'nan' is no share"),
        (SCHEDULE, {"outrider.dev/data": "s3:///train/"}, "'s3:///train/' is not s3://BUCKET/KEY"),
        (SCHEDULE, {"outrider.dev/data": "# s3://b/k"}, "'#' is not s3://BUCKET/KEY"),
        (SCHEDULE, {"outrider.dev/data": "s3://b/" + "k" * 9000}, "longer than"),
        (SCHEDULE, {"outrider.dev/data": "  "}, "annotation outrider.dev/data is missing"),
        (SCHEDULE, {}, "annotation outrider.dev/data is missing"),
        (SCHEDULE, {**DATA, "outrider.dev/warn": "1"}, "annotation outrider.dev/warn is unknown"),
        ({**SCHEDULE, "outrider.dev/data": "x"}, DATA, "label outrider.dev/data is unknown"),
        ({"outrider.dev/schedule": "yes"}, DATA, "'yes' is neither"),
        ({"outrider.dev/inject": "Sidecar"}, {}, "'Sidecar' is neither sidecar nor endpoint"),
        ({}, {**DATA, "outrider.dev/warm": "1"}, "needs the label"),
        ({**SCHEDULE, "outrider.dev/inject": "sidecar"}, {**DATA, "outrider.dev/warm": "1"}, "one of its own"),
        (SCHEDULE, {**DATA, "outrider.dev/warm-deadline": "15"}, "'15' is no time"),
        (SCHEDULE, {**DATA, "outrider.dev/warm-deadline": "0s"}, "'0s' is no time"),
        (SCHEDULE, {**DATA, "outrider.dev/warm-deadline": "25h"}, "'25h' is no time"),
    ],
)
def test_what_makes_no_sense_is_named(labels: dict[str, str], annotations: dict[str, str], said: str) -> None:
    with pytest.raises(WishError, match=said.replace("(", r"\(")):
        wishes_of(labels, annotations)


def test_the_lines_on_the_page_are_a_wish() -> None:
    page = ROOT / "docs/kubernetes.md"
    [block] = [each for each in blocks_of(page) if each.language == "yaml"]
    told = yaml.safe_load(block.text)["metadata"]
    assert wishes_of(told["labels"], told["annotations"]) == Wishes(("s3://corpus/train/",), is_near=True, warm=0.95)
