"""The accounts of pins that members give each other: the same after the wire, refused where they are not of a form."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outrider.core.cluster.messages import CommandAnswer
from outrider.core.cluster.pin_messages import (
    OBJECTS_MAX,
    PinPage,
    PinTold,
    page_told,
    parse_page,
    parse_pins,
    pins_told,
)
from outrider.core.cluster.wire_forms import WireError, decode, encode
from outrider.core.model import ObjectRef, VersionIdentity

DAY = "Thu, 01 Jan 2026 00:00:00 GMT"
OBJECTS = (
    (ObjectRef("b", "k\udcff"), VersionIdentity('"etag"', 0, DAY)),
    (ObjectRef("b", "é"), VersionIdentity("etag", 7, "")),
)
PAGE = PinPage("team", 1.5, b"s3://b/\xff\n", OBJECTS, more=True)
PINS = (PinTold("AKEY", "mine", 12.5, has_ended=False), PinTold("", "é", 13.0, has_ended=True))


def sent(told: dict[str, Any]) -> dict[str, Any]:
    answer = decode(CommandAnswer, encode(CommandAnswer(told)))
    assert answer.told is not None
    return answer.told


def test_what_is_told_arrives() -> None:
    page = parse_page(sent(page_told(PAGE)))
    assert replace(page, objects=tuple(page.objects)) == PAGE
    assert tuple(parse_pins(sent(pins_told(PINS)))) == PINS


@pytest.mark.parametrize(
    "fields",
    [
        {"objects": None}, {"objects": [["b", "k", '"e"', 1]] * (OBJECTS_MAX + 1)},
        *({"objects": [[*told]]} for told in (
            ("b", "k", '"e"'), ("b", "", '"e"', 1), ("b", "k", 'W/"e"', 1), ("b", "k", '"e"', -1),
            ("b", "k", '"e"', True), ("b", "\ud800", '"e"', 1), "bkes",
        )),
        {"modified": None}, {"modified": [""]}, {"modified": ["", 1]}, {"modified": "ab"},
        {"list": "-"}, {"at": -1}, {"at": None}, {"more": 1}, {"client": None},
    ],
)  # fmt: skip
def test_a_page_that_is_not_of_its_form(fields: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        parse_page(json.loads(json.dumps({**page_told(PAGE), **fields})))


@pytest.mark.parametrize(
    "pins", [None, {}, ["abcd"], [["", "a", 1]], [["", "a", "1", False]], [["", "a", 1, 0]], [[1, "a", 1, False]]]
)
def test_pins_that_are_not_of_their_form(pins: Any) -> None:
    with pytest.raises(WireError):
        parse_pins({"pins": pins})
