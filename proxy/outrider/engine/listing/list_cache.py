"""Kept LIST answers, for those who ask for it: data loaders list 10^5 keys again in each process and each epoch.

Off unless a rule of the settings names the prefix. A write through us to the bucket forgets all of its listings; what
somebody writes past us shows when the time is up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from operator import itemgetter

from cachetools import LRUCache

from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.model import Headers
from outrider.core.s3.operation import Operation, Query, is_plain_list
from outrider.engine.read.version_cache import ForgetLog, Mark
from outrider.ports import Chunks, Clock

# A page of 1,000 keys is some 300 KB of XML; one of 1,000 keys of 1,024 escaped bytes each is under 4 MiB.
_PAGE_BYTES_MAX = 4 * 1024 * 1024

ListingKey = tuple[str, Query]


@dataclass(frozen=True, slots=True)
class Listing:
    """One page, as the origin gave it."""

    headers: Headers
    body: bytes
    mark: Mark
    ttl_s: float


class ListCache:
    """Bounded by the bytes of the pages; the page not asked for longest goes first. Called from one thread."""

    def __init__(
        self, ttl_of: Callable[[str], float | None], clock: Clock, capacity_bytes: int, memory: MemoryBudget
    ) -> None:
        """`ttl_of` tells for how many seconds a listing of `bucket/prefix` is kept; None: not at all."""
        self._ttl_of = ttl_of
        self._clock = clock
        self._pages: LRUCache[ListingKey, Listing] = LRUCache(capacity_bytes, getsizeof=lambda page: len(page.body))
        self._memory = memory
        self._generation = 0
        self._forgotten = ForgetLog(10_000)

    def key_of(self, operation: Operation, headers: Headers) -> ListingKey | None:
        """None: not a plain LIST, or not one to be kept."""
        if not is_plain_list(operation, headers) or self._ttl(operation) is None:
            return None
        assert operation.bucket is not None
        # By name alone: of one that comes twice, the order may mean something.
        return operation.bucket, tuple(sorted(operation.query, key=itemgetter(0)))

    def _ttl(self, operation: Operation) -> float | None:
        prefix = next((value for name, value in operation.query if name == "prefix"), "")
        return self._ttl_of(f"{operation.bucket}/{prefix}")

    def get(self, key: ListingKey) -> Listing | None:
        page = self._pages.get(key)
        if page is None or self._clock() - page.mark.at >= page.ttl_s or not self._believes(key, page.mark):
            return None
        return page

    def _believes(self, key: ListingKey, mark: Mark) -> bool:
        return self._forgotten.last(key[0]) <= mark.generation

    def mark(self) -> Mark:
        """To be taken before the origin is asked."""
        return Mark(self._generation, self._clock())

    def forget(self, bucket: str) -> None:
        self._generation += 1
        self._forgotten.note(bucket, self._generation)

    async def keeping(
        self, operation: Operation, key: ListingKey, mark: Mark, headers: Headers, chunks: AsyncIterator[bytes]
    ) -> Chunks:
        """Passes `chunks` on, and keeps the page if it came whole and no write came in between.

        Not one in a content coding: who asks next may not have said that he reads it.
        """
        body, whole = bytearray(), not any(name == "content-encoding" for name, _ in headers)
        try:
            async for chunk in chunks:
                # A page that finds no room is passed on, and not kept.
                whole = whole and len(body) + len(chunk) <= _PAGE_BYTES_MAX and self._memory.take(len(chunk))
                if whole:
                    body += chunk
                yield chunk
            ttl_s = self._ttl(operation)
            if whole and len(body) <= self._pages.maxsize and ttl_s is not None and self._believes(key, mark):
                self._pages[key] = Listing(headers, bytes(body), mark, ttl_s)
        finally:
            self._memory.give_back(len(body))
