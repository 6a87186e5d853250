"""Batches for asyncio: the blocking reads in threads, one call of a thread for all objects that have come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator, Sequence

from outrider_sdk.batch import Key, Sample
from outrider_sdk.client import Client


class AsyncClient:
    """A proxy, by the address of its S3 port; see `Client`. The reads of one client may run side by side."""

    def __init__(self, endpoint: str | None = None) -> None:
        """Raises ValueError: `endpoint` is not an http or https address."""
        self._client = Client(endpoint)

    async def get_batch(self, bucket: str, keys: Sequence[Key]) -> AsyncGenerator[Sample, None]:
        """As `Client.get_batch`. Closing the iterator ends the request, at the latest with the next bytes."""
        runs = _Runs(self._client.batch_runs(bucket, keys))
        try:
            while run := await runs.next():
                for sample in run:
                    yield sample
        finally:
            runs.leave()

    def close(self) -> None:
        """Close the connections that no read uses."""
        self._client.batches.close()


class _Runs:
    """A generator that a thread runs, and that is closed once no thread does."""

    def __init__(self, runs: Generator[list[Sample], None, None]) -> None:
        self._runs = runs
        self._lock = threading.Lock()
        self._is_running = self._has_left = False

    async def next(self) -> list[Sample] | None:
        self._is_running = True
        return await asyncio.to_thread(self._next)

    def _next(self) -> list[Sample] | None:
        try:
            return next(self._runs, None)
        finally:
            with self._lock:
                self._is_running, has_left = False, self._has_left
            if has_left:
                self._runs.close()

    def leave(self) -> None:
        """Nobody asks for more."""
        with self._lock:
            self._has_left, is_running = True, self._is_running
        if not is_running:
            self._runs.close()
