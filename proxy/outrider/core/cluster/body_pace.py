"""The rate at which bodies come from a member, or from the bucket."""

from __future__ import annotations

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
        """Bytes per second of one body; None: too little came lately to tell."""
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
        """0: too little was sent lately to tell."""
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
