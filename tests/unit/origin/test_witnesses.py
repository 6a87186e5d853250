"""Validators that prove nothing are found by comparing replies."""

from __future__ import annotations

from dataclasses import replace
from hashlib import md5

import pytest

from outrider.core.model import is_hash
from outrider.core.origin.oddities import Oddity
from outrider.core.origin.quirks import ReplyFacts, Witnesses, is_of_nothing

DAY, NEXT = "Thu, 01 Jan 2026 00:00:00 GMT", "Fri, 02 Jan 2026 00:00:00 GMT"
FACTS = ReplyFacts('"one"', 100, None, DAY, settled=True, by_head=False)


@pytest.mark.parametrize(
    ("after", "odd"),
    [
        ({}, None),
        ({"etag": '"two"'}, Oddity.ETAG_CHANGES),
        ({"etag": '"two"', "modified": NEXT}, None),
        ({"etag": '"two"', "modified": None}, None),
        ({"etag": '"two"', "size": 5}, None),
        ({"etag": '"two"', "by_head": True}, Oddity.HEAD_ETAG_OTHER),
        ({"size": 99}, Oddity.SIZES_DIFFER),
        ({"size": 99, "by_head": True}, Oddity.HEAD_SIZE_OTHER),
        ({"size": 99, "modified": NEXT}, Oddity.ETAG_SHARED),
        ({"modified": NEXT}, Oddity.ETAG_SHARED),
        ({"encoding": "gzip"}, Oddity.ENCODED),
    ],
)
def test_a_reply_is_compared_with_the_one_before(after: dict[str, object], odd: Oddity | None) -> None:
    witnesses = Witnesses()
    assert witnesses.judge("b", "k", FACTS) is None
    assert witnesses.judge("b", "k", replace(FACTS, **after)) is odd  # type: ignore[arg-type]


def test_a_version_that_may_be_overwritten_within_its_second_shows_no_change_of_etags() -> None:
    witnesses = Witnesses()
    witnesses.judge("b", "k", replace(FACTS, settled=False))
    assert witnesses.judge("b", "k", replace(FACTS, etag='"two"')) is None


def test_an_etag_that_can_be_a_hash_may_come_with_another_date() -> None:
    witnesses = Witnesses()
    etag = f'"{md5(b"content").hexdigest()}"'
    witnesses.judge("b", "k", replace(FACTS, etag=etag))
    assert witnesses.judge("b", "k", replace(FACTS, etag=etag, modified=NEXT)) is None


def test_a_date_that_is_the_time_of_each_reply_is_found_out_at_the_fourth() -> None:
    witnesses = Witnesses()
    facts = replace(FACTS, etag=f'"{md5(b"content").hexdigest()}"', settled=False)
    days = [f"Fri, {day:02} Jan 2026 00:00:00 GMT" for day in range(1, 6)]
    odd = [witnesses.judge("b", "k", replace(facts, modified=day, by_head=day > days[2])) for day in days]
    assert odd == [None, None, None, Oddity.DATE_CHANGES, Oddity.DATE_CHANGES]
    assert witnesses.judge("b", "k", replace(facts, settled=True)) is None, "they were uploads"


def test_one_etag_for_objects_of_two_sizes_is_not_believed_again() -> None:
    witnesses = Witnesses()
    assert witnesses.judge("b", "one", FACTS) is None
    assert witnesses.judge("b", "copy", FACTS) is None
    assert witnesses.judge("b", "other", replace(FACTS, size=5)) is Oddity.ETAG_SHARED
    assert witnesses.judge("b", "one", FACTS) is Oddity.ETAG_SHARED
    assert witnesses.judge("c", "one", FACTS) is None, "another bucket may lie in another store"


def test_the_forms_of_s3s_etags_are_hashes() -> None:
    assert is_hash('"d41d8cd98f00b204e9800998ecf8427e"')
    assert is_hash('"d41d8cd98f00b204e9800998ecf8427e-12"')
    assert not is_hash('"CJ+q/w=="')
    assert all(is_hash(f'"{md5(bytes([n])).hexdigest()}"') for n in range(256))
    assert is_of_nothing('"D41D8CD98F00B204E9800998ECF8427E"')


@pytest.mark.parametrize("digits", [32 * "0", 16 * "fF", 8 * "dead", 32 * "0" + "-1"])
def test_a_constant_in_the_form_of_a_hash_is_none(digits: str) -> None:
    etag, witnesses = f'"{digits}"', Witnesses()
    assert not is_hash(etag)
    witnesses.judge("b", "k", replace(FACTS, etag=etag))
    assert witnesses.judge("b", "k", replace(FACTS, etag=etag, modified=NEXT)) is Oddity.ETAG_SHARED
