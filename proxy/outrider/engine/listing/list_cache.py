"""The LIST cache. Data loaders list the same 10^5 keys in each process and each epoch.

It is off unless a rule of the settings names the prefix. A write of an object through the proxy changes the cached
LISTs that could show it: before one is served again, a HEAD states what it shows of the object now (see
`core.s3.list_amendment`). Where that does not settle the page, the page is dropped. A write of a bucket drops all of
its LISTs. A write that bypasses the proxy shows when the LIST's time is up.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from functools import partial
from operator import itemgetter

from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.cluster.messages import ListedPage
from outrider.core.model import Headers, ObjectRef
from outrider.core.s3.headers import replayable, varies_with_clients
from outrider.core.s3.list_amendment import ListedFacts, amended, is_amendable
from outrider.core.s3.operation import Operation, Query, is_plain_list, without_tenant
from outrider.engine.listing.kept_pages import KeptPage, KeptPages, ListingKey, SentPage, may_show, prefix_of
from outrider.engine.read.forget_log import ForgetLog, GenerationTimes
from outrider.engine.read.version_rows import Mark
from outrider.ports import Buffer, Clock, Name

# A page of 1,000 keys has some 300 KB of XML. With 1,000 keys of 1,024 escaped bytes each it has less than 4 MiB.
_PAGE_BYTES_MAX = 4 * 1024 * 1024
_USUAL_PAGE_BYTES = 300 * 1000

# The rates of two clocks that NTP sets right differ by no more (500 ppm each: adjtimex(2)).
_CLOCK_ERROR = 0.001

# Writes that a page on its way is compared with. A page that more writes came past is not cached.
_WRITES_MAX = 1000

# Parameters that distinguish the pages of one LIST.
_WAY_ON = {"continuation-token", "marker"}


class ListCache:
    """Which pages may be served, and which may be kept. Called from one thread."""

    def __init__(
        self, ttl_of: Callable[[str], float | None], clock: Clock, capacity_bytes: int, memory: MemoryBudget
    ) -> None:
        """`ttl_of`: for how many seconds a LIST of `bucket/prefix` is cached; None: it is not. `memory`: the budget for
        pages on their way to the client."""
        self._ttl_of = ttl_of
        self._clock = clock
        self._pages = KeptPages(capacity_bytes)
        self._memory = memory
        self._generation = 0
        self._times = GenerationTimes()
        self._forgotten = ForgetLog(10_000)
        # The objects that were written of late, each with its generation; and the last one that is not here any more.
        self._writes: deque[tuple[int, ObjectRef]] = deque()
        self._writes_from = 0

    def key_of(self, operation: Operation, headers: Headers) -> ListingKey | None:
        """The key of a LIST. None: the request is no plain LIST, or no rule lets the cache keep it."""
        if not is_plain_list(operation, headers):
            return None
        assert operation.bucket is not None
        # Sorted by name only, since the order of the values of a repeated parameter may matter.
        key = operation.bucket, tuple(sorted(operation.query, key=itemgetter(0)))
        return None if self._ttl(key) is None else key

    def _ttl(self, key: ListingKey) -> float | None:
        return self._ttl_of(f"{key[0]}/{prefix_of(key)}")

    def get(self, key: ListingKey) -> KeptPage | None:
        page = self._believed(key)
        if page is None or page.changed:
            return None
        self._pages.used(key)
        return page

    def sent(self, page: KeptPage) -> SentPage | None:
        """See `KeptPage.sent`."""
        return page.sent(self._memory)

    def _believed(self, key: ListingKey) -> KeptPage | None:
        page = self._pages.get(key)
        if page is None or self._clock() - page.mark.at >= page.ttl_s or not self._believes(key, page.mark):
            return None
        return page

    def changed(self, key: ListingKey) -> list[str] | None:
        """The objects whose facts `amend` needs before the page can be served. None: there is no page, or none that can
        be amended."""
        page = self._believed(key)
        if page is None or not is_amendable(page.body):
            return None
        return [name for name in page.changed if not self._is_beside(key, page, name)]

    def _is_beside(self, key: ListingKey, page: KeptPage, name: str) -> bool:
        """Whether the name is in the range of the page before or after this one, or beyond that. By their tokens: with
        pages of an earlier walk over the same LIST there may be others in between."""
        own = page.bounds
        if own is None:
            return False
        for other in self._pages.with_prefix_of(key):
            if other == key or other[0] != key[0] or _walk_of(other) != _walk_of(key):
                continue
            beside = self._believed(other)
            if beside is None or (its := beside.bounds) is None:
                continue
            if name > own.last and own.way_on and own.way_on == _way_on_of(other) and its.first <= name:
                return True
            if name < own.first and its.way_on and its.way_on == _way_on_of(key) and name <= its.last:
                return True
        return False

    def amend(self, key: ListingKey, mark: Mark, facts: Mapping[str, ListedFacts | None]) -> KeptPage | None:
        """The page by the facts of these objects (None: there is no such object), each of which was requested after
        `mark`. None: it has to be requested, and is dropped, as an object was written meanwhile, or what the page shows
        cannot be known."""
        page = self._believed(key)
        if page is None:
            return None
        body = None
        # The page may have been amended, or requested anew, while these facts were on their way.
        names = {*page.changed, *facts}
        if self._believes(key, mark) and not any(self._was_written(ObjectRef(key[0], name), mark) for name in names):
            body = amended(page.body, key[1], facts, partial(self._is_beside, key, page))
        if body is None:
            self._pages.drop(key)
            return None
        amended_page = KeptPage(page.headers, body, page.mark, page.ttl_s)
        self._pages.keep(key, amended_page)
        return amended_page

    def _was_written(self, ref: ObjectRef, mark: Mark) -> bool:
        if mark.generation < self._writes_from:
            return True
        names = (name for generation, name in self._writes if generation > mark.generation and name.key == ref.key)
        return any(without_tenant(name.bucket) == without_tenant(ref.bucket) for name in names)

    def _believes(self, key: ListingKey, mark: Mark) -> bool:
        return self._forgotten.last(without_tenant(key[0])) <= mark.generation

    def _was_passed(self, key: ListingKey, mark: Mark) -> bool:
        """Whether an object that the page could show may have been written since its request."""
        if mark.generation < self._writes_from:
            return True
        return any(generation > mark.generation and may_show(key, name) for generation, name in self._writes)

    def mark(self) -> Mark:
        """The time and the generation of a request, to be taken before it is sent."""
        return Mark(self._generation, self._clock())

    def take(self, key: ListingKey, mark: Mark, page: ListedPage) -> KeptPage | None:
        """The page that a member had, which was requested at the time of `mark`. None: it is too old, or not whole, or
        an object was written since the bucket had sent it."""
        at = mark.at - page.age_s * (1 + _CLOCK_ERROR)
        mark = Mark(self._times.at(at, self._generation), at)
        unpacking = zlib.decompressobj()
        try:
            body = unpacking.decompress(page.packed, _PAGE_BYTES_MAX)
        except zlib.error:
            return None
        ttl_s = self._ttl(key)
        if unpacking.eof and ttl_s is not None and self._believes(key, mark) and not self._was_passed(key, mark):
            self._pages.keep(key, KeptPage(page.headers, body, mark, ttl_s))
        return self.get(key)

    def age_s(self, page: KeptPage) -> float:
        """For how long the page has been known."""
        return self._clock() - page.mark.at

    def forget(self, name: Name) -> None:
        """A write is about to change the object, or any of the bucket's, or has changed it."""
        self._begin_generation()
        if isinstance(name, str):
            self._forgotten.note(without_tenant(name), self._generation)
            return
        self._writes.append((self._generation, name))
        if len(self._writes) > _WRITES_MAX:
            self._writes_from, _ = self._writes.popleft()
        self._pages.change(name)

    def _begin_generation(self) -> None:
        self._times.note(self._clock(), self._generation)
        self._generation += 1

    def forget_all(self) -> None:
        """Writes may have been missed."""
        self._begin_generation()
        self._forgotten.note_all(self._generation)

    def has_room(self) -> bool:
        """Whether a page of a usual length finds room in memory on its way: one that does not is not kept."""
        has_room = self._memory.take(_USUAL_PAGE_BYTES)
        self._memory.give_back(_USUAL_PAGE_BYTES if has_room else 0)
        return has_room

    async def keeping(
        self, key: ListingKey, mark: Mark, headers: Headers, chunks: AsyncIterator[Buffer]
    ) -> AsyncGenerator[Buffer, None]:
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
            ttl_s = self._ttl(key)
            if whole and ttl_s is not None and self._believes(key, mark) and not self._was_passed(key, mark):
                self._pages.keep(key, KeptPage(replayable(headers), bytes(body), mark, ttl_s))
        finally:
            self._memory.give_back(len(body))


def _walk_of(key: ListingKey) -> Query:
    """The query of a LIST without the place at which a page of it begins."""
    return tuple(each for each in key[1] if each[0] not in _WAY_ON)


def _way_on_of(key: ListingKey) -> str:
    """That place; empty: the LIST begins with the page."""
    return next((value for name, value in key[1] if name in _WAY_ON), "")
