"""Samples of the objects that members know, and their union."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cluster.object_samples import KnownObject, ObjectSample, Union, drawn, number_of

# The bytes that each member holds of each object of ten bytes, by key.
members = st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.text(max_size=3), st.integers(0, 10)), min_size=1)


def sample(held: dict[str, int], most: int = 1000, size: int = 10) -> ObjectSample:
    return drawn([KnownObject(number_of("b", key), size, count) for key, count in held.items()], most)


@given(members)
def test_the_union_of_samples_that_have_all_objects_is_exact(known: dict[str, dict[str, int]]) -> None:
    union = Union({member: sample(held) for member, held in known.items()})
    keys = {key for held in known.values() for key in held}
    assert (union.objects, union.size) == (len(keys), 10 * len(keys))
    together = sum(min(10, sum(held.get(key, 0) for held in known.values())) for key in keys)
    assert union.held_by(known) == together
    for member, held in known.items():
        assert union.held_by([member]) == sum(held.values())


def test_a_sample_of_many_objects_shows_their_number_and_shares_about() -> None:
    """Members of a cluster that hold a part each, and know no other objects."""
    keys = [f"train/shard-{number:06}.tar" for number in range(6000)]
    parts = {"a": keys[:3900], "b": keys[3900:]}
    union = Union({name: sample(dict.fromkeys(part, 10), 256) for name, part in parts.items()})
    assert 5000 < union.objects < 7000
    assert 0.55 < union.held_by(["a"]) / union.size < 0.75
    assert union.held_by(parts) == union.size, "all is all, however little is drawn"
