"""The layout of blocks, against an object that is a list of its offsets."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.block_layout import BlockLayout, block_count, shared_layout
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion

REF = ObjectRef("b", "k")

sizes = st.integers(0, 200)
block_sizes = st.integers(1, 50)


def blocks_of(size: int, block_bytes: int) -> list[list[int]]:
    """The model: each block of an object as the list of its offsets."""
    blocks: list[list[int]] = []
    for offset in range(size):
        if not blocks or len(blocks[-1]) == block_bytes:
            blocks.append([])
        blocks[-1].append(offset)
    return blocks


@given(sizes, block_sizes)
def test_the_blocks_of_an_object_tile_it(size: int, block_bytes: int) -> None:
    layout, blocks = BlockLayout("o", block_bytes), blocks_of(size, block_bytes)
    assert layout.count(size) == block_count(size, block_bytes) == len(blocks)
    for index, offsets in enumerate(blocks):
        extent = layout.extent(index, size)
        assert list(range(extent.start, extent.stop)) == offsets
        assert {layout.index_of(offset) for offset in offsets} == {index}


@given(st.tuples(sizes, sizes).map(sorted), block_sizes)
def test_the_blocks_of_an_extent_are_those_that_hold_its_bytes(ends: list[int], block_bytes: int) -> None:
    start, stop = ends
    touched = {i for i, offsets in enumerate(blocks_of(stop, block_bytes)) if any(start <= at for at in offsets)}
    assert list(BlockLayout("o", block_bytes).indexes(Extent(start, stop))) == sorted(touched)


@given(sizes, block_sizes)
def test_the_bytes_of_an_object_are_the_sum_of_its_blocks(size: int, block_bytes: int) -> None:
    expected = sum(len(offsets) + 13 for offsets in blocks_of(size, block_bytes))
    assert BlockLayout("o", block_bytes).disk_bytes(size, lambda length: length + 13) == expected


@pytest.mark.parametrize("block_bytes", [0, -1])
def test_a_block_size_without_bytes_is_refused(block_bytes: int) -> None:
    with pytest.raises(ValueError):
        BlockLayout("o", block_bytes)


names = st.text(st.characters(codec="utf-8"), max_size=4)
# The characters that an ETag may have between its quotes.
etags = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Z"), exclude_characters='"'), min_size=1, max_size=4
)
identities = st.tuples(names, names, names, etags, st.integers(0, 20), st.integers(1, 20))


def id_of(identity: tuple[str, str, str, str, int, int]) -> bytes:
    origin, bucket, key, etag, size, block_bytes = identity
    version = ObjectVersion(ObjectRef(bucket, key), f'"{etag}"', size)
    return BlockLayout(origin, block_bytes).version_id(version)


@given(identities, identities)
def test_two_versions_share_an_id_only_if_all_their_names_are_equal(
    one: tuple[str, str, str, str, int, int], other: tuple[str, str, str, str, int, int]
) -> None:
    assert (id_of(one) == id_of(other)) == (one == other)


def test_moving_a_separator_makes_another_id() -> None:
    ids = [id_of(identity) for identity in (("ab", "c", "", "e", 1, 1), ("a", "bc", "", "e", 1, 1),
                                            ("a", "b", "c", "e", 1, 1), ("", "abc", "", "e", 1, 1),
                                            ("a", "b", "c", "e1", 1, 1), ("a", "b", "c", "e", 11, 1))]  # fmt: skip
    assert all(one != other for one, other in combinations(ids, 2))


def test_an_id_is_the_one_of_earlier_releases() -> None:
    # The value is the same from version 0.1 on. Another one would make every cache directory a miss.
    version = ObjectVersion(ObjectRef("bucket", "k\udcff"), '"etag"', 5)
    assert BlockLayout("http://origin", 8).version_id(version).hex() == "8718fa2835a33f0fbe02b44a98c49cba"


def test_no_header_but_the_date_is_part_of_the_identity() -> None:
    plain, dressed = ObjectVersion(REF, '"a"', 5), ObjectVersion(REF, '"a"', 5, (("content-type", "x"),))
    layout = BlockLayout("o", 8)
    assert layout.version_id(plain) == layout.version_id(dressed)
    assert layout.key(plain, 3) == BlockKey(layout.version_id(dressed), 3)
    dated = [ObjectVersion(REF, '"a"', 5, (("content-type", "x"), ("last-modified", day))) for day in ("one", "two")]
    assert len({layout.version_id(version) for version in (plain, *dated)}) == 3


def test_a_remembered_id_is_never_that_of_another_version() -> None:
    # Many more identities than the memo holds are made, each dropped before the next, so that addresses in memory come
    # again.
    layout = BlockLayout("o", 8)
    ids = {layout.version_id(ObjectVersion(REF, '"a"', size)) for size in range(2000)}
    assert len(ids) == 2000


def test_a_layout_that_files_state_is_held_once() -> None:
    assert shared_layout("".join(["http:", "//o"]), 8) is shared_layout("".join(["http", "://o"]), 8)
    assert shared_layout("http://o", 8) == BlockLayout("http://o", 8) != BlockLayout("http://o", 16)
