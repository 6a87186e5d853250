"""Near blocks go first, and never displace owned ones."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cache.near_blocks import NearBlocks
from outrider.core.cache.policies import Lru
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion

VERSION = ObjectVersion(ObjectRef("train", "a"), '"e"', 10**9)


def key(index: int) -> BlockKey:
    return BlockKey(b"v", index)


def policy(near: set[int]) -> NearBlocks:
    return NearBlocks(Lru(), lambda version, index: index in near, lambda version, index: 1 << index)


def test_the_victims_for_an_owned_block_are_near_blocks_first_then_owned_ones() -> None:
    blocks = policy({1, 3})
    for index in range(4):
        blocks.added(key(index), VERSION)
    blocks.read(key(1))
    blocks.read(key(0))
    assert [block.index for block in blocks.victims(key(9), VERSION)] == [3, 1, 2, 0]
    assert [block.index for block in blocks.victims()] == [3, 1, 2, 0]


def test_a_near_block_displaces_near_blocks_alone() -> None:
    blocks = policy({1, 3, 5})
    for index in range(4):
        blocks.added(key(index), VERSION)
    assert [block.index for block in blocks.victims(key(5), VERSION)] == [1, 3]
    assert blocks.bytes == 1 << 1 | 1 << 3
    blocks.removed(key(1))
    blocks.removed(key(0))
    assert blocks.bytes == 1 << 3
    assert [block.index for block in blocks.victims(key(5), VERSION)] == [3]


class Farthest:
    """The other policy, which knows what is needed last: the highest number first."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()
        self.shown = 0

    def added(self, block: BlockKey, version: ObjectVersion) -> None:
        self._blocks.add(block.index)

    def read(self, block: BlockKey) -> None:
        pass

    def removed(self, block: BlockKey) -> None:
        self._blocks.discard(block.index)

    def victims(
        self, incoming: BlockKey | None = None, version: ObjectVersion | None = None
    ) -> Iterator[BlockKey]:  # fmt: skip
        for index in sorted(self._blocks, reverse=True):
            self.shown += 1
            yield key(index)


def test_of_the_near_blocks_that_goes_which_is_needed_last() -> None:
    near = {1, 3, 5}
    blocks = NearBlocks(Farthest(), lambda version, index: index in near)
    for index in range(6):
        blocks.added(key(index), VERSION)
    assert [block.index for block in blocks.victims(key(1), VERSION)] == [5, 3, 1]
    assert [block.index for block in blocks.victims()] == [5, 3, 1, 4, 2, 0]


def test_near_blocks_that_are_hard_to_find_go_by_their_last_read() -> None:
    """An eviction looks at a bounded number of blocks, and every block is offered once."""
    other, near = Farthest(), {0, 1, 2, 999}
    blocks = NearBlocks(other, lambda version, index: index in near)
    for index in (1, 0, 2, *range(3, 1000)):
        blocks.added(key(index), VERSION)
    assert [block.index for block in blocks.victims(key(1), VERSION)] == [999, 1, 0, 2]
    assert other.shown < 300
    assert [block.index for block in blocks.victims()] == [999, 1, 0, 2, *range(998, 2, -1)]


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_after_a_change_of_the_ring_each_block_is_judged_by_the_ring_of_now(before: set[int], after: set[int]) -> None:
    near = set(before)
    blocks = policy(near)
    for index in range(10):
        blocks.added(key(index), VERSION)
    near.clear()
    near.update(after)
    blocks.judge((key(index), VERSION) for index in range(10))
    assert len(blocks) == len(after)
    assert blocks.bytes == sum(1 << index for index in after)
    victims = [block.index for block in blocks.victims()]
    assert sorted(victims) == list(range(10))
    assert set(victims[: len(after)]) == after
