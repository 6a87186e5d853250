"""The reads that were served without the engine, kept until they are reported to the planner."""

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
    def __init__(self) -> None:
        self._reads: deque[tuple[str, ObjectVersion, int, int, float]] = deque(maxlen=_READS_MAX)
        self.add: Callable[[tuple[str, ObjectVersion, int, int, float]], None] = self._reads.append
        """Adds the read of the bytes from one offset to another: client, version, both offsets, time. It is the deque's
        own method, and takes a bare tuple: each hit calls it, and would pay for more."""

    def __bool__(self) -> bool:
        return bool(self._reads)

    def take(self) -> list[ClientRead]:
        """The reads so far, grouped by client and object, the oldest first. Reads of one object that touch are joined;
        beyond a few runs of it, the rest is dropped."""
        runs: dict[tuple[str, ObjectRef], list[ClientRead]] = {}
        taken = 0
        of_client, of_version, known = "", None, list[ClientRead]()
        for _ in range(len(self._reads)):
            if taken == _TAKEN_MAX:
                break
            client, version, start, stop, at = self._reads.popleft()
            # Thousands of hits in a row may be of one hot object: most of them end here.
            if version is not of_version or client != of_client:
                of_client, of_version = client, version
                known = runs.setdefault((client, version.ref), [])
            if known and known[-1].extent.stop == start and known[-1].version is version:
                known[-1] = known[-1]._replace(extent=Extent(known[-1].extent.start, stop), at=at)
            elif len(known) < _RUNS_MAX:
                known.append(ClientRead(client, version, Extent(start, stop), at))
                taken += 1
        return [read for its in runs.values() for read in its]
