"""Tenants that have more than their shares give way, and those within theirs keep what they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.near_blocks import NearBlocks
from outrider.core.cache.policies import Lru
from outrider.core.cache.tenant_blocks import TenantBlocks
from outrider.core.cache.tenants import NOBODY, Tenants, TenantShare
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion

CAPACITY = 10
TENANTS = ("greedy", "modest", "third")


LAYOUT = BlockLayout("http://origin", 1)


class Cache:
    """Objects of blocks of one byte each, by their keys."""

    def __init__(self, **shares: float) -> None:
        self.tenants = Tenants()
        self.here: set[BlockKey] = set()
        self.share(**shares)
        self.around(Lru())

    def around(self, policy: Lru, capacity: int = CAPACITY) -> None:
        self.blocks = TenantBlocks(policy, self.tenants, capacity, LAYOUT, int, self.here.__contains__)

    def share(self, **shares: float) -> None:
        given = {name: TenantShare(cache=shares.get(name)) for name in ("greedy", "modest", "third")}
        self.tenants.renew(given)

    def add(self, name: str, *indexes: int, by: str = "") -> None:
        if by:
            self.read_by(by, name)
        for index in indexes:
            self.here.add(key(name, index))
            self.blocks.added(key(name, index), version(name))

    def remove(self, block: BlockKey) -> None:
        self.here.discard(block)
        self.blocks.removed(block)

    def read_by(self, tenant: str, name: str) -> None:
        self.blocks.read_by(tenant, version(name))

    def bytes_of(self, *tenants: str) -> list[int]:
        return [self.blocks.bytes_of(tenant) for tenant in tenants]

    def victims(self, name: str = "", index: int = 399) -> list[str]:
        incoming = (key(name, index), version(name)) if name else (None, None)
        return shown(self.blocks.victims(*incoming))


@cache
def version(name: str) -> ObjectVersion:
    return ObjectVersion(ObjectRef("train", name), '"e"', 400)


def key(name: str, index: int) -> BlockKey:
    NAMES[LAYOUT.version_id(version(name))] = name
    return BlockKey(LAYOUT.version_id(version(name)), index)


NAMES: dict[bytes, str] = {}


def shown(blocks: Iterable[BlockKey]) -> list[str]:
    return [f"{NAMES[block.version_id]}{block.index}" for block in blocks]


def two(**shares: float) -> Cache:
    """`modest` read its object first, and then `greedy` read much more."""
    cache = Cache(**shares)
    cache.add("m", 0, 1, by="modest")
    cache.add("g", 0, 1, 2, 3, 4, 5, by="greedy")
    return cache


def test_the_tenant_beyond_its_share_goes_first_whoever_reads() -> None:
    cache = two(greedy=0.5, modest=0.5)
    cache.blocks.read(key("g", 0))
    assert cache.victims("m") == ["g1", "g2", "g3", "g4", "g5", "g0", "m0", "m1"]
    assert cache.victims() == cache.victims("m")
    assert cache.victims("g") == ["g1", "g2", "g3", "g4", "g5", "g0"], "not for its own reads"


def test_without_a_tenant_beyond_its_share_the_policy_decides() -> None:
    as_read = ["m0", "m1", "g0", "g1", "g2", "g3", "g4", "g5"]
    assert two(greedy=0.6, modest=0.5).victims("m") == as_read
    assert two(modest=0.5).victims("g") == as_read, "a tenant without a share is never beyond it"
    assert two().victims("g") == as_read


def test_the_incoming_block_counts() -> None:
    assert two(greedy=0.6, modest=0.5).victims("g")[0] == "g0"


def test_blocks_on_their_way_count() -> None:
    cache = two(greedy=0.8, modest=0.5)
    cache.blocks.reserved(key("g", 6), version("g"), 2)
    assert cache.victims("g")[0] == "g0"
    cache.blocks.reserved(key("g", 6), version("g"), -1)
    assert cache.victims("g")[0] == "m0"
    for index in range(6):
        cache.remove(key("g", index))
    assert cache.victims("g") == ["m0", "m1"]
    cache.blocks.reserved(key("g", 6), version("g"), 7)
    assert cache.victims("g") == [], "with nothing but blocks on their way it is beyond its share as well"
    assert cache.victims("m") == ["m0", "m1"]


def test_a_tenant_that_has_nothing_may_have_a_block_however_small_its_share_is() -> None:
    cache = Cache(greedy=0.01, modest=0.5)
    cache.add("m", 0, by="modest")
    cache.add("g", by="greedy")
    assert cache.victims("g") == ["m0"]


def test_shares_change_at_any_time() -> None:
    cache = two(greedy=0.9, modest=0.9)
    assert cache.victims("m")[0] == "m0"
    cache.share(greedy=0.2, modest=0.9)
    assert cache.victims("m")[0] == "g0"
    cache.share()
    assert cache.victims("m")[0] == "m0"


def test_blocks_of_tenants_without_a_share_and_of_nobody_stay_in_the_order_of_the_policy() -> None:
    cache = Cache(greedy=0.1, modest=0.5)
    cache.add("old/x", 0)
    cache.add("m", 0, by="modest")
    cache.add("g", 0, 1, by="greedy")
    cache.add("t", 0, by="third")
    assert cache.victims("m") == ["old/x0", "g0", "g1", "t0", "m0"]


class Choosy(Lru):
    """Would evict only the blocks that are `offered`."""

    offered: frozenset[BlockKey] = frozenset()

    def victims(self, incoming: BlockKey | None = None, version: ObjectVersion | None = None) -> Iterator[BlockKey]:
        return (block for block in self._order if block in self.offered)


def test_blocks_that_the_policy_would_keep_go_for_a_tenant_within_its_share_alone() -> None:
    policy = Choosy()
    cache = Cache(greedy=0.2, modest=0.5)
    cache.around(policy)
    cache.add("m", 0, 1, by="modest")
    cache.add("g", 0, 1, 2, by="greedy")
    policy.offered = frozenset([key("m", 0), key("g", 2)])
    assert cache.victims("m") == ["g2", "g0", "g1", "m0"]
    assert cache.victims("g") == ["g2"]


def test_in_a_cluster_near_blocks_go_first_and_among_them_those_beyond_a_share() -> None:
    cache = Cache(greedy=0.2, modest=0.5)
    cache.add("m", by="modest")
    cache.add("g", by="greedy")
    near = NearBlocks(cache.blocks, lambda version, index: index % 2 == 1)
    for name in "mg":
        for index in range(4):
            cache.here.add(key(name, index))
            near.added(key(name, index), version(name))
    assert shown(near.victims(key("m", 8), version("m"))) == ["g1", "g3", "m1", "m3", "g0", "g2", "m0", "m2"]


class Counting(Lru):
    shown = 0

    def victims(self, incoming: BlockKey | None = None, version: ObjectVersion | None = None) -> Iterator[BlockKey]:
        for block in self._order:
            self.shown += 1
            yield block


def test_blocks_beyond_a_share_that_are_hard_to_find_go_by_the_last_read_of_their_objects() -> None:
    """An eviction looks at a bounded number of blocks, and every block is offered once."""
    policy = Counting()
    cache = Cache(greedy=0.02, modest=1)
    cache.around(policy, 400)
    cache.add("m", *range(300), by="modest")
    for name in ("ga", "gb", "gc"):
        cache.add(name, 0, 1, 2, by="greedy")
    cache.blocks.read(key("ga", 1))
    expected = [f"{name}{index}" for name in ("gb", "gc", "ga") for index in range(3)]
    first = cache.blocks.victims(key("m", 399), version("m"))
    assert shown(next(first) for _ in range(9)) == expected
    assert policy.shown < 300
    assert cache.victims("m") == cache.victims("ga") == [*expected, *(f"m{index}" for index in range(300))]


def test_an_object_counts_for_its_first_reader_until_that_one_has_too_much() -> None:
    cache = Cache(greedy=0.3, modest=0.5)
    cache.add("shared", 0, 1, by="modest")
    cache.read_by("greedy", "shared")
    assert cache.bytes_of("modest", "greedy") == [2, 0]
    cache.add("g", 0, 1, 2, 3, by="greedy")
    cache.add("other", 0, by="greedy")
    cache.read_by("modest", "other")
    assert cache.bytes_of("modest", "greedy") == [3, 4]
    cache.read_by("modest", "g")
    assert cache.bytes_of("modest") == [3], "it would have more than its share"
    cache.read_by("third", "g")
    assert cache.bytes_of("greedy") == [4], "a tenant without a share takes nothing over"


def test_blocks_that_were_here_before_any_read_count_from_the_first_read_on() -> None:
    cache = Cache(greedy=0.1, modest=0.5)
    cache.add("old", 0, 1)
    assert cache.bytes_of(NOBODY, "modest") == [0, 0]
    cache.read_by("modest", "old")
    assert cache.bytes_of("modest") == [2]
    cache.remove(key("old", 0))
    assert cache.bytes_of("modest") == [1]
    cache.remove(key("old", 1))
    assert (cache.bytes_of("modest"), cache.victims()) == ([0], [])


def test_what_is_prefetched_counts_for_the_last_reader_in_its_folder() -> None:
    cache = Cache(greedy=0.1, modest=0.5)
    cache.add("epoch/0", 0, by="modest")
    cache.add("epoch/1", 0, 1)
    assert cache.bytes_of("modest") == [3]
    cache.add("else/1", 0)
    cache.read_by("modest", "else/0")
    assert cache.bytes_of("modest") == [3]
    cache.add("else/1", 1)
    assert cache.bytes_of("modest") == [5]


def test_while_no_tenant_has_a_share_nothing_is_kept_and_later_shares_count_all_that_is_read() -> None:
    cache = two(greedy=0.2, modest=0.5)
    cache.share()
    cache.add("n", 0, by="modest")
    assert cache.bytes_of("modest", "greedy") == [0, 0]
    cache.share(greedy=0.2, modest=0.5)
    for tenant, name in (("modest", "m"), ("greedy", "g"), ("modest", "n")):
        cache.read_by(tenant, name)
    assert cache.bytes_of("modest", "greedy") == [3, 6]


acts = st.tuples(
    st.sampled_from(("added", "read", "removed", "by")), st.sampled_from("xyz"), st.integers(0, 4),
    st.sampled_from(("greedy", "modest", "third")),
)  # fmt: skip
shares = st.dictionaries(st.sampled_from(("greedy", "modest")), st.sampled_from((0.1, 0.3, 0.6, 1.0)))


def owners(cache: Cache) -> dict[BlockKey, str]:
    """For which tenant each block counts. All blocks leave the cache."""
    found = {}
    for block in sorted(cache.here):
        before = cache.bytes_of(*TENANTS)
        cache.remove(block)
        less = [name for name, was, now in zip(TENANTS, before, cache.bytes_of(*TENANTS), strict=True) if now < was]
        assert len(less) <= 1
        found[block] = less[0] if less else NOBODY
    return found


@given(script=st.lists(acts, max_size=60), given_shares=shares, incoming=st.sampled_from("xyz"))
def test_the_promises_hold_whatever_happened(
    script: list[tuple[str, str, int, str]], given_shares: dict[str, float], incoming: str
) -> None:  # fmt: skip
    cache, plain = Cache(**given_shares), Lru()
    for act, name, index, tenant in script:
        block = key(name, index)
        if act == "by":
            cache.read_by(tenant, name)
        elif act == "added" and block not in cache.here:
            cache.add(name, index)
            plain.added(block, version(name))
        elif act == "read":
            cache.blocks.read(block)
            plain.read(block)
        elif act == "removed":
            cache.remove(block)
            plain.removed(block)
    order, here = list(cache.blocks.victims(key(incoming, 9), version(incoming))), set(cache.here)
    assert len(set(order)) == len(order)
    assert set(order) <= here
    in_all, owner = cache.bytes_of(*TENANTS), owners(cache)
    sums = Counter(owner.values())
    assert in_all == [sums[name] for name in TENANTS]
    # An object counts for one tenant; without blocks that count, for its reader.
    its = {owner[block] for block in here if block.version_id == key(incoming, 9).version_id} - {NOBODY}
    reader = its.pop() if its else cache.tenants.reader_of(version(incoming).ref)
    assert not its
    over = {
        name for name, share in given_shares.items()
        if sums[name] and sums[name] + (name == reader) > share * CAPACITY
    }  # fmt: skip
    if not over:
        assert order == list(plain.victims())
        return
    kept = {block for block in here if owner[block] in given_shares and owner[block] not in over}
    first = [block for block in plain.victims() if block not in kept]
    assert order[: len(first)] == first, "all others, in the order of the policy, before those within their shares"
    assert set(order[len(first) :]) == (set() if reader in over else kept)
