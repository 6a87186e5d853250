"""Labels and annotations of a pod, and what is said of those that make no sense."""

from __future__ import annotations

import sys

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
        (SCHEDULE, {"outrider.dev/data": "s3://bucket/{1..150000} s3://other/{1..150000}"}, "more than 200000 objects"),
        (
            SCHEDULE,
            {"outrider.dev/data": "s3://bucket/k s3://bucket/{1..2"},
            "'s3://bucket/{1..2' is not s3://BUCKET/KEY",
        ),
        (SCHEDULE, {"outrider.dev/data": None}, "annotation outrider.dev/data is missing"),
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
def test_what_makes_no_sense_is_named(
    labels: dict[str, str | None], annotations: dict[str, str | None], said: str
) -> None:
    with pytest.raises(WishError, match=said.replace("(", r"\(")):
        wishes_of(labels, annotations)


def test_a_template_of_many_objects_costs_no_more_than_a_short_one() -> None:
    """The operator reads the wishes of each pending pod each time, on the loop that answers the API server."""

    def calls(data: str) -> int:
        made = 0

        def count(*_: object) -> None:
            nonlocal made
            made += 1

        sys.setprofile(count)
        try:
            wishes_of(SCHEDULE, {"outrider.dev/data": data})
        finally:
            sys.setprofile(None)
        return made

    assert calls("s3://bucket/{000000..099999}-{0,1}.tar") == calls("s3://bucket/{000000..000001}-{0,1}.tar")


def test_the_lines_on_the_page_are_a_wish() -> None:
    page = ROOT / "docs/kubernetes.md"
    [block] = [each for each in blocks_of(page) if each.language == "yaml"]
    metadata = yaml.safe_load(block.text)["metadata"]
    assert wishes_of(metadata["labels"], metadata["annotations"]) == Wishes(
        ("s3://corpus/train/",), is_near=True, warm=0.95
    )
