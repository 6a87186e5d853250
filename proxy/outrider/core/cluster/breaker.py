"""The circuit breaker of one member."""

from __future__ import annotations

from enum import StrEnum

_FAILURES = 3
_SILENCE_S = 1.0
_FIRST_S, _LONGEST_S = 1.0, 30.0


class Circuit(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"
    """A hello is under way to find out whether it may close."""


class Breaker:
    """Opens after three failures in a row if nothing was served for a second, and at once when a hello is not answered.

    While it is open the member is asked for nothing. After 1 s a hello probes it, off the path of data. That time
    doubles with each probe that fails, and with each opening without anything served in between, up to 30 s.

    If hellos are not answered, the next one that is closes the breaker, probe or not: the member could not be reached,
    and can be now. If they are, only a probe closes it, and the first failure after that opens it again: the member may
    answer hellos and serve nothing.
    """

    def __init__(self) -> None:
        self.state = Circuit.CLOSED
        self._failures = 0
        self._served_at = float("-inf")
        self._wait_s = _FIRST_S
        self._probe_at = 0.0
        self._by_hello = False

    @property
    def is_closed(self) -> bool:
        return self.state is Circuit.CLOSED

    def serves(self, now: float) -> bool:
        """Whether bytes came within the last second."""
        return now - self._served_at < _SILENCE_S

    def served(self, now: float) -> None:
        """Bytes came that were asked for."""
        self._served_at = now
        self._failures, self._wait_s = 0, _FIRST_S

    def failed(self, now: float) -> None:
        """A read failed."""
        self._failures += 1
        if self.is_closed and self._failures >= _FAILURES and not self.serves(now):
            self._by_hello = False
            self._open(now)

    def answered(self, now: float) -> None:
        """A hello was answered."""
        if self.is_closed:
            return
        if self._by_hello:
            # The next failures are those of connections that did not survive.
            self._failures = 0
        elif now < self._probe_at:
            return
        self.state = Circuit.CLOSED

    def unanswered(self, now: float) -> None:
        """A hello was not answered."""
        self._by_hello = True
        # A regular hello before the time of the probe prolongs nothing.
        if self.state is not Circuit.OPEN or now >= self._probe_at:
            self._open(now)

    def restarted(self) -> None:
        """The member has a new process: nothing is known of it."""
        self.state = Circuit.CLOSED
        self._failures, self._wait_s = 0, _FIRST_S

    def probes(self, now: float) -> bool:
        """Whether a hello is to be sent now to probe the member. True once for each probe: its result is to be told by
        `answered` or `unanswered`."""
        if self.state is not Circuit.OPEN or now < self._probe_at:
            return False
        self.state = Circuit.HALF_OPEN
        return True

    def _open(self, now: float) -> None:
        self.state = Circuit.OPEN
        self._probe_at = now + self._wait_s
        self._wait_s = min(_LONGEST_S, 2 * self._wait_s)
