"""Whether a member is requested for blocks: the rates of bodies, the deadline of each request, and the pauses that
follow where it is missed or where requests fail."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field

from outrider.core.cluster.peer_messages import NOT_STATED, Sending

# The member answers, and is no worse for it.
_NO_FAILURE = frozenset(("absent", "changed"))
# A member that is busy says so at the cost of a round trip.
_FAILURES_MAX, _BUSY_MAX = 3, 8
# Failures are those of single requests while bytes came so lately.
_SERVES_S = 1.0
# A member whose disk has had none of so many blocks in a row that it owned before is not requested for others.
_ABSENT_MAX = 8
# The first byte of a body is late after so many times the wait that the bucket has needed of late, and not before the
# least one. A member that is dead, or whose disk hangs, is found sooner: by a hello, and by its own report.
_FIRST_BYTES, _FIRST_BYTE_MIN_S = 5.0, 2.0
# A member is too slow below this part of the rate of one connection to the bucket, and of the rate of others.
_SLOW = 0.5
# A member that sends so many times as much to all as one body of it brings is not shared by that many: the way to it is
# broken. Fifty nodes that each read a few blocks of it at once are below that.
_SHARED_MAX = 256
# The status sorts those of each member, of hundreds.
_WAITS_MAX = 100
# Half of what is remembered is younger than this.
_HALF_LIFE_S = 2.0
# The usual rate of the bucket changes slowly.
_USUAL_HALF_LIFE_S = 60.0
# A rate is known after so many seconds of waiting for bytes. Less is a matter of latency.
_KNOWN_S = 0.5
# The bucket is taken to give so many bytes per second until it was measured: little, for a body from any bucket.
_FLOOR = 1e6
# So long a wait for the first bytes is taken for usual until one was measured: long, for any bucket.
_FIRST_BYTE_S = 1.0


class BodyPace:
    """Bytes, and the seconds in which a reader waited for them: the time that a disk or a client takes does not count.
    Both fade, so that the rate is that of the last seconds."""

    def __init__(self, half_life_s: float = _HALF_LIFE_S) -> None:
        self._half_life_s = half_life_s
        self.under_way = 0
        """Bodies that are being received."""
        self._bytes = self._waited_s = 0.0
        self._at = float("-inf")

    def began(self) -> None:
        self.under_way += 1

    def ended(self) -> None:
        self.under_way -= 1

    def flowed(self, count: int, waited_s: float, now: float) -> None:
        """`count` bytes of a body came after a wait of `waited_s`. 0 bytes: they have not come yet."""
        kept = self._kept(now)
        self._bytes = self._bytes * kept + count
        self._waited_s = self._waited_s * kept + waited_s
        self._at = now

    def rate(self, now: float) -> float | None:
        """Bytes per second of one body; None: too little came lately to know it."""
        return self._bytes / self._waited_s if self._waited_s * self._kept(now) >= _KNOWN_S else None

    def begin_anew(self) -> None:
        """Nothing that came so far counts. Bodies under way go on."""
        self._bytes = self._waited_s = 0.0

    def _kept(self, now: float) -> float:
        """The part of the past that still counts."""
        return float(0.5 ** ((now - self._at) / self._half_life_s))


class SendingPace(BodyPace):
    """The rate of all bodies together that this node sends to members."""

    def sent(self, count: int, now: float) -> None:
        """A pause counts as a second at most: nobody asked meanwhile."""
        self.flowed(count, min(1.0, now - self._at), now)

    def bytes_s(self, now: float) -> int:
        """0: too little was sent lately to know it."""
        return int(self.rate(now) or 0)


class BucketPace(BodyPace):
    """The rate of bodies from the bucket, lately and usually, and the wait for their first bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._usual = BodyPace(_USUAL_HALF_LIFE_S)
        self.usual = _FLOOR
        """Bytes per second of one body, as it was when it was last known. It is not forgotten: few blocks come from the
        bucket while members have them. A node that has just been started knows none, and takes little for it: a member
        whose link is broken is passed by all the same."""
        self._first_byte_s, self._first_byte_at = 0.0, float("-inf")

    def flowed(self, count: int, waited_s: float, now: float) -> None:
        super().flowed(count, waited_s, now)
        self._usual.flowed(count, waited_s, now)
        usual = self._usual.rate(now)
        self.usual = self.usual if usual is None else usual

    def replied(self, waited_s: float, now: float) -> None:
        """The first bytes of a body came after `waited_s`."""
        self._first_byte_s, self._first_byte_at = max(waited_s, self._faded_s(now)), now

    def first_byte_s(self, now: float) -> float:
        """The longest wait for the first bytes of a body, of late; a second where none was measured."""
        return self._faded_s(now) or _FIRST_BYTE_S

    def slowest(self, now: float) -> float:
        """Bytes per second of one body, lately or usually, whichever is less."""
        lately = self.rate(now)
        return self.usual if lately is None else min(lately, self.usual)

    def _faded_s(self, now: float) -> float:
        return float(self._first_byte_s * 0.5 ** ((now - self._first_byte_at) / _USUAL_HALF_LIFE_S))


@dataclass(slots=True)
class Pause:
    """A time without requests. Each lasts twice as long as the one before, from `first_s` to `longest_s`, unless
    `longest_s` have passed since."""

    first_s: float
    longest_s: float
    _until: float = float("-inf")
    _next_s: float = 0.0

    def is_on(self, now: float) -> bool:
        return now < self._until

    def begin(self, now: float) -> None:
        """During a pause it changes nothing: failures of requests that were under way prolong nothing."""
        if self.is_on(now):
            return
        if now - self._until > self.longest_s:
            self._next_s = self.first_s
        self._until = now + self._next_s
        self._next_s = min(self.longest_s, 2 * self._next_s)

    def clear(self) -> None:
        self._until = float("-inf")


@dataclass(slots=True)
class PeerHealth:
    """One member. `failures`: by the `why` of `PeerFailed`. `sending`: as it reported last."""

    pace: BodyPace = field(default_factory=BodyPace)
    failures: Counter[str] = field(default_factory=Counter)
    sending: Sending = NOT_STATED
    boot: int = 0
    # The last waits for the first byte of a reply, in seconds.
    _waits_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WAITS_MAX))
    _failed_in_a_row: int = 0
    _absent_in_a_row: int = 0
    _served_at: float = float("-inf")
    _failing: Pause = field(default_factory=lambda: Pause(1.0, 30.0))
    _late: Pause = field(default_factory=lambda: Pause(30.0, 600.0))
    _empty: Pause = field(default_factory=lambda: Pause(1.0, 30.0))

    def may_request(self, now: float) -> bool:
        return not (self._failing.is_on(now) or self._late.is_on(now))

    def may_hold(self, now: float) -> bool:
        """Whether it is worth a round trip to request a block that it owned before the ring changed. While a cluster is
        young, nobody has anything."""
        return self.may_request(now) and not self._empty.is_on(now)

    def held(self, is_held: bool, now: float) -> None:
        """It was requested for what it has on its disk alone."""
        self._absent_in_a_row = 0 if is_held else self._absent_in_a_row + 1
        if is_held:
            self._empty.clear()
        elif self._absent_in_a_row >= _ABSENT_MAX:
            self._empty.begin(now)

    def is_left_out(self, now: float) -> bool:
        """Whether it missed a deadline, a while ago."""
        return self._late.is_on(now)

    def fails(self, now: float) -> bool:
        """Whether its requests failed, a while ago."""
        return self._failing.is_on(now)

    def serves(self, now: float) -> bool:
        """Whether bytes came within the last second."""
        return now - self._served_at < _SERVES_S

    def first_byte_s(self, part: float) -> float | None:
        """The quantile of the last 100 waits for a first byte, in seconds; None: no reply was received yet."""
        return sorted(self._waits_s)[int(part * (len(self._waits_s) - 1))] if self._waits_s else None

    def replied(self, wait_s: float, sending: Sending | None = None) -> None:
        """The head of a reply that is to be believed was received after `wait_s`. `sending` None: it does not say."""
        self._waits_s.append(wait_s)
        self.sending = self.sending if sending is None else sending

    def flowed(self, count: int, waited_s: float, now: float) -> None:
        """`count` bytes of a body were received, for which a reader waited `waited_s`. 0: it waited in vain."""
        self.pace.flowed(count, waited_s, now)
        if count:
            self._failed_in_a_row, self._served_at = 0, now

    def failed(self, why: str, now: float) -> None:
        """A request failed. `why`: of `PeerFailed`."""
        self.failures[why] += 1
        if why in _NO_FAILURE:
            return
        self._failed_in_a_row += 1
        most = _BUSY_MAX if why == "busy" else _FAILURES_MAX
        if self._failed_in_a_row >= most and not self.serves(now):
            self._failing.begin(now)

    def greeted(self, boot: int) -> None:
        """A hello was answered by the process of that boot. Nothing is known of a new one."""
        if self.boot not in (0, boot):
            self._failed_in_a_row = 0
            self._failing.clear()
            self.pace.begin_anew()
        self.boot = boot

    def leave_out(self, now: float) -> None:
        """A request missed its deadline: the member is not requested for 30 s, ever longer, up to ten minutes."""
        self._late.begin(now)
        self.pace.begin_anew()


class PeersHealth:
    """All members, and the bucket beside them. `bucket`: the pace of bodies from the bucket."""

    def __init__(self) -> None:
        self.bucket = BucketPace()
        self._peers: dict[str, PeerHealth] = {}

    def of(self, name: str) -> PeerHealth:
        found = self._peers.get(name)
        if found is None:
            found = self._peers[name] = PeerHealth()
        return found

    def keep(self, names: Collection[str]) -> None:
        """Forget all members but these."""
        for name in [name for name in self._peers if name not in names]:
            del self._peers[name]

    def is_late(self, name: str, waits_s: float, now: float) -> bool:
        """Whether the bucket would have brought bytes for which a member that may itself wait for the bucket lets a
        reader wait for `waits_s`. Bodies that are under way share the line of the member, as they would that of the
        bucket."""
        health = self.of(name)
        limit_s = max(_FIRST_BYTE_MIN_S, _FIRST_BYTES * self.bucket.first_byte_s(now))
        return waits_s > limit_s * max(1, health.pace.under_way, health.sending.bodies)

    def is_slow(self, name: str, now: float, *, is_on_disk: bool = True) -> bool:
        """Whether a body of the member, which is under way, had better be left for another source.

        All bodies of the member together come at less than half the rate of one connection to the bucket, and so do
        those that it sends to all members: where many read the same, each gets a part of its link. If all of them went
        to the bucket, that would give each block as many times. And it is not this node's link that is full: that would
        slow down all bodies. So if bodies of other sources are under way, a body of this member comes at less than half
        of their rate, too. False while its rate is not known.

        `is_on_disk`: of the body. Otherwise the member passes on what it receives from the bucket, which is as busy as
        it is for this node; and half of that way's rate is lost on the next one.
        """
        health, bucket = self.of(name), self.bucket
        least = _SLOW * bucket.usual if is_on_disk else _SLOW**2 * bucket.slowest(now)
        rate, (sends, bodies) = health.pace.rate(now), health.sending
        if (
            rate is None
            or rate * max(1, health.pace.under_way, bodies) >= least
            or least <= sends <= _SHARED_MAX * rate
        ):
            return False
        others = [bucket, *(other.pace for each, other in self._peers.items() if each != name)]
        rates = [(other.rate(now), other.under_way) for other in others]
        known = [(each, count) for each, count in rates if each is not None]
        bodies = sum(count for _, count in known)
        return not bodies or rate < _SLOW * sum(each * count for each, count in known) / bodies
