"""Batches for asyncio: the blocking reads in threads, one call of a thread for all objects that have come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator, Sequence

from outrider_sdk.batch import Key, Sample
from outrider_sdk.client import Client


class AsyncClient:
    """A proxy, by the address of its S3 port; see `Client`. The reads of one client may run side by side."""

    def __init__(self, endpoint: str | None = None) -> None:
        """Raises ValueError: `endpoint` is not an http or https address."""
        self._batches = Client(endpoint).batches

    async def get_batch(self, bucket: str, keys: Sequence[Key]) -> AsyncIterator[Sample]:
        """As `Client.get_batch`. Closing the iterator ends the request."""
        runs = self._batches.runs(bucket, keys)
        reading: asyncio.Future[list[Sample] | None] | None = None
        try:
            while True:
                reading = asyncio.ensure_future(asyncio.to_thread(_next, runs))
                if (run := await asyncio.shield(reading)) is None:
                    return
                for sample in run:
                    yield sample
        finally:
            if reading is not None and not reading.done():
                # A generator cannot be closed while a thread runs it: the request ends with the next bytes.
                reading.add_done_callback(lambda done: _end(runs, done))
            else:
                runs.close()

    def close(self) -> None:
        """Close the connections that no read uses."""
        self._batches.close()


def _end(runs: Generator[list[Sample], None, None], done: asyncio.Future[list[Sample] | None]) -> None:
    if not done.cancelled():
        done.exception()  # nobody else hears of it
    runs.close()


def _next(runs: Iterator[list[Sample]]) -> list[Sample] | None:
    return next(runs, None)
