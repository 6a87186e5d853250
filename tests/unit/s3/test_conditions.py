"""Conditions on a version that is known, in the order of precedence of RFC 9110, section 13.2.2."""

from __future__ import annotations

import pytest

from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.s3.conditions import Precondition, evaluate

BEFORE, THEN, LATER = (f"Mon, 0{day} Jan 2024 00:00:00 GMT" for day in (1, 2, 3))
VERSION = ObjectVersion(ObjectRef("b", "k"), '"v"', 45, (("last-modified", THEN),))


@pytest.mark.parametrize(
    ("headers", "answer"),
    [
        ({}, Precondition.SERVE),
        ({"if-match": '"v"'}, Precondition.SERVE),
        ({"if-match": "v"}, Precondition.SERVE),
        ({"if-match": '"other"'}, Precondition.FAILED),
        ({"if-none-match": '"v"'}, Precondition.NOT_MODIFIED),
        ({"if-none-match": '"other"'}, Precondition.SERVE),
        ({"if-modified-since": THEN}, Precondition.NOT_MODIFIED),
        ({"if-modified-since": BEFORE}, Precondition.SERVE),
        ({"if-unmodified-since": THEN}, Precondition.SERVE),
        ({"if-unmodified-since": BEFORE}, Precondition.FAILED),
        ({"if-match": '"v"', "if-unmodified-since": BEFORE}, Precondition.SERVE),
        ({"if-none-match": '"other"', "if-modified-since": LATER}, Precondition.SERVE),
        ({"if-match": '"other"', "if-none-match": '"v"'}, Precondition.FAILED),
        ({"if-modified-since": "no date"}, Precondition.SERVE),
    ],
)
def test_each_condition_holds_or_not_by_its_precedence(headers: dict[str, str], answer: Precondition) -> None:
    assert evaluate(headers, VERSION) is answer
