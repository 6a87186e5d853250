"""Finds out which objects a dataset has, when the planner wants to know: by a LIST, or by HEADs of numbered names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from itertools import islice

from outrider.core.ahead.numbered_names_search import NumberedNames
from outrider.core.ahead.planner import Planner
from outrider.core.errors import S3Error, Signal
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.listing.enumerate import Enumerator
from outrider.engine.tasks.runtime import Runtime

log = logging.getLogger(__name__)

# The origin's answers for a LIST or an object that is forbidden or does not exist: a retry would fail as well.
UNAVAILABLE_STATUSES = (403, 404)
# Numbered names that the planner gets before other work has its turn.
_NAMES_AT_ONCE = 250


class DiscoveryRunner:
    """Asks the origin the planner's questions, each in a task of its own. `think` is called after each answer."""

    def __init__(
        self,
        planner: Planner,
        enumerator: Enumerator,
        scheduler: FillScheduler,
        runtime: Runtime,
        think: Callable[[], None],
    ) -> None:
        self._planner = planner
        self._enumerator = enumerator
        self._scheduler = scheduler
        self._spawn = runtime.spawn
        self._clock = runtime.clock
        self._think = think

    def begin(self) -> None:
        """Begins all questions that the planner has now."""
        for bucket, prefix in self._planner.discovery.please_list():
            self._spawn(self._list(bucket, prefix), f"list s3://{bucket}/{prefix}")
        for bucket, numbering in self._planner.discovery.please_count():
            self._spawn(self._count(bucket, numbering), f"count s3://{bucket}/{numbering.head}")

    async def _list(self, bucket: str, prefix: str) -> None:
        """Gives the planner one page at a time: a LIST of a million keys takes minutes, and all its names at once
        held the loop for 4 s."""
        count = 0
        try:
            async with aclosing(self._enumerator.pages(bucket, prefix)) as pages:
                async for page in pages:
                    entries = [(listed.key, listed.size) for listed in page]
                    self._planner.discovery.listed(bucket, entries, prefix=prefix, before=count, more=True)
                    count += len(entries)
                    self._think()
        except (Signal, S3Error) as error:
            now = self._clock()
            if isinstance(error, OriginRefused) and error.status in UNAVAILABLE_STATUSES and count == 0:
                self._planner.discovery.list_refused(bucket, prefix, now)
            else:
                self._planner.discovery.list_failed(bucket, prefix, now)
            log.info("list refused", extra={"bucket": bucket, "prefix": prefix, "error": str(error)})
        self._scheduler.alone_again()
        self._planner.discovery.listed(bucket, (), prefix=prefix, before=count)
        self._think()

    async def _count(self, bucket: str, numbering: NumberedNames) -> None:
        """Finds by HEADs how far numbered names go, and reports them to the planner some at a time."""
        found = None
        try:
            found = await self._enumerator.range_of(bucket, numbering)
        except (Signal, S3Error) as error:
            log.info("not counted", extra={"bucket": bucket, "key": numbering.name(0), "error": str(error)})
        if found is None:
            self._planner.discovery.not_counted(numbering, self._clock())
            self._think()
            return
        names, count = found.names(), 0
        while page := list(islice(names, _NAMES_AT_ONCE)):
            if not self._planner.discovery.counted(numbering, page, before=count, more=True):
                break
            count += len(page)
            self._think()
            await asyncio.sleep(0)
        self._scheduler.alone_again()
        self._planner.discovery.counted(numbering, (), before=count)
        self._think()
