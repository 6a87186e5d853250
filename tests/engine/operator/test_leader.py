"""Two operators and one lease: at no time do both act, and one acts again soon after the other has ended."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from outrider.engine.operator.leader import LEASE_S, RENEW_S, Leader
from outrider.operator_ports import KubeError
from tests.support.fake_kube import LEASE, NAME, FakeKube
from tests.support.fakes import FakeClock


def leader(kube: FakeKube, me: str, clock: FakeClock, *, wall_s: float = 0.0) -> Leader:
    """`wall_s`: how far the wall clock of its node is ahead."""
    return Leader(kube, NAME, me, monotonic=clock, clock=lambda: 1_700_000_000.0 + clock() + wall_s)


async def acts(*operators: Leader) -> list[bool]:
    for each in operators:
        await each.step()
    return [each.is_leader() for each in operators]


async def test_the_first_one_takes_the_lease_and_keeps_it() -> None:
    kube, clock = FakeKube(), FakeClock()
    # The clocks of nodes may differ by hours.
    one, two = leader(kube, "one", clock, wall_s=-7200.0), leader(kube, "two", clock)
    for _ in range(20):
        assert await acts(one, two) == [True, False]
        clock.advance(RENEW_S)
    spec = kube.objects[LEASE, NAME]["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("one", LEASE_S, 0)


async def test_the_other_one_follows_when_the_lease_is_over() -> None:
    kube, clock = FakeKube(), FakeClock()
    one, two = leader(kube, "one", clock), leader(kube, "two", clock)
    await acts(one, two)
    clock.advance(LEASE_S - RENEW_S)
    assert not one.is_leader(), "it stops before another may begin"
    clock.advance(RENEW_S)
    assert await acts(two) == [False]
    clock.advance(1.0)
    assert await acts(two) == [True]
    assert kube.objects[LEASE, NAME]["spec"]["leaseTransitions"] == 1
    assert await acts(one) == [False]


async def test_one_that_ends_hands_the_lease_on_at_once() -> None:
    kube, clock = FakeKube(), FakeClock()
    one, two = leader(kube, "one", clock), leader(kube, "two", clock)
    await acts(one, two)
    await one.release()
    assert not one.is_leader()
    assert await acts(two) == [True]
    await one.release()
    assert kube.objects[LEASE, NAME]["spec"]["holderIdentity"] == "two"


async def test_of_two_that_write_at_once_one_acts() -> None:
    kube, clock = FakeKube(), FakeClock()
    await leader(kube, "one", clock).step()
    taken = kube.objects.pop((LEASE, NAME))
    kube.before_write = lambda: kube.put(taken)
    two = leader(kube, "two", clock)
    await two.step()
    assert not two.is_leader()
    assert kube.objects[LEASE, NAME]["spec"]["holderIdentity"] == "one"


async def test_a_restart_in_the_same_pod_goes_on() -> None:
    kube, clock = FakeKube(), FakeClock()
    assert await acts(leader(kube, "one", clock)) == [True]
    assert await acts(leader(kube, "one", clock)) == [True]


async def test_without_the_api_server_nobody_acts_for_long() -> None:
    kube, clock = FakeKube(), FakeClock()
    one = leader(kube, "one", clock)
    await one.step()
    kube.away = True
    clock.advance(RENEW_S)
    with pytest.raises(KubeError):
        await one.step()
    assert one.is_leader()
    clock.advance(RENEW_S)
    assert not one.is_leader()
    kube.away = False
    assert await acts(one) == [True]


async def test_whatever_fails_two_never_act_at_once() -> None:
    """Three operators that step, hang and cannot reach the API server by chance, in one time."""
    chance = random.Random(7)
    for _ in range(20):
        kube, clock = FakeKube(), FakeClock()
        operators = [leader(kube, name, clock) for name in ("a", "b", "c")]
        led = 0
        for _ in range(150):
            clock.advance(chance.choice((0.5, 1.0, 3.0)))
            for each in operators:
                kube.away = chance.random() < 0.4
                if chance.random() < 0.3:
                    with suppress(KubeError):
                        await each.step()
                leaders = [other.is_leader() for other in operators]
                assert sum(leaders) <= 1
                led += any(leaders)
        assert led > 50
