"""The log of what readers and blocks did. The planner learns of it in bundles, in the order in which it happened."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from outrider.core.cache.policies import EvictionPolicy
from outrider.core.model import BlockKey, ObjectVersion
from outrider.ports import Clock

log = logging.getLogger(__name__)

BUNDLE_S = 0.05
"""An event is reported this much later at most, as hits are: far less than it takes to read a shard."""
# Events are reported for so long before other work has its turn. It takes 30 to 100 us for each (`make bench-ahead`),
# ten times that for dozens of jobs of one dataset.
AT_ONCE_S = 0.001
# Events in the log at most. Beyond that, each new one has the oldest one reported: all at once they take some 20 ms.
_EVENTS_MAX = 1024
_LOG_PAUSE_S = 60.0

Later = Callable[[float, Callable[[], None]], object]
"""Calls a function after so many seconds."""


def call_later(after_s: float, act: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(after_s, act)


class EventLog:
    """Called on the engine's thread. The planner computes for longer than a small miss takes otherwise, and what it
    knows of a dataset is needed once for many events."""

    def __init__(self, clock: Clock, later: Later) -> None:
        self.on_reported: Callable[[], None] = lambda: None
        """Called after a bundle: the planner is to be asked what it wants."""
        self._clock = clock
        self._later = later
        self._events: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        # When the next call reports the events; calls for later are overtaken by it, and do nothing.
        self._due_at = math.inf
        self._is_stopped = False
        self.has_reported = False
        """Events were reported since the planner was asked last what it wants."""
        self._complain_at = 0.0

    @property
    def is_empty(self) -> bool:
        return not self._events

    def add(self, report: Callable[..., object], *facts: Any, within_s: float = BUNDLE_S) -> None:
        """`report` is called with the facts, `within_s` from now at the latest."""
        if len(self._events) >= _EVENTS_MAX:
            self.report_one()
        self._events.append((report, facts))
        if (due_at := self._clock() + within_s) < self._due_at:
            self._call(due_at, within_s)

    def _call(self, due_at: float, within_s: float) -> None:
        self._due_at = due_at
        if not self._is_stopped:
            self._later(within_s, partial(self._report_bundle, due_at))

    def stop(self) -> None:
        """The planner learns of events only when it is asked for victims, and begins nothing."""
        self._is_stopped = True

    def report_all(self) -> None:
        """Before the planner is asked for a decision that the events may change."""
        while self._events:
            self.report_one()

    def _report_bundle(self, due_at: float) -> None:
        if due_at != self._due_at or self._is_stopped:
            return
        began = self._clock()
        while self._events:
            if (now := self._clock()) - began >= AT_ONCE_S:
                self._call(now, 0.0)
                return
            self.report_one()
        self._due_at = math.inf
        if self.has_reported:
            with self.harmless():
                self.on_reported()

    def report_one(self) -> None:
        """Report the oldest event."""
        report, facts = self._events.popleft()
        self.has_reported = True
        try:
            report(*facts)
        except Exception:  # noqa: BLE001 - as `harmless`, without a generator for each event
            self._complain()

    @contextmanager
    def harmless(self) -> Iterator[None]:
        """A bug in prefetch must not fail a client's request, nor end the ticks."""
        try:
            yield
        except Exception:  # noqa: BLE001 - it is logged
            self._complain()

    def _complain(self) -> None:
        """Once a minute: the error may come with each request."""
        now = self._clock()
        if now >= self._complain_at:
            self._complain_at = now + _LOG_PAUSE_S
            log.exception("prefetch failed")


class BundledPolicy:
    """The eviction policy of the store where the planner is within it. It learns by the log of the blocks that come,
    are read and go, and has learned of all whenever it is asked for victims."""

    def __init__(self, policy: EvictionPolicy, events: EventLog) -> None:
        self._policy = policy
        self._events = events

    def added(self, block: BlockKey, version: ObjectVersion) -> None:
        self._events.add(self._policy.added, block, version)

    def read(self, block: BlockKey) -> None:
        self._events.add(self._policy.read, block)

    def removed(self, block: BlockKey) -> None:
        self._events.add(self._policy.removed, block)

    def victims(self, incoming: BlockKey | None = None, version: ObjectVersion | None = None) -> Iterator[BlockKey]:
        self._events.report_all()
        return self._policy.victims(incoming, version)
