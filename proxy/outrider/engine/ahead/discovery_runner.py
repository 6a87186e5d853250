"""What a dataset has is found out, where the planner wants to know."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from itertools import islice

from outrider.core.ahead.numbered_names import NumberedNames
from outrider.core.ahead.planner import Planner
from outrider.core.errors import S3Error, Signal
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.fill.origin_reader import OriginRefused
from outrider.engine.listing.enumerate import Enumerator
from outrider.engine.tasks.runtime import Spawn
from outrider.ports import Clock

log = logging.getLogger(__name__)

# A LIST or an object that nobody may have, or that is not there: it would fail the next time, too.
NOT_TO_BE_HAD = (403, 404)
# Names told before others have their turn.
_COUNTED_AT_ONCE = 250


class DiscoveryRunner:
    """`think` is called with all that is learned."""

    def __init__(
        self,
        planner: Planner,
        enumerator: Enumerator,
        scheduler: FillScheduler,
        spawn: Spawn,
        clock: Clock,
        think: Callable[[], None],
    ) -> None:
        self._planner = planner
        self._enumerator = enumerator
        self._scheduler = scheduler
        self._spawn = spawn
        self._clock = clock
        self._think = think

    def begin(self) -> None:
        """Ask what the planner wants to know now."""
        for bucket, prefix in self._planner.please_list():
            self._spawn(self._look_around(bucket, prefix), f"list s3://{bucket}/{prefix}")
        for bucket, numbering in self._planner.please_count():
            self._spawn(self._count(bucket, numbering), f"count s3://{bucket}/{numbering.head}")

    async def _look_around(self, bucket: str, prefix: str) -> None:
        """A page at a time: a LIST of a million keys takes minutes, and told all at once it took the loop 4 s."""
        count = 0
        try:
            async with aclosing(self._enumerator.pages(bucket, prefix)) as pages:
                async for page in pages:
                    entries = [(one.key, one.size) for one in page]
                    self._planner.listed(bucket, entries, self._clock(), prefix=prefix, before=count, more=True)
                    count += len(entries)
                    self._think()
        except (Signal, S3Error) as error:
            now = self._clock()
            if isinstance(error, OriginRefused) and error.status in NOT_TO_BE_HAD and count == 0:
                self._planner.list_refused(bucket, prefix, now)
            else:
                self._planner.list_failed(bucket, prefix, now)
            log.info("list refused", extra={"bucket": bucket, "prefix": prefix, "error": str(error)})
        self._scheduler.alone_again()
        self._planner.listed(bucket, (), self._clock(), prefix=prefix, before=count)
        self._think()

    async def _count(self, bucket: str, numbering: NumberedNames) -> None:
        """The same by names that count."""
        found = None
        try:
            found = await self._enumerator.range_of(bucket, numbering)
        except (Signal, S3Error) as error:
            log.info("not counted", extra={"bucket": bucket, "key": numbering.name(0), "error": str(error)})
        if found is None:
            self._planner.not_counted(bucket, numbering, self._clock())
            self._think()
            return
        names, count = found.names(), 0
        while page := list(islice(names, _COUNTED_AT_ONCE)):
            if not self._planner.counted(numbering, page, self._clock(), before=count, more=True):
                break
            count += len(page)
            self._think()
            await asyncio.sleep(0)
        self._scheduler.alone_again()
        self._planner.counted(numbering, (), self._clock(), before=count)
        self._think()
