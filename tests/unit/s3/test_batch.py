"""The request for a batch: any list reads back, and nonsense is refused with a reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import InvalidArgument
from outrider.core.model import ObjectRef
from outrider.core.s3.batch import BODY_BYTES_MAX, READS_MAX, Batch, BatchRead, parse_batch
from outrider.core.s3.ranges import RangeSpec

keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@given(st.lists(keys, max_size=20), st.sampled_from([None, "entry", "batch"]))
def test_a_list_of_objects_reads_back(names: list[str], errors: str | None) -> None:
    body = {"reads": [f"s3://bucket/{name}" for name in names], **({} if errors is None else {"errors": errors})}
    reads = tuple(BatchRead(ObjectRef("bucket", name)) for name in names)
    assert parse_batch(json.dumps(body).encode()) == Batch(reads, errors == "batch")


def test_a_read_may_have_a_range() -> None:
    body = b'{"reads": [{"url": "s3://bucket/k", "range": "bytes=3-4"}, {"url": "s3://bucket/k"}]}'
    ref = ObjectRef("bucket", "k")
    assert parse_batch(body).reads == (BatchRead(ref, RangeSpec(3, 4), "bytes=3-4"), BatchRead(ref))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "does not parse"),
        (b"[" * 100_000, "does not parse"),
        (b"\xff", "does not parse"),
        (b"[]", '"reads"'),
        (b'{"reads": 1}', '"reads"'),
        (b'{"reads": [], "read": 1}', "'read'"),
        (b'{"reads": [], "errors": "none"}', '"errors"'),
        (b'{"reads": [], "errors": []}', '"errors"'),
        (b'{"reads": ["s3://bucket"]}', "reads[0]"),
        (b'{"reads": ["s3://_outrider/status.json"]}', "reads[0]"),
        (b'{"reads": ["s3://bucket/k", 5]}', "reads[1]"),
        (b'{"reads": [null]}', "reads[0]"),
        (b'{"reads": [{"range": "bytes=0-1"}]}', "reads[0]"),
        (b'{"reads": [{"url": "s3://bucket/k", "range": "bytes=5-2"}]}', "bytes=0-99"),
        (b'{"reads": [{"url": "s3://bucket/k", "range": "bytes=0-1,4-5"}]}', "bytes=0-99"),
        (b'{"reads": [{"url": "s3://bucket/k", "range": [0, 1]}]}', "bytes=0-99"),
        (b'{"reads": [{"url": "s3://bucket/k", "size": 1}]}', "'size'"),
        (b'{"reads": ["s3://bucket/\\ud800"]}', "reads[0]"),
    ],
)
def test_nonsense_is_refused_with_a_reason(body: bytes, why: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_batch(body)
    assert why in refused.value.text


def test_a_list_has_a_bound_that_the_refusal_names() -> None:
    longest = ["s3://bucket/k"] * READS_MAX
    assert len(parse_batch(json.dumps({"reads": longest}).encode()).reads) == READS_MAX
    with pytest.raises(InvalidArgument, match=str(READS_MAX)):
        parse_batch(json.dumps({"reads": [*longest, "s3://bucket/k"]}).encode())


def test_the_longest_list_fits_into_the_longest_body() -> None:
    widest = {"url": "s3://" + "b" * 255 + "/" + "\0" * 1024, "range": "bytes=" + "9" * 18 + "-" + "9" * 18}
    body = json.dumps({"reads": [widest] * READS_MAX}).encode()
    assert len(body) <= BODY_BYTES_MAX
    assert len(parse_batch(body).reads) == READS_MAX
