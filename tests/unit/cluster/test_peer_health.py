"""Whether a member is asked: failures, busy replies, slow bodies and late first bytes."""

from __future__ import annotations

import pytest

from outrider.core.cluster.body_pace import SendingPace
from outrider.core.cluster.first_bytes import FirstBytes
from outrider.core.cluster.peer_health import PeerHealth, PeersHealth
from outrider.core.cluster.peer_messages import Sending
from outrider.core.model import ObjectRef

MIB = 1 << 20


# -- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["connect", "late", "status", "refused", "garbage", "broke", "digest"])
def test_a_member_that_fails_three_times_is_not_asked(why: str) -> None:
    peer = PeerHealth()
    for _ in range(3):
        assert peer.may_ask(10.0)
        peer.failed(why, 10.0)
    assert not peer.may_ask(10.0)
    assert peer.failures == {why: 3}


@pytest.mark.parametrize("why", ["absent", "changed"])
def test_an_answer_that_has_no_bytes_is_no_failure(why: str) -> None:
    peer = PeerHealth()
    for _ in range(10):
        peer.failed(why, 10.0)
    assert peer.may_ask(10.0)


def test_busy_is_no_failure() -> None:
    peer = PeerHealth()
    for _ in range(7):
        peer.failed("busy", 10.0)
    assert peer.may_ask(10.0)
    assert peer.breaker.is_closed


def test_a_member_that_is_only_busy_is_left_alone_for_a_second() -> None:
    peer = PeerHealth()
    for _ in range(8):
        peer.failed("busy", 10.0)
    assert not peer.may_ask(10.9)
    assert peer.breaker.is_closed
    assert peer.may_ask(11.0)
    peer.failed("busy", 11.0)
    assert not peer.may_ask(11.0)
    peer.flowed(1, 0.0, 12.0)
    peer.failed("busy", 12.0)
    assert peer.may_ask(12.0)


def test_bytes_keep_a_member_that_fails_now_and_then() -> None:
    peer = PeerHealth()
    for now in range(10, 20):
        peer.failed("broke", float(now))
        peer.flowed(100, 0.01, now + 0.5)
    assert peer.may_ask(20.0)
    assert peer.bytes_in == 1000


def test_a_wait_in_vain_is_nothing_served() -> None:
    peer = PeerHealth()
    peer.failed("late", 10.0)
    peer.failed("late", 10.0)
    peer.flowed(0, 0.5, 10.0)
    peer.failed("late", 10.0)
    assert not peer.may_ask(10.0)


def test_hellos_open_and_close_the_breaker() -> None:
    peer = PeerHealth()
    peer.unanswered(10.0)
    assert not peer.may_ask(10.0)
    peer.greeted(5, 10.5)
    assert peer.may_ask(10.5)


def test_another_process_under_the_same_name_is_asked_at_once() -> None:
    peer = PeerHealth()
    peer.greeted(5, 9.0)
    for _ in range(3):
        peer.failed("connect", 10.0)
    peer.greeted(5, 10.1)
    assert not peer.may_ask(10.1)
    peer.greeted(6, 10.2)
    assert peer.may_ask(10.2)
    health = seen(bucket_mib_s=60.0)
    health.of("b").greeted(5, 90.0)
    flows(health, "b", 1.0)
    health.of("b").greeted(5, 100.0)
    assert health.is_slow("b", 100.0)
    health.of("b").greeted(6, 100.0)
    assert not health.is_slow("b", 100.0)


def test_health_is_kept_by_name_for_members_only() -> None:
    health = PeersHealth()
    kept, dropped = health.of("b"), health.of("c")
    health.keep({"b", "x"})
    assert health.of("b") is kept
    assert health.of("c") is not dropped


# -- slow bodies ----------------------------------------------------------------------------------------------------


def flows(health: PeersHealth, name: str, mib_s: float, bodies: int = 1, now: float = 100.0) -> None:
    """A second in which `bodies` came from a member, or from the bucket (no name), all of them under way still."""
    pace = health.of(name).pace if name else health.bucket
    for _ in range(bodies):
        pace.began()
        pace.flowed(int(mib_s * MIB), 1.0, now)


def seen(bucket_mib_s: float) -> PeersHealth:
    """Bodies came from the bucket at this rate a while ago."""
    health = PeersHealth()
    flows(health, "", bucket_mib_s, now=-5000.0)
    health.bucket.ended()
    return health


@pytest.mark.parametrize(("mib_s", "slow"), [(1.0, True), (29.0, True), (31.0, False), (100.0, False)])
def test_a_member_below_half_of_the_bucket_is_slow(mib_s: float, slow: bool) -> None:
    health = seen(bucket_mib_s=60.0)
    flows(health, "b", mib_s)
    assert health.is_slow("b", 100.0) is slow


def test_all_bodies_of_a_member_count_together() -> None:
    health = seen(bucket_mib_s=60.0)
    flows(health, "b", 4.0, bodies=16)
    assert not health.is_slow("b", 100.0)


@pytest.mark.parametrize(
    ("sends_mib_s", "bodies", "slow"),
    [
        (0, 0, True), (29, 29, True), (31, 1, False), (0, 30, False),
        pytest.param(300, 1, True, id="the way to it is broken"),
    ],
)  # fmt: skip
def test_an_owner_whose_link_many_nodes_share_is_not_slow(sends_mib_s: int, bodies: int, slow: bool) -> None:
    """All of them would ask the bucket for its blocks."""
    health = seen(bucket_mib_s=60.0)
    flows(health, "b", 1.0)
    health.of("b").replied(0.01, Sending(sends_mib_s * MIB, bodies))
    assert health.is_slow("b", 100.0) is slow


def test_what_is_sent_to_members_is_told_by_the_second() -> None:
    sending = SendingPace()
    assert sending.bytes_s(0.0) == 0
    for number in range(200):
        sending.sent(MIB, 0.1 * number)
    assert sending.bytes_s(19.9) == pytest.approx(10 * MIB, rel=0.05)
    # After a pause of a minute the rate is that of now, within seconds.
    for number in range(40):
        sending.sent(MIB, 80 + 0.1 * number)
    assert sending.bytes_s(83.9) == pytest.approx(10 * MIB, rel=0.2)


def test_nobody_is_slow_because_this_nodes_link_is_full() -> None:
    """A link of 60 MiB/s, shared by two bodies from each of seven members and two from the bucket."""
    health = seen(bucket_mib_s=60.0)
    for name in "bcdefgh":
        flows(health, name, 60.0 / 16, bodies=2)
    for _ in range(2):
        health.bucket.began()  # and not a byte yet
    assert [health.is_slow(name, 100.0) for name in "bcdefgh"] == [False] * 7


def test_a_slow_member_among_fast_ones_is_seen() -> None:
    health = seen(bucket_mib_s=60.0)
    flows(health, "b", 1.0, bodies=3)
    for name in "cdefgh":
        flows(health, name, 20.0, bodies=1)
    assert [health.is_slow(name, 100.0) for name in "bcdefgh"] == [True, *[False] * 6]


def test_the_measure_is_the_mean_of_all_other_bodies() -> None:
    health = seen(bucket_mib_s=60.0)
    flows(health, "b", 3.0)
    flows(health, "c", 2.0, bodies=9)
    flows(health, "d", 30.0)
    assert not health.is_slow("b", 100.0)  # more than half of 4.8 MiB/s


def test_members_whose_bodies_have_ended_are_no_measure() -> None:
    health = seen(bucket_mib_s=60.0)
    flows(health, "b", 5.0)
    flows(health, "c", 6.0)
    assert not health.is_slow("b", 100.0)
    health.of("c").pace.ended()
    assert health.is_slow("b", 100.0)


@pytest.mark.parametrize(("mib_s", "slow"), [(0.01, True), (0.4, True), (0.6, False)])
def test_a_bucket_that_was_never_measured_is_taken_to_give_little(mib_s: float, slow: bool) -> None:
    health = PeersHealth()
    flows(health, "b", mib_s)
    assert health.is_slow("b", 100.0) is slow


def test_nobody_is_slow_while_its_rate_is_not_known() -> None:
    health = seen(bucket_mib_s=60.0)
    health.of("b").pace.began()
    assert not health.is_slow("b", 100.0)
    health.of("b").pace.flowed(MIB, 0.4, 100.0)  # a matter of latency
    assert not health.is_slow("b", 100.0)
    health.of("b").pace.flowed(0, 0.2, 100.0)
    assert health.is_slow("b", 100.0)


def test_the_time_that_nobody_waits_is_not_the_members() -> None:
    health = seen(bucket_mib_s=60.0)
    pace = health.of("b").pace
    pace.began()
    for second in range(10):  # a client that takes 4 MiB/s
        pace.flowed(4 * MIB, 0.01, 91.0 + second)
    assert not health.is_slow("b", 100.0)


def test_a_rate_is_that_of_the_last_seconds() -> None:
    health = seen(bucket_mib_s=60.0)
    flows(health, "b", 200.0, now=100.0)
    for second in range(1, 9):
        health.of("b").pace.flowed(MIB, 1.0, 100.0 + second)
    assert health.is_slow("b", 108.0)


def test_a_rate_of_long_ago_says_nothing_of_a_body_that_begins() -> None:
    health = seen(bucket_mib_s=60.0)
    flows(health, "b", 1.0, now=100.0)
    assert health.is_slow("b", 101.0)
    assert not health.is_slow("b", 110.0)


def test_the_usual_rate_of_the_bucket_follows_it_slowly() -> None:
    health = seen(bucket_mib_s=60.0)
    for second in range(300):
        health.bucket.flowed(10 * MIB, 1.0, float(second))
    assert health.bucket.usual == pytest.approx(10 * MIB, rel=0.1)
    health.bucket.flowed(600 * MIB, 1.0, 300.0)
    assert health.bucket.usual == pytest.approx(17 * MIB, rel=0.1)
    health.bucket.flowed(MIB, 0.01, 9000.0)
    assert health.bucket.usual == pytest.approx(17 * MIB, rel=0.1)  # too little came since to tell


def test_a_slow_member_is_left_out_ever_longer() -> None:
    peer = PeerHealth()
    now, rests = 1000.0, []
    for _ in range(7):
        peer.leave_out(now)
        assert peer.is_left_out(now)
        assert not peer.may_ask(now)
        rests.append(next(rest for rest in (30, 60, 120, 240, 480, 600) if peer.may_ask(now + rest)))
        now += rests[-1]
        assert not peer.may_ask(now - 0.1)
    assert rests == [30, 60, 120, 240, 480, 600, 600]
    peer.leave_out(now + 601)
    assert peer.may_ask(now + 631)


def test_bodies_that_leave_a_slow_member_together_count_once() -> None:
    peer = PeerHealth()
    peer.leave_out(0.0)
    peer.leave_out(0.1)
    assert peer.may_ask(30.0)


def test_a_member_that_was_slow_is_measured_anew() -> None:
    health = seen(bucket_mib_s=60.0)
    flows(health, "b", 1.0)
    health.of("b").leave_out(100.0)
    assert not health.is_slow("b", 100.0)


# -- late first bytes -----------------------------------------------------------------------------------------------


def test_nothing_is_late_before_a_hundred_replies_came() -> None:
    first_bytes = FirstBytes()
    assert first_bytes.quantile(0.5) is None
    for _ in range(99):
        first_bytes.came(0.2)
    assert first_bytes.late_s is None
    first_bytes.came(0.2)
    assert first_bytes.late_s == 0.2


def test_a_reply_is_late_beyond_the_99th_percentile() -> None:
    first_bytes = FirstBytes()
    for number in range(100):
        first_bytes.came((number * 37 % 100) / 100)
    assert first_bytes.late_s == 0.99
    assert first_bytes.quantile(0.5) == 0.49


def test_no_reply_is_late_before_50_ms() -> None:
    first_bytes = FirstBytes()
    for _ in range(100):
        first_bytes.came(0.001)
    assert first_bytes.late_s == 0.05


def test_old_replies_do_not_count() -> None:
    first_bytes = FirstBytes()
    for _ in range(500):
        first_bytes.came(2.0)
    for _ in range(500):
        first_bytes.came(0.1)
    assert first_bytes.late_s == 0.1
    assert first_bytes.quantile(1.0) == 0.1


def test_the_heads_of_a_member_are_its_first_bytes() -> None:
    peer = PeerHealth()
    peer.replied(0.3)
    assert peer.first_bytes.quantile(0.5) == 0.3


def test_at_most_two_percent_are_sent_twice() -> None:
    health = PeersHealth()
    assert not health.spend()
    sent = 0
    for _ in range(5000):
        health.asked()
        sent += health.spend()
    assert sent == pytest.approx(100, abs=1)


def test_few_second_requests_are_saved_up() -> None:
    health = PeersHealth()
    for _ in range(5000):
        health.asked()
    assert [health.spend() for _ in range(6)] == [True] * 4 + [False] * 2


# -- what it had before the ring changed ------------------------------------------------------------------------------


def asked_for(peer: PeerHealth) -> int:
    """How many of 1,600 blocks."""
    return sum(peer.may_have(ObjectRef("train", f"{number}.tar"), index) for number in range(400) for index in range(4))


def test_a_disk_that_has_nothing_is_asked_for_few_blocks() -> None:
    peer = PeerHealth()
    for _ in range(7):
        peer.had(False)
    assert asked_for(peer) == 1600
    peer.had(False)
    assert 60 <= asked_for(peer) <= 140


def test_a_disk_that_has_a_block_is_asked_for_all() -> None:
    peer = PeerHealth()
    for is_here in (False,) * 20, (True,), (False,) * 7:
        for each in is_here:
            peer.had(each)
    assert asked_for(peer) == 1600
