"""The limits of fills under way. That of all fills grows while more of them bring more bytes, and halves when the
origin throttles (AIMD). That of background fills (prefetch) takes no bandwidth from demand, like LEDBAT (RFC 6817).

A full line shows in the total rate: when more fills do not raise it, they only divide it among more. Bodies that are
too small to have a rate show a full line by their delay: a body that comes later than usual waited in a queue. LEDBAT
looks at single delays; here averages are compared, since the latencies of a bucket scatter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.core.origin.body_delay import LATELY, BodyDelay

# S3 gives 40-90 MB/s a connection, so 16 connections fill a line of 10 Gbit/s from the start.
FIRST_FILLS = 16
# Long enough for several blocks a connection, short enough to reach the ceiling of 64 within a few windows.
_STEP_WINDOW_S = 1.0
# The time from a change of the limit to the first bytes of the fills that it admitted.
_SETTLE_S = 0.25
# A step is a gain if it brought at least this part of what it would bring on an empty line; less is noise.
_STEP_GAIN = 1 / 4
# After so many windows without a gain another step is tried: the line, or the bucket, may have become faster.
_PATIENCE = 10
# A step is 1/8 of the limit, so that its gain is more than noise, and at least two.
_STEPS, _STEP_MIN = 8, 2


class AimdLimit:
    """Additive increase, multiplicative decrease, after a start that doubles. `floor` <= `limit` <= `ceiling`.

    A step up without a gain is taken back: more fills than fill the line only divide it, and each of them takes longer.
    Only the time counts in which the limit holds a fill up, since at other times the rate is not the line's. Source:
    Chiu and Jain, "Analysis of the increase and decrease algorithms" (1989); the doubling start is TCP's slow start.
    """

    def __init__(self, ceiling: int, floor: int = 1) -> None:
        if not 1 <= floor <= ceiling:
            raise ValueError(f"no limit between {floor} and {ceiling}")
        self._floor = floor
        self.ceiling = ceiling
        self.limit = max(floor, min(ceiling, FIRST_FILLS))
        self._starting = True
        # Since when the limit holds a fill up. Then the window: seconds until it begins, its seconds so far, and the
        # bytes that came in them.
        self._short_since: float | None = None
        self._settling_s = self._window_s = 0.0
        self._received_bytes = 0
        self._best_rate = 0.0
        self._without_gain = 0
        # The limit before the last step, while it is not known whether that step was a gain.
        self._before: int | None = None
        self._halved_at: float | None = None

    def received(self, count: int, now: float, *, short: bool) -> None:
        """`count` bytes came from the origin. `short`: the limit holds a fill up."""
        if self._short_since is not None:
            passed_s = now - self._short_since
            if self._settling_s > 0:
                self._settling_s -= passed_s
            else:
                self._window_s += passed_s
                self._received_bytes += count
        self._short_since = now if short else None
        if self._window_s >= _STEP_WINDOW_S:
            before = self.limit
            self._judge(self._received_bytes / self._window_s)
            self._window_s, self._received_bytes = 0.0, 0
            self._settling_s = 0.0 if self.limit == before else _SETTLE_S

    def slow_down(self, now: float) -> None:
        """The origin throttled a request. The refusals of one burst halve the limit once."""
        if self._halved_at is not None and now - self._halved_at < _STEP_WINDOW_S:
            return
        self._halved_at = now
        self.limit = max(self._floor, self.limit // 2)
        self._starting, self._before = False, None
        self._best_rate, self._without_gain = 0.0, 0
        # The window so far was counted under the old limit.
        self._short_since, self._settling_s, self._window_s, self._received_bytes = None, _SETTLE_S, 0.0, 0

    def _judge(self, rate: float) -> None:
        if self._before is not None:
            if rate > self._best_rate * (1 + _STEP_GAIN * (self.limit / self._before - 1)):
                self._step_up(rate)
            else:
                self.limit, self._before, self._starting = self._before, None, False
        elif self._best_rate == 0:
            self._step_up(rate)
        else:
            self._without_gain += 1
            if self._without_gain > _PATIENCE:
                self._step_up(rate)

    def _step_up(self, rate: float) -> None:
        step = self.limit if self._starting else max(_STEP_MIN, self.limit // _STEPS)
        self._before, self.limit = self.limit, min(self.ceiling, self.limit + step)
        self._best_rate, self._without_gain = rate, 0


# In a quarter of a second several chunks of each connection arrive, and no reader is held up for longer unnoticed.
_WINDOW_S = 0.25
# A rate of more than this above the best one is no noise: the line has more bandwidth.
_GAIN = 1.05
# At a rate of less than this part of the best one, the line is not full.
_FULL = 0.85
# The half-life of the best rate: the bandwidth of a line may fall.
_HALF_LIFE_S = 60.0
_FIRST = 2
# The time of a smaller body is that of its latency.
_LARGE_BYTES = 256 * 1024
# S3 gives 40-90 MB/s a connection. Where the last bodies came at less than half of that, or at less than this part of
# the rate of the fastest one, something other than their connections held them up.
_ALONE_BYTES_S, _ALONE = 20e6, 0.6
# Latency is a small part of the time of such a body.
_LONG_BYTES = 4 * 1024 * 1024
# The weight of the newest body in the rate of the last ones. The fastest one is remembered: a bucket that is full for a
# quarter of an hour is full, and not slow.
_NEWEST, _FASTEST_HALF_LIFE_S = 1 / 8, 900.0
# After so long without a byte the limits begin anew. Otherwise the first blocks of an epoch would share the line with
# as many fills as were allowed at the end of the epoch before.
_IDLE_S = 1.0
# Demand is about to end when its bytes take at most so long. A prefetch that begins then gets its first bytes when
# demand ends; otherwise the line would be idle for a round trip. Four readers of a cold epoch end their shards almost
# together, and each time the idle line cost them 50 ms, 1.5 % of two shards. With 0.1 s the readers of small shards
# waited (`make bench-ahead`, WebDataset's first epoch: 1.25 s in place of 0.85).
_ENDS_S = 0.05
# The peak of concurrent demand decays by this factor with each judgement.
_PEAK_KEPT = 0.9
# Thresholds for the recent delay of small bodies: so many times the usual delay, plus so many standard errors, since
# the latencies of some buckets scatter. Beyond _LATE there is a queue; _FIRST_SIGN is its first sign.
_LATE, _IN_TIME, _FIRST_SIGN = (1.25, 2.5), (1.1, 1.5), (1.05, 1.0)
# The limit until the usual delay is known; it grows by one with each body. With two, the first batch of an announced
# order came half a second later. With ten, a reader on a full line would at first get less of it.
_UNTIL_KNOWN = 8
# Steps down show whose the delay is once the bodies under way are this part of those before. The number is their rate
# times their delay (Little's law): where fewer of them come as late, they wait for no queue of their own.
_FEWER = 0.7


class BackgroundLimit:
    """The limits of background fills under way: `alone` while there is no demand, `beside` while there is. Each is 1 to
    `ceiling`."""

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self.alone = min(_FIRST, ceiling)
        self.beside = 1
        self._best_bytes_s = 0.0
        self.body_bytes_s = 0.0
        """The best rate of one large body, its latency included. 0: none came."""
        # The rates of long bodies of demand: of the last ones, and of the fastest.
        self._last_bytes_s = self._fastest_bytes_s = 0.0
        # The most demand fills under way at once, decaying.
        self._peak = 0.0
        self._began: float | None = None
        self._bytes_at: float | None = None
        self._bytes = 0
        self._hindered = False
        # Since the last call of `judge`: as many fills were under way as the limit allows, and one had to wait.
        self._was_reached = self._was_short = False
        self._since_change = 0
        self._delay = BodyDelay()
        # No queue was seen yet, so the limit grows fast: a few round trips find the line's capacity, and not dozens.
        self._starting = True
        # The number of small bodies to come that were requested beside a large transfer: their delay does not
        # count.
        self._to_ignore = 0
        # The first of the steps down that may prove to be in vain.
        self._steps_down: _StepsDown | None = None

    def hindered(self) -> None:
        """A fill had to wait because of the limit."""
        self._hindered = self._was_short = True

    def reached(self) -> None:
        """As many fills are under way as the limit allows."""
        self._was_reached = True

    def fill_begins(self, now: float) -> None:
        """A background fill is about to begin."""
        if self._bytes_at is not None and now - self._bytes_at > _IDLE_S:
            self._begin_anew()
            self._bytes_at, self._peak = None, 0.0

    def _begin_anew(self) -> None:
        self.alone, self.beside, self._steps_down = min(_FIRST, self._ceiling), 1, None

    def demand_seen(self, demand: int) -> None:
        """`demand` demand fills are under way."""
        self._peak = max(self._peak, demand)

    def ends_soon(self, left_bytes: int) -> bool:
        """Whether demand with `left_bytes` to come is about to end."""
        # If no recent body had a rate, an old rate says nothing about how long small bodies take.
        return self._bytes_at is not None and left_bytes < self._best_bytes_s * _ENDS_S

    @property
    def after(self) -> int:
        """The limit while demand is about to end: background fills take its slots."""
        return min(self._ceiling, max(self.beside, int(self._peak)))

    def alone_again(self, under_way: int) -> None:
        """A large transfer that is not counted here shared the line, and has ended. The limits were learnt beside it,
        and the `under_way` bodies to come were requested beside it."""
        self._to_ignore = under_way
        self._begin_anew()

    def is_due(self, now: float) -> bool:
        """Bytes of a body came. Returns whether `judge` is due now."""
        self._bytes_at = now
        if self._began is None:
            self._began = now
        return now - self._began >= _WINDOW_S

    def flowed(self, count: int) -> None:
        """`count` bytes of a body came. Its first bytes are not counted: their time is latency."""
        self._bytes += count

    def body_received(self, count: int, after_s: float, *, is_demand: bool) -> None:
        """A body of `count` bytes was here `after_s` seconds after its request."""
        rate = count / after_s
        if count >= _LARGE_BYTES:
            self.body_bytes_s = max(self.body_bytes_s, rate)
        if count >= _LONG_BYTES and is_demand:
            self._fastest_bytes_s = max(self._fastest_bytes_s, rate)
            self._last_bytes_s += _NEWEST * (rate - self._last_bytes_s) if self._last_bytes_s else rate

    @property
    def is_large(self) -> bool:
        """Bodies came of late that are large enough to have a rate."""
        return self._bytes_at is not None

    @property
    def is_contended(self) -> bool:
        """Bodies of demand come slower than connections bring them: they share a full line or bucket, perhaps with
        bodies for others. True also while none was long enough to show it."""
        return self._last_bytes_s < max(_ALONE_BYTES_S, _ALONE * self._fastest_bytes_s)

    def bodies(self, body_bytes_s: float) -> int | None:
        """How many bodies, each at this rate, the line brings at once. None: not known, as where all are small."""
        return round(self._best_bytes_s / body_bytes_s) if self.is_large and body_bytes_s else None

    def small_received(self, after_s: float, now: float) -> None:
        """A small body came `after_s` seconds after its request: that is the latency and the time in a queue."""
        if self._to_ignore:
            self._to_ignore -= 1
            return
        self._since_change += 1
        window = max(LATELY, self.beside)
        self._delay.observe(after_s, now, window, not_ours=self.beside == 1)
        if self._delay.is_beyond(*_LATE):
            # Step down once for all bodies under way: those that come now may have been requested before the last step.
            if self._since_change > max(self.alone, self.beside):
                self._starting = False
                self._step_down()
        elif self._hindered and self._may_grow and not self._delay.is_beyond(*_IN_TIME):
            self._starting &= not self._delay.is_beyond(*_FIRST_SIGN)
            if self._since_change > self._between_steps(window):
                self._steps_down = None
                self._change(self._more)

    @property
    def _may_grow(self) -> bool:
        return self._delay.is_known or self.alone < _UNTIL_KNOWN

    def _between_steps(self, window: int) -> int:
        """The bodies between two steps up. While starting, that is twice in a round trip. Later, a step waits until all
        bodies of the recent average were requested after the last step: a step before the last one shows is one too
        many. No wait while the usual delay is not known, since the limit is small then."""
        if not self._delay.is_known:
            return 0
        return self.beside // 2 if self._starting else window + self.beside

    def _step_down(self) -> None:
        """Bodies are late. Steps that made fewer of them come, none sooner, are taken back: the bucket is slower for a
        while, or this machine is."""
        first = self._steps_down or _StepsDown(self.alone, self.beside, self._delay.rate, self._delay.lately_s)
        self._steps_down = first
        rate, delay = self._delay.rate / first.rate, self._delay.lately_s / first.delay_s
        if rate * delay > _FEWER:
            self._change(self._less)
            return
        self._steps_down = None
        if delay > rate and self._delay.accept():
            self._since_change, self._hindered = 0, False
            self.alone, self.beside = first.alone, first.beside
        else:
            self._change(self._less)

    def _change(self, step: Callable[[int], int]) -> None:
        self._since_change, self._hindered = 0, False
        self.alone, self.beside = step(self.alone), step(self.beside)

    def judge(self, now: float, *, awaited: bool, queued: bool) -> None:
        """Adjust the limits by the rate since the last call. `awaited`: a reader waits for bytes that have not come
        yet. `queued`: background fills wait for the limit."""
        assert self._began is not None
        self._steps_down = None
        passed_s = now - self._began
        rate = self._bytes / passed_s
        kept = 0.5 ** (passed_s / _HALF_LIFE_S)
        best = self._best_bytes_s * kept
        self.body_bytes_s *= kept
        self._fastest_bytes_s *= 0.5 ** (passed_s / _FASTEST_HALF_LIFE_S)
        self._best_bytes_s = max(best, rate)
        self._peak *= _PEAK_KEPT
        self._began, self._bytes = now, 0
        short = queued or self._was_short
        used = short or self._was_reached
        self._was_reached = self._was_short = False
        full = best * _FULL <= rate <= best * _GAIN
        if awaited:
            if full:
                self.beside = self._less(self.beside)
            elif queued:
                self.beside = self._more(self.beside)
        elif not used:
            # A limit that was not used says nothing about the line, so the next burst begins with less.
            self.alone = max(min(_FIRST, self._ceiling), self._less(self.alone))
        elif short and not full:
            # Also for short bursts, such as the blocks of one object: at this moment none of them may be waiting.
            self.alone = self._more(self.alone)

    def _less(self, limit: int) -> int:
        return max(1, limit - max(1, limit // 4))

    def _more(self, limit: int) -> int:
        return min(self._ceiling, limit + max(1, limit // 4))


@dataclass(slots=True)
class DemandOnLine:
    """The demand on a line: sums over all that share it, and the background limit of each of these.

    `held`: fills of demand under way. `left_bytes`: that they are to bring yet. `coming`: those of them that have bytes
    to come. `expecting_more`: those of them whose reader is about to ask for more. `questions`: clients that wait for
    a reply that is no fill.
    """

    limits: list[BackgroundLimit] = field(default_factory=list)
    held: int = 0
    left_bytes: int = 0
    coming: int = 0
    expecting_more: int = 0
    questions: int = 0

    @property
    def is_awaited(self) -> bool:
        """A client waits for bytes that have not come yet, or for a reply."""
        # Demand that waits for a slot counts, too: it waits only while other demand holds slots.
        return self.held > 0 or self.questions > 0

    def seen(self) -> None:
        """More demand is under way."""
        for limit in self.limits:
            limit.demand_seen(self.held)

    def bodies_left(self, limit: BackgroundLimit, most: int, *, awaited: bool) -> int:
        """How many more bodies than those of demand the line brings, each at the rate of one alone; `most` where nobody
        knows. `awaited`: a reader waited for bytes when they last came.

        A member of a cluster brings bytes for the readers of all members. One prefetch beside each of their waits took
        a third of a line that a single body fills: readers of a cold dataset got less than without prefetch.
        """
        bodies = limit.bodies(max(each.body_bytes_s for each in self.limits))
        if bodies is None:
            return most
        if self.coming > 0 or self.questions:
            return max(0, bodies - max(self.coming, 1))
        # One in any case. `awaited` is judged as bytes come, so with no fill under way it would stay as it is.
        return max(1, bodies - awaited)


@dataclass(frozen=True, slots=True)
class _StepsDown:
    """The limits, the bodies a second and their delay before some steps down."""

    alone: int
    beside: int
    rate: float
    delay_s: float
