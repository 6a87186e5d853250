"""The rendezvous: in proportion to weights, and moved by nothing but what comes or goes. Its use by the members of a
cluster has tests of its own (tests/unit/cluster/test_ownership.py)."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.rendezvous import Rendezvous

PERSON = b"test"
weights = st.integers(1, 1 << 44)
disks = st.dictionaries(st.text(min_size=1, max_size=8), weights, min_size=1, max_size=8)
numbers = st.integers(0, (1 << 128) - 1)


def order(weights: dict[str, int], number: int) -> list[str]:
    names = list(weights)
    return [names[place] for place in Rendezvous(weights.items(), PERSON).order(number)]


def hashed(number: int) -> int:
    return int.from_bytes(blake2b(b"%d" % number, digest_size=16).digest(), "big")


@given(disks, numbers, st.data())
@settings(max_examples=100)
def test_what_goes_or_shrinks_moves_its_own_blocks_only(
    weights: dict[str, int], number: int, data: st.DataObject
) -> None:
    before = order(weights, number)
    assert sorted(before) == sorted(weights)
    gone = data.draw(st.sampled_from(sorted(weights)))
    others = [name for name in before if name != gone]
    if others:
        assert order({name: weights[name] for name in others}, number) == others
    shrunk = order({**weights, gone: max(1, weights[gone] // 2)}, number)
    assert [name for name in shrunk if name != gone] == others
    assert before.index(gone) <= shrunk.index(gone)


@given(st.lists(st.integers(1, 10), min_size=2, max_size=4), st.integers(0, 1 << 32))
@settings(max_examples=20, deadline=None)
def test_each_gets_its_share_of_the_blocks(parts: list[int], seed: int) -> None:
    count = 2000
    rendezvous = Rendezvous([(f"/mnt/nvme{n}-{seed}", part << 40) for n, part in enumerate(parts)], PERSON)
    got = Counter(rendezvous.order(hashed(number))[0] for number in range(count))
    for place, part in enumerate(parts):
        share = part / sum(parts)
        # Six times the deviation of a fair draw.
        assert abs(got[place] - count * share) <= 6 * (count * share * (1 - share)) ** 0.5
