"""File work in the store's own threads, and what came of it: a disk that failed, or hangs, is left alone a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar, get_args

from outrider.adapters.disk import block_dir
from outrider.adapters.disk.leases import OpenFile, doom_result
from outrider.core.errors import StoreUnavailable
from outrider.core.model import BlockKey
from outrider.metrics import Metrics
from outrider.ports import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")
Act = Literal["open", "send", "create", "write", "commit", "unlink", "scan", "snapshot", "statvfs", "note"]

# Threads only wait for the disk; more than a few do not make one disk faster.
_THREADS = 8
# After the disk failed a write, do not ask it again for this long: reads go on from the origin meanwhile.
_SICK_PAUSE_S = 5.0
_LOG_PAUSE_S = 60.0


class DiskThreads:
    """Owned by the store; called on the event loop's thread."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="outrider-disk")
        self._sick_until = 0.0
        self._hung_until = 0.0
        self._log_after: dict[str, float] = {}
        self._cleaning: dict[asyncio.Task[None], BlockKey] = {}
        for act in get_args(Act):
            # To Prometheus a counter that begins with its first failure at 1 has not risen, and no alert speaks of it.
            metrics.store_errors.labels(act)

    @property
    def is_sick(self) -> bool:
        """A write failed a moment ago."""
        return self._clock() < self._sick_until

    @property
    def is_hung(self) -> bool:
        """A read did not come to its end a moment ago."""
        return self._clock() < self._hung_until

    def trouble(self, act: Act, error: OSError) -> None:
        """Count it, and log it once a minute for each kind of act."""
        self._metrics.store_errors.labels(act).inc()
        now = self._clock()
        if now >= self._log_after.get(act, 0.0):
            self._log_after[act] = now + _LOG_PAUSE_S
            log.warning("cache disk trouble", extra={"act": act, "error": str(error), "served": "from the origin"})

    def write_failed(self, act: Act, error: OSError) -> StoreUnavailable:
        self.trouble(act, error)
        self._sick_until = self._clock() + _SICK_PAUSE_S
        return StoreUnavailable(f"{act}: {error}")

    def open_failed(self, error: OSError) -> None:
        if isinstance(error, TimeoutError):
            # The others need not wait as long to find out.
            self._hung_until = self._clock() + _SICK_PAUSE_S
        self.trouble("open", error)

    async def waited_for(self, block: BlockKey, cleaning: Coroutine[Any, Any, None]) -> None:
        """Wait until what is left of a block that came to nothing is off the disk, unless the disk does not answer:
        then that ends when it does, and whoever waits, with a turn that others want, goes on."""
        task = asyncio.create_task(cleaning, name="clean up")
        self._cleaning[task] = block
        task.add_done_callback(self._cleaning.pop)
        await asyncio.wait([task], timeout=block_dir.PATIENCE_S)

    async def cleaned(self, block: BlockKey) -> None:
        """Wait until nothing is taken away any more that stood where `block` is to stand."""
        while under_way := [task for task, its in self._cleaning.items() if its == block]:
            await asyncio.wait(under_way)

    def begin(self, work: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Blocking file work; it goes on when nobody waits for it any more."""
        return asyncio.get_running_loop().run_in_executor(self.threads, work, *args)

    async def run(self, work: Callable[..., T], *args: object) -> T:
        return await self.begin(work, *args)

    async def run_opening(self, work: Callable[[], OpenFile]) -> OpenFile:
        """Run `work` in a thread; if the caller is cancelled meanwhile, the file that it opens is closed again."""
        future = self.begin(work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(doom_result)
            raise
