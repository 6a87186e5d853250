"""Finds out which objects exist: by a LIST of the origin, page by page, or by a few HEADs of numbered names."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing

from outrider.core.ahead.numbered_names_search import NumberedNames, NumberedRange
from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.errors import OriginBroke, SlowDown
from outrider.core.origin.oddities import Oddity
from outrider.core.s3.list_page import PAGE_BYTES_MAX, ListedObject, ListPage, parse_page
from outrider.core.s3.list_walk import LIST_FORMS, NOT_UNDERSTOOD, ListWalk
from outrider.core.s3.operation import Query
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import NOBODY, Waiters
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.tasks.task_group import TaskGroup
from outrider.ports import OriginRequest

log = logging.getLogger(__name__)

# A million keys. One cache does not prefetch for a larger dataset.
_PAGES_MAX = 1000
# S3 answers 403 in place of 404 where the key may not LIST (API reference, HeadObject: "Permissions").
_THERE_OR_NOT = (200, 403, 404)


class Enumerator:
    """Sends LISTs and HEADs with the proxy's own credentials."""

    def __init__(self, origin_reader: OriginReader, memory: MemoryBudget, versions: VersionCache | None = None) -> None:
        """`versions` learns from each page which of its versions are still current."""
        self._origin_reader = origin_reader
        self._memory = memory
        self._versions = versions
        # The first of `LIST_FORMS` that the origin has answered.
        self._form = 0

    async def pages(
        self, bucket: str, prefix: str, waiters: Waiters = NOBODY
    ) -> AsyncGenerator[Sequence[ListedObject], None]:  # fmt: skip
        """The objects under `prefix`, a page at a time. A LIST that ends without an error was whole. `waiters`: see
        `OriginReader.reply`.

        Raises:
            Signal: the origin refuses the LIST (OriginRefused), does not answer, or its pages do not make a whole LIST
                (OriginBroke, whose text says why).
            SlowDown: there is no memory for a page.
        """
        way_on: Query = ()
        walk = ListWalk()
        for _ in range(_PAGES_MAX):
            mark = self._versions.mark() if self._versions is not None else None
            page = await self._page(bucket, prefix, way_on, waiters)
            walk.take(page)
            self._note(bucket, prefix, page)
            under = [listed for listed in page.objects if listed.key.startswith(prefix)]
            if len(under) < len(page.objects):
                # The rest is still the whole answer. Some stores take the prefix for a folder or ignore it.
                log.debug("list shows keys outside of its prefix", extra={"bucket": bucket, "prefix": prefix})
            if self._versions is not None and mark is not None:
                self._versions.listed(bucket, under, mark)
            yield under
            if not page.is_truncated:
                return
            way_on = walk.way_on(page)
        raise OriginBroke(f"its LIST has more than {_PAGES_MAX} pages")

    def _note(self, bucket: str, prefix: str, page: ListPage) -> None:
        if page.objects and not page.is_encoded and LIST_FORMS[self._form]:
            self._origin_reader.oddities.note(Oddity.LIST_NOT_ENCODED, f"s3://{bucket}/{prefix}")
        if page.is_truncated and page.next_token is None and page.next_marker is None:
            self._origin_reader.oddities.note(Oddity.LIST_CUT_SHORT, f"s3://{bucket}/{prefix}")

    async def range_of(self, bucket: str, numbering: NumberedNames) -> NumberedRange | None:
        """The names of `numbering` that exist, found by a binary search; None: the names are not numbered one by one.

        Raises:
            Signal: the origin refuses a HEAD or does not answer.
        """
        probe = numbering.probe()
        known: dict[str, bool] = {}
        try:
            names = next(probe)
            while True:
                async with TaskGroup() as group:
                    new = {name: group.create_task(self._is_there(bucket, name)) for name in names if name not in known}
                known |= {name: answer.result() for name, answer in new.items()}
                names = probe.send([known[name] for name in names])
        except StopIteration as end:
            found: NumberedRange | None = end.value
            return found

    async def _is_there(self, bucket: str, key: str) -> bool:
        with closing(await self._origin_reader.reply(OriginRequest("HEAD", bucket, key))) as reply:
            if reply.status not in _THERE_OR_NOT:
                raise OriginRefused(reply.status, reply.headers, b"")
            return reply.status == 200

    async def _page(self, bucket: str, prefix: str, way_on: Query, waiters: Waiters) -> ListPage:
        """The next page. The first page of a LIST is requested in other forms, too, where the origin refuses one."""
        forms = range(self._form, len(LIST_FORMS)) if not way_on else [self._form]
        for form in forms:
            request = OriginRequest("GET", bucket, "", query=(*LIST_FORMS[form], ("prefix", prefix), *way_on))
            with closing(await self._origin_reader.reply(request, waiters=waiters)) as reply:
                if reply.status in NOT_UNDERSTOOD and form != forms[-1]:
                    continue
                if reply.status != 200:
                    raise await OriginRefused.read(reply)
                body = bytearray()
                try:
                    while piece := await reply.some():
                        if len(body) + len(piece) > PAGE_BYTES_MAX:
                            raise OriginBroke(f"a page of its LIST has more than {PAGE_BYTES_MAX} bytes")
                        if not self._memory.take(len(piece)):
                            raise SlowDown("There is no memory for a page of a LIST.")
                        body += piece
                    page = parse_page(bytes(body))
                finally:
                    self._memory.give_back(len(body))
            if page is None:
                raise OriginBroke("its reply to a LIST is no page of a LIST")
            self._form = form
            return page
        raise AssertionError("the last form returns or raises")
