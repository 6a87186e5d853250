"""Finds out which objects exist: by a LIST of the origin, page by page, or by a few HEADs of numbered names."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from outrider.core.ahead.numbered_names_search import NumberedNames, NumberedRange
from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.errors import OriginBroke
from outrider.core.s3.list_page import PAGE_BYTES_MAX, Listed, ListPage, parse_page
from outrider.engine.fill.origin_reader import OriginReader, OriginRefused
from outrider.engine.read.version_cache import VersionCache
from outrider.engine.tasks.task_group import TaskGroup
from outrider.ports import OriginRequest

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

    async def pages(self, bucket: str, prefix: str) -> AsyncGenerator[Sequence[Listed], None]:
        """The objects under `prefix`, a page at a time.

        Raises:
            Signal: the origin refuses the LIST (OriginRefused) or does not answer.
        """
        token: str | None = None
        for _ in range(_PAGES_MAX):
            mark = self._versions.mark() if self._versions is not None else None
            page = await self._page(bucket, prefix, token)
            if page is None:
                raise OriginBroke("the reply is no LIST")
            if self._versions is not None and mark is not None:
                self._versions.listed(bucket, page.objects, mark)
            yield page.objects
            token = page.next_token
            if token is None:
                return

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
        async with self._origin_reader.reply(OriginRequest("HEAD", bucket, key)) as reply:
            if reply.status not in _THERE_OR_NOT:
                raise OriginRefused(reply.status, reply.headers, b"")
            return reply.status == 200

    async def _page(self, bucket: str, prefix: str, token: str | None) -> ListPage | None:
        query = [("encoding-type", "url"), ("list-type", "2"), ("prefix", prefix)]
        if token is not None:
            query.append(("continuation-token", token))
        async with self._origin_reader.reply(OriginRequest("GET", bucket, "", query=tuple(query))) as reply:
            if reply.status != 200:
                raise OriginRefused(reply.status, reply.headers, b"")
            body = bytearray()
            try:
                async with aclosing(reply.chunks()) as chunks:
                    async for chunk in chunks:
                        if len(body) + len(chunk) > PAGE_BYTES_MAX or not self._memory.take(len(chunk)):
                            return None
                        body += chunk
                return parse_page(bytes(body))
            finally:
                self._memory.give_back(len(body))
