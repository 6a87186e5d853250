"""A client's LIST: answered from the LIST cache, else sent to the origin and kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace

from outrider.core.errors import Signal
from outrider.core.model import Headers, ObjectRef
from outrider.core.s3.list_amendment import ListedFacts
from outrider.core.s3.operation import Operation
from outrider.engine.fill.origin_reader import OriginReader
from outrider.engine.fill.patience import A_CLIENT
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.listing.list_cache import KeptPage, ListCache, ListingKey
from outrider.engine.read.object_read import CacheStatus
from outrider.engine.read.version_answers import CHECKSUMS
from outrider.engine.tasks.task_group import TaskGroup
from outrider.engine.write.passthrough import ForwardAnswer, ForwardBody, Passthrough
from outrider.engine.write.upload import Upload, one_chunk
from outrider.ports import Chunks, OriginRequest


class Lists:
    """Puts the LIST cache in front of the passthrough."""

    def __init__(self, cache: ListCache, passthrough: Passthrough, origin_reader: OriginReader) -> None:
        self._cache = cache
        self._passthrough = passthrough
        self._origin_reader = origin_reader

    async def answer(self, operation: Operation, headers: Headers, upload: Upload) -> ForwardAnswer | None:
        """The answer to a LIST. None: the request is no LIST that a rule lets the cache keep, and nothing was sent.

        Raises:
            S3Error: as `Passthrough.send` does.
        """
        key = self._cache.key_of(operation, headers)
        if key is None:
            return None
        page = self._cache.get(key)
        if page is None and (names := self._cache.changed(key)) is not None:
            page = await self._amended(key, names)
        if page is not None:
            return ForwardAnswer(200, page.headers, len(page.body), one_chunk(page.body), CacheStatus.HIT)
        mark = self._cache.mark()
        answer = await self._passthrough.send(operation, headers, upload)
        if answer.status != 200:
            return answer
        chunks = self._cache.keeping(operation, key, mark, answer.headers, answer.body)
        return replace(answer, body=_KeptBody(chunks, answer.body))

    async def _amended(self, key: ListingKey, names: Sequence[str]) -> KeptPage | None:
        """The page, once a HEAD has described each of these objects; None: it has to be requested."""
        mark = self._cache.mark()
        try:
            async with TaskGroup() as group:
                lookups = {name: group.create_task(self._facts(ObjectRef(key[0], name))) for name in names}
        except Signal:
            return None
        return self._cache.amend(key, mark, {name: facts.result() for name, facts in lookups.items()})

    async def _facts(self, ref: ObjectRef) -> ListedFacts | None:
        """None: there is no such object. Raises Signal: the origin does not tell."""
        request = OriginRequest("HEAD", *ref, headers=CHECKSUMS)
        with closing(await self._origin_reader.reply(request, waiters=A_CLIENT)) as reply:
            if reply.status == 404:
                return None
            facts = ListedFacts.of(reply.headers, reply.content_length) if reply.status == 200 else None
            if facts is None:
                raise OriginRefused(reply.status, reply.headers, b"")
            return facts


class _KeptBody:
    """A body that passes through a generator. The end of one that never ran would not end the body."""

    def __init__(self, chunks: Chunks, body: ForwardBody) -> None:
        self._chunks = chunks
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        await self._chunks.aclose()
        await self._body.aclose()
