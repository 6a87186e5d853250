"""The kinds of odd behaviour of an origin: their words, and when people are notified of one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from outrider.core.origin.oddities import Oddity, OddityCounts, Uncached, sentence
from outrider.metrics import Metrics
from outrider.origin_oddities import OriginOddities


def test_each_reason_has_a_label_of_its_own() -> None:
    labels = [reason.label for reason in (*Oddity, *Uncached)]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("kind", list(Oddity))
def test_a_kind_is_a_sentence_about_the_origin(kind: Oddity) -> None:
    text = sentence(kind)
    assert text.startswith("the origin ")
    assert not text.endswith(".")


@pytest.mark.parametrize(
    ("uncached", "text"),
    [
        (0, "the origin does not state sizes by HEAD"),
        (1, "the origin does not state sizes by HEAD: 1 read uncached"),
        (1204, "the origin does not state sizes by HEAD: 1,204 reads uncached"),
    ],
)
def test_the_sentence_says_how_many_reads_stayed_uncached(uncached: int, text: str) -> None:
    assert sentence(Oddity.HEAD_WITHOUT_SIZE, uncached) == text


def test_people_are_notified_at_the_first_and_at_the_thousandth() -> None:
    counts = OddityCounts()
    notified = [i for i in range(1, 2001) if counts.note(Oddity.ETAG_WEAK, "s3://train/a", uncached=True)]
    assert notified == [1, 1000]


def test_an_oddity_is_counted_each_time_and_logged_once_for_its_kind(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    oddities = OriginOddities("http://store", metrics)
    with caplog.at_level(logging.WARNING):
        for key in ("a", "b", "c"):
            oddities.note(Oddity.ETAG_WEAK, f"s3://train/{key}", uncached=True)
        oddities.note(Oddity.RANGE_AS_200, "s3://train/d")
        oddities.uncached(Uncached.CHANGING)
    assert metrics.value("outrider_origin_oddities_total", kind="etag_weak") == 3
    assert metrics.value("outrider_uncached_reads_total", reason="etag_weak") == 3
    assert metrics.value("outrider_uncached_reads_total", reason="range_as_200") == 0
    assert metrics.value("outrider_uncached_reads_total", reason="changing") == 1
    assert [(record.message, record.kind, record.example) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("the origin is odd", "etag_weak", "s3://train/a"),
        ("the origin is odd", "range_as_200", "s3://train/d"),
    ]
    assert [(odd["kind"], odd["times"], odd["uncached_reads"]) for odd in oddities.document()] == [
        ("etag_weak", 3, 3), ("range_as_200", 1, 0),
    ]  # fmt: skip
    assert oddities.uncached_reads() == {"etag_weak": 3, "changing": 1}


def test_the_page_about_compatibility_names_each_kind() -> None:
    page = (Path(__file__).parents[3] / "docs" / "s3-compatibility.md").read_text()
    assert [kind.label for kind in (*Oddity, *Uncached) if f"`{kind.label}`" not in page] == []
