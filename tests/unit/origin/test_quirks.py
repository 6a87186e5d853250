"""A quirk of a bucket is forgotten after a while; objects that stay uncached are not asked about meanwhile."""

from __future__ import annotations

from outrider.core.origin.oddities import Oddity
from outrider.core.origin.quirks import Quirks, UncachedNames
from tests.support.fakes import FakeClock

WEAK, KIND = Oddity.ETAG_WEAK, ("train", "shards/*.tar")


def test_a_quirk_holds_for_its_bucket_and_for_an_hour() -> None:
    clock = FakeClock()
    quirks = Quirks(clock)
    quirks.learn("a", Oddity.IF_MATCH_REFUSED)
    assert quirks.has("a", Oddity.IF_MATCH_FAILS, Oddity.IF_MATCH_REFUSED)
    assert not quirks.has("b", Oddity.IF_MATCH_REFUSED)
    assert not quirks.has("a", Oddity.RANGE_IGNORED)
    clock.advance(3601)
    assert not quirks.has("a", Oddity.IF_MATCH_REFUSED)


def test_a_quirk_can_be_taken_back() -> None:
    quirks = Quirks(FakeClock())
    quirks.learn("a", Oddity.RANGE_IGNORED)
    quirks.unlearn("a", Oddity.RANGE_IGNORED)
    assert not quirks.has("a", Oddity.RANGE_IGNORED)


def test_three_names_in_a_row_speak_for_their_kind() -> None:
    clock = FakeClock()
    names = UncachedNames(clock)
    for name in ("a", "a", "b"):
        names.note(name, [KIND], WEAK)
        assert names.why(name, [KIND]) is WEAK
    assert names.why("c", [KIND]) is None
    names.note("c", [KIND], WEAK)
    assert names.why("d", [KIND]) is WEAK
    clock.advance(61)
    assert names.why("d", [KIND]) is None
    names.note("d", [KIND], WEAK)
    assert names.why("e", [KIND]) is WEAK, "after the pause one is enough"


def test_an_object_that_can_be_cached_ends_the_row() -> None:
    names = UncachedNames(FakeClock())
    for name in ("a", "b"):
        names.note(name, [KIND], WEAK)
    names.cached([KIND])
    names.note("c", [KIND], WEAK)
    assert names.why("d", [KIND]) is None
    assert names.why("c", [KIND]) is WEAK
