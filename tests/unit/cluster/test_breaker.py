"""The circuit breaker of a member: when it opens, and what closes it."""

from __future__ import annotations

import pytest

from outrider.core.cluster.breaker import Breaker, Circuit


def opened_by_reads(now: float = 10.0) -> Breaker:
    breaker = Breaker()
    for _ in range(3):
        breaker.failed(now)
    assert not breaker.is_closed
    return breaker


def test_three_failures_open_it() -> None:
    breaker = Breaker()
    breaker.failed(10.0)
    breaker.failed(10.0)
    assert breaker.is_closed
    breaker.failed(10.0)
    assert breaker.state is Circuit.OPEN


def test_failures_do_not_open_it_while_something_is_served() -> None:
    breaker = Breaker()
    breaker.served(10.0)
    for _ in range(5):
        breaker.failed(10.9)
    assert breaker.is_closed
    breaker.failed(11.0)
    assert not breaker.is_closed


def test_failures_with_something_served_between_them_do_not_add_up() -> None:
    breaker = Breaker()
    for now in (10.0, 20.0, 30.0, 40.0):
        breaker.failed(now)
        breaker.failed(now)
        breaker.served(now)
    assert breaker.is_closed


def test_failures_of_requests_that_were_under_way_prolong_nothing() -> None:
    breaker = opened_by_reads(10.0)
    breaker.failed(10.5)
    assert breaker.probes(11.0)


def test_a_hello_that_is_not_answered_opens_it_at_once() -> None:
    breaker = Breaker()
    breaker.served(10.0)
    breaker.unanswered(10.0)
    assert not breaker.is_closed


def test_it_is_probed_once_after_a_second_and_closed_by_the_answer() -> None:
    breaker = opened_by_reads(10.0)
    assert not breaker.probes(10.9)
    assert breaker.probes(11.0)
    assert breaker.state is Circuit.HALF_OPEN
    assert not breaker.probes(11.0)
    breaker.answered(11.1)
    assert breaker.is_closed


def test_probes_that_fail_come_ever_later() -> None:
    breaker = opened_by_reads(now := 0.0)
    waits = []
    for _ in range(7):
        wait = next(seconds for seconds in range(1, 40) if breaker.probes(now + seconds))
        waits.append(wait)
        now += wait
        breaker.unanswered(now)
    assert waits == [1, 2, 4, 8, 16, 30, 30]


def test_regular_hellos_that_fail_prolong_nothing_before_the_probe_is_due() -> None:
    breaker = opened_by_reads(10.0)
    breaker.unanswered(10.5)
    assert breaker.probes(11.0)
    other = opened_by_reads(10.0)
    other.unanswered(11.0)  # a regular hello is a probe, too
    assert not other.probes(12.9)
    assert other.probes(13.0)


def test_a_member_that_answers_hellos_and_serves_nothing_is_tried_ever_less() -> None:
    breaker = opened_by_reads(10.0)
    breaker.answered(10.5)  # too early
    assert not breaker.is_closed
    breaker.answered(11.0)
    assert breaker.is_closed
    breaker.failed(11.0)  # the first one opens it again
    assert not breaker.is_closed
    assert not breaker.probes(12.9)
    assert breaker.probes(13.0)
    breaker.answered(13.0)
    breaker.served(13.0)
    for _ in range(3):
        breaker.failed(15.0)
    assert breaker.probes(16.0)  # a second again


@pytest.mark.parametrize("by_reads", [False, True])
def test_a_member_that_can_be_reached_again_is_asked_again_at_once(by_reads: bool) -> None:
    breaker = opened_by_reads(10.0) if by_reads else Breaker()
    breaker.unanswered(10.1)
    breaker.answered(10.2)
    assert breaker.is_closed
    breaker.failed(10.2)  # connections that did not survive
    breaker.failed(10.2)
    assert breaker.is_closed


def test_a_breaker_that_reads_open_after_hellos_did_waits_for_its_probe() -> None:
    breaker = Breaker()
    breaker.unanswered(10.0)
    breaker.answered(10.1)
    breaker.served(10.2)
    for _ in range(3):
        breaker.failed(20.0)
    breaker.answered(20.1)
    assert not breaker.is_closed


def test_a_new_process_is_asked_at_once() -> None:
    breaker = opened_by_reads(10.0)
    breaker.restarted()
    assert breaker.is_closed
    breaker.failed(10.0)
    breaker.failed(10.0)
    assert breaker.is_closed
    breaker.failed(10.0)
    assert breaker.probes(11.0)
