"""Whether a member is asked: its circuit breaker, its replies that it is too busy, and its rate beside the bucket's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from zlib import crc32

from outrider.core.cluster.body_pace import BodyPace, BucketPace
from outrider.core.cluster.breaker import Breaker
from outrider.core.cluster.first_bytes import FirstBytes
from outrider.core.cluster.peer_messages import NOT_TOLD, Sending
from outrider.core.model import ObjectRef

# The member answers, and is no worse for it.
_NO_FAILURE = frozenset(("absent", "busy", "changed"))
# A member whose disk has had none of so many blocks in a row that it owned before is asked for one in so many.
_EMPTY_MAX, _EMPTY_ASKED = 8, 16
# A member that says so often that it is busy is left alone for a moment. One such reply costs a round trip.
_BUSY_MAX = 8
_BUSY_REST_S = 1.0
# A member is too slow below this part of the rate of one connection to the bucket, and of the others' rate.
_SLOW = 0.5
_SLOW_REST_S, _SLOW_REST_MAX_S = 30.0, 600.0
# A member that sends so many times as much to all as one body of it brings is not shared by that many: the way to it is
# broken. Fifty nodes that each read a few blocks of it at once are below that.
_SHARED_MAX = 256
# A second request is sent for at most this share of requests, and so many of these may be saved up.
_SHARE, _SAVED_MAX = 0.02, 4.0


@dataclass(slots=True)
class PeerHealth:
    """One member. `failures`: by the `why` of `PeerFailed`. `bytes_in`: of bodies. `sending`: as it told last."""

    breaker: Breaker = field(default_factory=Breaker)
    pace: BodyPace = field(default_factory=BodyPace)
    first_bytes: FirstBytes = field(default_factory=FirstBytes)
    failures: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    sending: Sending = NOT_TOLD
    boot: int = 0
    _absent_in_a_row: int = 0
    _busy_in_a_row: int = 0
    _busy_until: float = float("-inf")
    _slow_until: float = float("-inf")
    _slow_rest_s: float = _SLOW_REST_S

    def may_ask(self, now: float) -> bool:
        return self.breaker.is_closed and now >= self._slow_until and now >= self._busy_until

    def may_have(self, ref: ObjectRef, index: int) -> bool:
        """Whether it is worth a round trip to ask for a block that it owned before the ring changed. While a cluster is
        young, nobody has anything: then most of these questions are left out, and which ones depends on the block."""
        if self._absent_in_a_row < _EMPTY_MAX:
            return True
        return crc32(f"{ref.bucket}/{ref.key}/{index}".encode(errors="surrogateescape")) % _EMPTY_ASKED == 0

    def had(self, is_here: bool) -> None:
        """It was asked for what it has on its disk alone."""
        self._absent_in_a_row = 0 if is_here else self._absent_in_a_row + 1

    def is_left_out(self, now: float) -> bool:
        """Whether it was too slow, a while ago."""
        return now < self._slow_until

    def replied(self, wait_s: float, sending: Sending | None = None) -> None:
        """The head of a reply that is to be believed came after `wait_s`. `sending` None: it is not told."""
        self.first_bytes.came(wait_s)
        self.sending = self.sending if sending is None else sending

    def flowed(self, count: int, waited_s: float, now: float) -> None:
        """`count` bytes of a body came, for which a reader waited `waited_s`. 0: it waited in vain."""
        self.pace.flowed(count, waited_s, now)
        if count:
            self.bytes_in += count
            self._busy_in_a_row = 0
            self.breaker.served(now)

    def failed(self, why: str, now: float) -> None:
        """A read failed. `why`: of `PeerFailed`."""
        self.failures[why] += 1
        if why == "busy":
            self._busy_in_a_row += 1
            if self._busy_in_a_row >= _BUSY_MAX:
                self._busy_until = now + _BUSY_REST_S
        if why not in _NO_FAILURE:
            self.breaker.failed(now)

    def greeted(self, boot: int, now: float) -> None:
        """A hello was answered by the process of that boot."""
        if self.boot not in (0, boot):
            self.breaker.restarted()
            self.pace.begin_anew()
        self.boot = boot
        self.breaker.answered(now)

    def unanswered(self, now: float) -> None:
        """A hello was not answered."""
        self.breaker.unanswered(now)

    def leave_out(self, now: float) -> None:
        """It is too slow: it is not asked for 30 s. That time doubles, up to ten minutes, unless as much time as the
        longest has passed since the last."""
        if now < self._slow_until:
            return
        if now - self._slow_until > _SLOW_REST_MAX_S:
            self._slow_rest_s = _SLOW_REST_S
        self._slow_until = now + self._slow_rest_s
        self._slow_rest_s = min(_SLOW_REST_MAX_S, 2 * self._slow_rest_s)
        self.pace.begin_anew()


class PeersHealth:
    """All members, and the bucket beside them. `bucket`: the pace of bodies from the bucket."""

    def __init__(self) -> None:
        self.bucket = BucketPace()
        self._peers: dict[str, PeerHealth] = {}
        self._saved = 0.0

    def of(self, name: str) -> PeerHealth:
        found = self._peers.get(name)
        if found is None:
            found = self._peers[name] = PeerHealth()
        return found

    def keep(self, names: Collection[str]) -> None:
        """Forget all members but these."""
        for name in [name for name in self._peers if name not in names]:
            del self._peers[name]

    def is_slow(self, name: str, now: float) -> bool:
        """Whether a body of the member, which is under way, had better be left for another source.

        All bodies of the member together come at less than half the rate of one connection to the bucket, and so do
        those that it sends to all members: where many read the same, each gets a part of its link. If all of them went
        to the bucket, that would give each block as many times. And it is not this node's link that is full: that would
        slow down all bodies. So if bodies of other sources are under way, a body of this member comes at less than half
        of their rate, too. False while its rate is not known.
        """
        health, least = self.of(name), _SLOW * self.bucket.usual
        rate, (sends, bodies) = health.pace.rate(now), health.sending
        if (
            rate is None
            or rate * max(1, health.pace.under_way, bodies) >= least
            or least <= sends <= _SHARED_MAX * rate
        ):
            return False
        others = [self.bucket, *(other.pace for each, other in self._peers.items() if each != name)]
        rates = [(other.rate(now), other.under_way) for other in others]
        known = [(each, count) for each, count in rates if each is not None]
        bodies = sum(count for _, count in known)
        return not bodies or rate < _SLOW * sum(each * count for each, count in known) / bodies

    def asked(self) -> None:
        """A member was asked: the budget for second requests grows."""
        self._saved = min(_SAVED_MAX, self._saved + _SHARE)

    def spend(self) -> bool:
        """Whether a late request may be sent a second time, to the bucket; if so, the budget is charged."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
