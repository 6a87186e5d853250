"""A client's LIST: answered from the LIST cache, else sent to the origin and kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from outrider.core.model import Headers
from outrider.core.s3.operation import Operation
from outrider.engine.listing.list_cache import ListCache
from outrider.engine.read.object_read import CacheStatus
from outrider.engine.write.passthrough import ForwardAnswer, ForwardBody, Passthrough
from outrider.engine.write.upload import Upload, one_chunk
from outrider.ports import Chunks


class Lists:
    """Puts the LIST cache in front of the passthrough."""

    def __init__(self, cache: ListCache, passthrough: Passthrough) -> None:
        self._cache = cache
        self._passthrough = passthrough

    async def answer(self, operation: Operation, headers: Headers, upload: Upload) -> ForwardAnswer | None:
        """The answer to a LIST. None: the request is no LIST that a rule lets the cache keep, and nothing was sent.

        Raises:
            S3Error: as `Passthrough.send` does.
        """
        key = self._cache.key_of(operation, headers)
        if key is None:
            return None
        if (page := self._cache.get(key)) is not None:
            return ForwardAnswer(200, page.headers, len(page.body), one_chunk(page.body), CacheStatus.HIT)
        mark = self._cache.mark()
        answer = await self._passthrough.send(operation, headers, upload)
        if answer.status != 200:
            return answer
        chunks = self._cache.keeping(operation, key, mark, answer.headers, answer.body)
        return replace(answer, body=_KeptBody(chunks, answer.body))


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
