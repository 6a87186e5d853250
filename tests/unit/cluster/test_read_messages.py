"""Messages about reads as JSON: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cluster.peer_control import BODY_BYTES_MAX
from outrider.core.cluster.read_messages import READS_MAX, ReadsTold, ToldRead, parse_reads, reads_body
from outrider.core.cluster.wire_forms import WireError
from outrider.core.model import ObjectRef
from tests.unit.cluster.test_peer_control import from_wire, numbers, words

reads = st.builds(
    ToldRead, from_wire, st.builds(ObjectRef, from_wire, from_wire), numbers,
    st.integers(0, 10**6).map(lambda ms: ms / 1000),
)  # fmt: skip
messages = st.builds(ReadsTold, words, numbers, st.lists(reads).map(tuple))

ONE = ReadsTold("n", 2, (ToldRead("10.0.0.1", ObjectRef("b", "k"), 5, 0.5),))


@given(messages)
def test_reads_come_as_they_were_sent(message: ReadsTold) -> None:
    assert parse_reads(reads_body(message)) == message


def test_of_reads_too_many_for_one_message_the_newest_are_told() -> None:
    # An escaped byte takes six bytes of JSON.
    long = tuple(
        ToldRead("10.0.0.1", ObjectRef("b", "\udc80" * 1000 + str(number)), 5, 0.0) for number in range(READS_MAX)
    )
    body = reads_body(replace(ONE, reads=long))
    assert len(body) <= BODY_BYTES_MAX
    told = parse_reads(body).reads
    assert told == long[-len(told) :]
    assert len(told) >= 100


def test_the_same_address_at_two_members_is_two_readers() -> None:
    assert ONE.reader_name(ONE.reads[0]) != replace(ONE, sender="m").reader_name(ONE.reads[0])


@pytest.mark.parametrize("changed", [
    {"from": "a b"}, {"count": -1}, {"readers": None}, {"readers": [1]}, {"buckets": [""]}, {"buckets": []},
    {"reads": None}, {"reads": [[0, 0, "k", 5]]}, {"reads": [[1, 0, "k", 5, 0]]}, {"reads": [[0, 1, "k", 5, 0]]},
    {"reads": [[0, 0, "", 5, 0]]}, {"reads": [[0, 0, 1, 5, 0]]}, {"reads": [[0, 0, "k", -1, 0]]},
    {"reads": [[0, 0, "k", 5, -1]]}, {"reads": [[0, 0, "k", 1.5, 0]]}, {"reads": [[True, 0, "k", 5, 0]]},
    {"reads": [[0, 0, "\ud800", 5, 0]]}, {"reads": [[0, 0, "k", 5, 0]] * (READS_MAX + 1)},
])  # fmt: skip
def test_a_message_of_another_form_is_refused(changed: dict[str, object]) -> None:
    told = json.loads(reads_body(ONE))
    assert parse_reads(json.dumps(told | {"new": 1}).encode()) == ONE
    with pytest.raises(WireError):
        parse_reads(json.dumps(told | changed).encode())
