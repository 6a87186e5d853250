"""The bytes reserved by pins, against a simple model: each object that any pin names counts once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.cache.pins import Pins, Share
from outrider.core.errors import NoRoom
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion

ROOM = 100


def version(key: int, size: int, edition: int = 0) -> ObjectVersion:
    return ObjectVersion(ObjectRef("bkt", str(key)), f'"{key}-{edition}"', size)


def identity(of: ObjectVersion) -> bytes:
    return of.etag.encode()


SIZES = [1, 7, 20, 33, 50, 101]
ACTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.one_of(st.none(), st.sets(st.integers(0, len(SIZES) - 1)))),
    max_size=30,
)


@settings(deadline=None)
@given(ACTS)
def test_no_two_pins_are_promised_the_same_room(acts: list[tuple[str, set[int] | None]]) -> None:
    pins, model = Pins(int, identity), dict[str, set[int]]()
    for name, keys in acts:
        if keys is None:
            pins.unpin(("", name))
            model.pop(name, None)
        else:
            after = set().union(*(held for other, held in model.items() if other != name), keys)
            fits = sum(SIZES[key] for key in after) <= ROOM
            try:
                pins.pin(("", name), [version(key, SIZES[key]) for key in keys], ROOM)
            except NoRoom:
                assert not fits
            else:
                assert fits
                model[name] = keys
        held = set().union(*model.values())
        assert pins.reserved_bytes == sum(SIZES[key] for key in held)
        assert {key for key in range(len(SIZES)) if pins.holds(identity(version(key, 1)))} == held
        assert all(pins.bytes_of(("", name)) == sum(SIZES[key] for key in keys) for name, keys in model.items())


def test_a_refusal_has_the_numbers() -> None:
    pins = Pins(int, identity)
    pins.pin(("", "a"), [version(1, 60)], ROOM)
    with pytest.raises(NoRoom, match=r"20 bytes are missing: .* 2 objects would take 60 bytes .* hold 60, and 100 can"):
        pins.pin(("x", "a"), [version(2, 30), version(3, 30)], ROOM)
    pins.pin(("x", "a"), [version(2, 30), version(1, 60)], ROOM)


def test_a_pin_follows_its_name_to_the_newer_version() -> None:
    pins = Pins(int, identity)
    pins.pin(("", "a"), [version(1, 60)], ROOM)
    new = version(1, 40, edition=1)
    pins.block_cached(new, identity(new))
    assert (pins.holds(identity(new)), pins.holds(identity(version(1, 60)))) == (True, False)
    assert pins.reserved_bytes == 40
    pins.block_cached(version(2, 9), b"other")
    pins.unpin(("", "a"))
    assert (pins.reserved_bytes, pins.holds(identity(new))) == (0, False)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=8), st.integers(0, 7),
    st.integers(0, 7),
)  # fmt: skip
def test_only_the_blocks_that_are_kept_here_are_reserved_and_held(
    named: list[tuple[int, int]], first: int, then: int
) -> None:  # fmt: skip
    """Objects have three blocks of ten bytes; the masks say which of them are kept here."""
    pins, mask = Pins(int, identity), first
    pins.share = lambda ref, size: Share(10 * mask.bit_count(), mask)
    for key, edition in named:
        pins.pin(("", str(key)), [version(key, 30, edition)], 1000)
        pins.block_cached(version(key, 30, edition + 1), identity(version(key, 30, edition + 1)))
    latest = {key: version(key, 30, edition + 1) for key, edition in named}
    for now in (first, then):
        mask = now
        pins.divide({each.ref: pins.share(each.ref, 30) for each in latest.values()})
        assert pins.reserved_bytes == 10 * mask.bit_count() * len(latest)
        for each in latest.values():
            held = [pins.holds_block(BlockKey(identity(each), index)) for index in range(3)]
            assert held == [mask >> index & 1 == 1 for index in range(3)]
    assert not pins.holds_block(BlockKey(b"another", 0))
