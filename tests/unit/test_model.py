"""The nouns: what they refuse, and the arithmetic of blocks against a list of offsets."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.model import (
    Extent,
    ObjectRef,
    ObjectVersion,
    block_extent,
    is_strong_etag,
    shared_headers,
    version_id,
)

REF = ObjectRef("b", "k")


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (-2, -1)])
def test_an_extent_that_runs_backwards_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError):
        Extent(start, stop)


@pytest.mark.parametrize("etag", [None, "", '"', "abc", 'W/"abc"', '"abc', 'abc"'])
def test_only_a_quoted_etag_is_strong(etag: str | None) -> None:
    assert not is_strong_etag(etag)


def test_a_version_without_a_strong_etag_or_with_a_negative_size_cannot_be() -> None:
    with pytest.raises(ValueError):
        ObjectVersion(REF, 'W/"a"', 5)
    with pytest.raises(ValueError):
        ObjectVersion(REF, '"a"', -1)


@given(st.integers(1, 200), st.integers(1, 50))
def test_the_blocks_of_an_object_tile_it(size: int, block_bytes: int) -> None:
    offsets: list[int] = []
    for index in range(-(-size // block_bytes)):
        extent = block_extent(index, size, block_bytes)
        assert 0 < extent.length <= block_bytes
        offsets += range(extent.start, extent.stop)
    assert offsets == list(range(size))


names = st.text(st.characters(codec="utf-8"), max_size=4)
identities = st.tuples(names, names, names, names, st.integers(0, 20), st.integers(1, 20))


def id_of(identity: tuple[str, str, str, str, int, int]) -> bytes:
    origin, bucket, key, etag, size, block_bytes = identity
    return version_id(origin, ObjectVersion(ObjectRef(bucket, key), f'"{etag}"', size), block_bytes)


@given(identities, identities)
def test_two_versions_share_an_id_only_if_all_that_names_them_is_the_same(
    one: tuple[str, str, str, str, int, int], other: tuple[str, str, str, str, int, int]
) -> None:
    assert (id_of(one) == id_of(other)) == (one == other)


def test_moving_a_separator_makes_another_id() -> None:
    ids = [id_of(identity) for identity in (("ab", "c", "", "", 1, 1), ("a", "bc", "", "", 1, 1),
                                            ("a", "b", "c", "", 1, 1), ("", "abc", "", "", 1, 1))]  # fmt: skip
    assert all(one != other for one, other in combinations(ids, 2))


def test_headers_are_no_part_of_the_identity() -> None:
    plain = ObjectVersion(REF, '"a"', 5)
    dressed = ObjectVersion(REF, '"a"', 5, (("content-type", "x"),))
    assert version_id("o", plain, 8) == version_id("o", dressed, 8)


def test_a_key_that_is_no_utf8_has_an_id() -> None:
    assert version_id("o", ObjectVersion(ObjectRef("b", "k\udcff"), '"a"', 5), 8)


texts = st.text(max_size=9)


@given(st.lists(st.tuples(texts, texts), max_size=9))
def test_shared_headers_are_the_same_headers(pairs: list[tuple[str, str]]) -> None:
    assert shared_headers(iter(pairs)) == tuple(pairs)


def test_what_headers_have_in_common_is_held_once() -> None:
    one, other = (
        shared_headers([("".join(["content", "-type"]), "".join(["image", "/jpeg"])), ("".join(["et", "ag"]), etag)])
        for etag in ('"1"', '"2"')
    )
    assert one[0] is other[0]
    assert one[1] != other[1]
    assert one[1][0] is other[1][0]
