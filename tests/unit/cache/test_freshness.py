"""The freshness of a version by the rules, and the conditional headers of a read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cache.freshness import Freshness, is_fresh, is_settled, shortest_under, was_settled
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.s3.conditions import Precondition, are_plain, evaluate

MODIFIED = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
OLDER, SAME, NEWER = (
    format_datetime(MODIFIED.replace(hour=hour), usegmt=True) for hour in (11, 12, 13)
)  # fmt: skip
VERSION = ObjectVersion(ObjectRef("b", "k"), '"abc"', 5, (("last-modified", SAME),))


@pytest.mark.parametrize(
    ("text", "ttl_s"), [("immutable", inf), ("always", 0.0), ("ttl:60", 60.0), ("ttl:0.5", 0.5), ("ttl:0", 0.0)]
)
def test_the_three_modes_are_read(text: str, ttl_s: float) -> None:
    assert Freshness.parse(text).ttl_s == ttl_s


@pytest.mark.parametrize("text", ["", "ttl", "ttl:", "ttl:-1", "ttl:x", "TTL:5", "forever", "ttl:1e3", "ttl:٣"])
def test_nonsense_is_refused_with_a_list_of_the_allowed_forms(text: str) -> None:
    with pytest.raises(ValueError, match="immutable, always, ttl:SECONDS"):
        Freshness.parse(text)


@pytest.mark.parametrize("ttl_s", [-1.0, nan, -inf])
def test_a_freshness_of_no_possible_length_is_refused(ttl_s: float) -> None:
    with pytest.raises(ValueError):
        Freshness(ttl_s)


@given(st.floats(0, 1e9), st.floats(0, 1e6), st.floats(0, 1e6))
def test_fresh_means_younger_than_the_ttl(checked_at: float, age: float, ttl_s: float) -> None:
    now = checked_at + age
    assert is_fresh(checked_at, now, Freshness(ttl_s)) == (now - checked_at < ttl_s)
    assert is_fresh(checked_at, now, Freshness(inf))
    assert not is_fresh(checked_at, now, Freshness(0.0))
    assert not is_fresh(None, now, Freshness(inf))


RULES = (("pets/live/*", "always"), ("pets/train/v?/*", "ttl:5"), ("pets/*", "ttl:9"), ("*.idx", "ttl:1"))


@pytest.mark.parametrize(
    ("place", "ttl_s"),
    [
        ("pets/", 0.0),
        ("pets/live/today/", 0.0),
        ("pets/train/", 5.0),
        ("pets/train/v1/", 5.0),
        ("pets/test/", 9.0),
        ("cars/", 1.0),
    ],
)
def test_what_is_kept_of_many_objects_is_kept_as_long_as_the_shortest_rule_allows(place: str, ttl_s: float) -> None:
    rules = [(glob, Freshness.parse(text)) for glob, text in RULES]
    assert shortest_under(place, rules, Freshness(inf)) == Freshness(ttl_s)
    assert shortest_under(place, (), Freshness(inf)) == Freshness(inf)


@pytest.mark.parametrize(("later_s", "settled"), [(-3600, False), (0, False), (1, False), (2, True), (3600, True)])
def test_a_reply_two_seconds_after_last_modified_is_settled(later_s: int, settled: bool) -> None:
    sent_at = format_datetime(MODIFIED + timedelta(seconds=later_s), usegmt=True)
    assert is_settled({"last-modified": SAME, "date": sent_at}) is settled


@pytest.mark.parametrize(
    "reply", [{}, {"date": NEWER}, {"last-modified": OLDER}, {"last-modified": "x", "date": NEWER}]
)
def test_without_both_dates_nothing_is_settled(reply: dict[str, str]) -> None:
    assert not is_settled(reply)


@pytest.mark.parametrize(("later_s", "settled"), [(-3600, False), (59, False), (60, True), (3600, True)])
def test_a_block_filled_a_minute_after_the_date_of_its_version_is_enough_for_two_clocks(
    later_s: int, settled: bool
) -> None:
    version = ObjectVersion(ObjectRef("b", "k"), '"e"', 1, (("last-modified", SAME),))
    assert was_settled(version, MODIFIED.timestamp() + later_s) is settled
    assert not was_settled(replace(version, headers=()), MODIFIED.timestamp() + later_s)


# S3, GetObject: If-Match that holds overrides If-Unmodified-Since; If-None-Match overrides If-Modified-Since.
@pytest.mark.parametrize(
    ("headers", "verdict"),
    [
        ({}, Precondition.SERVE),
        ({"if-match": '"abc"'}, Precondition.SERVE),
        ({"if-match": "abc"}, Precondition.SERVE),
        ({"if-match": '"abc,x"'}, Precondition.FAILED),
        ({"if-none-match": '"x,abc"'}, Precondition.SERVE),
        ({"if-match": '"x"'}, Precondition.FAILED),
        ({"if-none-match": '"abc"'}, Precondition.NOT_MODIFIED),
        ({"if-none-match": '"x"'}, Precondition.SERVE),
        ({"if-modified-since": OLDER}, Precondition.SERVE),
        ({"if-modified-since": SAME}, Precondition.NOT_MODIFIED),
        ({"if-modified-since": NEWER}, Precondition.NOT_MODIFIED),
        ({"if-unmodified-since": OLDER}, Precondition.FAILED),
        ({"if-unmodified-since": SAME}, Precondition.SERVE),
        ({"if-unmodified-since": NEWER}, Precondition.SERVE),
        ({"if-match": '"abc"', "if-unmodified-since": OLDER}, Precondition.SERVE),
        ({"if-none-match": '"x"', "if-modified-since": NEWER}, Precondition.SERVE),
        ({"if-match": '"x"', "if-none-match": '"abc"'}, Precondition.FAILED),
        ({"if-match": '"abc"', "if-none-match": '"abc"'}, Precondition.NOT_MODIFIED),
        ({"if-unmodified-since": OLDER, "if-none-match": '"abc"'}, Precondition.FAILED),
        ({"if-modified-since": "yesterday"}, Precondition.SERVE),
        ({"if-unmodified-since": "yesterday"}, Precondition.SERVE),
    ],
)
def test_conditions_are_weighed_in_the_order_of_rfc_9110(headers: dict[str, str], verdict: Precondition) -> None:
    assert evaluate(headers, VERSION) is verdict


ETAG_NAMES, DATE_NAMES = ("if-match", "if-none-match"), ("if-modified-since", "if-unmodified-since")


@pytest.mark.parametrize("name", ETAG_NAMES)
@pytest.mark.parametrize(
    ("value", "plain"),
    [('"abc"', True), ("abc", True), ('"d41d8cd98f00b204e9800998ecf8427e-12"', True), ("*", False), ('"*"', False),
     ('W/"abc"', False), ('"a", "b"', False), ('"a","a"', False), ("", False), ('""', False), ('"abc', False),
     ('abc"', False), ('"a b"', False), ('"é"', True), ('"\udce9"', True), ('"CJ+q/w=="', True), ("CJ+q/w==", True),
     ('"a,b"', True), ("a,b", False), ("W/abc", False), ("a*", False)],
)  # fmt: skip
def test_one_strong_etag_alone_is_plain(name: str, value: str, plain: bool) -> None:
    assert are_plain(((name, value),)) == plain


@pytest.mark.parametrize("name", DATE_NAMES)
@pytest.mark.parametrize(
    ("value", "plain"),
    [(SAME, True), ("Sat, 01 Jan 2000 00:00:00 GMT", True), ("Saturday, 01-Jan-00 00:00:00 GMT", False),
     ("Sat Jan  1 00:00:00 2000", False), ("Sat, 01 Jan 2000 00:00:00 +0000", False), ("", False), ("0", False),
     ("Sat, 32 Jan 2000 00:00:00 GMT", False), ("Sat, 01 Xyz 2000 00:00:00 GMT", False), ("yesterday", False)],
)  # fmt: skip
def test_one_date_in_the_form_of_rfc_9110_is_plain(name: str, value: str, plain: bool) -> None:
    assert are_plain(((name, value),)) == plain


def test_a_condition_that_comes_twice_is_not_plain() -> None:
    for name, value in (("if-match", '"a"'), ("if-modified-since", SAME)):
        assert are_plain(((name, value), ("range", "x"), ("x-amz-date", "")))
        assert not are_plain(((name, value), (name, value)))


def test_one_odd_condition_among_plain_ones_is_enough() -> None:
    assert are_plain((("if-match", '"a"'), ("if-none-match", '"b"'), ("if-modified-since", SAME)))
    assert not are_plain((("if-match", '"a"'), ("if-none-match", "*"), ("if-modified-since", SAME)))


def test_a_version_without_a_date_passes_every_condition_on_dates() -> None:
    undated = ObjectVersion(ObjectRef("b", "k"), '"abc"', 5)
    assert evaluate({"if-modified-since": NEWER}, undated) is Precondition.SERVE
    assert evaluate({"if-unmodified-since": OLDER}, undated) is Precondition.SERVE


dates = st.one_of(
    st.text(max_size=40),
    st.text("MonTueJanFeb0123456789:+- ,GMTZ.", max_size=40),
    st.tuples(st.integers(0, 99), st.integers(0, 10**9), st.integers(0, 99), st.integers(-99999, 99999)).map(
        lambda t: f"Sun, {t[0]} Mar {t[1]} {t[2]}:00:00 {t[3]:+05d}"
    ),
)


@given(dates, dates)
def test_no_date_of_client_or_origin_makes_it_fail(asked: str, modified: str) -> None:
    version = ObjectVersion(ObjectRef("b", "k"), '"abc"', 5, (("last-modified", modified),))
    evaluate({"if-modified-since": asked, "if-match": "abc"}, version)
    evaluate({"if-unmodified-since": asked}, version)
    evaluate({"if-unmodified-since": asked}, VERSION)
