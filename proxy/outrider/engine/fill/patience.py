"""Patience with the origin: a read that failed is tried again for as long as somebody waits for it."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from outrider.core.errors import OriginBroke
from outrider.core.insight.bottleneck import OriginWait
from outrider.core.origin.backoff import HEAD_PATIENCE_S, Backoff, Trouble
from outrider.engine.fill.fill_scheduler import FillSlot
from outrider.metrics import Metrics
from outrider.ports import Clock

log = logging.getLogger(__name__)

# The reply of a repeated try is waited for at least this long, also where the patience ends before. A client is then
# answered 55 s after its request at the latest, within the 60 s of its timeout (see `HEAD_PATIENCE_S`).
_LAST_TRY_S = 10.0


class Patience:
    """How long to wait after failures, and for late replies. Time and chance come in here, so that tests need
    neither."""

    def __init__(
        self,
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] | None = None,
        clock: Clock = time.monotonic,
        alarm: Callable[[float], asyncio.Future[None]] | None = None,
        *,
        patience_s: float = 0.0,
        wall_clock: Clock = time.time,
    ) -> None:
        """`alarm`: a future that is done after so many seconds. `patience_s`: for how long a read is tried again that
        somebody waits for, since its last byte; 0: as often as one that nobody waits for."""
        self.backoff = backoff or Backoff()
        # A generator of its own: with `outrider run` a program may seed the one of the process.
        self.chance = chance or random.Random().random  # noqa: S311 - jitter
        self.sleep = sleep
        self.clock = clock
        self.alarm = alarm or _alarm
        self.patience_s = patience_s
        self.wall_clock = wall_clock


def _alarm(after_s: float) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    rings: asyncio.Future[None] = loop.create_future()

    def ring() -> None:
        # The future may have been cancelled in this step of the loop; its callback, which cancels the timer, runs in
        # the next.
        if not rings.done():
            rings.set_result(None)

    timer = loop.call_later(after_s, ring)
    rings.add_done_callback(lambda _: timer.cancel())
    return rings


class Waiters:
    """Those who wait for a reply of the origin, or for the bytes of a fill. They come and go; each enters as often as
    it leaves. A context of one that waits."""

    __slots__ = ("_count", "_on_none")

    def __init__(self, count: int = 0) -> None:
        self._count = count
        # Called, and dropped, when the last one leaves.
        self._on_none: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return self._count > 0

    def enter(self) -> None:
        self._count += 1

    def leave(self) -> None:
        self._count -= 1
        if not self._count:
            calls, self._on_none = self._on_none, []
            for call in calls:
                call()

    __enter__ = enter

    def __exit__(self, *_: object) -> None:
        self.leave()

    @contextmanager
    def calling(self, on_none: Callable[[], None]) -> Iterator[None]:
        """Within it, `on_none` is called once nobody waits."""
        self._on_none.append(on_none)
        try:
            yield
        finally:
            if on_none in self._on_none:
                self._on_none.remove(on_none)


NOBODY = Waiters()
"""For reads that nobody waits for. Nobody may enter."""
A_CLIENT = Waiters(1)
"""For reads that are cancelled when the client leaves that they are for."""


class Retries:
    """The reads of the origin that failed and are to be tried again."""

    def __init__(self, patience: Patience, metrics: Metrics) -> None:
        self.patience = patience
        self.metrics = metrics
        self.are_stopped = False
        # Ends the long waits that are under way.
        self._long: dict[Tries, Callable[[], None]] = {}
        self._long_since = 0.0
        self._waited_s = 0.0
        self._why = ""
        self.is_away = False
        """Reads waited long, and no reply was received since, though all of them may have given up."""

    def stop(self) -> None:
        """The proxy is stopping: nobody is kept waiting for the origin any longer than a few tries take."""
        self.are_stopped = True
        for end in list(self._long.values()):
            end()

    def is_patient(self, waiters: Waiters) -> bool:
        return bool(waiters) and not self.are_stopped

    def waits_long(self, tries: Tries, why: str, end: Callable[[], None]) -> None:
        """The read waits for longer than a few tries take. `end` ends its wait."""
        if not self._long:
            self._long_since = self.patience.clock()
        if not self.is_away:
            # One line for all reads: each of them has the same cause.
            self.is_away = True
            log.warning("waiting for the origin", extra={"read": str(tries.what), "error": why})
        self._long[tries] = end
        self._why = why

    @property
    def long_wait(self) -> OriginWait | None:
        """The long waits of now; None: there are none."""
        if not self._long:
            return None
        return OriginWait(len(self._long), self.patience.clock() - self._long_since, self._why)

    def is_over(self, tries: Tries, *, answered: bool) -> None:
        if self._long.pop(tries, None) is not None:
            self._waited_s = self.patience.clock() - self._long_since
        if answered and self.is_away and not self._long:
            self.is_away = False
            log.info("the origin answers again", extra={"waited_s": round(self._waited_s, 1)})


class Tries:
    """The tries of one read, until `end`. `failed` says whether there is a next one, and `pause` waits for it."""

    def __init__(self, retries: Retries, what: object, waiters: Waiters) -> None:
        """`what`: for the log. `waiters`: tries go on for as long as one of them waits, and the patience lasts."""
        self.what = what
        self._retries = retries
        self._patience = patience = retries.patience
        self._metrics = retries.metrics
        self._waiters = waiters
        self._since = patience.clock()
        self._limit_s = min(patience.patience_s, HEAD_PATIENCE_S)
        self._failures = 0
        self._waited_s = 0.0
        self.why = ""
        """The last failure."""
        self.doubts = 0
        """Replies in a row that did not prove which bytes they bring, whatever broke between them."""
        self._is_long = False

    def end(self) -> None:
        """The read is over, well or not."""
        if self._failures:
            self._retries.is_over(self, answered=False)

    @property
    def left_s(self) -> float | None:
        """How long the reply of a repeated try may take to come; None: as long as the first."""
        left_s = self._since + self._limit_s - self._patience.clock()
        return max(left_s, _LAST_TRY_S) if self._failures and self._limit_s and left_s > -_LAST_TRY_S else None

    def failed(
        self, why: object, *, retry_after_s: float = 0.0, progressed: bool = False, lasting: bool = False
    ) -> float | None:
        """How long to pause before the next try; None: this was the last. `progressed`: it brought bytes. `lasting`:
        see `OriginBroke`."""
        now = self._patience.clock()
        if progressed:
            # The time of the last byte is not taken: a clock would have to be read for each piece of each body.
            self._since, self._failures, self._waited_s = now, 0, 0.0
            self._limit_s = self._patience.patience_s
        self._failures += 1
        self.why = str(why)
        trouble = Trouble(self._failures, now - self._since, self._waited_s, retry_after_s)
        backoff, chance = self._patience.backoff, self._patience.chance()
        wait_s = unawaited_s = trouble.wait_s(backoff, chance, patience_s=self._limit_s, awaited=False)
        if not lasting and self._retries.is_patient(self._waiters):
            wait_s = trouble.wait_s(backoff, chance, patience_s=self._limit_s, awaited=True)
        self._is_long = wait_s is not None and unawaited_s is None
        if wait_s is None:
            log.warning("gave up asking the origin", extra={"tries": self._failures, "error": self.why})
        else:
            self._metrics.origin_retries.inc()
        return wait_s

    async def pause(self, wait_s: float, slot: FillSlot | None = None) -> None:
        """Wait before the next try. `slot`: other fills have it meanwhile.

        Raises:
            OriginBroke: nobody waits any more, and a few tries have failed.
        """
        if slot is not None:
            slot.give_back()
        began = self._patience.clock()
        try:
            if self._is_long:
                await self._pause_long(wait_s)
            else:
                await self._patience.sleep(wait_s)
        finally:
            waited_s = self._patience.clock() - began
            self._waited_s += waited_s
            self._metrics.origin_wait_s.inc(waited_s)
        if slot is not None:
            await slot.take()

    async def _pause_long(self, wait_s: float) -> None:
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def end(*, goes_on: bool = False) -> None:
            if not ended.done():
                ended.set_result(goes_on)

        nap = asyncio.ensure_future(self._patience.sleep(wait_s))
        nap.add_done_callback(lambda _: end(goes_on=True))
        self._retries.waits_long(self, self.why, end)
        try:
            with self._waiters.calling(end):
                goes_on = await ended
        finally:
            nap.cancel()
        if not goes_on:
            log.debug("nobody waits for the origin any more", extra={"read": str(self.what), "error": self.why})
            raise OriginBroke(self.why)

    def answered(self) -> None:
        """The origin gave the reply that was requested."""
        if self._failures or self._retries.is_away:
            self._retries.is_over(self, answered=True)
