"""Retries: which statuses to repeat, the backoff before each try, and for how long tries go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from math import isfinite

RETRYABLE_STATUSES = frozenset((429, 500, 502, 503, 504))
"""Statuses that S3 asks its clients to retry (S3 user guide, "Best practices for errors")."""
SLOW_DOWN_STATUSES = frozenset((429, 503))
"""Statuses that throttle: S3 answers 503 SlowDown, other stores 429."""

HEAD_PATIENCE_S = 45.0
"""How long a client may wait for the head of its reply because of failures of the origin. botocore's `read_timeout` is
60 s: a client that gets nothing until then sends its request again, beside the one that waits. It gets the failure
before that, with time left for a last try, and its own backoff takes over."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Full jitter: the wait before try `n` is uniform in [0, min(cap, base * 2**n)].

    Source: AWS Architecture Blog, "Exponential Backoff And Jitter" (2015). `tries`: as many are made for nobody.
    `unawaited_s`: the waits between these are no longer than this, all together.
    """

    tries: int = 5
    base_s: float = 0.05
    cap_s: float = 5.0
    unawaited_s: float = 5.0

    def wait_s(self, failures: int, chance: float) -> float:
        """The wait after the `failures`-th failure (from 1). `chance` is uniform in [0, 1)."""
        # The exponent is bounded: 2**2000 is no float.
        return float(min(self.cap_s, self.base_s * 2 ** min(failures, 32)) * chance)


@dataclass(frozen=True, slots=True)
class Trouble:
    """The failures of one read since its last byte. `lasts_s`: the time since then. `waited_s`: the part of it that was
    spent on waits. `retry_after_s`: as the last reply said; 0: it said nothing."""

    failures: int
    lasts_s: float
    waited_s: float = 0.0
    retry_after_s: float = 0.0

    def wait_s(self, backoff: Backoff, chance: float, *, patience_s: float, awaited: bool) -> float | None:
        """How long to wait before the next try; None: give up.

        `awaited`: somebody waits for the read, and tries go on for `patience_s`. A read that nobody waits for has
        `backoff.tries`, and so has one whose patience is shorter than these.
        """
        jitter_s = backoff.wait_s(self.failures, chance)
        if awaited and self.lasts_s < patience_s:
            # The last try comes when the patience is over, also where Retry-After asks for more.
            return min(self.retry_after_s + jitter_s, patience_s - self.lasts_s)
        # Tries that were silent until their timeouts have used up the time of those that wait. One more may have a
        # better connection.
        if self.failures >= backoff.tries or (self.failures > 1 and self.lasts_s >= max(patience_s, HEAD_PATIENCE_S)):
            return None
        wait_s = jitter_s if awaited else self.retry_after_s + jitter_s
        return wait_s if self.waited_s + wait_s <= backoff.unawaited_s else None


def retry_after_s(headers: Mapping[str, str], now: float) -> float:
    """The Retry-After of a reply, in seconds; 0: there is none, or it has passed. `now`: seconds since 1970, for a date
    in a reply that does not state its own.

    Source: RFC 9110 section 10.2.3.
    """
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdecimal():
        seconds = float(value)
        return seconds if isfinite(seconds) else 0.0
    until = seconds_of(value)
    if until is None:
        return 0.0
    # By the clock of the origin, which wrote both.
    sent_at = seconds_of(headers.get("date", ""))
    return max(0.0, until - (now if sent_at is None else sent_at))


def seconds_of(date: str) -> float | None:
    """Seconds since 1970; None: it is no date."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
