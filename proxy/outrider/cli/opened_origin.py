"""An origin for the commands that look at a bucket themselves, asked as the proxy asks it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from outrider.adapters.origin.http_origin import CredentialSource, HttpOrigin
from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.origin.fill_limits import AimdLimit, BackgroundLimit
from outrider.core.origin.hedging import Hedging
from outrider.core.s3.list_page import PAGE_BYTES_MAX
from outrider.engine.fill.fill_scheduler import FillScheduler
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import Patience
from outrider.engine.listing.enumerate import Enumerator
from outrider.metrics import Metrics


@asynccontextmanager
async def opened(
    endpoint: str, region: str, credentials: CredentialSource, *, connections: int, **options: Any
) -> AsyncIterator[HttpOrigin]:
    """`options`: see `HttpOrigin`. Its requests count for no reader."""
    origin = HttpOrigin(endpoint, region, credentials, Metrics(), time.time, connections=connections, **options)
    await origin.open()
    try:
        yield origin
    finally:
        await origin.close()


def reader_of(origin: HttpOrigin) -> OriginReader:
    scheduler = FillScheduler(AimdLimit(1), BackgroundLimit(1), time.monotonic)
    return OriginReader(origin, Patience(), Metrics(), scheduler, Hedging())


def enumerator_of(reader: OriginReader) -> Enumerator:
    return Enumerator(reader, MemoryBudget(2 * PAGE_BYTES_MAX))
