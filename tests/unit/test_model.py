"""Objects, versions and extents: invalid values are refused, and common parts are shared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.model import (
    Extent,
    ObjectRef,
    ObjectVersion,
    is_strong_etag,
    shared_headers,
)

REF = ObjectRef("b", "k")


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (-2, -1)])
def test_an_extent_that_runs_backwards_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError):
        Extent(start, stop)


@pytest.mark.parametrize(
    "etag",
    [None, "", '"', "abc", 'W/"abc"', '"abc', 'abc"', '""', '"a b"', '"a"b"', '"a\t"', '"a\x7f"', '"a"\n', "'abc'"],
)
def test_only_a_quoted_etag_is_strong(etag: str | None) -> None:
    assert not is_strong_etag(etag)


@pytest.mark.parametrize(
    "etag", ['"abc"', '"d41d8cd9-12"', '"CJ+q/w=="', '"!#$%&\'()*+,-./:;<=>?@[]^_`{|}~\\"', '"\u00e9"', '"\udce9"']
)
def test_each_form_that_rfc_9110_allows_is_strong(etag: str) -> None:
    assert is_strong_etag(etag)


def test_a_version_without_a_strong_etag_or_with_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError):
        ObjectVersion(REF, 'W/"a"', 5)
    with pytest.raises(ValueError):
        ObjectVersion(REF, '"a"', -1)


texts = st.text(max_size=9)


@given(st.lists(st.tuples(texts, texts), max_size=9))
def test_shared_headers_are_the_same_headers(pairs: list[tuple[str, str]]) -> None:
    assert shared_headers(iter(pairs)) == tuple(pairs)


def test_common_headers_are_held_once() -> None:
    one, other = (
        shared_headers([("".join(["content", "-type"]), "".join(["image", "/jpeg"])), ("".join(["et", "ag"]), etag)])
        for etag in ('"1"', '"2"')
    )
    assert one[0] is other[0]
    assert one[1] != other[1]
    assert one[1][0] is other[1][0]
