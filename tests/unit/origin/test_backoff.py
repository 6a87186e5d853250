"""Exponential backoff with jitter: each wait is below the curve, it may be zero, and the attempts end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.core.origin.backoff import RETRYABLE_STATUSES, Backoff


@given(st.integers(1, 40), st.floats(0, 1, exclude_max=True), st.integers(1, 30))
def test_a_wait_is_a_share_of_the_curve_until_the_tries_are_spent(failures: int, chance: float, tries: int) -> None:
    backoff = Backoff(tries=tries, base_s=0.05, cap_s=2.0)
    wait_s = backoff.wait_s(failures, chance)
    if failures >= tries:
        assert wait_s is None
    else:
        assert wait_s is not None
        assert wait_s == min(2.0, 0.05 * 2**failures) * chance
        assert 0 <= wait_s < 2.0


def test_n_tries_are_n_requests() -> None:
    backoff = Backoff(tries=3)
    assert [backoff.wait_s(failures, 0.0) for failures in (1, 2, 3)] == [0.0, 0.0, None]


def test_a_clients_error_is_never_retried() -> None:
    assert all(status == 429 or status >= 500 for status in RETRYABLE_STATUSES)
    assert 503 in RETRYABLE_STATUSES
