"""Hedged requests: when a reply is late, and how often a second request may be sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.origin.hedging import Hedging


def after(waits: list[float], asked: int = 200) -> Hedging:
    hedging = Hedging()
    for wait_s in waits:
        hedging.replied(wait_s)
    for _ in range(asked):
        hedging.after_s()
    return hedging


def test_few_replies_show_nothing() -> None:
    assert after([0.1] * 99).after_s() is None
    assert after([0.1] * 100).after_s() == 0.1


def test_late_is_later_than_ninety_nine_of_a_hundred() -> None:
    assert after([i / 1000 for i in range(1000)]).after_s() == 0.99


def test_old_replies_are_forgotten() -> None:
    assert after([5.0] * 1000 + [0.1] * 1000).after_s() == 0.1


def test_a_quick_reply_is_no_straggler() -> None:
    assert after([0.001] * 200).after_s() == 0.02


@given(st.lists(st.integers(0, 1000), min_size=100, max_size=1300))
def test_the_quantile_is_that_of_the_last_thousand_sorted(millis: list[int]) -> None:
    waits = [1 + i / 1000 for i in millis]
    ordered = sorted(waits[-1000:])
    assert after(waits).after_s() == ordered[int(0.99 * len(ordered))]


def test_second_requests_are_two_in_a_hundred_at_most() -> None:
    hedging = after([0.1] * 100, asked=0)
    second = 0
    for _ in range(10_000):
        if hedging.after_s() is not None and hedging.spend():
            second += 1
    assert 190 <= second <= 200


def test_little_is_saved_up_for_an_origin_that_hangs() -> None:
    hedging = after([0.1] * 100, asked=100_000)
    assert sum(hedging.spend() for _ in range(100)) == 4
    assert hedging.after_s() is None


MIB = 1024 * 1024


def test_second_requests_for_large_bodies_add_one_byte_in_a_hundred_at_most() -> None:
    hedging = after([0.1] * 100, asked=0)
    second = 0
    for _ in range(10_000):
        hedging.replied(0.1, 8 * MIB)
        if hedging.after_s() is not None and hedging.spend(8 * MIB):
            second += 1
    assert 190 <= second <= 200, "each costs what 4 MiB of buffers hold"


def test_replies_of_small_objects_save_nothing_for_a_large_one() -> None:
    hedging = after([0.1] * 1000)
    assert not hedging.spend(8 * MIB)
    assert hedging.spend(100_000)


def test_no_request_is_sent_twice_for_a_while_after_the_origin_throttled() -> None:
    hedging = after([0.1] * 100)
    hedging.slow_down(100.0)
    assert [hedging.rests(now) for now in (100.0, 109.9, 110.0)] == [True, True, False]
