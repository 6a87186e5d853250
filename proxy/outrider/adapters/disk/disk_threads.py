"""Runs file work in the store's own threads. A disk that failed or hangs is left alone for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar, get_args

from outrider.core.errors import StoreUnavailable
from outrider.core.model import BlockKey
from outrider.metrics import Metrics
from outrider.ports import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")
Act = Literal["open", "send", "create", "write", "commit", "unlink", "scan", "snapshot", "statvfs", "note"]

# A disk that takes longer for one operation counts as failed (usually it is on a network): its waiters go on with the
# origin. The thread comes back when the disk answers.
PATIENCE_S = 10.0
# The threads only wait for the disk; more of them do not make one disk faster.
_THREADS = 8
# The pause after a failed write. Reads are served from the origin meanwhile.
FAILURE_PAUSE_S = 5.0
_LOG_PAUSE_S = 60.0


class DiskThreads:
    """Those of one disk. Owned by the store; called on the event loop's thread."""

    def __init__(self, metrics: Metrics, clock: Clock, name: str = "", *, has_others: bool = False) -> None:
        """`name`: of the disk. `has_others`: other disks take its blocks while it fails."""
        self._metrics = metrics
        self._name = name
        self._has_others = has_others
        self.trouble = ""
        """Why the disk gets no new blocks, as long as there are others; empty: it works."""
        self.returns = 0
        """How often it worked again, or was replaced."""
        self.is_unreachable = False
        """It does not answer, and there are others: its blocks are not here until it does."""
        self.clock = clock
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="outrider-disk")
        self._failing_until = 0.0
        self._hung_until = 0.0
        self._log_after: dict[str, float] = {}
        self._cleaning: dict[asyncio.Task[None], BlockKey] = {}
        for act in get_args(Act):
            # Every counter starts at 0: a counter that first appears at 1 has not risen for Prometheus: no alert fires.
            metrics.store_errors.labels(act)

    @property
    def is_failing(self) -> bool:
        """A write failed a moment ago."""
        return self.clock() < self._failing_until

    @property
    def is_hung(self) -> bool:
        """A read timed out a moment ago."""
        return self.clock() < self._hung_until

    def failed(self, act: Act, error: OSError) -> None:
        """Count `error`, and log it at most once a minute for each kind of act."""
        self._metrics.store_errors.labels(act).inc()
        self._metrics.disk_errors.labels(self._name).inc()
        now = self.clock()
        if now >= self._log_after.get(act, 0.0):
            self._log_after[act] = now + _LOG_PAUSE_S
            log.warning("cache disk trouble", extra={"disk": self._name, "act": act, "error": str(error),
                                                  "served": "from the origin"})  # fmt: skip

    def write_failed(self, act: Act, error: OSError) -> StoreUnavailable:
        self.failed(act, error)
        self._failing_until = self.clock() + FAILURE_PAUSE_S
        self.left_out(error)
        return StoreUnavailable(f"{act}: {error}")

    def open_failed(self, error: OSError) -> None:
        if isinstance(error, TimeoutError):
            # Other readers need not wait as long to find out.
            self._hung_until = self.clock() + FAILURE_PAUSE_S
            self.left_out(error)
        self.failed("open", error)

    def left_out(self, error: Exception) -> None:
        """Beside other disks, the disk gets no new blocks until `works_again`."""
        if not self._has_others:
            return
        # The error number means nothing to people.
        why = (error.strerror if isinstance(error, OSError) else None) or str(error) or "no answer"
        if not self.trouble:
            log.warning("cache disk left out", extra={"disk": self._name, "error": why, "kept": "on the other disks"})
        self.trouble = why
        self.is_unreachable |= isinstance(error, TimeoutError)

    def works_again(self) -> None:
        if self.trouble:
            log.info("cache disk works again", extra={"disk": self._name})
            self.returns += 1
        self.trouble, self.is_unreachable = "", False
        self._failing_until = self._hung_until = 0.0

    async def clean_up(self, block: BlockKey, cleaning: Coroutine[Any, Any, None]) -> None:
        """Wait until `cleaning` has removed the file of an aborted block, for PATIENCE_S at most.

        On a disk that does not answer, the cleaning goes on in the background. The caller does not wait for it: it may
        hold a fill slot that others need.
        """
        task = asyncio.create_task(cleaning, name="clean up")
        self._cleaning[task] = block
        task.add_done_callback(self._cleaning.pop)
        await asyncio.wait([task], timeout=PATIENCE_S)

    @property
    def is_cleaning(self) -> bool:
        """Files of aborted blocks are being removed."""
        return bool(self._cleaning)

    async def cleaned(self, block: BlockKey) -> None:
        """Wait until no cleaning removes files of `block` any more."""
        while under_way := [task for task, cleaned in self._cleaning.items() if cleaned == block]:
            await asyncio.wait(under_way)

    def begin(self, work: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Start blocking file work. It goes on when its caller no longer waits for it."""
        return asyncio.get_running_loop().run_in_executor(self.threads, work, *args)

    async def run(self, work: Callable[..., T], *args: object) -> T:
        return await self.begin(work, *args)
