"""Messages about the datasets of a member as JSON: what is written is read again, and nothing else is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cluster.peer_control import BODY_BYTES_MAX
from outrider.core.cluster.share_messages import (
    SHARES_MAX,
    DatasetShare,
    SharesAsked,
    parse_question,
    parse_shares,
    question_body,
    shares_body,
)
from outrider.core.cluster.wire_forms import WireError
from tests.unit.cluster.test_peer_control import from_wire, numbers

shares = st.builds(DatasetShare, from_wire, from_wire, numbers, numbers, numbers, numbers)
ONE = DatasetShare("b", "train-{}.tar", 3, 300, 200, 50)


@given(st.lists(shares, max_size=SHARES_MAX).map(tuple))
def test_shares_come_as_they_were_sent(told: tuple[DatasetShare, ...]) -> None:
    assert parse_shares(shares_body(told)) == told


def test_the_first_of_too_many_shares_are_told_and_fit_into_a_body() -> None:
    # An escaped byte takes six bytes of JSON.
    many = [DatasetShare("b" * 63, "\udc80" * 1000 + str(number), 1, 1, 1, 1) for number in range(2 * SHARES_MAX)]
    body = shares_body(many)
    assert len(body) < BODY_BYTES_MAX
    assert parse_shares(body) == tuple(many[:SHARES_MAX])


def test_the_question_tells_who_asks() -> None:
    assert parse_question(question_body(SharesAsked("edge"))) == SharesAsked("edge")
    for wrong in (b"{}", b'{"from": "a b"}', b"[]"):
        with pytest.raises(WireError):
            parse_question(wrong)


@pytest.mark.parametrize(
    "changed",
    [{"bucket": 1}, {"name": "\ud800"}, {"objects": -1}, {"size": 1.5}, {"held": None}, {"near": True}],
)
def test_an_answer_of_another_form_is_refused(changed: dict[str, object]) -> None:
    (row,) = json.loads(shares_body([ONE]))["datasets"]
    assert parse_shares(json.dumps({"datasets": [row | {"new": 1}], "new": 1}).encode()) == (ONE,)
    for wrong in ([row | changed], [1], None, [row] * (SHARES_MAX + 1)):
        with pytest.raises(WireError):
            parse_shares(json.dumps({"datasets": wrong}).encode())
