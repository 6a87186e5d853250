"""The moment at which an answer was true decides whether a write refutes it, also if another member got the answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cache.freshness import Freshness
from outrider.core.model import ObjectRef
from outrider.engine.read.forget_log import GenerationTimes
from outrider.engine.read.version_cache import VersionCache
from tests.support.fakes import FakeClock

A, B = ObjectRef("train", "a"), ObjectRef("train", "b")
STEPS_MAX = 65_536


def versions(clock: FakeClock) -> VersionCache:
    return VersionCache("o", lambda _: Freshness.parse("immutable"), clock, 100)


@given(st.lists(st.floats(0, 3, allow_subnormal=False), max_size=60), st.floats(0, 100))
def test_an_answer_from_before_a_write_is_refuted_and_one_from_well_after_it_is_not(
    waits: list[float], moment: float
) -> None:
    times, now, forgets = GenerationTimes(), 0.0, []
    for generation, wait_s in enumerate(waits):
        now += wait_s
        times.note(now, generation)
        forgets.append(now)
    found = times.at(moment, len(forgets))
    for number, at in enumerate(forgets, start=1):
        # The forget made the generation `number`.
        if at >= moment:
            assert number > found
        elif at < moment - 0.05:
            assert number <= found


def test_moments_that_are_too_long_ago_are_before_all_writes() -> None:
    times = GenerationTimes()
    for step in range(STEPS_MAX + 2):
        times.note(float(step), step)
    assert times.at(5.0, 10**9) == 0
    assert times.at(STEPS_MAX + 1.5, 10**9) == 10**9


def test_a_mark_of_an_earlier_moment_holds_for_names_that_were_not_written_since() -> None:
    clock = FakeClock()
    cache = versions(clock)
    clock.advance(10)
    cache.forget(A)
    clock.advance(10)
    before, after = cache.mark_at(clock() - 15), cache.mark_at(clock() - 5)
    assert (cache.believes(A, before), cache.believes(A, after)) == (False, True)
    assert (cache.believes(B, before), cache.believes(B, after)) == (True, True)
    assert (cache.was_written(A, clock() - 15), cache.was_written(A, clock() - 5)) == (True, False)


def test_all_names_are_doubtful_once_writes_may_have_been_missed() -> None:
    clock = FakeClock()
    cache = versions(clock)
    mark = cache.mark()
    cache.forget_all()
    assert not cache.believes(A, mark)
    assert cache.believes(A, cache.mark())
    assert not cache.was_written(A, -1e9)
