"""The LIST cache. Data loaders list the same 10^5 keys in each process and each epoch.

It is off unless a rule of the settings names the prefix. A write of an object through the proxy drops the cached LISTs
that could show it, and one of a bucket all of its LISTs. A write that bypasses the proxy shows when the LIST's time is
up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from operator import itemgetter

from cachetools import LRUCache

from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.model import Headers, ObjectRef
from outrider.core.s3.headers import varies_with_clients
from outrider.core.s3.operation import Operation, Query, is_plain_list, without_tenant
from outrider.engine.read.forget_log import ForgetLog
from outrider.engine.read.version_rows import Mark
from outrider.ports import Chunks, Clock, Name

# A page of 1,000 keys has some 300 KB of XML. With 1,000 keys of 1,024 escaped bytes each it has less than 4 MiB.
_PAGE_BYTES_MAX = 4 * 1024 * 1024

# Writes that a page on its way is compared with. A page that more writes came past is not cached.
_WRITES_MAX = 1000

ListingKey = tuple[str, Query]


@dataclass(frozen=True, slots=True)
class Listing:
    """One page as the origin sent it."""

    headers: Headers
    body: bytes
    mark: Mark
    ttl_s: float


class ListCache:
    """An LRU of pages, bounded by their bytes. Called from one thread."""

    def __init__(
        self, ttl_of: Callable[[str], float | None], clock: Clock, capacity_bytes: int, memory: MemoryBudget
    ) -> None:
        """`ttl_of`: for how many seconds a LIST of `bucket/prefix` is cached; None: it is not. `memory`: the budget for
        pages on their way to the client."""
        self._ttl_of = ttl_of
        self._clock = clock
        self._pages: LRUCache[ListingKey, Listing] = LRUCache(capacity_bytes, getsizeof=lambda page: len(page.body))
        self._memory = memory
        self._generation = 0
        self._forgotten = ForgetLog(10_000)
        # The objects that were written of late, each with its generation; and the last one that is not here any more.
        self._writes: deque[tuple[int, ObjectRef]] = deque()
        self._writes_from = 0

    def key_of(self, operation: Operation, headers: Headers) -> ListingKey | None:
        """The key of a LIST. None: the request is no plain LIST, or no rule lets the cache keep it."""
        if not is_plain_list(operation, headers) or self._ttl(operation) is None:
            return None
        assert operation.bucket is not None
        # Sorted by name only, since the order of the values of a repeated parameter may matter.
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
        return self._forgotten.last(without_tenant(key[0])) <= mark.generation

    def _was_passed(self, key: ListingKey, mark: Mark) -> bool:
        """Whether an object that the page could show may have been written since its request."""
        if mark.generation < self._writes_from:
            return True
        return any(generation > mark.generation and _may_show(key, name) for generation, name in self._writes)

    def mark(self) -> Mark:
        """The time and the generation of a request, to be taken before it is sent."""
        return Mark(self._generation, self._clock())

    def forget(self, name: Name) -> None:
        """A write is about to change the object, or any of the bucket's, or has changed it."""
        self._generation += 1
        if isinstance(name, str):
            self._forgotten.note(without_tenant(name), self._generation)
            return
        self._writes.append((self._generation, name))
        if len(self._writes) > _WRITES_MAX:
            self._writes_from, _ = self._writes.popleft()
        for key in [key for key in self._pages if _may_show(key, name)]:
            del self._pages[key]

    def forget_all(self) -> None:
        """Writes may have been missed."""
        self._generation += 1
        self._forgotten.note_all(self._generation)

    async def keeping(
        self, operation: Operation, key: ListingKey, mark: Mark, headers: Headers, chunks: AsyncIterator[bytes]
    ) -> Chunks:
        """Passes `chunks` on, and caches the page if it came complete and no write came in between.

        A page with a Content-Encoding is not cached: the next client may not accept that encoding. Nor is one that
        varies with the client.
        """
        body = bytearray()
        whole = not varies_with_clients(headers) and not any(name == "content-encoding" for name, _ in headers)
        try:
            async for chunk in chunks:
                # A page that finds no room in memory is passed on, and not cached.
                whole = whole and len(body) + len(chunk) <= _PAGE_BYTES_MAX and self._memory.take(len(chunk))
                if whole:
                    body += chunk
                yield chunk
            ttl_s = self._ttl(operation)
            whole = whole and len(body) <= self._pages.maxsize
            if whole and ttl_s is not None and self._believes(key, mark) and not self._was_passed(key, mark):
                self._pages[key] = Listing(headers, bytes(body), mark, ttl_s)
        finally:
            self._memory.give_back(len(body))


def _may_show(key: ListingKey, name: ObjectRef) -> bool:
    bucket, query = key
    prefixes = [value for field, value in query if field == "prefix"] or [""]
    # A store may take either of two prefixes.
    return without_tenant(bucket) == without_tenant(name.bucket) and any(map(name.key.startswith, prefixes))
