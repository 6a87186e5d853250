"""Whether a member is requested for blocks: the deadline of each request, and the pauses that follow."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from outrider.core.cluster.peer_health import Pause, PeerHealth, PeersHealth, SendingPace
from outrider.core.cluster.peer_messages import NOT_STATED, Sending

MIB = 1 << 20


# -- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["connect", "late", "status", "refused", "garbage", "broke", "digest"])
def test_a_member_that_fails_three_times_is_not_requested(why: str) -> None:
    peer = PeerHealth()
    for _ in range(3):
        assert peer.may_request(10.0)
        peer.failed(why, 10.0)
    assert not peer.may_request(10.0)
    assert peer.failures == {why: 3}


@pytest.mark.parametrize("why", ["absent", "changed"])
def test_an_answer_that_has_no_bytes_is_no_failure(why: str) -> None:
    peer = PeerHealth()
    for _ in range(10):
        peer.failed(why, 10.0)
    assert peer.may_request(10.0)


def test_a_member_that_is_only_busy_is_left_alone_for_a_second() -> None:
    peer = PeerHealth()
    for _ in range(8):
        assert peer.may_request(10.0)
        peer.failed("busy", 10.0)
    assert not peer.may_request(10.9)
    assert peer.may_request(11.0)
    peer.flowed(1, 0.0, 12.0)
    peer.failed("busy", 12.0)
    assert peer.may_request(12.0)


def test_bytes_keep_a_member_that_fails_now_and_then() -> None:
    peer = PeerHealth()
    for now in range(10, 20):
        for _ in range(2):
            peer.failed("broke", float(now))
        peer.flowed(100, 0.01, now + 0.5)
    for _ in range(5):
        peer.failed("broke", 20.4)
    assert peer.may_request(20.4), "bytes came within a second"
    peer.failed("broke", 20.5)
    assert not peer.may_request(20.5)


def test_a_wait_in_vain_is_nothing_served() -> None:
    peer = PeerHealth()
    peer.failed("late", 10.0)
    peer.failed("late", 10.0)
    peer.flowed(0, 0.5, 10.0)
    peer.failed("late", 10.0)
    assert not peer.may_request(10.0)


def test_a_member_that_serves_nothing_is_requested_ever_less() -> None:
    peer = PeerHealth()
    for _ in range(2):
        peer.failed("broke", 0.0)
    now, rests = 0.0, []
    for _ in range(7):
        peer.failed("broke", now)
        assert not peer.may_request(now)
        rests.append(next(rest for rest in (1, 2, 4, 8, 16, 30) if peer.may_request(now + rest)))
        now += rests[-1]
    assert rests == [1, 2, 4, 8, 16, 30, 30]


def test_failures_of_requests_that_were_under_way_prolong_no_pause() -> None:
    pause = Pause(1.0, 30.0)
    pause.begin(10.0)
    pause.begin(10.5)
    assert not pause.is_on(11.0)


def test_a_pause_long_after_the_last_one_is_short_again() -> None:
    pause = Pause(1.0, 30.0)
    for now in (10.0, 12.0, 15.0):
        pause.begin(now)
    assert pause.is_on(18.9)
    pause.begin(60.0)
    assert not pause.is_on(61.0)


def test_another_process_under_the_same_name_is_requested_at_once() -> None:
    peer = PeerHealth()
    peer.greeted(5)
    for _ in range(3):
        peer.failed("connect", 10.0)
    peer.greeted(5)
    assert not peer.may_request(10.1)
    peer.greeted(6)
    assert peer.may_request(10.2)
    health = seen(bucket_mib_s=60.0)
    health.of("b").greeted(5)
    flows(health, "b", 1.0)
    health.of("b").greeted(5)
    assert health.is_slow("b", 100.0)
    health.of("b").greeted(6)
    assert not health.is_slow("b", 100.0)


def test_health_is_kept_by_name_for_members_only() -> None:
    health = PeersHealth()
    kept, dropped = health.of("b"), health.of("c")
    health.keep({"b", "x"})
    assert health.of("b") is kept
    assert health.of("c") is not dropped


# -- the deadline -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Body:
    """A body of member `b`, in steps of a tenth of a second. `replies_s`: until its head; None: never. `mib_s`: the
    rate after that. `stops_s`: when no more bytes come. `on_disk`: at the member. `sends`: its load, as it reports."""

    replies_s: float | None = 0.0
    mib_s: float = 0.0
    stops_s: float = 1000.0
    on_disk: bool = True
    sends: Sending = NOT_STATED

    def missed_at(self, health: PeersHealth) -> float | None:
        """When the request missed its deadline; None: it had not within 30 s."""
        peer, began, waits_from = health.of("b"), 1000.0, 1000.0
        peer.pace.began()
        peer.sending = self.sends
        for step in range(1, 301):
            now = began + step / 10
            has_head = self.replies_s is not None and now - began >= self.replies_s
            if has_head and now - began <= self.stops_s:
                peer.flowed(int(self.mib_s * MIB / 10), 0.1, now)
                waits_from = now
            elif has_head and self.on_disk:
                peer.flowed(0, 0.1, now)
            is_late = not (has_head and self.on_disk) and health.is_late("b", now - waits_from, now)
            if is_late or (has_head and health.is_slow("b", now, is_on_disk=self.on_disk)):
                return step / 10
        return None


@dataclass(frozen=True, slots=True)
class Bucket:
    """`first_s`, `mib_s`: of its bodies, as this node measured them a moment ago; None: it measured none."""

    first_s: float | None = None
    mib_s: float | None = None

    def measured(self) -> PeersHealth:
        health = PeersHealth()
        if self.first_s is not None:
            health.bucket.replied(self.first_s, 999.0)
        if self.mib_s is not None:
            health.bucket.flowed(int(100 * self.mib_s * MIB), 100.0, 999.0)
        return health


FAST, SLOW, NEW = Bucket(0.05, 60.0), Bucket(3.0, 0.2), Bucket()
SHARED = Sending(100 * MIB, 50)


@pytest.mark.parametrize(
    ("bucket", "body", "missed"),
    [
        pytest.param(FAST, Body(None), (2.0, 2.2), id="slow first byte"),
        pytest.param(NEW, Body(None), (5.0, 5.2), id="slow first byte, the bucket was never measured"),
        pytest.param(FAST, Body(1.5, 60.0), None, id="a first byte after a while"),
        pytest.param(SLOW, Body(10.0, 0.2, on_disk=False), None, id="all wait for a slow bucket"),
        pytest.param(SLOW, Body(0.1, 0.15), None, id="a slow bucket and a member that is little slower"),
        pytest.param(SLOW, Body(None), (12.0, 15.2), id="no first byte, and a slow bucket"),
        pytest.param(FAST, Body(0.1, 1.0), (0.5, 0.7), id="slow rate"),
        pytest.param(FAST, Body(0.1, 1.0, on_disk=False), (0.5, 0.7), id="slow rate of what it receives itself"),
        pytest.param(NEW, Body(0.0, 0.01), (0.5, 0.7), id="10 KB/s, the bucket was never measured"),
        pytest.param(NEW, Body(0.0, 0.01, on_disk=False), (0.5, 0.7), id="10 KB/s, through the member"),
        pytest.param(FAST, Body(0.1, 40.0), None, id="a member that is little slower than the bucket"),
        pytest.param(FAST, Body(0.1, 60.0, stops_s=1.0), (1.5, 3.0), id="hang after the head, on its disk"),
        pytest.param(FAST, Body(0.1, 60.0, stops_s=1.0, on_disk=False), (3.0, 3.2), id="hang after the head"),
        pytest.param(FAST, Body(0.1, 1.0, sends=SHARED), None, id="an owner that 50 nodes share"),
        pytest.param(FAST, Body(12.0, 1.0, sends=SHARED), None, id="a first byte of an owner that 50 nodes share"),
    ],
)
def test_a_request_misses_its_deadline(bucket: Bucket, body: Body, missed: tuple[float, float] | None) -> None:
    at = body.missed_at(bucket.measured())
    assert (at is None) if missed is None else (at is not None and missed[0] <= at <= missed[1])


def test_a_member_that_missed_its_deadline_is_back_after_a_pause_that_grows() -> None:
    health = FAST.measured()
    peer = health.of("b")
    assert Body(0.1, 1.0).missed_at(health) is not None
    peer.leave_out(1001.0)
    assert not peer.may_request(1030.9)
    assert peer.may_request(1031.0)
    assert not health.is_slow("b", 1031.0), "it is measured anew"
    peer.leave_out(1032.0)
    assert not peer.may_request(1091.9)


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


@pytest.mark.parametrize(
    ("on_disk", "bucket_mib_s", "slow"),
    [
        pytest.param(False, 10.0, False, id="all nodes share a bucket that is busy"),
        pytest.param(False, 40.0, True, id="the bucket is as fast as ever"),
        pytest.param(True, 10.0, True, id="the member waits for nobody"),
    ],
)
def test_a_body_that_passes_a_busy_bucket_is_not_slow(on_disk: bool, bucket_mib_s: float, slow: bool) -> None:
    health = PeersHealth()
    health.bucket.flowed(10_000 * MIB, 250.0, 40.0)
    flows(health, "", bucket_mib_s)
    health.bucket.ended()
    flows(health, "b", 9.0)
    assert health.is_slow("b", 100.0, is_on_disk=on_disk) is slow


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


def test_what_is_sent_to_members_is_measured_by_the_second() -> None:
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
    assert health.bucket.usual == pytest.approx(17 * MIB, rel=0.1)  # too little came since to judge


def test_a_slow_member_is_left_out_ever_longer() -> None:
    peer = PeerHealth()
    now, rests = 1000.0, []
    for _ in range(7):
        peer.leave_out(now)
        assert peer.is_left_out(now)
        assert not peer.may_request(now)
        rests.append(next(rest for rest in (30, 60, 120, 240, 480, 600) if peer.may_request(now + rest)))
        now += rests[-1]
        assert not peer.may_request(now - 0.1)
    assert rests == [30, 60, 120, 240, 480, 600, 600]
    peer.leave_out(now + 601)
    assert peer.may_request(now + 631)


def test_bodies_that_leave_a_slow_member_together_count_once() -> None:
    peer = PeerHealth()
    peer.leave_out(0.0)
    peer.leave_out(0.1)
    assert peer.may_request(30.0)


def test_a_member_that_was_slow_is_measured_anew() -> None:
    health = seen(bucket_mib_s=60.0)
    flows(health, "b", 1.0)
    health.of("b").leave_out(100.0)
    assert not health.is_slow("b", 100.0)


# -- first bytes ------------------------------------------------------------------------------------------------------


def test_the_waits_for_the_last_heads_are_reported() -> None:
    peer = PeerHealth()
    assert peer.first_byte_s(0.5) is None
    for _ in range(100):
        peer.replied(2.0)
    for number in range(99):
        peer.replied((number * 37 % 99) / 100)
    assert (peer.first_byte_s(0.0), peer.first_byte_s(1.0)) == (0.0, 2.0)
    peer.replied(0.99)
    assert (peer.first_byte_s(0.5), peer.first_byte_s(0.99)) == (0.49, 0.98)


def test_the_first_bytes_of_the_bucket_are_the_longest_wait_of_late() -> None:
    bucket = PeersHealth().bucket
    assert bucket.first_byte_s(0.0) == 1.0
    bucket.replied(0.2, 10.0)
    bucket.replied(0.1, 10.0)
    assert bucket.first_byte_s(10.0) == 0.2
    assert bucket.first_byte_s(70.0) == pytest.approx(0.1)
    bucket.replied(3.0, 70.0)
    assert bucket.first_byte_s(70.0) == 3.0


# -- what it had before the ring changed ------------------------------------------------------------------------------


def test_a_disk_that_has_nothing_is_left_alone_for_a_while() -> None:
    peer = PeerHealth()
    for _ in range(8):
        assert peer.may_hold(10.0)
        peer.held(False, 10.0)
    assert not peer.may_hold(10.9)
    assert peer.may_hold(11.0)
    peer.held(False, 11.0)
    assert not peer.may_hold(12.9)
    peer.held(True, 13.0)
    for _ in range(7):
        peer.held(False, 13.0)
    assert peer.may_hold(13.0)
    assert peer.may_request(10.0)
