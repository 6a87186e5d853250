"""The reads that were served without the engine's thread, kept until the planner is told of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from outrider.core.model import Extent, ObjectRef, ObjectVersion

# Reads remembered until they are taken; the oldest are dropped.
_READS_MAX = 16_384
# Reads taken at once. The oldest reads of a burst come first, and beyond `_READS_MAX` some are never taken.
_TAKEN_MAX = 256
# Runs of bytes of one client and object taken at once, after joining those that touch.
_RUNS_MAX = 4


class ClientRead(NamedTuple):
    """A client's read of `extent`, at the time `at`."""

    client: str
    version: ObjectVersion
    extent: Extent
    at: float


class ReadLog:
    """`add` may be called from any thread, `take` from one."""

    def __init__(self) -> None:
        self._reads: deque[ClientRead] = deque(maxlen=_READS_MAX)
        self.add: Callable[[ClientRead], None] = self._reads.append
        """The deque's own method: each hit calls it, and a function around it would cost each hit more."""

    def __bool__(self) -> bool:
        return bool(self._reads)

    def take(self) -> list[ClientRead]:
        """The reads so far, grouped by client and object, the oldest first. Reads of one object that touch are joined;
        beyond a few runs of it, the rest is dropped."""
        runs: dict[tuple[str, ObjectRef], list[ClientRead]] = {}
        taken = 0
        for _ in range(len(self._reads)):
            if taken == _TAKEN_MAX:
                break
            read = self._reads.popleft()
            known = runs.setdefault((read.client, read.version.ref), [])
            if known and known[-1].extent.stop == read.extent.start and known[-1].version is read.version:
                known[-1] = known[-1]._replace(extent=Extent(known[-1].extent.start, read.extent.stop), at=read.at)
            elif len(known) < _RUNS_MAX:
                known.append(read)
                taken += 1
        return [read for its in runs.values() for read in its]
