"""The pages that the LIST cache has in memory: compressed, found by their requests and by the names that they may
show."""

from __future__ import annotations

import zlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import ExitStack
from functools import partial
from itertools import chain
from sys import getsizeof

from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.model import Headers, ObjectRef
from outrider.core.s3.list_amendment import Bounds, bounds
from outrider.core.s3.operation import Query, without_tenant
from outrider.engine.read.version_rows import Mark
from outrider.ports import Buffer

ListingKey = tuple[str, Query]

# A page beside its texts: the object, its mark, its numbers, and its entries in the tables, which may be half empty.
# tests/engine/listing/test_kept_bytes.py measures this.
_PAGE_BYTES = 900
_REFERENCE_BYTES = 8
# Objects that were written since a page was requested. With more of them a LIST costs less than a HEAD of each.
_CHANGES_MAX = 8
_PIECE_BYTES = 64 * 1024


class KeptPage:
    """One page as the origin sent it, or would send it now but for the objects in `changed`.

    It is kept compressed, in a fifth of its bytes, a third where names are digests: the pages of a million names would
    not fit into memory otherwise, and a walk over more pages than fit finds none of them the next time.
    """

    __slots__ = (
        "_clients", "_texts", "_whole", "body_bytes", "bounds", "changed", "kept_bytes", "mark", "packed", "ttl_s",
    )  # fmt: skip

    def __init__(self, headers: Headers, body: bytes, mark: Mark, ttl_s: float) -> None:
        # One text takes a quarter of the memory of many small ones. No header has a newline.
        self._texts = "\n".join(chain.from_iterable(headers))
        # A millisecond for 1,000 names, and half of one to unpack them.
        self.packed = zlib.compress(body, 1)
        self.body_bytes = len(body)
        self.mark = mark
        self.ttl_s = ttl_s
        self.changed: tuple[str, ...] = ()
        """The keys that were written since."""
        self.bounds: Bounds | None = bounds(body)
        # The body while it is sent, and to how many clients.
        self._whole, self._clients = b"", 0
        self.kept_bytes = 0
        """The memory that `KeptPages` counts for it."""

    @property
    def headers(self) -> Headers:
        texts = self._texts.split("\n")
        return tuple(zip(texts[::2], texts[1::2], strict=False))

    @property
    def body(self) -> bytes:
        return zlib.decompress(self.packed)

    def sent(self, memory: MemoryBudget) -> SentPage | None:
        """The body for a client. All clients that it is sent to share one copy, whose bytes are taken from `memory`.
        None: there is no room for it."""
        if not self._clients:
            if not memory.take(self.body_bytes):
                return None
            self._whole = self.body
        self._clients += 1
        return SentPage(self._whole, partial(self._was_sent, memory))

    def _was_sent(self, memory: MemoryBudget) -> None:
        self._clients -= 1
        if not self._clients:
            self._whole = b""
            memory.give_back(self.body_bytes)

    def bytes_by(self, key: ListingKey) -> int:
        """The memory that it takes once it is kept by this request."""
        return _PAGE_BYTES + sum(map(_bytes_of, (key, self._texts, self.packed, self.bounds or (), self.changed)))


class SentPage:
    """The body of a page on its way to a client, in pieces: a TLS connection holds encrypted copies of what it gets.
    `aclose` must be called."""

    def __init__(self, body: bytes, on_end: Callable[[], None]) -> None:
        self._rest = memoryview(body)
        self._end = ExitStack()
        self._end.callback(on_end)

    def __aiter__(self) -> AsyncIterator[Buffer]:
        return self

    async def __anext__(self) -> Buffer:
        piece, self._rest = self._rest[:_PIECE_BYTES], self._rest[_PIECE_BYTES:]
        if not piece:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        self._rest = memoryview(b"")
        self._end.close()


class KeptPages:
    """An LRU of pages, bounded by the memory that they take."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._pages: OrderedDict[ListingKey, KeptPage] = OrderedDict()
        # By bucket, without its tenant, and prefix. A write looks at the pages of its prefixes alone.
        self._by_prefix: dict[tuple[str, str], set[ListingKey]] = {}
        # How many of these prefixes have this length.
        self._lengths: Counter[int] = Counter()
        self.used_bytes = 0

    def get(self, key: ListingKey) -> KeptPage | None:
        return self._pages.get(key)

    def used(self, key: ListingKey) -> None:
        """The page was served: it is evicted last."""
        self._pages.move_to_end(key)

    def with_prefix_of(self, key: ListingKey) -> Collection[ListingKey]:
        """Among them all pages of the same LIST."""
        return self._by_prefix.get(min(_places_of(key)), ())

    def keep(self, key: ListingKey, page: KeptPage) -> None:
        self.drop(key)
        page.kept_bytes = page.bytes_by(key)
        if page.kept_bytes > self._capacity_bytes:
            return
        self._pages[key] = page
        self.used_bytes += page.kept_bytes
        for place in _places_of(key):
            if place not in self._by_prefix:
                self._by_prefix[place] = set()
                self._lengths[len(place[1])] += 1
            self._by_prefix[place].add(key)
        self._evict()

    def drop(self, key: ListingKey) -> None:
        page = self._pages.pop(key, None)
        if page is None:
            return
        self.used_bytes -= page.kept_bytes
        for place in _places_of(key):
            self._by_prefix[place].discard(key)
            if not self._by_prefix[place]:
                del self._by_prefix[place]
                self._lengths -= Counter([len(place[1])])

    def change(self, name: ObjectRef) -> None:
        """The object was written. A page with more such objects than are worth a HEAD each is dropped."""
        for key in self._that_may_show(name):
            page = self._pages[key]
            if name.key in page.changed:
                continue
            if len(page.changed) == _CHANGES_MAX:
                self.drop(key)
                continue
            page.changed += (name.key,)
            count = _bytes_of(name.key) + _REFERENCE_BYTES
            page.kept_bytes += count
            self.used_bytes += count
        self._evict()

    def _that_may_show(self, name: ObjectRef) -> set[ListingKey]:
        bucket, found = without_tenant(name.bucket), set[ListingKey]()
        for length in self._lengths:
            if length <= len(name.key):
                found.update(self._by_prefix.get((bucket, name.key[:length]), ()))
        return found

    def _evict(self) -> None:
        while self.used_bytes > self._capacity_bytes:
            self.drop(next(iter(self._pages)))


def may_show(key: ListingKey, name: ObjectRef) -> bool:
    """Whether a page of this request may show the object."""
    bucket = without_tenant(name.bucket)
    return any(its == bucket and name.key.startswith(prefix) for its, prefix in _places_of(key))


def prefix_of(key: ListingKey) -> str:
    return next((value for field, value in key[1] if field == "prefix"), "")


def _places_of(key: ListingKey) -> set[tuple[str, str]]:
    bucket, query = key
    prefixes = [value for field, value in query if field == "prefix"] or [""]
    # A store may take either of two prefixes.
    return {(without_tenant(bucket), prefix) for prefix in prefixes}


def _bytes_of(value: object) -> int:
    """The memory of a text, of bytes, or of a tuple with all that is in it."""
    return getsizeof(value) + (sum(map(_bytes_of, value)) if isinstance(value, tuple) else 0)
