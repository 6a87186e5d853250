"""Messages of jobs: hints and stall reports are parsed as written, or refused with an S3 error."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ahead.hint_messages import Plan, Stall, parse_plan, parse_stall
from outrider.core.ahead.hints import Hint
from outrider.core.ahead.planner import Planner
from outrider.core.errors import InvalidArgument
from outrider.core.model import ObjectRef
from outrider.http.control.objects import ControlObject, ControlObjects

FIELDS = ["reads", "start", "total", "steps", "wait_s", "x"]
keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
urls = keys.map(lambda key: f"s3://bkt/{key}")
anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | urls,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner),
    max_leaves=8,
)


@given(st.lists(keys), st.integers(0, 10**9), st.none() | st.integers(0, 10**9))
def test_a_hint_is_parsed_as_written(names: list[str], start: int, more: int | None) -> None:
    total = None if more is None else start + len(names) + more
    body = {"reads": [f"s3://bkt/{name}" for name in names], "start": start, "total": total}
    assert parse_plan(json.dumps(body).encode()) == Plan(tuple(ObjectRef("bkt", name) for name in names), start, total)


@given(st.binary(max_size=60) | anything.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_parsed_or_refused(body: bytes) -> None:
    for parse in (parse_plan, parse_stall):
        with contextlib.suppress(InvalidArgument):
            parse(body)


@pytest.mark.parametrize("key", ["k" * 1025, "é" * 513, "\udfff\ud800"])
def test_a_key_that_no_s3_takes_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match=r"reads\[0\]"):
        parse_plan(json.dumps({"reads": [f"s3://bkt/{key}"]}).encode())


def test_bytes_that_are_no_utf_8_are_kept_as_escapes() -> None:
    assert parse_plan(b'{"reads": ["s3://bkt/\\udcff"]}').refs == (ObjectRef("bkt", "\udcff"),)


def test_stalls_are_added() -> None:
    stall = parse_stall(b'{"steps": 2, "wait_s": 1.5, "compute_s": 2, "epoch": 3}')
    assert stall.plus(Stall(1, 0.5, 0.0, 4)) == Stall(3, 2.0, 2.0, 4)
    assert parse_stall(b"{}") == Stall(0, 0.0, 0.0, 0)


def test_a_hint_is_counted_by_its_size_in_memory_too() -> None:
    """A hint grows with each part that is sent under its name."""
    notes, planner, hint = ControlObjects(10, 4950), Planner(1 << 20, 1 << 10), Hint()
    notes.put("", "short", ControlObject(bytes(100), 0.0))
    for part in range(3):
        refs = [ObjectRef("bkt", f"{part}-{number:04}") for number in range(400)]
        planner.announced("a", refs, 0.0, hint=hint)
        notes.put("", "long", ControlObject(bytes(100), 0.0, hint))
        assert [name for name, _ in notes.of("")] == (["short", "long"] if part < 2 else ["long"])
    assert notes.hints() == [hint]
    notes.pop("", "long")
    notes.put("", "next", ControlObject(bytes(4850), 0.0))
    notes.put("", "other", ControlObject(bytes(100), 0.0))
    assert [name for name, _ in notes.of("")] == ["next", "other"]
    notes.put("", "more", ControlObject(b"1", 0.0))
    assert [name for name, _ in notes.of("")] == ["other", "more"]
