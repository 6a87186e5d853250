"""Exponential backoff with jitter: each wait is below the curve, and tries end when nobody waits, or waits in vain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.origin.backoff import HEAD_PATIENCE_S, RETRYABLE_STATUSES, Backoff, Trouble, retry_after_s

NOW = 1_700_000_000.0
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"  # NOW
LATER = "Tue, 14 Nov 2023 22:13:50 GMT"


@given(st.integers(1, 5000), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_a_share_of_the_curve(failures: int, chance: float) -> None:
    wait_s = Backoff(base_s=0.05, cap_s=2.0).wait_s(failures, chance)
    assert wait_s == min(2.0, 0.05 * 2 ** min(failures, 30)) * chance
    assert 0 <= wait_s < 2.0


@pytest.mark.parametrize("awaited", [True, False])
def test_a_backoff_of_n_tries_makes_n_requests_without_patience(awaited: bool) -> None:
    waits = [
        Trouble(failures, 0.0).wait_s(Backoff(tries=3), 0.0, patience_s=0.0, awaited=awaited) for failures in (1, 2, 3)
    ]
    assert waits == [0.0, 0.0, None]


@given(st.integers(1, 1000), st.floats(0, 59.9), st.floats(0, 1, exclude_max=True), st.floats(0, 1e6))
def test_a_read_that_is_waited_for_is_tried_again_until_its_patience_is_over_and_no_sooner_than_retry_after(
    failures: int, lasts_s: float, chance: float, after_s: float
) -> None:
    trouble = Trouble(failures, lasts_s, lasts_s, after_s)
    wait_s = trouble.wait_s(Backoff(), chance, patience_s=60.0, awaited=True)
    assert wait_s is not None
    assert min(after_s, 60.0 - lasts_s) <= wait_s <= 60.0 - lasts_s
    assert wait_s <= after_s + Backoff().cap_s


def test_the_jitter_comes_on_top_of_retry_after_so_that_not_all_come_back_at_the_same_moment() -> None:
    trouble = Trouble(3, 1.0, 1.0, retry_after_s=2.0)
    waits = [trouble.wait_s(Backoff(), chance, patience_s=60.0, awaited=True) for chance in (0.0, 0.5)]
    assert waits == [2.0, 2.2]


@pytest.mark.parametrize(("failures", "waited_s"), [(4, 60.0), (5, 60.0), (900, 60.0), (1, 90.0)])
def test_a_read_whose_patience_is_over_has_no_more_than_the_few_tries(failures: int, waited_s: float) -> None:
    wait_s = Trouble(failures, waited_s, 0.0).wait_s(Backoff(), 0.5, patience_s=60.0, awaited=True)
    # Where the first try alone was silent for longer than the patience, a second one is made.
    assert (wait_s is None) == (failures > 1)


@pytest.mark.parametrize("patience_s", [0.0, 0.2])
def test_with_little_patience_the_few_tries_are_made_and_not_held_up_by_retry_after(patience_s: float) -> None:
    trouble = Trouble(3, 0.3, 0.3, retry_after_s=100.0)
    assert trouble.wait_s(Backoff(), 0.5, patience_s=patience_s, awaited=True) == 0.2


def test_silent_tries_use_up_the_time_of_those_that_wait() -> None:
    waits = [Trouble(2, s).wait_s(Backoff(), 0.5, patience_s=0.0, awaited=False) for s in (1.0, HEAD_PATIENCE_S)]
    assert waits == [0.1, None]


@pytest.mark.parametrize(("after_s", "waited_s", "gives_up"), [(2.0, 0.0, False), (2.0, 4.0, True), (6.0, 0.0, True)])
def test_a_read_that_nobody_waits_for_gives_up_rather_than_wait_long(
    after_s: float, waited_s: float, gives_up: bool
) -> None:
    wait_s = Trouble(2, waited_s, waited_s, after_s).wait_s(Backoff(), 0.0, patience_s=60.0, awaited=False)
    assert (wait_s is None) == gives_up
    assert gives_up or wait_s == after_s


def test_a_clients_error_is_never_retried() -> None:
    assert all(status == 429 or status >= 500 for status in RETRYABLE_STATUSES)
    assert 503 in RETRYABLE_STATUSES


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0.0),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": " 120 "}, 120.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after": "1.5"}, 0.0),
        ({"retry-after": "\u0662"}, 0.0),
        ({"retry-after": "9" * 400}, 0.0),
        ({"retry-after": "soon"}, 0.0),
        ({"retry-after": "Tue, 99 Nov 2023 22:13:50 GMT"}, 0.0),
        ({"retry-after": LATER}, 30.0),
        ({"retry-after": DATE}, 0.0),
        ({"retry-after": DATE, "date": LATER}, 0.0),
        # The clocks of the two machines differ by an hour.
        ({"retry-after": "Tue, 14 Nov 2023 23:13:50 GMT", "date": "Tue, 14 Nov 2023 23:13:20 GMT"}, 30.0),
        ({"retry-after": LATER, "date": "yesterday"}, 30.0),
    ],
)
def test_retry_after_is_seconds_or_a_date_by_the_clock_of_the_origin(headers: dict[str, str], seconds: float) -> None:
    assert retry_after_s(headers, NOW) == seconds
