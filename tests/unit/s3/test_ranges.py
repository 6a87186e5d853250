"""Range headers against a model too simple to be wrong: the list of an object's offsets."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.core.errors import InvalidRange
from outrider.core.model import Extent
from outrider.core.s3.ranges import RangeSpec, content_range, parse, parse_content_range, resolve

offsets = st.integers(0, 40)


@given(st.one_of(st.none(), offsets), st.one_of(st.none(), offsets), offsets)
@example(None, 0, 10)
@example(None, 5, 0)
def test_a_range_names_the_offsets_that_rfc_9110_says(first: int | None, last: int | None, size: int) -> None:
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    everything = list(range(size))
    if first is None and last is None:
        assert parse(header) is None
        return
    if first is None:
        wanted = everything[-last:] if last else []
    elif last is None:
        wanted = everything[first:]
    elif last < first:
        assert parse(header) is None
        return
    else:
        wanted = everything[first : last + 1]
    spec = parse(header)
    assert spec == RangeSpec(first, last)
    if not wanted:
        with pytest.raises(InvalidRange) as refused:
            resolve(spec, size)
        assert refused.value.headers == (("content-range", f"bytes */{size}"),)
        return
    extent = resolve(spec, size)
    assert everything[extent.start : extent.stop] == wanted


@pytest.mark.parametrize(
    "header",
    ["", "bytes", "bytes=", "bytes=-", "bytes=0-1,3-4", "items=0-1", "bytes=5-2", "bytes=a-b", "bytes=0-1x",
     "bytes=1٢-", "bytes=+1-2", "bytes=0x1-2", "bytes= 0-1", "bytes=0--1", "bytes=" + "9" * 19 + "-"],
)  # fmt: skip
def test_a_header_of_another_form_than_one_plain_range_is_left_to_the_origin(header: str) -> None:
    assert parse(header) is None


def test_no_parsed_offset_is_beyond_the_largest_file() -> None:
    spec = parse("bytes=" + "9" * 18 + "-")
    assert spec is not None
    assert spec.first is not None
    assert spec.first < 2**63


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(0, 1000))
def test_a_content_range_reads_back(start: int, length: int, beyond: int) -> None:
    extent, size = Extent(start, start + length), start + length + beyond
    assert parse_content_range(content_range(extent, size)) == (extent, size)


@pytest.mark.parametrize(
    "header", ["", "bytes */5", "bytes 0-4/*", "bytes 0-5/5", "bytes 4-3/9", "bytes 0-1/2/3", "0-4/5", "bytes=0-4/5"]
)
def test_a_content_range_that_does_not_add_up_is_none(header: str) -> None:
    assert parse_content_range(header) is None


@given(st.text(max_size=40))
def test_no_header_makes_the_parsers_fail(text: str) -> None:
    parse(text)
    parse("bytes=" + text)
    parse_content_range(text)
    parse_content_range("bytes " + text)
