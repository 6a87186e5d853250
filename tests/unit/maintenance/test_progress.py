"""The progress of a warm-up, and the token bucket of its bandwidth."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.maintenance.progress import FAILURES_REPORTED_MAX, Progress, State
from outrider.core.maintenance.progress_sum import warmup_sum
from outrider.core.origin.token_bucket import TokenBucket


def test_the_eta_follows_the_recent_rate() -> None:
    progress = Progress(0.0, wanted_objects=4, wanted_bytes=300, unsized=1)
    assert progress.eta_s(1.0) is None, "nothing came yet"
    for second in range(1, 31):
        progress.fetched(5, float(second))
        progress.bytes += 5
    assert progress.rate_bytes_s(30.0) == pytest.approx(5, rel=0.15)
    assert progress.eta_s(30.0) == pytest.approx((400 - 150) / 5, rel=0.15)
    assert progress.rate_bytes_s(60.0) == 0
    progress.end(60.0)
    assert (progress.state, progress.eta_s(60.0)) == (State.DONE, None)


def test_failures_are_kept_by_name_up_to_a_limit_and_counted_beyond() -> None:
    progress = Progress(0.0)
    for number in range(FAILURES_REPORTED_MAX + 5):
        progress.fail(f"s3://bkt/{number}", "gone")
    progress.end(1.0)
    report = progress.report(2.0)
    assert (report["state"], report["objects"]["failed"]) == ("failed", FAILURES_REPORTED_MAX + 5)
    assert len(report["failures"]) <= FAILURES_REPORTED_MAX


def test_a_report_says_for_how_long_all_parts_have_ended_and_which_failures_may_pass() -> None:
    first, last, running = Progress(0.0), Progress(0.0), Progress(0.0)
    first.fail("s3://bkt/1", "no answer", is_passing=True)
    first.fail("s3://bkt/2", "403")
    first.end(1.0)
    last.end(7.0)
    assert (first.report(9.0)["ended_s"], running.report(9.0)["ended_s"]) == (8.0, None)
    assert [failure["passing"] for failure in first.report(9.0)["failures"]] == [True, False]
    assert warmup_sum([first.report(9.0), last.report(9.0)])["ended_s"] == 2.0
    assert warmup_sum([first.report(9.0), running.report(9.0)])["ended_s"] is None


@settings(deadline=None)
@given(
    st.floats(1, 1e9), st.lists(st.tuples(st.floats(0, 3), st.floats(1, 1e6)), max_size=60),
)  # fmt: skip
def test_a_token_bucket_spends_no_more_than_its_rate(rate: float, wishes: list[tuple[float, float]]) -> None:
    allowance, now, spent = TokenBucket(rate, 0.0), 0.0, 0.0
    for pause_s, count in wishes:
        now += pause_s
        if allowance.may_spend(now):
            # All but the last spending were covered; the last one may exceed what is left.
            assert spent <= rate * now * (1 + 1e-9) + 1
            allowance.spend(count)
            spent += count
        else:
            assert allowance.may_spend(now + allowance.wait_s(now) * 1.001 + 1e-6)


def test_a_token_bucket_without_a_rate_has_no_limit() -> None:
    allowance = TokenBucket(0, 0.0)
    allowance.spend(1e12)
    assert (allowance.may_spend(0.0), allowance.wait_s(0.0)) == (True, 0.0)
