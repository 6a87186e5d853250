"""Hellos and forgets as JSON: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cluster.member import Hello, Member
from outrider.core.cluster.peer_control import BODY_BYTES_MAX, forget_body, hello_body, parse_forget, parse_hello
from outrider.core.cluster.peer_messages import Forget
from outrider.core.cluster.wire_forms import WireError
from outrider.core.model import ObjectRef

from_wire = st.binary(min_size=1, max_size=60).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
words = st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True)
numbers = st.integers(0, 2**63 - 1)
addresses = st.sampled_from(("10.0.0.1:9482", "[fe80::1%eth0]:1", "node-1.local:65535"))
members = st.builds(
    Member, words, addresses, words | st.just(""), numbers, words, st.tuples(st.integers(0, 9), st.integers(0, 9))
)
hellos = st.builds(
    Hello, members, numbers, words | st.just(""), numbers, st.floats(0, 1e10), is_ready=st.booleans(),
    is_leaving=st.booleans(),
)  # fmt: skip
forgets = st.builds(
    Forget, words, numbers, numbers, st.lists(from_wire | st.builds(ObjectRef, from_wire, from_wire)).map(tuple),
    in_doubt=st.booleans(),
)  # fmt: skip

HELLO = Hello(Member("n", "h:1", "z", 1, "c"), 1, "r", 2, 3.5)
FORGET = Forget("n", 1, 2, ("bucket", ObjectRef("b", "k")))


@given(hellos)
def test_a_hello_comes_as_it_was_sent(hello: Hello) -> None:
    assert parse_hello(hello_body(hello)) == hello


@given(forgets)
def test_a_forget_comes_as_it_was_sent(message: Forget) -> None:
    assert parse_forget(forget_body(message)) == message


def test_names_too_many_for_one_forget_become_their_buckets() -> None:
    keys = tuple(ObjectRef(bucket, f"{index:01000}") for bucket in ("b", "a") for index in range(600))
    message = Forget("n", 1, 2, (*keys, "c"), in_doubt=True)
    body = forget_body(message)
    assert len(body) < BODY_BYTES_MAX
    assert parse_forget(body) == Forget("n", 1, 2, ("a", "b", "c"), in_doubt=True)


def test_a_thousand_keys_of_a_batch_delete_fit() -> None:
    message = Forget("n", 1, 2, tuple(ObjectRef("bucket", f"{index:01000}") for index in range(1000)))
    assert parse_forget(forget_body(message)) == message


def test_fields_of_a_later_version_are_ignored() -> None:
    for body, parse in ((hello_body(HELLO), parse_hello), (forget_body(FORGET), parse_forget)):
        assert parse(json.dumps(json.loads(body) | {"new": [1]}).encode()) == parse(body)


BAD_HELLO = {
    "name": (None, 1, "", "a b", "é", "a" * 254),
    "address": (None, "", "h", "h:", "h:x", "h:1\n", "h h:1", ":1", "h:123456"),
    "zone": (None, 1, "a b"), "weight": (-1, 1.5, True, None, 2**63), "cluster": (None, "a/b"),
    "wire": (None, [], [1], [1, 2, 3], [1, "2"], [True, 1], "11"), "boot": (-1, None), "ring": (None, "\n"),
    "forgets": ("1", None), "clock": (None, -1, "1", True, float("nan"), float("inf")), "ready": (None, 1),
    "leaving": (None, "no"),
}  # fmt: skip
BAD_FORGET = {
    "from": (None, "", "a b"), "boot": (-1, None, 1.0), "number": (-1, None, True), "doubt": (None, 0),
    "names": (None, "b", {}, [1], [None], [""], [[]], [["b"]], [["b", ""]], [["", "k"]], [["b", "k", "x"]], [["b", 1]],
              [["\ud800", "k"]], ["\ud800"]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "parse", "field", "value"),
    [(hello_body(HELLO), parse_hello, field, value) for field, bad in BAD_HELLO.items() for value in bad]
    + [(forget_body(FORGET), parse_forget, field, value) for field, bad in BAD_FORGET.items() for value in bad],
)
def test_a_malformed_field_is_refused(body: bytes, parse: Callable[[bytes], object], field: str, value: object) -> None:
    told = json.loads(body)
    for wrong in (told | {field: value}, {name: its for name, its in told.items() if name != field}):
        with pytest.raises(WireError):
            parse(json.dumps(wrong).encode())


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: json.dumps(text).encode()))
@pytest.mark.parametrize("parse", [parse_hello, parse_forget])
def test_no_body_raises_anything_else(parse: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(WireError):
        parse(body)


@pytest.mark.parametrize("parse", [parse_hello, parse_forget])
@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000, b"\xef\xbb\xbf{}"])
def test_a_body_that_a_parser_may_choke_on_is_refused(parse: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(WireError):
        parse(body)
