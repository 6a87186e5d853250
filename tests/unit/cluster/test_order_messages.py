"""Messages about told orders as JSON: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cluster.order_messages import REFS_MAX, OrderTold, order_body, parse_order, parts_of
from outrider.core.cluster.peer_control import BODY_BYTES_MAX
from outrider.core.cluster.wire_forms import WireError
from outrider.core.model import ObjectRef
from tests.unit.cluster.test_peer_control import from_wire, numbers, words

messages = st.builds(
    OrderTold, words, numbers, numbers, numbers, from_wire,
    st.lists(st.builds(ObjectRef, from_wire, from_wire)).map(tuple), numbers, st.none() | numbers, st.booleans(),
)  # fmt: skip

ONE = OrderTold("n", 1, 2, 3, "10.0.0.1", (ObjectRef("b", "k"),), 4, 9)


@given(messages)
def test_orders_come_as_they_were_told(message: OrderTold) -> None:
    assert parse_order(order_body(message)) == message


# An escaped byte takes six bytes of JSON.
@pytest.mark.parametrize("key", ["k", "\udc80" * 1000])
def test_a_long_order_goes_in_parts(key: str) -> None:
    refs = tuple(ObjectRef("b", f"{key}{number}") for number in range(2 * REFS_MAX + 1))
    parts = [parse_order(order_body(part)) for part in parts_of(replace(ONE, refs=refs, total=9999))]
    assert [ref for part in parts for ref in part.refs] == list(refs)
    starts = [4]
    for part in parts[:-1]:
        starts.append(starts[-1] + len(part.refs))
    assert [part.start for part in parts] == starts
    assert {(part.order, part.client, part.total) for part in parts} == {(3, "10.0.0.1", 9999)}
    assert all(len(order_body(part)) <= BODY_BYTES_MAX for part in parts)
    assert all(0 < len(part.refs) <= REFS_MAX for part in parts)


@pytest.mark.parametrize(
    "refs", [(ObjectRef("b", "\ud800"),), (ObjectRef("\ud800", "k"),), (ObjectRef("b", "k" * BODY_BYTES_MAX),)]
)
def test_a_name_that_no_object_has_is_not_passed_on(refs: tuple[ObjectRef, ...]) -> None:
    with pytest.raises(WireError):
        list(parts_of(replace(ONE, refs=refs)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"from": "a/b"}, {"boot": -1}, {"number": None}, {"order": "1"}, {"client": 1}, {"client": "\ud800"},
        {"start": -1}, {"total": "9"}, {"withdrawn": 0}, {"buckets": None}, {"buckets": [1]}, {"buckets": [""]},
        {"reads": None}, {"reads": [[0]]}, {"reads": ["ab"]}, {"reads": [[1, "k"]]}, {"reads": [[-1, "k"]]},
        {"reads": [[True, "k"]]}, {"reads": [["b", "k"]]}, {"reads": [[0, ""]]}, {"reads": [[0, 5]]},
        {"reads": [[0, "\ud800"]]}, {"reads": [[0, "k"]] * (REFS_MAX + 1)},
    ],
)  # fmt: skip
def test_anything_else_is_refused(wrong: dict[str, object]) -> None:
    body = json.loads(order_body(ONE))
    assert parse_order(json.dumps(body).encode()) == ONE
    with pytest.raises(WireError):
        parse_order(json.dumps(body | wrong).encode())
