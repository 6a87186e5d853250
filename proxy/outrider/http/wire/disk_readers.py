"""The threads that read block files whose pages are not in memory, and how long readers wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

READERS = 8
"""Threads that wait for the disk, so that no loop does. More threads do not make one disk faster."""
# Pages that are in memory after all are read within this time: a wait for the processor, and not for the disk.
_IN_MEMORY_S = 0.001


class DiskReaders(ThreadPoolExecutor):
    """`waited` is called in any thread, with the seconds from each submission to the end of its work."""

    def __init__(self, count: int, name: str, waited: Callable[[float], None]) -> None:
        super().__init__(count, thread_name_prefix=name)
        self._waited = waited

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        began = time.perf_counter()

        def ended(future: Future[Any]) -> None:
            waited_s = time.perf_counter() - began
            if waited_s > _IN_MEMORY_S and not future.cancelled():
                self._waited(waited_s)

        future = super().submit(fn, *args, **kwargs)
        future.add_done_callback(ended)
        return future
